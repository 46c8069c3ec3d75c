"""Standardised features of teachers (PHI-S, Ranzinger et al. 2024); an exported student inverts the standardisation."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass
class Target:
    """Features of one teacher for B images."""

    summary: Tensor
    """(B, D) float32."""
    patches: Tensor | None = None
    """(N, P) float32 on the student's grids, packed; None if the teacher has none."""
    registers: Tensor | None = None
    """(B, R, D) float32; None if the teacher has none."""

    def to(self, device: torch.device, dtype: torch.dtype) -> Target:
        moved = (None if kind is None else kind.to(device, dtype) for kind in (self.patches, self.registers))
        return Target(self.summary.to(device, dtype), *moved)


@dataclass
class Standardiser:
    """y = R (x - mean) / scale for rows x (…, C): unit variance on average; with a rotation, of every channel.

    PHI-S: R = H Uᵀ, with U the covariance's eigenvectors, H an orthonormal Hadamard matrix, and scale² the mean of the
    eigenvalues. Squared error and cosine are invariant under R; an error per channel is not. Registers, which must not
    be mixed, have a mean each, (R, C).
    """

    mean: Tensor
    scale: Tensor
    rotation: Tensor | None = None
    """(C, C) float64, orthonormal."""
    _cast: dict[tuple[torch.dtype, torch.device], tuple[Tensor, Tensor, Tensor | None]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def __call__(self, features: Tensor) -> Tensor:
        mean, scale, rotation = self._like(features)
        y = (features - mean) / scale
        return y if rotation is None else _product(y, rotation.T)

    def invert(self, features: Tensor) -> Tensor:
        mean, scale, rotation = self._like(features)
        y = features if rotation is None else _product(features, rotation)
        return y * scale + mean

    def _like(self, features: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        place = (features.dtype, features.device)
        if place not in self._cast:
            rotation = None if self.rotation is None else self.rotation.to(features)
            self._cast[place] = (self.mean.to(features), self.scale.to(features), rotation)
        return self._cast[place]


def _product(x: Tensor, matrix: Tensor) -> Tensor:
    """x @ matrix without autocast, so that targets keep their precision."""
    with torch.autocast(x.device.type, enabled=False):
        return x @ matrix


@dataclass
class TargetStandardiser:
    """Standardisation of one teacher's features; None for a kind of features that it does not have."""

    summary: Standardiser
    patches: Standardiser | None = None
    registers: Standardiser | None = None

    def __call__(self, target: Target) -> Target:
        patches = self.patches(target.patches) if self.patches and target.patches is not None else None
        registers = self.registers(target.registers) if self.registers and target.registers is not None else None
        return Target(self.summary(target.summary), patches, registers)

    def invert_summary(self, summary_BD: Tensor) -> Tensor:
        return self.summary.invert(summary_BD)

    def invert_patches(self, patches_NP: Tensor) -> Tensor:
        """Only for a teacher with patch features."""
        assert self.patches is not None
        return self.patches.invert(patches_NP)

    def state(self) -> dict[str, Tensor]:
        """Tensors by name, for checkpoints and exports; `of` reads them."""
        state: dict[str, Tensor] = {}
        for name, kind in zip(("summary", "patches", "registers"), self._kinds(), strict=True):
            if kind is not None:
                state |= {f"{name}_mean": kind.mean, f"{name}_scale": kind.scale}
                state |= {} if kind.rotation is None else {f"{name}_rotation": kind.rotation}
        return state

    @classmethod
    def of(cls, state: dict[str, Tensor]) -> TargetStandardiser:
        def kind(name: str) -> Standardiser | None:
            if f"{name}_mean" not in state:
                return None
            return Standardiser(state[f"{name}_mean"], state[f"{name}_scale"], state.get(f"{name}_rotation"))

        summary = kind("summary")
        assert summary is not None
        return cls(summary, kind("patches"), kind("registers"))

    def _kinds(self) -> tuple[Standardiser, Standardiser | None, Standardiser | None]:
        return self.summary, self.patches, self.registers
