"""One small contract for everything that turns pictures (and texts) into vectors.

`load(spec)` gives an Encoder ready to work. `identity(spec)` and `problems(spec)` say what it is and what is missing
without loading it: they run on the driver, and need torch only where a name on the hub has to be resolved.
"""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from curate.core.errors import CurateError, InputError, RecipeError
from curate.encoders import identities
from curate.encoders.spec import Spec, parse_spec

if TYPE_CHECKING:
    from PIL.Image import Image

PRECISIONS = ("float32", "bfloat16", "float16")
_MODULES = {
    "descriptor": "curate.encoders.descriptor",
    "timm": "curate.encoders.timm_models",
    "open_clip": "curate.encoders.open_clip_models",
    "hf": "curate.encoders.hf_models",
    **dict.fromkeys(identities.DISTILLED, "distill.export.encoder"),
}
_LONGEST_ASPECT = 32


@dataclass(frozen=True)
class Features:
    summary: NDArray[np.float32]
    """(B, D): one vector a picture, as the model gives it, not normalised."""
    patches: NDArray[np.float32] | list[NDArray[np.float32]] | None = None
    """(B, h, w, P): the last grid of patch tokens or feature map; B grids (h, w, P) from an encoder that takes `mixed`
    shapes; None where there is none or nobody asked."""
    registers: NDArray[np.float32] | None = None
    """(B, R, D): register tokens, where the model has them and patches were asked for."""


class Encoder(ABC):
    """A loaded model. `prepare` may run in several threads at once, `encode` in one."""

    spec: str
    dim: int
    patch_dim: int | None = None
    context: int = 0
    """Tokens of a text that are read, the rest is cut; 0 where there is no text tower."""
    registers: int = 0
    """Register tokens of a picture, as wide as `dim`."""
    mixed: bool = False
    """`prepare` keeps each picture's aspect, and `encode` takes pictures of different shapes together."""
    device: str = "cpu"
    precision: str = "float32"

    def __init__(self, spec: Spec, identity: dict[str, Any]) -> None:
        self.spec = spec.public
        self._identity = identity

    def identity(self) -> dict[str, Any]:
        """encoder, weights (digest), preprocessing, precision: equal identities give equal vectors."""
        return dict(self._identity)

    @property
    @abstractmethod
    def preprocessing(self) -> dict[str, Any]:
        """What happens to a picture, in figures (size, crop, mean, std): JSON-able, for people and metadata."""

    @abstractmethod
    def prepare(self, image: Image) -> NDArray[Any]:
        """An RGB picture -> the array that `encode` takes; deterministic, aspect handled as the model was trained."""

    @abstractmethod
    def encode(self, batch: list[NDArray[Any]], *, patches: bool = True) -> Features:
        """Prepared pictures, of one shape unless `mixed`, -> features. `patches=False` leaves patches on the device."""

    def encode_text(self, texts: list[str]) -> NDArray[np.float32]:
        """Texts -> (B, D), comparable by cosine with `summary`. Raises CurateError where there is no text tower."""
        raise CurateError(identities.no_texts(self.spec))


def load(spec: str, *, device: str = "auto", precision: str = "auto") -> Encoder:
    """device: auto, cpu, cuda, cuda:1 …; precision: auto is bfloat16 (autocast) on a GPU and float32 elsewhere.

    Raises CurateError in one line for an unknown model, missing weights or a checkpoint that does not fit.
    """
    parsed = parse_spec(spec)
    for problem in identities.problems(parsed):
        raise InputError(problem)
    device = place(parsed, device)
    known = identities.identity(parsed, resolve_precision(parsed, precision, device))
    return importlib.import_module(_MODULES[parsed.kind]).load(parsed, known, device)


def identity(spec: str, *, precision: str = "float32") -> dict[str, Any]:
    """What `load(spec, precision=precision).identity()` will say, without loading a model.

    Raises InputError when a local checkpoint is missing. Weights that the hub cannot be asked about are named by model
    and revision only; `problems` reports them.
    """
    parsed = parse_spec(spec)
    return identities.identity(parsed, resolve_precision(parsed, precision, place(parsed, "auto")))


def problems(spec: str) -> list[str]:
    """What would keep `load` from working, a line each: missing files, unreachable hub names, unknown models."""
    try:
        return identities.problems(parse_spec(spec))
    except CurateError as error:
        return [str(error)]


def text_problems(spec: str) -> list[str]:
    """Why there can be no vectors of texts, as far as that can be told without loading a model."""
    return identities.text_problems(parse_spec(spec))


def place(spec: Spec, device: str) -> str:
    """The device that is meant, before torch is asked what there is. Decoding takes as long as `tiny` on a CPU does."""
    if spec.kind == "descriptor" or (spec.kind == "tiny" and device == "auto"):
        return "cpu"
    return device


def resolve_device(device: str) -> str:
    import torch

    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise CurateError(f"encoder: device {device!r} asked for, but torch sees no GPU here; use 'auto' or 'cpu'")
    return device


def resolve_precision(spec: Spec, precision: str, device: str) -> str:
    if precision not in (*PRECISIONS, "auto"):
        raise RecipeError(f"encoder: precision {precision!r} is not one of auto, {', '.join(PRECISIONS)}")
    if spec.kind == "descriptor":
        return "float32"
    if precision == "auto":
        return "bfloat16" if resolve_device(device).startswith("cuda") else "float32"
    return precision


def within_aspect(image: Image) -> Image:
    """The middle of a picture longer than 32 : 1. Resizing the short side of a 1 x 50,000 strip takes gigabytes."""
    width, height = image.size
    longest = _LONGEST_ASPECT * min(width, height)
    if max(width, height) <= longest:
        return image
    left, top = max(0, (width - longest) // 2), max(0, (height - longest) // 2)
    return image.crop((left, top, left + min(width, longest), top + min(height, longest)))
