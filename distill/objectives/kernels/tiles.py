"""Sums over all pairs of rows and columns, tile by tile, so that no matrix of all pairs is ever in memory.

A tile is a function of some rows and some columns that gives a value for each pair, such as its logit. Only sums are
kept; the backward pass computes each tile again, as FlashAttention does (Dao et al. 2022), and Inf-CL for the
contrastive loss (Cheng et al. 2024). Within `divided`, each rank computes the tiles of its share of the rows. Results
and gradients are those of all pairs, on every rank, so a loss of them is an ordinary function of the global batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from distill.parallel import World

SIDE = {"cpu": 1024, "cuda": 4096}
"""Rows and columns of a tile by type of device: a few such matrices are in memory at once."""
Tile = Callable[..., Tensor]
"""(rows, columns, *scalars) -> values (n, m); rows and columns are tuples of the slices of what was given."""
_ALONE = World(0, 1, torch.device("cpu"))
_WORLD: ContextVar[World] = ContextVar("world", default=_ALONE)


@contextmanager
def divided(world: World) -> Iterator[None]:
    """Divide the tiles over ranks, all of which must compute the same sums of the same vectors in the same order."""
    before = _WORLD.set(world)
    try:
        yield
    finally:
        _WORLD.reset(before)


def total(
    tile: Tile, rows: Sequence[Tensor], columns: Sequence[Tensor], scalars: Sequence[Tensor] = (), upper: bool = False
) -> Tensor:
    """Sum of the values of all pairs, float64.

    rows: each (N, …); columns: each (M, …); scalars: passed to every tile, with a gradient; upper: only pairs i < j.
    """
    result: Tensor = _Tiled.apply(_work("sum", tile, rows, columns, scalars, upper), *rows, *columns, *scalars)
    return result


def log_sum_exps(
    tile: Tile, rows: Sequence[Tensor], columns: Sequence[Tensor], upper: bool = False
) -> tuple[Tensor, Tensor]:
    """Logarithm of the sum of exponentials of each row's values (N,) and of each column's (M,), for values of -inf or
    less than inf. -inf without pairs. Arguments as in `total`."""
    work = _work("exp", tile, rows, columns, (), upper)
    of_rows, of_columns = _Tiled.apply(work, *rows, *columns)
    return of_rows, of_columns


def tiles(rows: int, columns: int, device: torch.device, upper: bool = False) -> Iterator[tuple[slice, slice]]:
    """The tiles that this rank computes. upper: those with pairs i < j; then a tile on the diagonal has equal starts.

    The rows have two equal parts for each rank: part `rank` and its mirror image. So all ranks also have equally many
    pairs i < j.
    """
    world, side = _WORLD.get(), SIDE.get(device.type, SIDE["cpu"])
    side = max(1, side // 2) if upper else side  # half of a tile on the diagonal is wasted
    parts = 2 * world.size if world.size > 1 else 1
    for part in sorted({world.rank, parts - 1 - world.rank}):
        stop = rows * (part + 1) // parts
        for top in range(rows * part // parts, stop, side):
            for left in range(top if upper else 0, columns, side):
                yield slice(top, min(top + side, stop)), slice(left, min(left + side, columns))


def sum_over_ranks(values: Tensor) -> Tensor:
    """Sum of what each rank has added up over its `tiles`, in place."""
    return _WORLD.get().sum(values)


@dataclass(frozen=True)
class _Work:
    kind: Literal["sum", "exp"]
    tile: Tile
    rows: int
    columns: int
    """Numbers of tensors that are sliced by rows, and by columns; the others are scalars."""
    upper: bool
    world: World
    autocast: tuple[str, torch.dtype, bool]

    def slices(self, tensors: Sequence[Tensor]) -> Iterator[tuple[list[Any], bool]]:
        """For each tile of this rank an index into each tensor, and whether it has pairs i >= j to leave out."""
        rows, columns = tensors[0], tensors[self.rows]
        scalars = len(tensors) - self.rows - self.columns
        with divided(self.world):
            for row, column in tiles(len(rows), len(columns), rows.device, self.upper):
                index = [row] * self.rows + [column] * self.columns + [...] * scalars
                yield index, self.upper and row.start == column.start

    def values(self, parts: Sequence[Tensor], diagonal: bool) -> Tensor:
        """(n, m)."""
        end = self.rows + self.columns
        device, dtype, enabled = self.autocast
        with torch.autocast(device, dtype, enabled=enabled):
            values = self.tile(tuple(parts[: self.rows]), tuple(parts[self.rows : end]), *parts[end:])
        if not diagonal:
            return values
        if self.kind == "sum":
            return values.triu(1)
        below = torch.ones(values.shape, dtype=torch.bool, device=values.device).tril()
        return values.masked_fill(below, float("-inf"))


def _work(
    kind: Literal["sum", "exp"],
    tile: Tile,
    rows: Sequence[Tensor],
    columns: Sequence[Tensor],
    scalars: Sequence[Tensor],
    upper: bool,
) -> _Work:
    device = rows[0].device.type
    autocast = device, torch.get_autocast_dtype(device), torch.is_autocast_enabled(device)
    return _Work(kind, tile, len(rows), len(columns), upper, _WORLD.get(), autocast)


class _Tiled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, work: _Work, *tensors: Tensor) -> Any:
        ctx.work = work
        if work.kind == "sum":
            result = torch.zeros((), dtype=torch.float64, device=tensors[0].device)
            for index, diagonal in work.slices(tensors):
                result += work.values(_parts(tensors, index), diagonal).sum(dtype=torch.float64)
            ctx.save_for_backward(*tensors)
            return work.world.sum(result)
        rows, columns = (
            torch.full(
                side.shape[:1], float("-inf"), dtype=torch.promote_types(side.dtype, torch.float32), device=side.device
            )
            for side in (tensors[0], tensors[work.rows])
        )
        for index, diagonal in work.slices(tensors):
            values = work.values(_parts(tensors, index), diagonal).to(rows.dtype)
            for sums, place, over in ((rows, index[0], 1), (columns, index[work.rows], 0)):
                sums[place] = torch.logaddexp(sums[place], values.logsumexp(over))
        rows, columns = (_over_ranks(sums, work.world) for sums in (rows, columns))
        ctx.save_for_backward(*tensors, rows, columns)
        return rows, columns

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *upstream: Tensor) -> Any:
        work, needed = ctx.work, ctx.needs_input_grad[1:]
        tensors = ctx.saved_tensors[: len(needed)]
        # nothing adds to the sum of no pairs
        sums = [value.masked_fill(value == float("-inf"), float("inf")) for value in ctx.saved_tensors[len(needed) :]]
        grads = [item.new_zeros(item.shape) if need else None for item, need in zip(tensors, needed, strict=True)]
        for index, diagonal in work.slices(tensors):
            parts = [
                part.detach().requires_grad_(need) for part, need in zip(_parts(tensors, index), needed, strict=True)
            ]
            with torch.enable_grad():
                values = work.values(parts, diagonal)
            if work.kind == "sum":
                above = upstream[0].to(values.dtype).expand_as(values)
            else:
                row, column = index[0], index[work.rows]
                own = values.detach()
                above = (own - sums[0][row, None]).exp_().mul_(upstream[0][row, None])
                above += (own - sums[1][column]).exp_().mul_(upstream[1][column])
                above = above.to(values.dtype)
            wanted = [part for part in parts if part.requires_grad]
            found = iter(torch.autograd.grad(values, wanted, above))
            for grad, place in zip(grads, index, strict=True):
                if grad is not None:
                    grad[place] += next(found)
        return None, *(grad if grad is None else work.world.sum(grad) for grad in grads)


def _parts(tensors: Sequence[Tensor], index: Sequence[Any]) -> list[Tensor]:
    return [tensor[place] for tensor, place in zip(tensors, index, strict=True)]


def _over_ranks(sums: Tensor, world: World) -> Tensor:
    """Log-sum-exp of all ranks' (N,)."""
    if world.size == 1:
        return sums
    most = world.max(sums.clone()).nan_to_num(neginf=0.0)
    return world.sum((sums - most).exp()).log() + most
