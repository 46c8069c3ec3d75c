"""`align.threshold`: the score that a given share of a pool reaches (DataComp's top 30 %).

It counts float32 values in the order of their bits: sign, exponent and mantissa compare as an integer once negative
values are flipped. Counts are exact up to EXACT_VALUES distinct values; beyond that, values share bins of 16 bits of
mantissa, which is exact to one part in 65,536. The choice depends on the whole pool, not on its shards.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from decimal import Decimal
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pydantic import Field

from curate.align.scores import is_list, numbers_of
from curate.core.contracts import Artifact, Reduce, Table
from curate.core.errors import CurateError

KIND = "threshold"
EXACT_VALUES = 1 << 20
BARS = 64
_BIN_BITS = 7
_SIGN = np.uint32(1 << 31)
_LEFT_OUT = np.uint32(0xFFFFFFFF)
"""Order of null, NaN and infinite scores; no finite value has it."""


class Threshold(Reduce):
    """Find the score that the best `share` of all texts (or rows) reaches, and a histogram of scores.

    It is the k-th highest score, with k = share x number of scores, rounded up. Ties can make more texts reach it
    (`share_realised`). Null, NaN and infinite scores do not count. With more than 2^20 distinct scores, the threshold
    is exact to one part in 65,536, rounded down so that at least the share reaches it.
    """

    op: ClassVar[str] = "align.threshold"
    kind: ClassVar[str] = KIND

    share: float = Field(0.3, gt=0, le=1, description="Share of the scores to be at or above the threshold.")
    column: str = Field("similarity", description="Column of numbers: one per row, or a list with one for each text.")

    def reads(self) -> tuple[str, ...]:
        return (self.column,)

    def counting(self) -> dict[str, Any]:
        return {"column": self.column}

    def partial(self, table: Table) -> Table:
        column = table.column(self.column)
        found = numbers_of(self.op, column, self.column, "column")
        total = int(np.maximum(found.lengths, 0).sum()) if is_list(column) else table.num_rows
        values = found.values.to_numpy(zero_copy_only=False)
        values = values[np.isfinite(values)]
        order, count = np.unique(ordered(values), return_counts=True)
        left_out = total - len(values)
        if left_out:
            order, count = np.append(order, _LEFT_OUT), np.append(count, left_out)
        return _state(order, count, False)

    def merge(self, states: Iterator[Table]) -> Table:
        pending, rows = [_state(np.zeros(0, np.uint32), np.zeros(0, np.int64), False)], 0
        for state in states:
            pending.append(state.replace_schema_metadata())
            rows += state.num_rows
            if rows > 2 * EXACT_VALUES:
                pending, rows = [_summed(pending)], 0
        return _summed(pending)

    def finish(self, state: Table) -> Artifact:
        order, count = (state.column(name).to_numpy() for name in ("order", "count"))
        finite = order != _LEFT_OUT
        left_out, order, count = int(count[~finite].sum()), order[finite], count[finite]
        items = int(count.sum())
        if not items:
            raise CurateError(
                f"{self.op}.column: no score in {self.column!r} ({left_out} null, NaN or infinite); "
                "loosen the filters upstream, or name another column"
            )
        values = numbers(order)
        reached = np.cumsum(count[::-1])
        place = int(np.searchsorted(reached, math.ceil(Decimal(str(self.share)) * items)))
        told: dict[str, Any] = {
            "column": self.column,
            "value": float(values[::-1][place]),
            "share": self.share,
            "share_realised": int(reached[place]) / items,
            "items": items,
            "left_out": left_out,
            "exact": not _is_binned(state),
        }
        return {"threshold": told, "histogram": histogram(values, count)}


def histogram(values: NDArray[np.float32], count: NDArray[np.int64]) -> Table:
    """Ascending values and their counts -> BARS bars of equal width (`low`, `high`, `count`); one for one value."""
    low, high = float(values[0]), float(values[-1])
    bars = BARS if high > low else 1
    width = (high - low) / bars
    place = np.zeros(len(values)) if bars == 1 else (values.astype(np.float64) - low) / width
    counts = np.zeros(bars, dtype=np.int64)
    np.add.at(counts, np.minimum(place.astype(np.int64), bars - 1), count)
    edges = np.append(low + width * np.arange(bars), high)
    return pa.table({"low": edges[:-1], "high": edges[1:], "count": counts})


def ordered(values: NDArray[np.float32]) -> NDArray[np.uint32]:
    """Finite float32 values -> integers in the same order; 0.0 and -0.0 are equal."""
    bits = (values + np.float32(0)).view(np.uint32)
    return np.where(bits & _SIGN, ~bits, bits | _SIGN)


def numbers(order: NDArray[np.uint32]) -> NDArray[np.float32]:
    """The inverse of `ordered`; the lower edge for a bin."""
    return np.where(order & _SIGN, order ^ _SIGN, ~order).astype(np.uint32).view(np.float32)


def _state(order: NDArray[np.uint32], count: NDArray[np.int64], binned: bool) -> Table:
    if len(order) > EXACT_VALUES and not binned:
        return _binned(order, count)
    return pa.table({"order": order, "count": count.astype(np.int64), "binned": np.full(len(order), binned)})


def _binned(order: NDArray[np.uint32], count: NDArray[np.int64]) -> Table:
    low = np.where(order == _LEFT_OUT, order, order >> _BIN_BITS << _BIN_BITS).astype(np.uint32)
    return _state(*_sum_equal(low, count), True)


def _summed(states: list[Table]) -> Table:
    table = pa.concat_tables(states)
    order, count = table.column("order").to_numpy(), table.column("count").to_numpy()
    if any(map(_is_binned, states)):
        return _binned(order, count)
    return _state(*_sum_equal(order, count), False)


def _is_binned(state: Table) -> bool:
    return state.num_rows > 0 and bool(state.column("binned")[0].as_py())


def _sum_equal(order: NDArray[np.uint32], count: NDArray[np.int64]) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
    """Sum the counts of equal values."""
    by = np.argsort(order, kind="stable")
    found, first = np.unique(order[by], return_index=True)
    return found, np.add.reduceat(count[by], first) if len(first) else np.zeros(0, dtype=np.int64)
