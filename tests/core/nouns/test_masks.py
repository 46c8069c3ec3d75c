"""Masks: rows alive where paths meet, the content that later stages depend on, and lists without rejected items."""

from __future__ import annotations

import io
from collections import Counter
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from curate.core.nouns import masks
from curate.core.nouns.masks import ALIVE, NO_ITEM, NO_ITEMS, Fate

ROWS = 5
ORDER = {"pool": 0, "size": 1, "words": 2, "near": 3}
REASONS = st.sampled_from(["too_small", "dim", "near"])
FAMILIES = st.sets(st.sampled_from(["words", "clips"]))
LENGTHS = {"words": [2, 0, 1, 3, 2], "clips": [1, 1, 0, 2, 4]}
"""Number of items of each row, the same on all paths."""


@st.composite
def fates(draw: st.DrawFn) -> Fate:
    fate = Fate.all_alive(ROWS)
    for row in range(ROWS):
        stage = draw(st.sampled_from([ALIVE, ALIVE, 0, 1, 2, 3]))
        if stage != ALIVE:
            fate.leave(np.array([row]), stage, [draw(REASONS)])
    fate.marked = np.array(draw(st.lists(st.booleans(), min_size=ROWS, max_size=ROWS)))
    for family in sorted(draw(FAMILIES)):
        lists = [[draw(st.none() | REASONS) for _ in range(LENGTHS[family][row])] for row in range(ROWS)]
        for row in np.flatnonzero(fate.alive):  # a filter rejects a row of which it leaves no item
            lists[row][:1] = [None] if all(lists[row]) else lists[row][:1]
        fate.reject_items(family, np.arange(ROWS), [given if draw(st.booleans()) else None for given in lists])
    return fate


def plain_values(fate: Fate) -> list[Any]:
    """A fate as plain values, without families that have no rejected items."""
    items = {f: [list(found) if found else None for found in lists] for f, lists in fate.items.items()}
    items = {f: lists for f, lists in items.items() if any(lists)}
    return [fate.stage.tolist(), fate.reason.tolist(), fate.marked.tolist(), sorted(items.items())]


def dead(fate: Fate, family: str) -> list[set[int]]:
    """Positions of a family's rejected items, by row."""
    lists = fate.items.get(family, [None] * ROWS)
    return [{place for place, reason in enumerate(found or ()) if reason} for found in lists]


# --- ways that meet ---------------------------------------------------------------------------------------------------


@given(fates(), fates())
def test_a_row_is_alive_if_it_is_alive_on_all_paths(one: Fate, two: Fate) -> None:
    before = plain_values(one), plain_values(two)
    both = one.intersect(two)
    gone = {f: [a | b for a, b in zip(dead(one, f), dead(two, f), strict=True)] for f in LENGTHS}
    none = [any(places and len(places) == LENGTHS[f][row] for f, places in
                ((f, gone[f][row]) for f in LENGTHS)) for row in range(ROWS)]  # fmt: skip
    alive = one.alive & two.alive
    assert (both.alive == (alive & ~np.array(none))).all() and (both.marked == (one.marked | two.marked)).all()
    for row in range(ROWS):
        if alive[row] and none[row]:
            assert (both.stage[row], both.reason[row]) == (both.at, NO_ITEMS)
            continue
        left = [(fate.stage[row], fate.reason[row]) for fate in (one, two) if not fate.alive[row]]
        first = min(stage for stage, _ in left) if left else ALIVE
        assert both.stage[row] == first
        assert (both.reason[row] is None) == (first == ALIVE)
        assert not left or (first, both.reason[row]) in left
    for family in LENGTHS:
        assert dead(both, family) == gone[family]
    assert (plain_values(one), plain_values(two)) == before


@given(fates(), fates(), fates())
def test_the_order_of_paths_does_not_matter(one: Fate, two: Fate, three: Fate) -> None:
    left, right = one.intersect(two).intersect(three), one.intersect(two.intersect(three))
    assert left.content() == right.content() and (left.alive == right.alive).all()
    assert one.intersect(two).content() == two.intersect(one).content()
    assert plain_values(one.intersect(one)) == plain_values(one) == plain_values(one.intersect(Fate.all_alive(ROWS)))


@given(fates(), st.integers(0, ROWS), st.integers(0, ROWS))
def test_slices_put_back_give_the_whole(fate: Fate, a: int, b: int) -> None:
    edges = [0, *sorted((a, b)), ROWS]
    parts = [fate.slice(start, stop) for start, stop in pairwise(edges)]
    assert plain_values(masks.concatenated(parts)) == plain_values(fate)
    for part in parts:  # a stretch is a copy
        part.leave(np.flatnonzero(part.alive), 3, ["later"] * int(part.alive.sum()))
    assert "later" not in fate.reason


@given(fates())
def test_a_fate_survives_its_file(fate: Fate) -> None:
    sink = io.BytesIO()
    pq.write_table(pa.table(masks.columns_of("words", fate, list(ORDER))), sink)
    again = masks.fate_of(pq.read_table(sink), "words", ORDER)
    assert plain_values(again) == plain_values(fate) and again.content() == fate.content()


def test_the_first_reason_of_an_item_is_kept() -> None:
    fate = Fate.all_alive(2)
    fate.reject_items("words", np.array([0]), [["short", None, None]])
    fate.reject_items("words", np.array([0, 1]), [["later", None, "later"], None])
    assert fate.items["words"].tolist() == [["short", None, "later"], None]
    assert fate.alive.all()  # the filter rejects a row without items, not the mask


# --- what later stages depend on --------------------------------------------------------------------------------------


@given(fates(), fates())
def test_content_depends_only_on_live_rows_and_items(one: Fate, two: Fate) -> None:
    def alike(fate: Fate) -> list[Any]:
        alive = fate.alive
        if not alive.any():
            return []
        gone = {
            f: [places if live else set() for places, live in zip(dead(fate, f), alive, strict=True)] for f in LENGTHS
        }
        return [alive.tolist(), (fate.marked & alive).tolist(), gone]

    assert (one.content() == two.content()) == (alike(one) == alike(two))


def test_reasons_and_stages_do_not_matter() -> None:
    one, two = Fate.all_alive(3), Fate.all_alive(3)
    one.leave(np.array([1]), 1, ["too_small"])
    two.leave(np.array([1]), 3, ["near"])
    for fate, reason in ((one, "short"), (two, "rude")):
        fate.reject_items("words", np.array([0]), [[None, reason]])
    assert one.content() == two.content() != ""
    two.reject_items("words", np.array([1]), [["more", None]])  # of a row that is not alive
    two.marked[1] = True
    assert one.content() == two.content()


@pytest.mark.parametrize("change", ["row", "item", "place", "family", "marked"])
def test_content_changes_with_live_rows(change: str) -> None:
    def fate_with_items() -> Fate:
        fate = Fate.all_alive(3)
        fate.reject_items("words", np.array([0]), [["short", None]])
        return fate

    other = Fate.all_alive(3) if change in ("place", "family") else fate_with_items()
    if change == "row":
        other.leave(np.array([2]), 1, ["too_small"])
    elif change == "item":
        other.reject_items("words", np.array([2]), [["short"]])
    elif change == "place":
        other.reject_items("words", np.array([0]), [[None, "short"]])
    elif change == "family":
        other.reject_items("clips", np.array([0]), [["short", None]])
    else:
        other.marked[0] = True
    assert other.content() != fate_with_items().content() == fate_with_items().content()


def test_without_live_rows_the_content_is_empty() -> None:
    for rows in (0, 1, 9):
        fate = Fate.all_alive(rows)
        fate.leave(np.arange(rows), 0, ["unwanted"] * rows)
        assert fate.content() == ""


# --- lists without their rejected items -------------------------------------------------------------------------------

LISTS = st.lists(
    st.none() | st.lists(st.tuples(st.none() | st.text(max_size=3), st.none() | REASONS), max_size=4), max_size=8
)


@given(LISTS, st.data())
def test_rejected_items_are_null(rows: list[list[tuple[Any, Any]] | None], data: st.DataObject) -> None:
    values = [None if row is None else [value for value, _ in row] for row in rows]
    reasons = np.full(len(rows), None, object)
    for index, row in enumerate(rows):
        if row is not None and any(reason for _, reason in row):
            reasons[index] = [reason for _, reason in row]
    wanted = [None if row is None else [None if reason else value for value, reason in row] for row in rows]
    kind, cut = pa.list_(pa.string()), data.draw(st.integers(0, len(rows)))
    column = pa.chunked_array([pa.array(values[:cut], kind), pa.array(values[cut:], kind)])
    found = masks.without_items(column, reasons)
    assert found.to_pylist() == wanted and found.type == kind
    sliced = pa.chunked_array([pa.array([["x"], *values], kind).slice(1)])
    assert masks.without_items(sliced, reasons).to_pylist() == wanted


@given(LISTS, st.data())
def test_items_are_counted_once(rows: list[list[tuple[Any, Any]] | None], data: st.DataObject) -> None:
    alive = np.array([data.draw(st.booleans()) for _ in rows], dtype=bool)
    reasons = np.full(len(rows), None, object)
    for index, row in enumerate(rows):
        row_reasons = [data.draw(st.sampled_from([reason, NO_ITEM])) for _, reason in row or ()]
        reasons[index] = row_reasons if data.draw(st.booleans()) else None
    left, rejected = masks.item_counts(reasons, alive)
    there = [reason for index in np.flatnonzero(alive) for reason in reasons[index] or () if reason != NO_ITEM]
    assert rejected == Counter(reason for reason in there if reason) and left == there.count(None)
    assert masks.item_counts(None, alive) == (0, Counter())
