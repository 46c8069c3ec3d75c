"""Record the experts that the tokens of an image were routed to, and replay them.

Two ways of computing the same gradients (other ranks, micro-batches, packs) differ in the last bits of the scores, and
a tie that is broken the other way changes the loss noticeably. Comparisons therefore replay recorded routing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor

from curate.core.errors import InputError
from curate.encoders.student.network.rope import Grid
from curate.encoders.student.network.student import Student

Routing = dict[str, Tensor]
"""Experts (moe blocks, tokens of the image, active), by digest of the image's grid and patches."""


@contextmanager
def record_routing(student: Student) -> Iterator[Routing]:
    """Yields the experts of the images that the student processes; it is filled by each forward.

    An image is identified by its content, independent of order, packs and ranks; the last forward of equal images
    counts. Does not work with activation checkpointing or compiled blocks.
    """
    routing: Routing = {}
    moes = student.backbone.moes()

    def after(backbone: Any, inputs: tuple[Any, ...], output: Any) -> None:
        experts = torch.stack([moe.routing[-1] for moe in moes if moe.routing is not None])
        lengths = [len(backbone.prefix) + rows * columns for rows, columns in inputs[1]]
        routing.update(zip(_digests(*inputs[:2]), experts.split(lengths, dim=1), strict=True))
        for moe in moes:
            moe.routing = []

    with ExitStack() as stack:
        for moe in moes:
            moe.routing = []
            stack.callback(setattr, moe, "routing", None)
        if moes:
            stack.callback(student.backbone.register_forward_hook(after).remove)
        yield routing


@contextmanager
def replay_routing(student: Student, routing: Routing) -> Iterator[None]:
    """Route every image to its recorded experts. Raises InputError for an image that was not recorded."""
    moes = student.backbone.moes()

    def before(backbone: Any, inputs: tuple[Any, ...]) -> None:
        digests = _digests(*inputs[:2])
        if missing := sum(digest not in routing for digest in digests):
            raise InputError(f"routing: {missing} of {len(digests)} images were not recorded")
        experts = [routing[digest] for digest in digests]
        forced = torch.cat(experts, dim=1).to(inputs[0].device) if experts else [None] * len(moes)
        for moe, own in zip(moes, forced, strict=True):
            moe.forced = own

    with ExitStack() as stack:
        for moe in moes:
            stack.callback(setattr, moe, "forced", None)
        if moes:
            stack.callback(student.backbone.register_forward_pre_hook(before).remove)
        yield


def _digests(patches: Tensor, grids: Sequence[Grid]) -> list[str]:
    parts = patches.split([rows * columns for rows, columns in grids])
    return [
        hashlib.blake2b(repr(grid).encode() + part.cpu().numpy().tobytes(), digest_size=16).hexdigest()
        for part, grid in zip(parts, grids, strict=True)
    ]
