"""Frozen teachers: any encoder of curate, its targets kept per picture while there is room.

A teacher without patch features gives the summary loss only. Patch features are brought to the student's grid of the
same picture, so a teacher that squashes pictures to a square still lines up; one that crops them does not.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from curate.encoders import Encoder
from distill.data.pictures import Allowance, Picture
from distill.losses import resample_patches
from distill.models.student import HeadConfig
from distill.parallel import World


@dataclass
class Target:
    """What one teacher says of some pictures, in its own space."""

    summary: Tensor
    """(B, D) float32."""
    patches: Tensor | None
    """(N, P) float32 on the students' grids, end to end; None when the teacher has none."""

    def to(self, device: torch.device, dtype: torch.dtype) -> Target:
        return Target(self.summary.to(device, dtype), None if self.patches is None else self.patches.to(device, dtype))


class Teachers:
    """All teachers of a run, in the recipe's order. `missing` and `prepare` are called by reading threads."""

    def __init__(self, encoders: Mapping[str, Encoder], *, allowance: Allowance | None = None, batch: int = 64) -> None:
        """encoders: by name; batch: pictures per call of one."""
        self.names = list(encoders)
        self._encoders = list(encoders.values())
        self._allowance, self._batch = allowance or Allowance(0), batch
        self._kept: list[dict[int, tuple[np.ndarray, np.ndarray | None]]] = [{} for _ in self.names]

    def heads(self, hidden: int) -> list[HeadConfig]:
        return [HeadConfig(encoder.dim, encoder.patch_dim or None, hidden) for encoder in self._encoders]

    def missing(self, row: int) -> bool:
        return any(row not in kept for kept in self._kept)

    def prepare(self, row: int, image: Image.Image) -> dict[str, Any]:
        """Inputs of the teachers that have not yet answered for this row. May raise Reject."""
        todo = zip(self.names, self._encoders, self._kept, strict=True)
        return {name: encoder.prepare(image) for name, encoder, kept in todo if row not in kept}

    def targets(self, pictures: Sequence[Picture]) -> list[Target]:
        """Of each teacher, for pictures (B) in the order given."""
        return [self._targets(number, pictures) for number in range(len(self.names))]

    def _targets(self, number: int, pictures: Sequence[Picture]) -> Target:
        kept, name = self._kept[number], self.names[number]
        known = {picture.row: kept[picture.row] for picture in pictures if picture.row in kept}
        todo = [picture for picture in {item.row: item for item in pictures}.values() if picture.row not in known]
        for start in range(0, len(todo), self._batch):
            chunk = todo[start : start + self._batch]
            known.update(self._answer(number, chunk, [picture.prepared[name] for picture in chunk]))
        answers = [known[picture.row] for picture in pictures]
        patches = [answer[1] for answer in answers if answer[1] is not None]
        return Target(
            summary=torch.from_numpy(np.stack([answer[0] for answer in answers])),
            patches=torch.from_numpy(np.concatenate(patches)) if patches else None,
        )

    @torch.no_grad()
    def _answer(
        self, number: int, pictures: Sequence[Picture], prepared: list[np.ndarray]
    ) -> dict[int, tuple[np.ndarray, np.ndarray | None]]:
        features = self._encoders[number].encode(prepared)
        summaries = _tensor(features.summary)
        answers: dict[int, tuple[np.ndarray, np.ndarray | None]] = {}
        for place, picture in enumerate(pictures):
            patches = None
            if features.patches is not None:
                patches = resample_patches(_tensor(features.patches[place]), *picture.grid).numpy()
            answer = (summaries[place].numpy(), patches)
            answers[picture.row] = answer
            if self._allowance.take(answer[0].nbytes + (0 if patches is None else patches.nbytes)):
                self._kept[number][picture.row] = answer
        return answers


def _tensor(values: Any) -> Tensor:
    return torch.as_tensor(values).detach().float().cpu()


@dataclass
class Standard:
    """Centre (C,) and one scale: (features - centre) / scale has unit variance on average over channels.

    This is PHI-S (Ranzinger et al. 2024) without its rotation. Cosine and squared error do not see a rotation, so these
    losses are PHI-S's; an error taken per channel, such as smooth L1, would differ.
    """

    mean: Tensor
    scale: Tensor

    def __call__(self, features: Tensor) -> Tensor:
        return (features - self.mean.to(features)) / self.scale.to(features)


@dataclass
class Standards:
    """Of one teacher."""

    summary: Standard
    patches: Standard | None

    def state(self) -> dict[str, Tensor]:
        state = {"summary_mean": self.summary.mean, "summary_scale": self.summary.scale}
        if self.patches is not None:
            state |= {"patches_mean": self.patches.mean, "patches_scale": self.patches.scale}
        return state

    @classmethod
    def of(cls, state: dict[str, Tensor]) -> Standards:
        patches = Standard(state["patches_mean"], state["patches_scale"]) if "patches_mean" in state else None
        return cls(Standard(state["summary_mean"], state["summary_scale"]), patches)

    def __call__(self, target: Target) -> Target:
        patches = self.patches(target.patches) if self.patches is not None and target.patches is not None else None
        return Target(self.summary(target.summary), patches)


class Moments:
    """Sums of features and of their squares, in float64."""

    def __init__(self, width: int) -> None:
        self.values = torch.zeros(1 + 2 * width, dtype=torch.float64)

    def add(self, features_NC: Tensor) -> None:
        x = features_NC.double()
        self.values += torch.cat([torch.tensor([float(len(x))], dtype=torch.float64), x.sum(0), x.square().sum(0)])

    def standard(self) -> Standard:
        """Constant features get scale 1, so that nothing is divided by zero."""
        count, width = self.values[0].clamp(min=1.0), (len(self.values) - 1) // 2
        mean = self.values[1 : 1 + width] / count
        variance = (self.values[1 + width :] / count - mean.square()).clamp(min=0.0).mean()
        scale = variance.sqrt() if variance > 1e-12 else torch.ones((), dtype=torch.float64)
        return Standard(mean, scale)


def fit_standards(
    teachers: Teachers, batches: Iterable[Sequence[Picture]], heads: Sequence[HeadConfig], world: World
) -> list[Standards]:
    """Of each teacher, over this rank's pictures in `batches` and every other rank's."""
    summary = [Moments(head.summary) for head in heads]
    patches = [Moments(head.patches) if head.patches else None for head in heads]
    for pictures in batches:
        if not pictures:
            continue
        for number, target in enumerate(teachers.targets(pictures)):
            summary[number].add(target.summary)
            moments = patches[number]
            if moments is not None and target.patches is not None:
                moments.add(target.patches)
    for moments in [*summary, *patches]:
        if moments is not None:
            moments.values = world.sum(moments.values.to(world.device)).cpu()
    pairs = zip(summary, patches, strict=True)
    return [Standards(one.standard(), two.standard() if two is not None else None) for one, two in pairs]
