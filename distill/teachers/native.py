"""timm's vision transformers on the student's patches: native aspect ratio, student's grid, teacher's mean and std.

Their features are on the student's grid. NaFlex models (SigLIP 2) take patches of images of different shapes in one
batch; models of dynamic size (DINOv3) take batches of images with the same grid.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from PIL import Image
from timm.models.naflexvit import NaFlexVit
from torch import Tensor, nn

from curate.core.errors import RecipeError
from curate.encoders import Encoder
from curate.encoders.timm_models import TimmEncoder
from distill.samples.images.reader import PatchedImage
from distill.teachers.base import Shape, TeacherFeatures
from distill.teachers.encoder import pooler_of

_TOKENS = 16_384
"""Tokens of a batch, including padding."""
_PADDING = 0.1
"""Maximum fraction of padding in a batch."""


class NativeTeacher:
    prepares = False

    def __init__(self, label: str, encoder: Encoder, *, patch: int, patches: bool = True, registers: int = 0) -> None:
        """patch: the student's patch size; patches: whether to compute patch features; registers: the student's number.

        Raises RecipeError for a model that cannot take the student's patches.
        """
        self.encoder = _checked(label, encoder, patch)
        self._model = self.encoder.model
        self._patch, self._naflex = patch, isinstance(self._model, NaFlexVit)
        self._prefix = int(self._model.num_prefix_tokens)
        matching = registers if encoder.registers == registers else 0
        self.shape = Shape(encoder.dim, int(self._model.num_features) if patches else None, matching)
        colours = self.encoder.preprocessing
        self._mean, self._std = (torch.tensor(colours[name], device=encoder.device) for name in ("mean", "std"))

    def prepare(self, image: Image.Image) -> Any:
        raise AssertionError("it reads the student's patches")

    def features(self, images: Sequence[PatchedImage], prepared: Sequence[Any]) -> list[TeacherFeatures]:
        features: dict[int, TeacherFeatures] = {}
        for places in self._batches([image.grid for image in images]):
            batch = [images[place] for place in places]
            with torch.no_grad(), self.encoder.guarded(len(batch)):
                features |= zip(places, self._padded(batch) if self._naflex else self._same_grid(batch), strict=True)
        return [features[place] for place in range(len(images))]

    def pooler(self) -> nn.Module | None:
        return pooler_of(self._model)

    def _batches(self, grids: Sequence[tuple[int, int]]) -> Iterator[list[int]]:
        """Indices of the images of each batch."""
        if self._naflex:
            yield from batches_by_length([rows * columns + self._prefix for rows, columns in grids])
            return
        groups: dict[tuple[int, int], list[int]] = defaultdict(list)
        for place, grid in enumerate(grids):
            groups[grid].append(place)
        for (rows, columns), places in groups.items():
            most = max(1, _TOKENS // (rows * columns + self._prefix))
            yield from (places[start : start + most] for start in range(0, len(places), most))

    def _same_grid(self, images: Sequence[PatchedImage]) -> list[TeacherFeatures]:
        """Features of images with the same grid."""
        (rows, columns), patch = images[0].grid, self._patch
        x = self._normalised(np.stack([image.patches for image in images]))
        x = x.view(len(images), rows, columns, patch, patch, 3).permute(0, 5, 1, 3, 2, 4)
        features = self._model.forward_features(x.reshape(len(images), 3, rows * patch, columns * patch))
        summary = self._model.forward_head(features, pre_logits=True)
        return self._split(images, summary, features)

    def _padded(self, images: Sequence[PatchedImage]) -> list[TeacherFeatures]:
        """Features of images with different grids; padding after an image's last patch is masked."""
        lengths = [len(image.patches) for image in images]
        longest = max(lengths)
        pixels = np.zeros((len(images), longest, images[0].patches.shape[1]), dtype=np.uint8)
        coordinates = np.zeros((len(images), longest, 2), dtype=np.int64)
        for place, image in enumerate(images):
            pixels[place, : lengths[place]] = image.patches
            coordinates[place, : lengths[place]] = np.indices(image.grid).reshape(2, -1).T
        valid = None
        if min(lengths) < longest:
            valid = torch.arange(longest) < torch.tensor(lengths)[:, None]
            valid = valid.to(self._mean.device)
        where = torch.from_numpy(coordinates)  # on the CPU: timm reads only their maxima, one by one
        out = self._model.forward_features(self._normalised(pixels), patch_coord=where, patch_valid=valid)
        summary = self._model.forward_head(out["patches"], patch_valid=valid, pre_logits=True)
        return self._split(images, summary, out["patches"])

    def _split(self, images: Sequence[PatchedImage], summary: Tensor, features: Tensor) -> list[TeacherFeatures]:
        """Features per image. summary: (B, D); features: (B, prefix + longest, C)."""
        summary, features = summary.float(), features.float()
        split = []
        for place, image in enumerate(images):
            patches = registers = None
            if self.shape.patches is not None:
                stop = self._prefix + len(image.patches)
                patches = features[place, self._prefix : stop].view(*image.grid, -1)
            if self.shape.registers:
                registers = features[place, self._prefix - self.shape.registers : self._prefix]
            split.append(TeacherFeatures(summary[place], patches, registers))
        return split

    def _normalised(self, pixels: np.ndarray) -> Tensor:
        """Bytes (…, p * p * 3) -> float32 of the same shape, by the teacher's mean and standard deviation."""
        x = torch.from_numpy(pixels).to(self._mean.device, non_blocking=True)
        x = x.float().view(*pixels.shape[:-1], -1, 3)
        return x.div_(255).sub_(self._mean).div_(self._std).flatten(-2)


def batches_by_length(lengths: Sequence[int], tokens: int = _TOKENS) -> Iterator[list[int]]:
    """Indices sorted by length, in batches that are limited in tokens and in padding."""
    batch: list[int] = []
    held = 0
    for place in sorted(range(len(lengths)), key=lambda place: lengths[place]):
        full = (len(batch) + 1) * lengths[place]
        if batch and (full > tokens or full - held - lengths[place] > _PADDING * full):
            yield batch
            batch, held = [], 0
        batch.append(place)
        held += lengths[place]
    if batch:
        yield batch


def _checked(label: str, encoder: Encoder, patch: int) -> TimmEncoder:
    """The encoder, if it can take patches of the student's size on any grid."""
    model = getattr(encoder, "model", None)
    embedding = getattr(model, "embeds", None) or getattr(model, "patch_embed", None)
    size = tuple(getattr(embedding, "patch_size", (0, 0)))
    naflex = isinstance(model, NaFlexVit) and model.embeds.is_linear
    if not isinstance(encoder, TimmEncoder) or not (naflex or getattr(model, "dynamic_img_size", False)):
        raise RecipeError(
            f"teachers: {label!r} cannot read the student's patches (pictures: student); name a timm model of dynamic "
            f"size (timm:naflexvit_…, timm:vit_…_dinov3, timm:vit_…?dynamic_img_size=true), or set pictures: own"
        )
    if size != (patch, patch):
        raise RecipeError(
            f"teachers: {label!r} has patches of {size[0]} x {size[1]} pixels, the student's are {patch} x {patch}; "
            f"set student.patch={size[0]} or pictures: own"
        )
    return encoder
