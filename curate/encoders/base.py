"""The contract of encoders: models that turn images, and some of them texts, into vectors."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from curate.core.errors import CurateError
from curate.encoders.spec import Spec

if TYPE_CHECKING:
    from PIL.Image import Image

_MAX_ASPECT = 32
CLIP_SCALE = 100.0
"""The scale at which CLIP and most of its successors end."""


@dataclass(frozen=True)
class Features:
    summary: NDArray[np.float32]
    """(B, D): one vector per image, as the model gives it, not normalised."""
    patches: NDArray[np.float32] | list[NDArray[np.float32]] | None = None
    """(B, h, w, P): the last grid of patch tokens or feature map; B grids (h, w, P) from an encoder that takes `mixed`
    shapes; None if the model has none, or if they were not requested."""
    registers: NDArray[np.float32] | None = None
    """(B, R, D): register tokens, if the model has them and patches were requested."""


@dataclass(frozen=True)
class Classes:
    """A linear classifier of an encoder's vectors: logits are weight @ vector + bias."""

    wnids: list[str]
    """WordNet id of each class, such as n07749582, of WordNet 3.0."""
    weight_CD: NDArray[np.float32]
    bias_C: NDArray[np.float32]
    unit: bool
    """Whether vectors are scaled to length 1 first."""


class Encoder(ABC):
    """A loaded model. `prepare` may run in several threads at once, `encode` in one."""

    spec: str
    dim: int
    patch_dim: int | None = None
    context: int = 0
    """Maximum number of tokens of a text, longer ones are truncated; 0 without a text tower."""
    registers: int = 0
    """Register tokens per image, as wide as `dim`."""
    passes: bool = False
    """`encode_text` divides texts into passes itself, so that none depends on the others."""
    mixed: bool = False
    """`prepare` keeps the aspect ratio of each image, and `encode` takes images of different shapes in one batch."""
    device: str = "cpu"
    precision: str = "float32"
    version: int = 1
    """A class outside of this package increases it when it gives other vectors for the same image."""

    def __init__(self, spec: Spec, identity: dict[str, Any], device: str = "cpu") -> None:
        """A class outside of this package is called with these three; `spec` has the options and path of its name."""
        self.spec, self.device = spec.public, device
        self.precision = identity.get("precision", self.precision)
        self._identity = identity

    def identity(self) -> dict[str, Any]:
        """encoder, weights (digest), preprocessing, precision: equal identities give equal vectors."""
        return dict(self._identity)

    @property
    @abstractmethod
    def preprocessing(self) -> dict[str, Any]:
        """Figures of the preprocessing (size, crop, mean, std), JSON-able, for people and metadata."""

    @abstractmethod
    def prepare(self, image: Image) -> NDArray[Any]:
        """An RGB image -> the array that `encode` takes; deterministic, with the aspect handled as in training."""

    @abstractmethod
    def encode(self, batch: list[NDArray[Any]], *, patches: bool = True) -> Features:
        """Prepared images, of one shape unless `mixed`, -> features. `patches=False` leaves patches on the device."""

    def encode_text(self, texts: list[str]) -> NDArray[np.float32]:
        """Texts -> (B, D), comparable by cosine with `summary`. Raises CurateError without a text tower."""
        raise CurateError(no_texts(self.spec))

    def classes(self) -> Classes:
        """The classifier that it was trained with, or else ImageNet's classes by its text tower, as CLIP is used
        without training (Radford et al. 2021, section 3.1). Raises CurateError if it has neither."""
        if not self.context:
            raise CurateError(
                f"encoder: {self.spec!r} has neither ImageNet's classes nor a text tower; use 'lite1', 'timm:…' or "
                "'open_clip:…'"
            )
        from timm.data.imagenet_info import ImageNetInfo

        known = ImageNetInfo()
        names = [known.index_to_description(number).split(",")[0] for number in range(known.num_classes())]
        texts_CD = self.encode_text([f"a photo of a {name}" for name in names])
        texts_CD = texts_CD / np.linalg.norm(texts_CD, axis=1, keepdims=True)
        scale = self.logit_scale()
        return Classes(known.label_names(), scale * texts_CD, np.zeros(len(names), np.float32), unit=True)

    def logit_scale(self) -> float:
        """Factor of the cosines of images and texts in a softmax."""
        learned = getattr(getattr(self, "model", None), "logit_scale", None)
        return CLIP_SCALE if learned is None else float(learned.exp())


def no_texts(spec: str) -> str:
    """The message about an encoder without a text tower."""
    return (
        f"encoder: {spec!r} has no text tower; use an image-text model: 'tiny', 'open_clip:…', or a CLIP or SigLIP of"
        " 'hf:…'"
    )


def resolve_device(device: str) -> str:
    import torch

    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise CurateError(f"encoder: device is {device!r}, but torch sees no GPU here; use 'auto' or 'cpu'")
    return device


def within_aspect(image: Image) -> Image:
    """The centre of an image longer than 32 : 1. Resizing the short side of a 1 x 50,000 strip takes gigabytes."""
    width, height = image.size
    longest = _MAX_ASPECT * min(width, height)
    if max(width, height) <= longest:
        return image
    left, top = max(0, (width - longest) // 2), max(0, (height - longest) // 2)
    return image.crop((left, top, left + min(width, longest), top + min(height, longest)))
