"""A teacher's own attention pooler over the student's patches: the student's summary in that teacher's space.

AMoE does so for SigLIP2. Gradients flow through it to the patches; its weights belong to the teacher, never change, and
are in no checkpoint of the student.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Self

import torch
from torch import Tensor, nn

from distill.models.attention import runs


class FrozenPooler(nn.Module):
    """pooler(patches (N, P) of all images, end to end, patches per image) -> (images, D), in the pooler's dtype."""

    def __init__(self, module: nn.Module) -> None:
        """module: timm's `attn_pool`: (images, tokens, P), and a mask -> (images, D). Copied, so that the teacher may
        have another dtype."""
        super().__init__()
        self.module = copy.deepcopy(module).eval().requires_grad_(False)

    def train(self, mode: bool = True) -> Self:
        """It stays as it is for inference, whatever the model around it does."""
        return super().train(False)

    def forward(self, patches_NP: Tensor, lengths: Sequence[int]) -> Tensor:
        example = next(self.module.parameters())
        x = patches_NP.to(example.device, example.dtype)
        if not lengths:
            return self._padded(x.new_zeros(1, 1, x.shape[-1]) + x.sum(), [1])[:0]
        if x.device.type == "cpu":
            return self._by_length(x, lengths)
        images = torch.nn.utils.rnn.pad_sequence(list(x.split(list(lengths))), batch_first=True)
        return self._padded(images, lengths)

    def _by_length(self, x: Tensor, lengths: Sequence[int]) -> Tensor:
        """A call per run of neighbours of equal length: nothing is computed in vain."""
        grouped = runs(lengths)
        parts = x.split([images * length for images, length in grouped])
        return torch.cat([self.module(part.unflatten(0, run)) for part, run in zip(parts, grouped, strict=True)])

    def _padded(self, images_BLP: Tensor, lengths: Sequence[int]) -> Tensor:
        """One call: on a GPU many small ones would wait for one another."""
        counts = torch.tensor(lengths, device=images_BLP.device)
        there = torch.arange(images_BLP.shape[1], device=counts.device) < counts[:, None]
        return self.module(images_BLP, attn_mask=there[:, None, None, :])
