"""Batches: as many rows out as in, the guilty row found by halving, everything back where it was."""

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
from curate.engine.batches import run_batch, scatter


class Doubled(Map):
    """Twice a number; refuses, raises or stops at some."""

    op: ClassVar[str] = "toy.doubled"
    calls: ClassVar[list[int]] = []
    refuses: frozenset[int] = frozenset()
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
        reject = ["odd_one" if number in self.refuses else None for number in numbers]
        return {"double": np.array(numbers) * 2, "name": [str(n) for n in numbers], "reject": reject}


def table(numbers: list[int]) -> pa.Table:
    return pa.table({"key": [f"{n:032x}" for n in numbers], "number": pa.array(numbers, pa.int64())})


NUMBERS = st.lists(st.integers(0, 50), unique=True, max_size=40)


@given(NUMBERS, st.frozensets(st.integers(0, 50), max_size=4), st.frozensets(st.integers(0, 50), max_size=4))
def test_each_row_gets_its_own(numbers: list[int], refuses: frozenset[int], raises: frozenset[int]) -> None:
    Doubled.calls.clear()
    produced = run_batch(Doubled(refuses=refuses, raises=raises), table(numbers), [None] * len(numbers))
    bad = raises & set(numbers)
    for number, row in zip(numbers, produced.table.to_pylist(), strict=True):
        if number in bad:
            assert row == {"double": None, "name": None, "reject": "error_ZeroDivisionError"}
        else:
            reason = "odd_one" if number in refuses else None
            assert row == {"double": 2 * number, "name": str(number), "reject": reason}
    assert produced.entry.counters == Counter(seen=len(numbers) - len(bad)) + Counter()
    assert bool(bad) == ("error_ZeroDivisionError" in produced.messages)
    assert len(Doubled.calls) <= 1 + 2 * len(bad) * max(1, len(numbers)).bit_length()


@given(st.data())
def test_rows_go_back_where_they_were(data: st.DataObject) -> None:
    rows = data.draw(st.integers(0, 60))
    alive = np.array(data.draw(st.lists(st.booleans(), min_size=rows, max_size=rows)), dtype=bool)
    early = {int(i): "cut" for i in np.flatnonzero(alive) if data.draw(st.booleans())}
    refuses = frozenset(i for i in range(rows) if data.draw(st.booleans()))
    live = np.array([i for i in np.flatnonzero(alive) if i not in early], dtype=np.int64)
    cut = data.draw(st.integers(0, len(live)))
    stage = Doubled(refuses=refuses)
    parts = [run_batch(stage, table(part.tolist()), []) for part in (live[:cut], live[cut:])]
    produced = scatter(stage.schema(), parts, live, rows, alive, early)
    for i, row in enumerate(produced.table.to_pylist()):
        if i in live:
            assert row == {"double": 2 * i, "name": str(i), "reject": "odd_one" if i in refuses else None}
        else:
            assert row == {"double": None, "name": None, "reject": early.get(i)}
    produced.entry.check("stage")
    assert produced.entry.before == int(alive.sum())
    assert produced.entry.rejected == Counter(cut=len(early), odd_one=len(refuses & set(live.tolist()))) + Counter()


def test_nothing_is_asked_about_no_rows() -> None:
    Doubled.calls.clear()
    assert run_batch(Doubled(), table([]), []).table.num_rows == 0 and Doubled.calls == []


def test_refusing_a_batch_refuses_the_row_it_means() -> None:
    class Picky(Doubled):
        def process(self, batch: Batch) -> dict[str, Any]:
            if 3 in batch.column("number"):
                raise Reject("three", "it is a three")
            return super().process(batch)

    produced = run_batch(Picky(), table([1, 2, 3, 4]), [])
    assert produced.table.column("reject").to_pylist() == [None, None, "three", None]
    assert produced.messages == {"three": "three: it is a three"}


def test_what_concerns_the_whole_run_is_raised() -> None:
    class Full(Doubled):
        def process(self, batch: Batch) -> dict[str, Any]:
            raise CurateError("GPU out of memory; lower batch_size")

    with pytest.raises(CurateError, match="lower batch_size"):
        run_batch(Full(), table([1, 2]), [])


@pytest.mark.parametrize(
    ("returns", "message"),
    [
        ({"double": [1], "name": ["a", "b"]}, "double has 1 values for a batch of 2 rows"),
        ({"double": [1, 2], "name": ["a", "b"], "extra": [1, 2]}, r"columns \['extra'\] that its schema does not name"),
        ({"double": [1, 2]}, "process returned no 'name'"),
    ],
)
def test_a_programmers_error_is_one_at_once(returns: dict[str, Any], message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        run_batch(Doubled(returns=returns), table([1, 2]), [])
