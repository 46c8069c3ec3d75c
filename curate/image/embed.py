"""`image.embed`: a vector per image, from any encoder, for clusters, semantic duplicates and scores."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import numpy as np
import pyarrow as pa
from pydantic import Field

from curate.core.contracts import Batch, Runtime, Sample
from curate.core.vectors import has_direction, to_binary, vector_type
from curate.encoders.stage import SPECS, EncoderMap, EncoderName

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Embed(EncoderMap):
    """Embed each image with a frozen encoder.

    Writes vectors of unit length in half precision, and their norms. Unusable: zero_embedding, nan_embedding, and
    images that cannot be decoded.
    """

    op: ClassVar[str] = "image.embed"
    pixels: ClassVar[bool] = True
    costly: ClassVar[bool] = True
    batch_rows: ClassVar[int] = 128

    encoder: EncoderName = Field(default="descriptor", description=SPECS)
    column: str = Field(
        default="embedding",
        pattern=r"^[a-z][a-z0-9_]*$",
        description="name of the column of vectors; '<column>_norm' has their original lengths",
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
            self._encoder.encode(batch.prepared[start : start + self._images_per_pass()], patches=False).summary
            for start in range(0, len(batch), self._images_per_pass())
        ]
        vectors = np.concatenate([np.zeros((0, self._encoder.dim), dtype=np.float32), *parts])
        return embedding_columns(batch, vectors, self.column)

    def padded(self) -> int:
        """Images per pass; 0 for `descriptor`, which computes each image separately."""
        return 0 if self.encoder == "descriptor" else self._images_per_pass()

    def _images_per_pass(self) -> int:
        """Images per pass: at most `batch_size`, and at most 16 on a CPU, which is as fast per image. It divides
        `batch_rows`, so all passes have the same size and a vector does not depend on the image's position."""
        on_cpu = self.encoder != "descriptor" and self._encoder is not None and str(self._encoder.device) == "cpu"
        largest = min(self.batch_size, self.batch_rows, 16 if on_cpu else self.batch_rows)
        return max(size for size in range(1, largest + 1) if self.batch_rows % size == 0)


def embedding_columns(batch: Batch, vectors: NDArray[np.floating], column: str) -> dict[str, Any]:
    """vectors (B, D) -> unit vectors and norms. Rows without a direction are marked unusable: zero_embedding if all
    values are zero, nan_embedding otherwise."""
    finite = np.isfinite(vectors).all(axis=1)
    unit, norms = to_binary(np.where(finite[:, None], vectors, 0))
    zero = finite & (norms == 0)
    batch.unusable(np.flatnonzero(zero), "zero_embedding")
    batch.unusable(np.flatnonzero(~zero & ~(finite & has_direction(norms))), "nan_embedding")
    return {column: unit, f"{column}_norm": norms}
