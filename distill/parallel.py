"""This process among those that torchrun started, or alone.

Gradients are sums over images divided by the images of the global batch, so adding them over ranks is exact however
unevenly the images fell; a rank without images adds zeros and waits for nobody.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from curate.core.errors import PreflightError

_TIMEOUT = timedelta(minutes=30)


@dataclass(frozen=True)
class World:
    rank: int
    size: int
    device: torch.device

    @property
    def first(self) -> bool:
        return self.rank == 0

    def sum(self, values: Tensor) -> Tensor:
        """Sum over ranks, in place."""
        if self.size > 1:
            dist.all_reduce(values)
        return values

    def numbers(self, values: Iterable[float]) -> list[float]:
        """Sums of some numbers over ranks, in float64."""
        return self.sum(torch.tensor(list(values), dtype=torch.float64, device=self.device)).tolist()

    def gather(self, value: Any) -> list[Any]:
        """Every rank's value, by rank, on every rank."""
        if self.size == 1:
            return [value]
        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value)
        return values

    def barrier(self) -> None:
        if self.size > 1:
            dist.barrier()

    def sum_gradients(self, model: nn.Module) -> None:
        """Add gradients over ranks, as one message."""
        if self.size == 1:
            return
        parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        own = [torch.zeros_like(item) if item.grad is None else item.grad for item in parameters]
        total, start = self.sum(torch.cat([grad.flatten() for grad in own])), 0
        for parameter in parameters:
            parameter.grad = total[start : start + parameter.numel()].view_as(parameter)
            start += parameter.numel()


@contextmanager
def join_world(device: str) -> Iterator[World]:
    """The world that torchrun's environment describes; one process when there is none. device: auto, cpu, cuda."""
    rank, size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    place = _device(device, int(os.environ.get("LOCAL_RANK", "0")))
    if size == 1:
        yield World(0, 1, place)
        return
    dist.init_process_group("nccl" if place.type == "cuda" else "gloo", timeout=_TIMEOUT)
    try:
        yield World(rank, size, place)
    finally:
        dist.destroy_process_group()


def _device(name: str, local_rank: int) -> torch.device:
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise PreflightError(f"run.device: {name!r}, but torch sees no GPU here; use --set run.device=cpu")
    if name == "cuda":
        torch.cuda.set_device(local_rank)
        return torch.device("cuda", local_rank)
    return torch.device(name)
