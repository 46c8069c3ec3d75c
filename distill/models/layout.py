"""Where the tokens of packed images lie: each image is its prefix (CLS and registers) and then its patches."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor


class Layout:
    """Places of prefixes and patches among the tokens of all images; made once per forward."""

    def __init__(self, patches: Sequence[int], prefix: int, device: torch.device) -> None:
        """patches: of each image, in order."""
        counts = np.asarray(patches, dtype=np.int64)
        self.lengths: list[int] = (counts + prefix).tolist()
        """Tokens of each image, its prefix included."""
        starts = np.cumsum(counts + prefix) - (counts + prefix)
        first = (starts[:, None] + np.arange(prefix)).ravel()
        rest = np.arange(counts.sum()) + np.repeat(np.arange(1, len(counts) + 1) * prefix, counts)
        self._prefix, self._patches = (torch.from_numpy(np.ascontiguousarray(x)).to(device) for x in (first, rest))
        self._images, self._length = len(counts), prefix

    def join(self, prefix_PC: Tensor, patches_NC: Tensor) -> Tensor:
        """The same prefix before each image's patches -> (tokens, C)."""
        tokens = patches_NC.new_empty(len(self._prefix) + len(self._patches), patches_NC.shape[-1])
        tokens.index_copy_(0, self._patches, patches_NC)
        return tokens.index_copy_(0, self._prefix, prefix_PC.to(tokens).repeat(self._images, 1))

    def split(self, tokens_NC: Tensor) -> tuple[Tensor, Tensor]:
        """Tokens -> prefixes (images, P, C) and patches (N, C) of all images."""
        prefixes = tokens_NC.index_select(0, self._prefix)
        return prefixes.view(self._images, self._length, tokens_NC.shape[-1]), tokens_NC.index_select(0, self._patches)
