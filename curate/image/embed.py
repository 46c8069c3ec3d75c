"""`image.embed`: a vector for each picture, from any encoder. What clusters, duplicates and scores stand on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field, PrivateAttr, field_validator

from curate import encoders
from curate.core.errors import CurateError
from curate.core.stage import Artifact, Batch, Execution, Map, Resources, Sample
from curate.core.vectors import has_direction, to_binary, vector_type

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray


class Embed(Map):
    """Embeds each picture with a frozen encoder: halves of unit length, and the norm beside them."""

    op: ClassVar[str] = "image.embed"
    pixels: ClassVar[bool] = True
    costly: ClassVar[bool] = True
    batch_rows: ClassVar[int] = 128

    encoder: str = Field(
        default="descriptor",
        description="timm:NAME, open_clip:NAME/TAG or hf:NAME, each also with a local checkpoint ('timm:NAME@PATH',"
        " 'hf:FOLDER'), or descriptor (colour histogram + HOG, no weights)",
    )
    precision: Literal["float32", "bfloat16", "float16"] = Field(
        default="float32", description="arithmetic of the model; bfloat16 is several times faster on a GPU"
    )
    column: str = Field(
        default="embedding",
        pattern=r"^[a-z][a-z0-9_]*$",
        description="name of the column of vectors; '<column>_norm' holds their lengths",
    )
    threads: Annotated[int, Execution()] = Field(default=1, ge=1, description="CPU threads of the model")
    device: Annotated[Literal["auto", "cpu", "cuda"], Execution()] = Field(
        default="auto", description="auto takes a GPU if the machine that starts the run has one; a cluster's is cuda"
    )
    batch_size: Annotated[int, Execution()] = Field(
        default=64, ge=1, description="pictures per forward pass; lower it when a GPU runs out of memory"
    )

    _encoder: encoders.Encoder = PrivateAttr()

    @field_validator("encoder")
    @classmethod
    def _named(cls, value: str) -> str:
        try:
            encoders.parse_spec(value)
        except CurateError as error:
            raise ValueError(str(error).removeprefix("encoder: ")) from None
        return value

    def parameters(self) -> dict[str, Any]:
        """A local checkpoint counts by its digest (see `identity`), not by its path."""
        return {**super().parameters(), "encoder": encoders.parse_spec(self.encoder).public}

    def identity(self) -> dict[str, Any]:
        return encoders.identity(self.encoder, precision=self.precision)

    def resources(self) -> Resources:
        return Resources(cpus=self.threads, gpus=float(self._place() != "cpu"))

    def preflight(self) -> list[str]:
        return encoders.problems(self.encoder)

    def setup(self, artifacts: Mapping[str, Artifact]) -> None:
        if self.encoder != "descriptor":
            import torch

            torch.set_num_threads(self.threads)
        self._encoder = encoders.load(self.encoder, device=self.device, precision=self.precision)

    def writes(self) -> tuple[str, ...]:
        return (self.column, f"{self.column}_norm")

    def schema(self) -> pa.Schema:
        encoder = self._encoder
        metadata = {
            "encoder": encoder.spec,
            "weights": encoder.identity()["weights"],
            "preprocessing": json.dumps(encoder.preprocessing, sort_keys=True),
            "precision": encoder.precision,
            "dim": str(encoder.dim),
            "units": "half-precision floats of unit length",
        }
        return pa.schema(
            [
                pa.field(self.column, vector_type(encoder.dim), metadata=metadata),
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

    def _place(self) -> str:
        """Where the model will run: asked of the machine's devices, since torch is dear to load on the driver."""
        if self.encoder == "descriptor":
            return "cpu"
        if self.device != "auto":
            return self.device
        return "cuda" if Path("/dev/nvidia0").exists() else "cpu"


def embedding_columns(vectors: NDArray[np.floating], column: str) -> dict[str, Any]:
    """vectors (B, D) -> the vectors, their norms and `reject`; a row without a direction is null and rejected."""
    finite = np.isfinite(vectors).all(axis=1)
    unit, norms = to_binary(np.where(finite[:, None], vectors, 0))
    alive = finite & has_direction(norms)
    reasons = np.where(alive, None, np.where(finite & (norms == 0), "zero_embedding", "nan_embedding")).tolist()
    if not alive.all():
        unit = pc.if_else(pa.array(alive), unit, pa.scalar(None, unit.type))
    return {column: unit, f"{column}_norm": pa.array(norms, mask=~alive), "reject": reasons}
