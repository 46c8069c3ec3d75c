"""The process group that torchrun started, or a single process.

Gradients are sums over images divided by the images of the global batch, so their sum over ranks is exact for any
division of the images; a rank without images adds zeros. If a rank is lost, the others end with an error: at once if
its connections close, after `run.timeout_seconds` if it hangs. Only the first rank that fails prints its error.
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
_FIRST_TIMEOUT = timedelta(seconds=300)
T = TypeVar("T")


class LostRankError(CurateError):
    """Another rank has ended or does not answer; that rank prints the cause."""


@dataclass(frozen=True)
class World:
    """A process's rank in the process group, with the collectives that training needs; no-ops for a single process."""

    rank: int
    size: int
    device: torch.device
    group: Any = None
    """The process group that its collectives use; None: the default one."""

    def beside(self) -> World:
        """The same ranks with a separate process group on the CPU, for another thread. A collective."""
        if self.size == 1:
            return self
        return World(self.rank, self.size, torch.device("cpu"), dist.new_group(backend="gloo"))

    @property
    def first(self) -> bool:
        return self.rank == 0

    def sum(self, values: Tensor) -> Tensor:
        """Sum over ranks, in place."""
        if self.size > 1:
            dist.all_reduce(values, group=self.group)
        return values

    def numbers(self, values: Iterable[float]) -> list[float]:
        """Sums of the values over ranks, in float64."""
        return self.sum(torch.tensor(list(values), dtype=torch.float64, device=self.device)).tolist()

    def max(self, values: Tensor) -> Tensor:
        """Maximum over ranks, in place."""
        if self.size > 1:
            dist.all_reduce(values, dist.ReduceOp.MAX, group=self.group)
        return values

    def largest(self, value: int) -> int:
        """Maximum over ranks."""
        return int(self.max(torch.tensor([value], device=self.device)).item())

    def gather(self, value: Any) -> list[Any]:
        """Every rank's value, by rank, on every rank."""
        if self.size == 1:
            return [value]
        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value, group=self.group)
        return values

    def from_first(self, make: Callable[[], T]) -> T:
        """The result of `make` on rank 0, sent to every rank; the other ranks need not see its files."""
        if self.size == 1:
            return make()
        values: list[Any] = [make() if self.first else None]
        dist.broadcast_object_list(values, src=0, group=self.group)
        result: T = values[0]
        return result

    def gather_rows(self, rows: Tensor, counts: list[int]) -> Tensor:
        """Concatenated rows (n, …) of all ranks, detached, on every rank; counts: n of each rank."""
        rows = rows.detach()
        if self.size == 1:
            return rows
        padded = rows.new_zeros(max(counts), *rows.shape[1:])
        padded[: len(rows)] = rows
        parts = [torch.empty_like(padded) for _ in counts]
        dist.all_gather(parts, padded, group=self.group)
        return torch.cat([part[:count] for part, count in zip(parts, counts, strict=True)])

    def barrier(self) -> None:
        if self.size > 1:
            dist.barrier(group=self.group)

    def sum_gradients(self, model: nn.Module) -> None:
        """Sum gradients over ranks, in one message per dtype; a weight without a gradient gets zeros.

        FSDP has already summed the gradients of sharded weights.
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
        """Norm of all gradients together, the same on every rank. Call it after `sum_gradients`."""
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
    """This rank's shard of a weight; the whole weight if it is not sharded."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


@contextmanager
def join_world(device: str, timeout_seconds: float = _TIMEOUT) -> Iterator[World]:
    """Join the process group of torchrun's environment; without one, a single process. device: auto, cpu, cuda, cuda:1.

    Raises LostRankError if another rank was lost, instead of the error of its broken connection.
    """
    rank, size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    place = _device(device, int(os.environ.get("LOCAL_RANK", "0")))
    if size == 1:
        yield World(0, 1, place)
        return
    joined = dist.is_initialized()  # Ray Train has done it
    try:
        if not joined:
            backend = "cpu:gloo,cuda:nccl" if place.type == "cuda" else "gloo"
            dist.init_process_group(backend, timeout=timedelta(seconds=timeout_seconds))
        yield World(rank, size, place)
    except CurateError:
        reports_error()  # before the other ranks see connections close
        raise
    except (dist.DistError, RuntimeError) as error:
        if not _lost(error):
            raise
        reports_error()
        raise LostRankError(
            f"rank {rank} of {size}: another rank ended or did not answer for {timeout_seconds:g} s; its message gives "
            f"the cause, no message means that it was killed (out of memory?); run again to resume from the last "
            f"checkpoint"
        ) from error
    finally:
        if not joined:
            with suppress(RuntimeError):  # the group may have lost a rank
                dist.destroy_process_group()


def from_first_rank(name: str, make: Callable[[], str]) -> str:
    """The result of `make` on rank 0, sent to every rank of torchrun before they join the process group. An error of
    rank 0 is every rank's. name: of the result, once per start of the group."""
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":  # nothing that could pass it on runs yet
        return make()
    key = f"distill/{name}/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}"
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    store = dist.TCPStore(host, port, is_master=False, timeout=_FIRST_TIMEOUT, wait_for_workers=False)
    if os.environ["RANK"] == "0":
        try:
            text = make()
        except CurateError as error:
            store.set(key, f"!{error}")
            raise
        store.set(key, f"={text}")
        return text
    try:
        found: str = store.get(key).decode()
    except dist.DistError as error:
        raise LostRankError(f"rank 0 sent no {name} within {_FIRST_TIMEOUT}; its message gives the cause") from error
    if found.startswith("!"):
        raise LostRankError(found[1:])
    return found[1:]


@cache
def reports_error() -> bool:
    """Whether this rank prints its error: true for the first rank that calls this, since the other ranks' errors are
    the same or follow from its error. Also true if the store cannot be reached."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        return True
    restart = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    try:
        host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        store = dist.TCPStore(host, port, is_master=False, timeout=_STORE_TIMEOUT, wait_for_workers=False)
        return store.add(f"distill/ended/{restart}", 1) == 1
    except (KeyError, ValueError, RuntimeError):
        return True


def _lost(error: BaseException) -> bool:
    message = str(error).lower()
    signs = ("gloo", "nccl", "connection closed", "connection reset", "broken pipe", "timed out", "timeout", "peer")
    return isinstance(error, dist.DistError) or any(sign in message for sign in signs)


def _device(name: str, local_rank: int) -> torch.device:
    """PreflightError for a device that does not exist."""
    count = torch.cuda.device_count()
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cpu":
        return torch.device("cpu")
    if not re.fullmatch(r"cuda(:\d+)?", name):
        raise PreflightError(f"run.device: expected auto, cpu, cuda or cuda:0 …, not {name!r}")
    if not count:
        raise PreflightError(f"run.device: {name!r}, but torch sees no GPU here; use --set run.device=cpu")
    number = local_rank if name == "cuda" else int(name.removeprefix("cuda:"))
    if number >= count:
        raise PreflightError(
            f"run.device: {name!r} needs GPU {number}, but torch sees {count} here, numbered from 0; start at most one "
            f"process per GPU, or name another GPU"
        )
    torch.cuda.set_device(number)
    return torch.device("cuda", number)
