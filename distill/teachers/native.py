"""timm's vision transformers on the student's own pixels: native aspect, the student's grid, their own mean and std.

Features then lie on the student's grid exactly. NaFlex models (SigLIP 2) take patches of pictures of different shapes
in one batch; models of dynamic size (DINOv3) take pictures of one grid at a time.
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
from distill.samples.images.images import Picture
from distill.teachers.base import Answer, Shape
from distill.teachers.encoder import pooler_of

_TOKENS = 16_384
"""Tokens of a batch, padding included."""
_PADDING = 0.1
"""Share of a batch that may be padding."""


class NativeTeacher:
    prepares = False

    def __init__(self, label: str, encoder: Encoder, *, patch: int, patches: bool = True, registers: int = 0) -> None:
        """patch: of the student; patches: False where nobody wants them; registers: of the student.

        Raises RecipeError for a model that cannot take the student's patches.
        """
        self.encoder, self._model = _fitting(label, encoder, patch), encoder.model  # type: ignore[attr-defined]
        self._patch, self._naflex = patch, isinstance(self._model, NaFlexVit)
        self._prefix = int(self._model.num_prefix_tokens)
        matching = registers if encoder.registers == registers else 0
        self.shape = Shape(encoder.dim, int(self._model.num_features) if patches else None, matching)
        colours = self.encoder.preprocessing
        self._mean, self._std = (torch.tensor(colours[name], device=encoder.device) for name in ("mean", "std"))

    def prepare(self, image: Image.Image) -> Any:
        raise AssertionError("it is given the student's patches")

    def answer(self, pictures: Sequence[Picture], prepared: Sequence[Any]) -> list[Answer]:
        answers: list[Answer | None] = [None] * len(pictures)
        for places in self._batches([picture.grid for picture in pictures]):
            batch = [pictures[place] for place in places]
            with torch.no_grad(), self.encoder.guarded(len(batch)):
                found = self._padded(batch) if self._naflex else self._alike(batch)
            for place, answer in zip(places, found, strict=True):
                answers[place] = answer
        return [answer for answer in answers if answer is not None]

    def pooler(self) -> nn.Module | None:
        return pooler_of(self._model)

    def _batches(self, grids: Sequence[tuple[int, int]]) -> Iterator[list[int]]:
        """Places of pictures that go through the model together."""
        if self._naflex:
            yield from batches_of_like_length([rows * columns + self._prefix for rows, columns in grids])
            return
        groups: dict[tuple[int, int], list[int]] = defaultdict(list)
        for place, grid in enumerate(grids):
            groups[grid].append(place)
        for (rows, columns), places in groups.items():
            most = max(1, _TOKENS // (rows * columns + self._prefix))
            yield from (places[start : start + most] for start in range(0, len(places), most))

    def _alike(self, pictures: Sequence[Picture]) -> list[Answer]:
        """Of one grid."""
        (rows, columns), patch = pictures[0].grid, self._patch
        x = self._normalised(np.stack([picture.patches for picture in pictures]))
        x = x.view(len(pictures), rows, columns, patch, patch, 3).permute(0, 5, 1, 3, 2, 4)
        features = self._model.forward_features(x.reshape(len(pictures), 3, rows * patch, columns * patch))
        summary = self._model.forward_head(features, pre_logits=True)
        return self._answers(pictures, summary, features)

    def _padded(self, pictures: Sequence[Picture]) -> list[Answer]:
        """Of any grids; what is behind a picture's last patch is masked."""
        lengths = [len(picture.patches) for picture in pictures]
        longest = max(lengths)
        pixels = np.zeros((len(pictures), longest, pictures[0].patches.shape[1]), dtype=np.uint8)
        coordinates = np.zeros((len(pictures), longest, 2), dtype=np.int64)
        for place, picture in enumerate(pictures):
            pixels[place, : lengths[place]] = picture.patches
            coordinates[place, : lengths[place]] = np.indices(picture.grid).reshape(2, -1).T
        valid = None
        if min(lengths) < longest:
            valid = torch.arange(longest) < torch.tensor(lengths)[:, None]
            valid = valid.to(self._mean.device)
        where = torch.from_numpy(coordinates)  # only their greatest are asked for, one by one: not on the device
        out = self._model.forward_features(self._normalised(pixels), patch_coord=where, patch_valid=valid)
        summary = self._model.forward_head(out["patches"], patch_valid=valid, pre_logits=True)
        return self._answers(pictures, summary, out["patches"])

    def _answers(self, pictures: Sequence[Picture], summary: Tensor, features: Tensor) -> list[Answer]:
        """features (B, prefix + longest, C)."""
        summary, features = summary.float(), features.float()
        answers = []
        for place, picture in enumerate(pictures):
            patches = registers = None
            if self.shape.patches is not None:
                stop = self._prefix + len(picture.patches)
                patches = features[place, self._prefix : stop].view(*picture.grid, -1)
            if self.shape.registers:
                registers = features[place, self._prefix - self.shape.registers : self._prefix]
            answers.append(Answer(summary[place], patches, registers))
        return answers

    def _normalised(self, pixels: np.ndarray) -> Tensor:
        """Bytes (…, p * p * 3) -> float32 of the same shape, by the teacher's mean and standard deviation."""
        x = torch.from_numpy(pixels).to(self._mean.device, non_blocking=True)
        x = x.float().view(*pixels.shape[:-1], -1, 3)
        return x.div_(255).sub_(self._mean).div_(self._std).flatten(-2)


def batches_of_like_length(lengths: Sequence[int], tokens: int = _TOKENS) -> Iterator[list[int]]:
    """Places in order of length, cut where a batch would have too many tokens, or too much of it would be padding."""
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


def _fitting(label: str, encoder: Encoder, patch: int) -> TimmEncoder:
    """The encoder, if it can take patches of the student's size on any grid."""
    model = getattr(encoder, "model", None)
    embedding = getattr(model, "embeds", None) or getattr(model, "patch_embed", None)
    size = tuple(getattr(embedding, "patch_size", (0, 0)))
    naflex = isinstance(model, NaFlexVit) and model.embeds.is_linear
    if not isinstance(encoder, TimmEncoder) or not (naflex or getattr(model, "dynamic_img_size", False)):
        raise RecipeError(
            f"teachers: {label!r} cannot be given the student's patches (pictures: student); name a timm model of "
            f"dynamic size (timm:naflexvit_…, timm:vit_…_dinov3, timm:vit_…?dynamic_img_size=true), or pictures: own"
        )
    if size != (patch, patch):
        raise RecipeError(
            f"teachers: {label!r} has patches of {size[0]} x {size[1]} pixels, the student's are {patch} x {patch}; "
            f"set student.patch={size[0]}, or pictures: own"
        )
    return encoder
