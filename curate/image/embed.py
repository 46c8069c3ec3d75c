"""`image.embed`: a vector for each picture, from any encoder. What clusters, duplicates and scores stand on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field

from curate.core.contracts import Batch, Runtime, Sample
from curate.core.vectors import has_direction, to_binary, vector_type
from curate.encoders.stage import SPECS, EncoderMap

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Embed(EncoderMap):
    """Embeds each picture with a frozen encoder: halves of unit length, and the norm beside them."""

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
        default=64, ge=1, description="pictures per forward pass; lower it when a GPU runs out of memory"
    )

    def writes(self) -> tuple[str, ...]:
        return (self.column, f"{self.column}_norm")

    def schema(self) -> pa.Schema:
        dim = self._encoder.dim
        metadata = {**self.made(), "dim": str(dim), "units": "half-precision floats of unit length"}
        return pa.schema(
            [
                pa.field(self.column, vector_type(dim), metadata=metadata),
                pa.field(f"{self.column}_norm", pa.float32(), metadata={"units": "length of the encoder's vector"}),
            ]
        )

    def prepare(self, sample: Sample) -> NDArray[Any]:
        return self._encoder.prepare(sample.image())

    def process(self, batch: Batch) -> dict[str, Any]:
        starts = range(0, len(batch), self.batch_size)
        parts = [self._encoder.encode(batch.prepared[i : i + self.batch_size], patches=False).summary for i in starts]
        vectors = np.concatenate([np.zeros((0, self._encoder.dim), dtype=np.float32), *parts])
        return embedding_columns(vectors, self.column)


def embedding_columns(vectors: NDArray[np.floating], column: str) -> dict[str, Any]:
    """vectors (B, D) -> the vectors, their norms and `reject`; a row without a direction is null and rejected."""
    finite = np.isfinite(vectors).all(axis=1)
    unit, norms = to_binary(np.where(finite[:, None], vectors, 0))
    alive = finite & has_direction(norms)
    reasons = np.where(alive, None, np.where(finite & (norms == 0), "zero_embedding", "nan_embedding")).tolist()
    if not alive.all():
        unit = pc.if_else(pa.array(alive), unit, pa.scalar(None, unit.type))
    return {column: unit, f"{column}_norm": pa.array(norms, mask=~alive), "reject": reasons}
