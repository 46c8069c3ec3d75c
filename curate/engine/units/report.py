"""A Report: files about everything upstream, rendered in the driver out of bounded reads."""

from __future__ import annotations

import time

from curate.core.contracts import Report
from curate.core.ledger import Entry
from curate.core.nouns import save_artifact
from curate.core.recipe.pipeline import Node
from curate.engine.context import Built, Context
from curate.engine.record.view import StoredView


def build_report(ctx: Context, node: Node, built: Built) -> None:
    stage = node.stage
    assert isinstance(stage, Report)
    began = time.monotonic()
    rows = ctx.pool(node).rows
    with ctx.progress.step(node.name, rows) as step:
        view = StoredView.of(ctx, node)
        size, _ = save_artifact(ctx.storage, built.base, stage.render(view))
        step.advance(rows)
    ctx.finish(
        node, built, "artifact", Entry(view.alive, after=view.alive),
        rows=view.alive, bytes=size, seconds=round(time.monotonic() - began, 3), built_rows=rows,
    )  # fmt: skip
