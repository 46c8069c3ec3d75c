"""`image.embed`: a vector for each image, from any encoder. Clusters, duplicates and scores are computed from it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import numpy as np
import pyarrow as pa
from pydantic import Field

from curate.core.contracts import Batch, Runtime, Sample
from curate.core.vectors import has_direction, to_binary, vector_type
from curate.encoders.stage import SPECS, EncoderMap

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Embed(EncoderMap):
    """Embeds each image with a frozen encoder: halves of unit length, and the norm beside them.

    Unusable: zero_embedding, nan_embedding, and what cannot be decoded.
    """

    op: ClassVar[str] = "image.embed"
    pixels: ClassVar[bool] = True
    costly: ClassVar[bool] = True
    batch_rows: ClassVar[int] = 128

    encoder: str = Field(default="descriptor", description=SPECS)
    column: str = Field(
        default="embedding",
        pattern=r"^[a-z][a-z0-9_]*$",
        description="name of the column of vectors; '<column>_norm' holds their lengths",
    )
    batch_size: Annotated[int, Runtime()] = Field(
        default=64, ge=1, description="images per forward pass; lower it when a GPU runs out of memory"
    )

    def schema(self) -> pa.Schema:
        metadata = {"units": "half-precision floats of unit length"}
        kind = pa.null()
        if self._encoder is not None:
            kind = vector_type(self._encoder.dim)
            metadata |= {**self.provenance(), "dim": str(self._encoder.dim)}
        return pa.schema(
            [
                pa.field(self.column, kind, metadata=metadata),
                pa.field(f"{self.column}_norm", pa.float32(), metadata={"units": "length of the encoder's vector"}),
            ]
        )

    def prepare(self, sample: Sample) -> NDArray[Any]:
        return self._encoder.prepare(sample.image())

    def process(self, batch: Batch) -> dict[str, Any]:
        parts = [
            self._encoder.encode(batch.prepared[start : start + self._at_once()], patches=False).summary
            for start in range(0, len(batch), self._at_once())
        ]
        vectors = np.concatenate([np.zeros((0, self._encoder.dim), dtype=np.float32), *parts])
        return embedding_columns(batch, vectors, self.column)

    def padded(self) -> int:
        """`descriptor` computes each image alone."""
        return 0 if self.encoder == "descriptor" else self._at_once()

    def _at_once(self) -> int:
        """Images of every pass: at most `batch_size`, on a CPU 16, which is as quick per image; and a part of
        `batch_rows`, so that all passes are equally large and an image has the same vector wherever it stands."""
        on_cpu = self.encoder != "descriptor" and self._encoder is not None and str(self._encoder.device) == "cpu"
        largest = min(self.batch_size, self.batch_rows, 16 if on_cpu else self.batch_rows)
        return max(size for size in range(1, largest + 1) if self.batch_rows % size == 0)


def embedding_columns(batch: Batch, vectors: NDArray[np.floating], column: str) -> dict[str, Any]:
    """vectors (B, D) -> unit vectors and norms. Rows without a direction are unusable: zero_embedding where all is
    zero, nan_embedding otherwise."""
    finite = np.isfinite(vectors).all(axis=1)
    unit, norms = to_binary(np.where(finite[:, None], vectors, 0))
    zero = finite & (norms == 0)
    batch.unusable(np.flatnonzero(zero), "zero_embedding")
    batch.unusable(np.flatnonzero(~zero & ~(finite & has_direction(norms))), "nan_embedding")
    return {column: unit, f"{column}_norm": norms}
