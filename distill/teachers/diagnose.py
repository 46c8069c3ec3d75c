"""What a teacher's features look like to PHI-S: each kind against the Gaussian of its moments (AMoE, Fig. 4)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch

from curate.core.errors import InputError
from curate.encoders.student.standardise import Standardiser, Target
from distill.parallel import World
from distill.samples.images.reader import PatchedImage, Skipped
from distill.teachers.hadamard import hadamard
from distill.teachers.modes import Floats, Shape, principal, shape_of
from distill.teachers.moments import Moments
from distill.teachers.standardise import standardiser_of
from distill.teachers.teachers import Teachers

Clouds = list[Floats]
"""Four samples of points (N, 2): along two principal components the features and a Gaussian of their moments, then two
channels of both after PHI-S."""


@dataclass(frozen=True)
class Finding:
    """One kind of a teacher's features."""

    teacher: str
    kind: str
    """summary, patches, register 0 …."""
    width: int
    vectors: int
    scale: float
    """φ, by which PHI-S divides."""
    largest_channel: float
    """The largest standard deviation of a channel over φ; PHI-S makes it 1."""
    rotated: bool
    """Whether a Hadamard matrix of this width exists; without one the features are only centred and scaled."""
    shape: Shape
    clouds: Clouds

    def summary(self) -> dict[str, Any]:
        """JSON-able, without the clouds."""
        values = asdict(self)
        del values["clouds"]
        return {**values, "multimodal": self.shape.multimodal}


def diagnose(teachers: Teachers, batches: Iterable[tuple[Sequence[PatchedImage], Sequence[Skipped]]]) -> list[Finding]:
    """Findings of each teacher and kind of features. InputError with fewer than two readable images.

    Each image has one vector of each kind, so that vectors are independent: of its patches, one at random.
    """
    held: dict[tuple[str, str], list[Floats]] = {}
    count = 0
    for images, _ in batches:
        count += len(images)
        if not images:
            continue
        for teacher, target in zip(teachers.names, teachers.targets(images), strict=True):
            for kind, values in _vectors(target, images):
                held.setdefault((teacher, kind), []).append(values)
    if count < 2:
        raise InputError(f"data.sources: {count} readable images to look at; expected at least 2: fix the dataset")
    return [_finding(*name, np.concatenate(parts)) for name, parts in held.items()]


def _vectors(target: Target, images: Sequence[PatchedImage]) -> Iterable[tuple[str, Floats]]:
    yield "summary", target.summary.double().cpu().numpy()
    if target.patches is not None:
        lengths = [len(image.patches) for image in images]
        drawn = [int(np.random.default_rng(image.row).integers(len(image.patches))) for image in images]
        yield "patches", target.patches[np.cumsum([0, *lengths[:-1]]) + drawn].double().cpu().numpy()
    if target.registers is not None:
        for number, register in enumerate(target.registers.double().cpu().unbind(1)):
            yield f"register {number}", register.numpy()


def _finding(teacher: str, kind: str, x_NC: Floats) -> Finding:
    width = x_NC.shape[1]
    moments = Moments(width, covariance=hadamard(width) is not None)
    moments.add(torch.from_numpy(x_NC))
    phi_s = standardiser_of(moments, World(0, 1, torch.device("cpu")))
    scale = float(phi_s.scale)
    return Finding(
        teacher, kind, width, len(x_NC), scale, float(x_NC.std(0).max()) / scale, phi_s.rotation is not None,
        shape_of(x_NC), _clouds(x_NC, phi_s),
    )  # fmt: skip


def _clouds(x_NC: Floats, phi_s: Standardiser) -> Clouds:
    centred = x_NC - x_NC.mean(0)
    directions = principal(centred, min(x_NC.shape))
    sizes = (centred @ directions).std(0)
    noise = np.random.default_rng(0).standard_normal((len(x_NC), len(sizes)))
    gaussian = noise * sizes @ directions.T
    mean = torch.from_numpy(x_NC.mean(0))
    after = [phi_s(torch.from_numpy(x) + mean)[:, :2].numpy() for x in (centred, gaussian)]
    return [*(_two(x @ directions[:, :2]) for x in (centred, gaussian)), *map(_two, after)]


def _two(points: Floats) -> Floats:
    """(N, 2): a missing second column is 0."""
    return np.pad(points, ((0, 0), (0, 2 - points.shape[1])))
