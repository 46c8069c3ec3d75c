"""The contrastive loss by tiles against the same loss with whole matrices: time of a forward and backward pass, and
memory above the vectors. Then other losses of all pairs by tiles, and the gradients of two processes against one's.

Both run in turn, in pairs, on the same vectors (float32, unit normal) with groups of which one in 20 is shared.

    python -m bench.distill.pairs [--pairs 16384] [--width 512] [--rounds 3] [--losses softmax,arkd]
    python -m bench.distill.pairs --device cuda --pairs 131072        by tiles only: seconds and peak memory
"""

from __future__ import annotations

import argparse
import ctypes
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor
from torch.nn.functional import cross_entropy, logsigmoid, normalize

from bench.kit.measure import line, load, machine
from distill.objectives.contrastive import Contrastive
from distill.objectives.kernels.contrastive import contrastive_loss, kl_loss, numbered, same, simclr_loss
from distill.objectives.kernels.relations import arkd, rkd
from distill.objectives.kernels.tiles import divided
from distill.parallel import World

LOSSES = ("softmax", "sigmoid", "kl", "simclr", "arkd", "rkd")
RANKS_PAIRS, MIB = 2048, 2**20
Loss = Callable[[str, "Batch"], Tensor]
_MMAP_THRESHOLD = -3
"""glibc's M_MMAP_THRESHOLD."""


class Batch:
    """Vectors of pairs, and of a teacher."""

    def __init__(self, pairs: int, width: int, device: torch.device, dtype: torch.dtype = torch.float32) -> None:
        generator = torch.Generator().manual_seed(0)
        self.sides = [torch.randn(pairs, width, generator=generator, dtype=dtype).to(device) for _ in range(2)]
        self.scale = torch.tensor(3.0, dtype=dtype, device=device, requires_grad=True)
        self.bias = torch.tensor(-10.0, dtype=dtype, device=device, requires_grad=True)
        numbers = torch.arange(pairs)
        texts = torch.where(numbers % 20 == 0, numbers // 40 * 40, numbers)
        self.groups = torch.stack([texts, numbers], 1).to(device)
        for side in self.sides:
            side.requires_grad_()

    def clear(self) -> None:
        for leaf in (*self.sides, self.scale, self.bias):
            leaf.grad = None


def tiled(name: str, batch: Batch) -> Tensor:
    x, y = batch.sides
    if name in ("softmax", "sigmoid"):
        recipe = Contrastive.model_validate({"loss": name})
        return contrastive_loss(x, y, batch.scale, batch.bias, recipe, batch.groups)
    if name == "kl":
        return kl_loss(x, y, batch.scale, (y.detach(), x.detach(), 200.0))
    if name == "simclr":
        return simclr_loss(x, y, 0.1)
    return {"arkd": arkd, "rkd": rkd}[name](x, y)


def dense(name: str, batch: Batch) -> Tensor:
    """As most implementations compute them, with the same pairs left out."""
    x, y = (normalize(side, dim=-1) for side in batch.sides)
    own = numbered(batch.groups)
    logits = x @ y.T * batch.scale.exp()
    if name == "softmax":
        labels, out = torch.arange(len(x), device=x.device), same(own, own)
        logits = logits.masked_fill(out, float("-inf"))
        return (cross_entropy(logits, labels) + cross_entropy(logits.T, labels)) / 2
    sign = 2 * torch.eye(len(x), device=x.device, dtype=x.dtype) - 1
    losses = -logsigmoid(sign * (logits + batch.bias))
    return losses.masked_fill(same(own, own), 0.0).sum() / len(x)


class Peak:
    """Peak memory above that at the beginning, in MiB: of this process on a CPU, as allocated on a GPU."""

    def __init__(self, device: torch.device) -> None:
        self.device, self.mib = device, 0.0

    def __enter__(self) -> Peak:
        if self.device.type == "cuda":
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            self.start = torch.cuda.memory_allocated()
            return self
        ctypes.CDLL(None).malloc_trim(0)
        self.start, self.most, self.done = _resident(), 0, threading.Event()
        self.thread = threading.Thread(target=self._watch, daemon=True)
        self.thread.start()
        return self

    def _watch(self) -> None:
        while not self.done.wait(0.005):
            self.most = max(self.most, _resident())

    def __exit__(self, *_: object) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()
            self.mib = (torch.cuda.max_memory_allocated() - self.start) / MIB
            return
        self.done.set()
        self.thread.join()
        self.mib = (self.most - self.start) / MIB


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def cost(loss: Loss, name: str, batch: Batch, device: torch.device) -> float:
    """Seconds of a forward and backward pass, on a CPU those of one core."""
    clock = time.perf_counter if device.type == "cuda" else time.process_time
    batch.clear()
    began = clock()
    loss(name, batch).backward()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return clock() - began


def memory(loss: Loss, name: str, batch: Batch, device: torch.device) -> float:
    """MiB of a forward and backward pass above the vectors; their gradients count. Each tensor of more than 1 MiB then
    leaves the process when it is freed, which costs time."""
    batch.clear()
    allocator = ctypes.CDLL(None)
    allocator.mallopt(_MMAP_THRESHOLD, MIB)
    with Peak(device) as peak:
        loss(name, batch).backward()
    allocator.mallopt(_MMAP_THRESHOLD, 32 * MIB)
    return peak.mib


def against_dense(name: str, batch: Batch, rounds: int, device: torch.device) -> None:
    kinds: dict[str, Loss] = {"tiles": tiled, "dense": dense}
    found: dict[str, list[float]] = {kind: [] for kind in kinds}
    for _ in range(rounds):
        for kind, loss in kinds.items():
            found[kind].append(cost(loss, name, batch, device))
    for kind, loss in kinds.items():
        note = f"+{memory(loss, name, batch, device):,.0f} MiB, {rounds} rounds, {load()}"
        line(f"{name}: {kind}", f"{statistics.median(found[kind]):.2f} s", note)
    ratios = [one / other for one, other in zip(*found.values(), strict=True)]
    line(f"{name}: tiles over dense", f"{statistics.median(ratios):.2f}x", f"{min(ratios):.2f} to {max(ratios):.2f}")


def by_tiles(name: str, batch: Batch, rounds: int, device: torch.device) -> None:
    peak = memory(tiled, name, batch, device)  # on a GPU the first call also loads kernels
    took = statistics.median(cost(tiled, name, batch, device) for _ in range(rounds))
    line(f"{name}: tiles", f"{took:.2f} s", f"+{peak:,.0f} MiB, {peak / 1024:.2f} GiB")


def _rank(rank: int, name: str, width: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/{name}", rank=rank, world_size=2)
    batch = Batch(RANKS_PAIRS, width, torch.device("cpu"), torch.float64)
    began = time.process_time()
    with divided(World(rank, 2, torch.device("cpu"))):
        tiled(name, batch).backward()
    took = time.process_time() - began
    torch.save([took, *(leaf.grad for leaf in (*batch.sides, batch.scale))], f"{folder}/{name}-{rank}.pt")
    dist.destroy_process_group()


def two_ranks(names: list[str], width: int) -> None:
    """Float64 gradients of two gloo ranks against one process's, relative to the largest."""
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            batch = Batch(RANKS_PAIRS, width, torch.device("cpu"), torch.float64)
            began = time.process_time()
            tiled(name, batch).backward()
            alone = time.process_time() - began
            mp.spawn(_rank, (name, width, folder), nprocs=2)
            worst, shares = 0.0, []
            for rank in range(2):
                took, *grads = torch.load(f"{folder}/{name}-{rank}.pt")
                shares.append(took / alone)
                for leaf, grad in zip((*batch.sides, batch.scale), grads, strict=True):
                    if grad is not None and leaf.grad is not None:
                        worst = max(worst, float((grad - leaf.grad).abs().max() / leaf.grad.abs().max()))
            note = f"CPU time of a rank {max(shares):.2f} of one process's"
            line(f"{name}: two ranks at {RANKS_PAIRS:,} pairs", f"{worst:.1e}", note)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--pairs", type=int, default=16_384)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--losses", default=",".join(LOSSES))
    given = parser.parse_args() if __name__ == "__main__" else parser.parse_args([])
    device, names = torch.device(given.device), given.losses.split(",")
    torch.set_num_threads(1)
    batch = Batch(given.pairs, given.width, device)
    where = torch.cuda.get_device_name(device) if device.type == "cuda" else machine()
    line(where, f"torch {torch.__version__}", f"{given.pairs:,} pairs x {given.width}, float32")
    for name in names:
        if name in ("softmax", "sigmoid") and device.type == "cpu":
            against_dense(name, batch, given.rounds, device)
            continue
        by_tiles(name, batch, given.rounds, device)
    if device.type == "cpu":
        two_ranks(names, given.width)


if __name__ == "__main__":
    sys.exit(main())
