"""Building the artifact of a Fit: its rows with workers in parts, its steps run there, its state kept on the way."""

from __future__ import annotations

import time

from curate.core.contracts import Fit
from curate.core.hashing import digest
from curate.core.ledger import Entry
from curate.core.nouns import FILES, save_artifact
from curate.core.recipe.pipeline import Node
from curate.engine.backends import set_up
from curate.engine.context import Built, Context
from curate.engine.units.common import DigestTask, digest_file, tidy
from curate.engine.units.fit.group import Build
from curate.engine.units.fit.parts import let_go


def build_fit(ctx: Context, node: Node, built: Built) -> None:
    stage = node.stage
    assert isinstance(stage, Fit)
    began = time.monotonic()
    with ctx.progress.step(node.name, ctx.pool(node).rows) as bar:
        build = Build(ctx, node, stage, built, bar)
        try:
            group, alive = build.load()
            ready: Fit = set_up(built.base, stage, ctx.ports(node), ctx.storage)  # type: ignore[assignment]
            _, digests = save_artifact(ctx.storage, built.base, ready.fit(group))
        finally:
            ctx.backend.broadcast(let_go, ctx.storage.url_of(built.base))
        bar.tell(1.0, "done")
    files = ctx.storage.list(built.base)
    parts = [name for name in sorted(files) if name.endswith(".npz") and not name.startswith("work/")]
    tasks = (DigestTask(ctx.storage, f"{built.base}/{name}") for name in parts)
    digests |= dict(zip(parts, ctx.must(digest_file, tasks, stage, node.name), strict=True))
    ctx.finish(
        node, built, "artifact", Entry(alive, after=alive),
        rows=alive, bytes=sum(size for name, size in files.items() if not name.startswith("work/")),
        seconds=round(time.monotonic() - began, 3), built_rows=alive, content=digest(digests),
        extra={FILES: sorted(digests)},
    )  # fmt: skip
    tidy(ctx, built)
