"""`duplicates.reference`: collects digests, hashes and embeddings of an evaluation set for `duplicates.match`.

The evaluation images are a separate pool that passes through the same stages as the training images, so an image has
the same digests, hash and vector in both pools.
"""

from __future__ import annotations

from typing import ClassVar

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field

from curate.core.contracts import Artifact, Reduce, Table
from curate.core.errors import CurateError
from curate.core.vectors import identity_of

KIND = "reference_set"
PRINTS = ("sha256", "pixel_sha256", "perceptual_hash", "flat")


class ReferenceSet(Reduce):
    """Collect digests, perceptual hashes and (unless `embedding` is null) embeddings of a pool's images.

    Artifact: `reference`, one row (key, name, sha256, pixel_sha256, perceptual_hash, embedding) per image, sorted by
    key; and `summary`, with the encoder of the embeddings. The name is the source id; flat images have no hash.
    """

    op: ClassVar[str] = "duplicates.reference"
    kind: ClassVar[str] = KIND

    embedding: str | None = Field(
        "embedding", description="Column of `image.embed` to compare; null compares digests and hashes only."
    )

    def reads(self) -> tuple[str, ...]:
        return ("source_id", *PRINTS, *([self.embedding] if self.embedding else []))

    def partial(self, table: Table) -> Table:
        """Raises InputError if `embedding` is not a column of vectors."""
        if self.embedding:
            identity_of(self.op, table.schema.field(self.embedding))
        return table.select(["key", *self.reads()])

    def finish(self, state: Table) -> Artifact:
        """Raises CurateError if the set has no images."""
        if not state.num_rows:
            raise CurateError(
                f"{self.op}: no images in the reference set: upstream stages rejected them all; `curate status RUN` "
                "shows where and why"
            )
        state = state.sort_by("key")
        no_hash = pa.scalar(None, state.schema.field("perceptual_hash").type)
        hashes = pc.if_else(pc.fill_null(state.column("flat"), True), no_hash, state.column("perceptual_hash"))
        table = state.select(["key", "source_id", "sha256", "pixel_sha256"]).rename_columns({"source_id": "name"})
        table = table.append_column("perceptual_hash", hashes)
        encoder: dict[str, str] = {}
        if self.embedding:
            field = state.schema.field(self.embedding)
            table = table.append_column(field.with_name("embedding"), state.column(self.embedding))
            encoder = identity_of(self.op, field)
        return {
            "reference": table.replace_schema_metadata(None),
            "summary": {"pictures": state.num_rows, "embedding": encoder},
        }
