"""How many tokens are left after each layer of a student that keeps a share of them (EViT) or merges them (ToMe)."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Reduction:
    """What is done to an image's patches between the attention and the MLP of a layer; CLS and registers all stay."""

    keep: float = 1.0
    """EViT: share of the patches that stay at each of `layers`; the others become one token."""
    layers: tuple[int, ...] = ()
    """From 1."""
    merge: int = 0
    """ToMe: patches merged into others at every layer but those of `layers`; at most half of those that are left."""

    def __bool__(self) -> bool:
        return self.merge > 0 or (self.keep < 1 and bool(self.layers))

    def keeps(self, layer: int) -> bool:
        """Whether EViT acts at a layer, from 1."""
        return self.keep < 1 and layer in self.layers

    def kept(self, count: int) -> int:
        """Patches that EViT keeps of `count`."""
        return math.ceil(self.keep * count - 1e-9)

    def after(self, layer: int, count: int) -> int:
        """Tokens that a layer leaves of `count` patches."""
        if not self.keeps(layer):
            return count - min(self.merge, count // 2)
        return self.kept(count) + (self.kept(count) < count)

    def exhausted(self, count: int, depth: int) -> tuple[int, int] | None:
        """The first layer that has less than twice `merge` of an image's `count` patches left, and how many; None if
        there is none."""
        for layer in range(1, depth + 1):
            if not self.keeps(layer) and count < 2 * self.merge:
                return layer, count
            count = self.after(layer, count)
        return None


def spread_layers(depth: int) -> tuple[int, ...]:
    """Three layers that divide the depth evenly: 4, 7 and 10 of 12 (Liang et al. 2022, section 4.1)."""
    return tuple(dict.fromkeys(depth * part // 4 + 1 for part in (1, 2, 3)))
