from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from curate.core.errors import LedgerError
from curate.core.ledger import SET_ASIDE, Entry, total

COUNTS = st.dictionaries(st.sampled_from(["too_small", "truncated", "error_ValueError", SET_ASIDE]), st.integers(1, 99))


@st.composite
def entries(draw: st.DrawFn) -> Entry:
    rejected, after = Counter(draw(COUNTS)), draw(st.integers(0, 99))
    copies = draw(st.none() | st.integers(0, 300))
    return Entry(after + rejected.total(), rejected, after, Counter(draw(COUNTS)), copies)


@given(st.lists(entries(), max_size=6))
def test_what_adds_up_alone_adds_up_together(parts: list[Entry]) -> None:
    whole = total(parts).check("stage")
    assert whole.before == sum(part.before for part in parts)
    assert whole.rejected.total() + whole.after == whole.before
    assert whole.copies == (sum(p.copies or 0 for p in parts) if any(p.copies is not None for p in parts) else None)
    assert total(parts[::-1]) == whole


@given(entries())
def test_it_is_the_same_after_it_was_written_down(entry: Entry) -> None:
    assert Entry.from_json(entry.to_json()) == entry


def test_rows_that_vanish_are_named() -> None:
    with pytest.raises(LedgerError, match=r"^inspect: 10 rows in, 6 out, 1 unaccounted for$"):
        Entry(10, Counter(too_small=3), 6).check("inspect")


def test_errors_are_failures_of_single_rows() -> None:
    rejected = Counter({"error_killed": 2, "error_ValueError": 1, "too_small": 5, SET_ASIDE: 10})
    assert Entry(18, rejected, 0).errors() == 3
