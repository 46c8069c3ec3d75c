"""Builds the artifact of a Fit: workers hold its rows in parts and run its steps; checkpoints keep its state."""

from __future__ import annotations

from dataclasses import dataclass

from curate.core.contracts import Fit
from curate.core.hashing import digest, digest_bytes
from curate.core.ledger import Entry
from curate.core.nouns.artifacts import FILES, save_artifact
from curate.core.store.storage import Storage
from curate.engine.context import Context
from curate.engine.state import Built
from curate.engine.tasks.stages import set_up
from curate.engine.units.fit.group import Build
from curate.engine.units.fit.parts import drop
from curate.engine.units.step import GlobalStep


class FitStep(GlobalStep):
    def build(self, ctx: Context, built: Built) -> None:
        node, stage = self.node, self.node.stage
        assert isinstance(stage, Fit)
        with ctx.progress.step(node.name, ctx.outputs.pool(node).rows) as bar:
            build = Build(ctx, node, stage, built, bar)
            try:
                group, alive = build.load()
                ready = set_up(built.base, stage, ctx.outputs.ports(node), ctx.storage)
                _, digests = save_artifact(ctx.storage, built.base, ready.fit(group))
            finally:
                ctx.backend.broadcast(drop, ctx.storage.url_of(built.base))
            bar.progress(1.0, "done")
        files = ctx.storage.list(built.base)
        parts = [name for name in sorted(files) if name.endswith(".npz") and not name.startswith("work/")]
        tasks = (DigestTask(ctx.storage, f"{built.base}/{name}") for name in parts)
        digests |= dict(zip(parts, ctx.tasks.must(digest_file, tasks, stage, node.name), strict=True))
        ctx.outputs.finish(
            node, built, "artifact", Entry(alive, after=alive),
            rows=alive, bytes=sum(size for name, size in files.items() if not name.startswith("work/")),
            built_rows=alive, content=digest(digests), extra={FILES: sorted(digests)},
        )  # fmt: skip


@dataclass(frozen=True)
class DigestTask:
    storage: Storage
    path: str


def digest_file(task: DigestTask) -> str:
    """Digest of a file's bytes, read in pieces."""
    with task.storage.open(task.path) as file:
        return digest_bytes(iter(lambda: file.read(1 << 24), b""))
