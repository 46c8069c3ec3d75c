from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from curate.core.errors import LedgerError
from curate.core.ledger import SET_ASIDE, Entry, ItemEntry, total

COUNTS = st.dictionaries(st.sampled_from(["too_small", "truncated", "ValueError", SET_ASIDE]), st.integers(1, 99))
NUMBERS = st.none() | st.integers(0, 300)


@st.composite
def item_entries(draw: st.DrawFn) -> ItemEntry:
    rejected, lost, after = Counter(draw(COUNTS)), draw(st.integers(0, 99)), draw(st.integers(0, 99))
    return ItemEntry(rejected.total() + lost + after, rejected, lost, after)


@st.composite
def entries(draw: st.DrawFn) -> Entry:
    """Balanced entries of filters, and of stages that keep some or all of their rows without facts."""
    rejected, unusable, error = (Counter(draw(COUNTS)) for _ in range(3))
    kept = draw(st.sampled_from([0, unusable.total() + error.total()]))
    after = draw(st.integers(0, 99)) + kept
    families = draw(st.dictionaries(st.sampled_from(["texts", "clips"]), item_entries()))
    return Entry(
        before=after + rejected.total() + unusable.total() + error.total() - kept,
        rejected=rejected,
        after=after,
        counters=Counter(draw(COUNTS)),
        copies=draw(NUMBERS),
        items=draw(NUMBERS),
        unusable=unusable,
        error=error,
        kept=kept,
        children=draw(NUMBERS),
        of_items=families,
    )


@given(st.lists(entries(), max_size=6))
def test_sums_of_balanced_entries_are_balanced(parts: list[Entry]) -> None:
    whole = total(parts).check("stage")
    assert whole.before == sum(part.before for part in parts)
    assert whole.lost.total() - whole.kept + whole.after == whole.before
    assert whole.lost == sum((p.rejected + p.unusable + p.error for p in parts), Counter())
    for name in ("copies", "items", "children"):
        values = [getattr(part, name) for part in parts if getattr(part, name) is not None]
        assert getattr(whole, name) == (sum(values) if values else None)
    for family, items in whole.of_items.items():
        assert items.after == sum(part.of_items[family].after for part in parts if family in part.of_items)
    assert total(parts[::-1]) == whole


@given(entries())
def test_entries_survive_json(entry: Entry) -> None:
    assert Entry.from_json(entry.to_json()) == entry


def test_unaccounted_rows_are_reported() -> None:
    with pytest.raises(LedgerError, match=r"^inspect: 10 rows before, 6 after, 1 unaccounted for$"):
        Entry(10, Counter(too_small=3), 6).check("inspect")


@pytest.mark.parametrize("kind", ["rejected", "unusable", "error"])
def test_each_kind_of_loss_is_accounted_for(kind: str) -> None:
    with pytest.raises(LedgerError, match="10 rows before, 6 after, 4 unaccounted for"):
        Entry(10, after=6).check("inspect")
    Entry(10, after=6, **{kind: Counter(a=4)}).check("inspect")


def test_rows_kept_with_nulls_are_not_lost() -> None:
    Entry(10, after=10, unusable=Counter(a=1), error=Counter(b=2), kept=3).check("caption")
    with pytest.raises(LedgerError, match="3 unaccounted for"):
        Entry(10, after=7, unusable=Counter(a=1), error=Counter(b=2), kept=3).check("caption")


def test_unaccounted_items_are_reported() -> None:
    items = ItemEntry(before=9, rejected=Counter(short=2), lost=1, after=5)
    with pytest.raises(LedgerError, match=r"^words: 9 items of texts, 1 unaccounted for$"):
        Entry(3, after=3, of_items={"texts": items}).check("words")


def test_a_reason_counts_once_for_each_kind() -> None:
    """A word may be the reason of rows that can never be computed and of rows that failed this time."""
    entry = Entry(18, Counter(a=1), 0, unusable=Counter(a=5, b=2), error=Counter(a=10))
    assert entry.check("x").lost == Counter(a=16, b=2)
