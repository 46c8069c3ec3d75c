"""Base of the stages that run an encoder: their parameters, fingerprint, device and provenance."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import Field, PrivateAttr, field_validator

from curate.core.contracts import Artifact, Location, Map, Resources, Runtime
from curate.core.errors import CurateError
from curate.encoders.base import Encoder
from curate.encoders.families import identity, load, place, problems
from curate.encoders.spec import is_public, parse_spec

SPECS = (
    "timm:NAME, open_clip:NAME/TAG or hf:NAME, each also with a local checkpoint ('timm:NAME@PATH', 'hf:FOLDER'), "
    "distill:FOLDER (written by `distill export`), lite1 or lite0 (for photos, included), tiny (small image-text model "
    "in the package), descriptor (colour histogram + HOG, no weights), or a class derived from Encoder "
    "(package.module:Class)"
)
CPU_SECONDS = {"descriptor": 0.003, "tiny": 0.01, "lite0": 0.024, "lite1": 0.04}
"""Seconds of a core per photo, with its share of decoding (`python -m bench.image.eyes`)."""
EncoderName = Annotated[str, Location("encoder", included=is_public)]


class EncoderMap(Map):
    """A Map with a frozen encoder."""

    encoder: EncoderName = Field(description=SPECS)
    precision: Literal["float32", "bfloat16", "float16"] = Field(
        default="float32", description="precision of the model; bfloat16 is several times faster on a GPU"
    )
    threads: Annotated[int, Runtime()] = Field(default=1, ge=1, description="CPU threads of the model")
    device: Annotated[Literal["auto", "cpu", "cuda"], Runtime()] = Field(
        default="auto", description="auto: cuda for all workers if the cluster has GPUs, else cpu"
    )

    _encoder: Encoder = PrivateAttr(default=None)  # type: ignore[assignment]  # None before `setup`

    @field_validator("encoder")
    @classmethod
    def _named(cls, value: str) -> str:
        try:
            parse_spec(value)
        except CurateError as error:
            raise ValueError(str(error).removeprefix("encoder: ")) from None
        return value

    def parameters(self) -> dict[str, Any]:
        """A local checkpoint counts by its digest (see `identity`), not by its path."""
        return {**super().parameters(), "encoder": parse_spec(self.encoder).public}

    def identity(self) -> dict[str, Any]:
        return identity(self.encoder, precision=self.precision)

    def resources(self) -> Resources:
        return Resources(cpus=self.threads, gpus=float(place(parse_spec(self.encoder), self.device).startswith("cuda")))

    def placed(self, gpus: bool) -> Self:
        device = place(parse_spec(self.encoder), self.device)
        return self.model_copy(update={"device": "cuda" if gpus else "cpu"}) if device == "auto" else self

    def pace(self, cpus: int, gpu: bool) -> tuple[float, str] | None:
        """For images, without a GPU, by the included encoders."""
        seconds = CPU_SECONDS.get(self.encoder) if self.pixels and not gpu else None
        if seconds is None:
            return None
        faster = [f"{name} {seconds / other:.1f}" for name, other in CPU_SECONDS.items() if other < seconds]
        return max(1, cpus) / seconds, f"without a GPU, {', '.join(faster)} times as fast" if faster else ""

    def preflight(self) -> list[str]:
        return problems(self.encoder)

    def setup(self, artifacts: Mapping[str, Artifact]) -> None:
        if self.encoder != "descriptor":
            import torch

            torch.set_num_threads(self.threads)
        self._encoder = load(self.encoder, device=self.device, precision=self.precision)

    def hardware(self) -> str:
        if self._encoder is None or not str(self._encoder.device).startswith("cuda"):
            return "cpu"
        import torch

        return str(torch.cuda.get_device_name())

    def provenance(self) -> dict[str, str]:
        """Field metadata that names the encoder; empty before `setup`."""
        encoder = self._encoder
        if encoder is None:
            return {}
        return {
            "encoder": encoder.spec,
            "weights": encoder.identity()["weights"],
            "preprocessing": json.dumps(encoder.preprocessing, sort_keys=True),
            "precision": encoder.precision,
        }
