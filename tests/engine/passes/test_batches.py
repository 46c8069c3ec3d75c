"""Batches: as many rows out as in, the guilty row found by halving, every batch of one size where that matters."""

from __future__ import annotations

from collections import Counter
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from curate.core.contracts import Batch, Map
from curate.core.errors import CurateError, Reject
from curate.core.nouns.facts import DONE, ERROR, UNUSABLE
from curate.engine.passes.batches import BatchResult, run_batch


class Doubled(Map):
    """Twice a number. Some numbers are unusable or fail, and some make it raise."""

    op: ClassVar[str] = "toy.doubled"
    calls: ClassVar[list[int]] = []
    unfit: frozenset[int] = frozenset()
    fails: frozenset[int] = frozenset()
    raises: frozenset[int] = frozenset()
    returns: Any = None

    def schema(self) -> pa.Schema:
        return pa.schema([pa.field("double", pa.int64()), pa.field("name", pa.string())])

    def process(self, batch: Batch) -> dict[str, Any]:
        self.calls.append(len(batch))
        if self.returns is not None:
            return self.returns
        numbers = batch.column("number")
        if set(numbers) & self.raises:
            raise ZeroDivisionError("by one of them")
        batch.counters["seen"] += len(batch)
        batch.unusable((row for row, number in enumerate(numbers) if number in self.unfit), "odd_one")
        for row, number in enumerate(numbers):
            if number in self.fails:
                batch.fail(row, "busy")
        return {"double": np.array(numbers) * 2, "name": [str(n) for n in numbers]}


def table(numbers: list[int]) -> pa.Table:
    return pa.table({"key": [f"{n:032x}" for n in numbers], "number": pa.array(numbers, pa.int64())})


NUMBERS = st.lists(st.integers(0, 50), unique=True, max_size=40)
SOME = st.frozensets(st.integers(0, 50), max_size=4)


def facts_of(produced: BatchResult) -> list[tuple[Any, ...]]:
    """Values, status and reason of each row."""
    rows = [tuple(row.values()) for row in produced.table.to_pylist()]
    return [(*row, *about) for row, *about in zip(rows, produced.status.tolist(), produced.reason, strict=True)]


def expected(number: int, stage: Doubled) -> tuple[Any, ...]:
    if number in stage.raises:
        return (None, None, ERROR, "ZeroDivisionError")
    if number in stage.unfit:
        return (None, None, UNUSABLE, "odd_one")
    if number in stage.fails:
        return (None, None, ERROR, "busy")
    return (2 * number, str(number), DONE, None)


@given(NUMBERS, SOME, SOME, SOME)
def test_each_row_gets_its_own(
    numbers: list[int], unfit: frozenset[int], fails: frozenset[int], raises: frozenset[int]
) -> None:
    """A row without facts has no values, even if the stage returned some."""
    Doubled.calls.clear()
    stage = Doubled(unfit=unfit, fails=fails, raises=raises)
    produced = run_batch(stage, table(numbers), [None] * len(numbers))
    assert facts_of(produced) == [expected(number, stage) for number in numbers]
    bad = raises & set(numbers)
    assert produced.counters == Counter(seen=len(numbers) - len(bad)) + Counter()
    assert produced.messages == ({"ZeroDivisionError": "ZeroDivisionError: by one of them"} if bad else {})
    assert len(Doubled.calls) <= 1 + 2 * len(bad) * max(1, len(numbers)).bit_length()
    assert produced.computed == sum(Doubled.calls)


@given(NUMBERS, SOME, st.data())
def test_rows_are_the_same_however_batches_are_cut(
    numbers: list[int], raises: frozenset[int], data: st.DataObject
) -> None:
    stage, cut = Doubled(raises=raises), data.draw(st.integers(0, len(numbers)))
    whole = run_batch(stage, table(numbers), [])
    parts = run_batch(stage, table(numbers[:cut]), []) + run_batch(stage, table(numbers[cut:]), [])
    assert facts_of(parts) == facts_of(whole) and parts.counters == whole.counters and parts.messages == whole.messages


@given(NUMBERS.filter(bool), SOME, SOME, st.integers(1, 64))
def test_short_and_halved_batches_are_filled_up(
    numbers: list[int], unfit: frozenset[int], raises: frozenset[int], pad: int
) -> None:
    """With copies of the last row, of which nothing is seen afterwards."""
    Doubled.calls.clear()
    stage = Doubled(unfit=unfit, raises=raises)
    produced = run_batch(stage, table(numbers), [None] * len(numbers), pad)
    assert facts_of(produced) == [expected(number, stage) for number in numbers]
    assert all(not pad or call % pad == 0 for call in Doubled.calls)
    assert Doubled.calls[0] == (-(-len(numbers) // pad) * pad if pad else len(numbers))


def test_what_was_prepared_stays_with_its_row() -> None:
    class Prepared(Doubled):
        def process(self, batch: Batch) -> dict[str, Any]:
            assert batch.prepared == [f"image {number}" for number in batch.column("number")]
            return super().process(batch)

    for pad in (0, 16):
        images = [f"image {number}" for number in range(9)]
        assert facts_of(run_batch(Prepared(raises=frozenset([2, 7])), table(list(range(9))), images, pad))[8][0] == 16


def test_no_rows_need_no_call() -> None:
    Doubled.calls.clear()
    assert run_batch(Doubled(), table([]), []).table.num_rows == 0 and Doubled.calls == []


def test_rejecting_a_batch_means_one_of_its_rows() -> None:
    class Picky(Doubled):
        def process(self, batch: Batch) -> dict[str, Any]:
            if 3 in batch.column("number"):
                raise Reject("three", "it is a three")
            return super().process(batch)

    produced = run_batch(Picky(), table([1, 2, 3, 4]), [])
    assert produced.reason.tolist() == [None, None, "three", None]
    assert produced.status.tolist() == [DONE, DONE, UNUSABLE, DONE] and produced.messages == {}


def test_errors_of_the_whole_run_are_raised() -> None:
    class Full(Doubled):
        def process(self, batch: Batch) -> dict[str, Any]:
            raise CurateError("GPU out of memory; lower batch_size")

    with pytest.raises(CurateError, match="lower batch_size"):
        run_batch(Full(), table([1, 2]), [])


@pytest.mark.parametrize(
    ("returns", "message"),
    [
        ({"double": [1], "name": ["a", "b"]}, "double has 1 values for a batch of 2 rows"),
        ({"double": [1, 2], "name": ["a", "b"], "extra": [1, 2]}, r"columns \['extra'\] that are not in its schema"),
        ({"double": [1, 2], "name": ["a", "b"], "reject": [None, None]}, r"columns \['reject'\] that are not in"),
        ({"double": [1, 2]}, "process returned no 'name'"),
    ],
)
def test_a_programmers_error_is_one_at_once(returns: dict[str, Any], message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        run_batch(Doubled(returns=returns), table([1, 2]), [])
