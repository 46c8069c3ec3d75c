"""Building a derived pool: the children of a pool's alive samples."""

from __future__ import annotations

from curate.core.pipeline import Node
from curate.engine.context import Context


def build_derived(ctx: Context, node: Node) -> None:
    raise NotImplementedError
