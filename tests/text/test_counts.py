from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from curate.core.errors import CurateError
from curate.kernels.entries import entries_of
from curate.select.items import EntryCounts
from curate.text import counts
from curate.text.counts import TextCounts
from tests.text.entries import counts_of, rows_of

TEXT = st.none() | st.lists(st.sampled_from("abcdef"), max_size=4)
ROWS = st.lists(
    st.tuples(st.none() | st.lists(TEXT, max_size=3), st.sampled_from([None, "en", "de"])), min_size=1, max_size=12
)


def simply(rows: list[tuple[Any, Any]], by: bool) -> Counter[tuple[str, str]]:
    texts = [(text, language or "") for row, language in rows for text in row or [] if text is not None]
    return Counter((entry, language if by else "") for text, language in texts for entry in set(text))


@given(ROWS, st.integers(1, 5), st.booleans(), st.randoms(use_true_random=False))
def test_counts_are_those_of_a_loop_however_the_pool_is_cut(rows, size: int, by: bool, rng: random.Random) -> None:
    stage = TextCounts(by="language" if by else None)
    shards = [rows[start : start + size] for start in range(0, len(rows), size)]
    rng.shuffle(shards)
    made = counts_of(stage, *(rows_of([row for row, _ in part], [name for _, name in part]) for part in shards))
    found = {(row["entry"], row["by"]): row["count"] for row in made["counts"].to_pylist()}
    assert found == simply(rows, by)
    order = [(-row["count"], row["entry"], row["by"]) for row in made["counts"].to_pylist()]
    assert order == sorted(order)
    texts = [text for row, _ in rows for text in row or [] if text is not None]
    summary = made["summary"]
    assert (summary["texts"], summary["matched"]) == (len(texts), sum(bool(text) for text in texts))
    assert (summary["matches"], summary["entries"]) == (sum(found.values()), len({entry for entry, _ in found}))
    if by:
        assert sum(facts["texts"] for facts in summary["groups"].values()) == len(texts)
        assert all(facts["matches"] >= facts["entries"] for facts in summary["groups"].values())


def test_states_are_summed_as_they_arrive(monkeypatch: pytest.MonkeyPatch) -> None:
    stage, tables = TextCounts(), [rows_of([[[str(number % 7), "x"]]]) for number in range(60)]
    whole = counts_of(stage, *tables)
    monkeypatch.setattr(counts, "MERGED_ROWS", 10)
    again = counts_of(stage, *tables)
    assert again["counts"].equals(whole["counts"]) and again["summary"] == whole["summary"]
    assert whole["counts"].to_pylist()[:2] == [
        {"entry": "x", "by": "", "count": 60},
        {"entry": "0", "by": "", "count": 9},
    ]


def test_a_pool_without_texts_has_counts_of_nothing() -> None:
    made = counts_of(TextCounts(by="language"), rows_of([None, []], [None, "en"]))
    assert made["counts"].num_rows == 0
    assert made["summary"] | {"columns": 0} == {
        "columns": 0, "by": "language", "texts": 0, "matched": 0, "matches": 0, "entries": 0, "groups": {},
    }  # fmt: skip


def test_groups_are_words() -> None:
    with pytest.raises(CurateError, match="by: column 'size' is int64; give a column of one word per row"):
        TextCounts(by="size").partial(rows_of([[["a"]]]).append_column("size", pa.array([1])))


def test_entry_counts_map_each_pair_to_its_row() -> None:
    stage = TextCounts(by="language")
    rows = rows_of([[["a", "b"]], [["a"]], [["b", "c"]]], ["en", "en", "de"])
    table = counts_of(stage, rows)["counts"]
    lookup = EntryCounts.from_table(table)
    by = {(row["entry"], row["by"]): number for number, row in enumerate(table.to_pylist())}
    assert len(by) == 4 == lookup.unknown
    found = entries_of(rows_of([[["a", "b", "zzz"]], [["a", "c"]], [["a"]]]), ["concepts"], lookup.index)
    groups = pa.array([lookup.groups["en"], lookup.groups["de"], -1]).to_numpy()
    wanted = [{by["a", "en"], by["b", "en"], 4}, {4, by["c", "de"]}, {4}]
    rows_found = lookup.rows_of(found, groups)
    assert [set(rows_found[found.item == item].tolist()) for item in range(3)] == wanted
    assert lookup.counts.tolist() == [*table.column("count").to_pylist(), 1]
