"""This process among those that torchrun started, or alone.

Gradients are sums over images divided by the images of the global batch, so adding them over ranks is exact however
unevenly the images fell; a rank without images adds zeros and waits for nobody. When a rank is lost, the others end
with an error: at once where its connections close, after `run.timeout_seconds` where it only hangs. Of all that end,
the first one says why.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from curate.core.errors import CurateError, PreflightError

_TIMEOUT = 600.0
_STORE_TIMEOUT = timedelta(seconds=10)
T = TypeVar("T")


class LostRankError(CurateError):
    """Another rank has ended, or does not answer: what there is to say, it has said itself."""


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

    def largest(self, value: int) -> int:
        if self.size == 1:
            return value
        values = torch.tensor([value], device=self.device)
        dist.all_reduce(values, dist.ReduceOp.MAX)
        return int(values.item())

    def gather(self, value: Any) -> list[Any]:
        """Every rank's value, by rank, on every rank."""
        if self.size == 1:
            return [value]
        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value)
        return values

    def from_first(self, make: Callable[[], T]) -> T:
        """What the first rank makes, on every rank: others need not see its files."""
        if self.size == 1:
            return make()
        values = [make() if self.first else None]
        dist.broadcast_object_list(values, src=0)
        return values[0]  # type: ignore[return-value]

    def gather_rows(self, rows: Tensor, counts: list[int]) -> Tensor:
        """Rows (n, …) of every rank, by rank, on every rank; counts: n of each. Nothing has a gradient."""
        rows = rows.detach()
        if self.size == 1:
            return rows
        padded = rows.new_zeros(max(counts), *rows.shape[1:])
        padded[: len(rows)] = rows
        found = [torch.empty_like(padded) for _ in counts]
        dist.all_gather(found, padded)
        return torch.cat([part[:count] for part, count in zip(found, counts, strict=True)])

    def barrier(self) -> None:
        if self.size > 1:
            dist.barrier()

    def sum_gradients(self, model: nn.Module) -> None:
        """Add gradients over ranks, as one message per kind of number; a weight that had none gets zeros.

        Those of sharded weights are added already.
        """
        trained = [item for item in model.parameters() if item.requires_grad]
        for parameter in trained:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        replicated = [item for item in trained if not isinstance(item, DTensor)] if self.size > 1 else []
        for dtype in dict.fromkeys(item.dtype for item in replicated):
            grads = [item.grad for item in replicated if item.dtype == dtype and item.grad is not None]
            total, start = self.sum(torch.cat([grad.flatten() for grad in grads])), 0
            for grad in grads:
                grad.copy_(total[start : start + grad.numel()].view_as(grad))
                start += grad.numel()

    def gradient_norm(self, model: nn.Module) -> float:
        """Of all weights together, the same on every rank; after gradients were added."""
        grads = [item.grad for item in model.parameters() if item.grad is not None]
        zero = torch.zeros((), dtype=torch.float64, device=self.device)
        shards = [grad.to_local() for grad in grads if isinstance(grad, DTensor)]
        whole = [grad for grad in grads if not isinstance(grad, DTensor)]
        squares = sum((_squares(grad) for grad in whole), start=zero)
        if shards:
            squares = squares + self.sum(sum((_squares(grad) for grad in shards), start=zero))
        return float(squares.sqrt())


def _squares(grad: Tensor) -> Tensor:
    return torch.linalg.vector_norm(grad, dtype=torch.float64).square()


def local(tensor: Tensor) -> Tensor:
    """What this rank holds of a weight: its shard, or all of it."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


@contextmanager
def join_world(device: str, timeout_seconds: float = _TIMEOUT) -> Iterator[World]:
    """The world that torchrun's environment describes; one process when there is none. device: auto, cpu, cuda, cuda:1.

    Raises LostRankError when another rank was lost, in place of what its broken connection raised.
    """
    rank, size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    place = _device(device, int(os.environ.get("LOCAL_RANK", "0")))
    if size == 1:
        yield World(0, 1, place)
        return
    found = dist.is_initialized()  # by who started this rank
    try:
        if not found:
            backend = "cpu:gloo,cuda:nccl" if place.type == "cuda" else "gloo"
            dist.init_process_group(backend, timeout=timedelta(seconds=timeout_seconds))
        yield World(rank, size, place)
    except CurateError:
        speaks()  # before the others see connections close
        raise
    except (dist.DistError, RuntimeError) as error:
        if not _lost(error):
            raise
        speaks()
        raise LostRankError(
            f"rank {rank} of {size}: another rank has ended or has not answered for {timeout_seconds:g} s; its own "
            f"message says why, no message means that it was killed (memory?); run again: it goes on from the last "
            f"checkpoint"
        ) from error
    finally:
        if not found:
            with suppress(RuntimeError):  # of a group that has lost a member
                dist.destroy_process_group()


@cache
def speaks() -> bool:
    """Whether this rank is to say what ended it: the first one that asks. What others would say is the same, or that
    they have lost this one. True where nobody can be asked."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        return True
    restart = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    try:
        place = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        store = dist.TCPStore(*place, is_master=False, timeout=_STORE_TIMEOUT, wait_for_workers=False)
        return store.add(f"distill/ended/{restart}", 1) == 1
    except (KeyError, ValueError, RuntimeError):
        return True


def _lost(error: BaseException) -> bool:
    said = str(error).lower()
    signs = ("gloo", "nccl", "connection closed", "connection reset", "broken pipe", "timed out", "timeout", "peer")
    return isinstance(error, dist.DistError) or any(sign in said for sign in signs)


def _device(name: str, local_rank: int) -> torch.device:
    """PreflightError for what there is not."""
    count = torch.cuda.device_count()
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cpu":
        return torch.device("cpu")
    if not re.fullmatch(r"cuda(:\d+)?", name):
        raise PreflightError(f"run.device: {name!r} is none of auto, cpu, cuda, cuda:0 …; use one of them")
    if not count:
        raise PreflightError(f"run.device: {name!r}, but torch sees no GPU here; use --set run.device=cpu")
    number = local_rank if name == "cuda" else int(name.removeprefix("cuda:"))
    if number >= count:
        raise PreflightError(
            f"run.device: {name!r} asks for GPU {number}, but torch sees {count} here, from 0 on; start as many "
            f"processes as there are GPUs, or name another one"
        )
    torch.cuda.set_device(number)
    return torch.device("cuda", number)
