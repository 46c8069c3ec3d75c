"""Expressions with patterns that people ask a service for, computed in a child process with limits: a short pattern may
take minutes for a shard, and polars cannot be interrupted."""

from __future__ import annotations

import atexit
import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import polars as pl

from curate.core.child import Limits, Warm
from curate.core.errors import InputError

MEMORY_BYTES = 2 << 30
NICE = 10
"""Pages come before questions."""
_seconds: ContextVar[float | None] = ContextVar("_seconds", default=None)
_warm = Warm(__name__, alone=False)  # polars opens an event queue
atexit.register(_warm.close)


@contextmanager
def bounded(seconds: float) -> Iterator[None]:
    """Within it, the patterns of an expression may take so long for the rows of a shard."""
    token = _seconds.set(seconds)
    try:
        yield
    finally:
        _seconds.reset(token)


def computed(expr: pl.Expr, frame: pl.DataFrame, patterns: bool) -> pl.Series:
    """The expression's value for each row. Raises InputError if its patterns take too long or
    too much memory."""
    seconds = _seconds.get()
    if seconds is None or not patterns or frame.is_empty():
        return _value(expr, frame)
    given = expr.meta.serialize()
    order = len(given).to_bytes(8) + given + _bytes(frame)
    ended = _warm.call(f"{__name__}:answer", order, Limits(seconds, MEMORY_BYTES))
    if ended.answer is None:
        what = f"takes more than {seconds:g} s" if ended.how == "timeout" else f"fails ({ended.detail})"
        told = f"a pattern of the expression {what} for the {len(frame):,} rows of a shard"
        raise InputError(f"{told}; use a simpler one, without repetitions in repetitions")
    return pl.read_ipc(ended.answer).to_series()


def answer(order: bytes, _: object) -> bytes:
    """In the child."""
    os.nice(NICE)
    start = 8 + int.from_bytes(order[:8])
    expr = pl.Expr.deserialize(io.BytesIO(order[8:start]))
    return _bytes(_value(expr, pl.read_ipc(order[start:])).to_frame())


def _bytes(frame: pl.DataFrame) -> bytes:
    return frame.write_ipc(None).getvalue()


def _value(expr: pl.Expr, frame: pl.DataFrame) -> pl.Series:
    """By with_columns, because polars may simplify an expression to one value for all rows."""
    result = max(frame.columns, key=len) + "_"  # not the name of a column
    return frame.with_columns(expr.alias(result)).get_column(result)
