"""Base of the stages that write one vector per row, from an image or from several."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pydantic import Field

from curate.core.contracts import Batch, Runtime
from curate.core.vectors import has_direction, to_binary, vector_type
from curate.encoders.stage import SPECS, EncoderMap, EncoderName

MOST_IMAGES, MOST_ON_CPU = 128, 16
"""Images of a pass."""


class ImageVectors(EncoderMap):
    """A Map that encodes images with a frozen encoder."""

    pixels: ClassVar[bool] = True
    costly: ClassVar[bool] = True

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

    def encoded(self, images: Sequence[NDArray[Any]]) -> NDArray[np.float32]:
        """Prepared images -> vectors (n, D). Passes have the same size, the last is padded, so that a vector does not
        depend on the other images."""
        size = self.images_per_pass()
        vectors = [np.zeros((0, self._encoder.dim), dtype=np.float32)]
        for start in range(0, len(images), size):
            some = list(images[start : start + size])
            more = 0 if self.encoder == "descriptor" else size - len(some)
            vectors.append(self._encoder.encode(some + some[-1:] * more, patches=False).summary[: len(some)])
        return np.concatenate(vectors)

    def images_per_pass(self) -> int:
        """At most `batch_size`, and at most MOST_ON_CPU on a CPU, which is as fast per image. It divides MOST_IMAGES,
        so that whole batches are not padded."""
        on_cpu = self.encoder != "descriptor" and self._encoder is not None and str(self._encoder.device) == "cpu"
        largest = min(self.batch_size, MOST_ON_CPU if on_cpu else MOST_IMAGES)
        return max(size for size in range(1, largest + 1) if MOST_IMAGES % size == 0)


def embedding_columns(batch: Batch, vectors: NDArray[np.floating], column: str) -> dict[str, Any]:
    """vectors (B, D) -> unit vectors and norms. Rows without a direction are marked unusable: zero_embedding if all
    values are zero, nan_embedding otherwise."""
    finite = np.isfinite(vectors).all(axis=1)
    unit, norms = to_binary(np.where(finite[:, None], vectors, 0))
    zero = finite & (norms == 0)
    batch.unusable(np.flatnonzero(zero), "zero_embedding")
    batch.unusable(np.flatnonzero(~zero & ~(finite & has_direction(norms))), "nan_embedding")
    return {column: unit, f"{column}_norm": norms}
