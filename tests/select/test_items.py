"""Selections by entries keep the tail, thin the head, meet the target, and are deterministic."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from curate.core.contracts import Artifact
from curate.core.errors import CurateError, TargetError
from curate.select.frequency import SelectFrequency
from curate.select.items import SelectItems
from curate.select.metaclip import SelectMetaClip
from curate.text.counts import TextCounts
from tests.text.entries import counts_of, rows_of

TEXT = st.none() | st.lists(st.sampled_from("aaaaabbbcdef"), max_size=3)
ROWS = st.lists(st.none() | st.lists(TEXT, max_size=3), min_size=1, max_size=25)


def zipf(texts: int, entries: int = 200, seed: int = 0) -> pa.Table:
    """Rows of one text each, of one to three entries whose frequency falls as 1 / rank."""
    rng = np.random.default_rng(seed)
    share = 1 / np.arange(1, entries + 1)
    drawn = rng.choice(entries, (texts, 3), p=share / share.sum())
    return rows_of([[[f"e{entry:03d}" for entry in row[: 1 + number % 3]]] for number, row in enumerate(drawn)])


def ran(stage: SelectItems, rows: pa.Table, counts: Artifact, buckets: int = 1) -> list[dict[str, Any]]:
    """The picks of the engine, over buckets of whole rows."""
    stage.setup({"counts": counts})
    lines = stage.deal(rows)
    row = lines.column("row").to_numpy()
    assert np.all(np.diff(row) >= 0) and set(row) == set(range(rows.num_rows))
    lines = lines.append_column("key", rows.column("key").take(lines.column("row")))
    tally = np.bincount(lines.column("unit").drop_null().to_numpy())
    quotas = stage.plan(tally)
    found = []
    for bucket in range(buckets):
        part = lines.filter(pa.array(row % buckets == bucket))
        picked = stage.pick(part, tally, quotas)
        found += pa.table({name: part.column(name) for name in ("key", "item")} | picked).to_pylist()
    return sorted(found, key=lambda line: (line["key"], line["item"]))


def entry_counts(rows: pa.Table, picked: list[dict[str, Any]], field: str) -> Counter[str]:
    """Texts per entry, weighted by `field`."""
    texts = dict(zip(rows.column("key").to_pylist(), rows.column("concepts").to_pylist(), strict=True))
    found: Counter[str] = Counter()
    for row in picked:
        text = (texts[row["key"]] or [])[int(row["item"]) :][:1]
        for entry in set(text[0] or []) if text else set():
            found[entry] += row[field]
    return found


STAGES: list[SelectItems] = [SelectMetaClip(threshold=2), SelectFrequency(), SelectFrequency(combine="mean", share=0.7)]


@given(ROWS, st.integers(1, 4), st.integers(0, 3), st.integers(0, 2**32 - 1))
def test_neither_order_nor_buckets_matter(rows: list[Any], buckets: int, number: int, seed: int) -> None:
    table = rows_of(rows)
    counts = counts_of(TextCounts(), table)
    stage = STAGES[number % len(STAGES)]
    if not counts["summary"]["matches"]:
        with pytest.raises(
            TargetError, match=rf"^{stage.op}: .* an entry in concepts; check the stages that write them"
        ):
            ran(stage, table, counts)
        return
    order = np.random.default_rng(seed).permutation(len(rows))
    whole = ran(stage, table, counts)
    assert ran(stage, table.take(pa.array(order)), counts, buckets) == whole
    there = sum(max(1, sum(text is not None for text in row or [])) for row in rows)
    assert len(whole) == there
    assert all((row["copies"] == 0) == (row["reject"] is not None) for row in whole)


def test_reasons() -> None:
    rows = rows_of([None, [], [None], [[], None, ["a"]], [["a"]]])
    keys = rows.column("key").to_pylist()
    bare = dict.fromkeys([(0, "0"), (1, "0"), (2, "0")], "no_text")
    for no_entry, reject in (("reject", "no_entry"), ("keep", None)):
        picked = ran(SelectFrequency(head=1e-9, exponent=4, no_entry=no_entry), rows, counts_of(TextCounts(), rows))
        found = {(keys.index(row["key"]), row["item"]): row["reject"] for row in picked}
        assert found == bare | {(3, "0"): reject, (3, "2"): "head_cut", (4, "0"): "head_cut"}


def test_texts_without_an_entry_are_taken_once_as_part_of_the_target() -> None:
    bare = [[[]] for _ in range(500)]
    rows = rows_of(zipf(3000).column("concepts").to_pylist() + bare)
    counts = counts_of(TextCounts(), rows)
    picked = ran(SelectFrequency(target=2000), rows, counts, buckets=2)
    keys = set(rows.column("key").to_pylist()[-500:])
    assert [row["copies"] for row in picked if row["key"] in keys] == [1] * 500
    assert sum(row["expected"] for row in picked) == pytest.approx(2000)
    with pytest.raises(TargetError, match="the 3,000 texts with an entry and the 500 without can give 500 to 15,500"):
        ran(SelectFrequency(target=499), rows, counts)
    ran(SelectFrequency(target=499, no_entry="reject"), rows, counts)
    assert sum(row["expected"] for row in ran(SelectFrequency(share=0.5), rows, counts)) == pytest.approx(2000)


def test_metaclip_keeps_the_tail_whole_and_the_head_as_expected() -> None:
    rows = zipf(20_000)
    counts = counts_of(TextCounts(), rows)
    stage = SelectMetaClip()
    picked = ran(stage, rows, counts, buckets=3)
    before = {row["entry"]: row["count"] for row in counts["counts"].to_pylist()}
    after, expected = entry_counts(rows, picked, "copies"), entry_counts(rows, picked, "expected")
    certain = [entry for entry, count in before.items() if expected[entry] > count - 1e-3]
    tail = sum(before[entry] for entry in certain) / sum(before.values())
    assert 0.05 < tail < 0.1
    assert all(after[entry] == before[entry] for entry in certain)
    assert after["e000"] < before["e000"] / 3
    for entry in before:  # variance of a sum of draws is at most its mean
        assert abs(after[entry] - expected[entry]) < 5 * np.sqrt(expected[entry]) + 1e-3


@pytest.mark.parametrize("stage", [SelectMetaClip(threshold=20), SelectFrequency(share=0.5)], ids=lambda s: s.op)
def test_a_larger_t_takes_all_that_a_smaller_t_takes(stage: SelectItems) -> None:
    rows = zipf(3000)
    counts = counts_of(TextCounts(), rows)
    more = {"threshold": 35} if isinstance(stage, SelectMetaClip) else {"share": 0.8}
    small, large = (ran(one, rows, counts) for one in (stage, stage.model_copy(update=more)))
    assert all(a["copies"] <= b["copies"] for a, b in zip(small, large, strict=True))
    assert sum(row["copies"] for row in small) < sum(row["copies"] for row in large)
    other = ran(stage.model_copy(update={"seed": 1}), rows, counts)
    assert [row["copies"] for row in other] != [row["copies"] for row in small]


@pytest.mark.parametrize("combine", ["rarest", "mean"])
@pytest.mark.parametrize("size", [{}, {"target": 6000}, {"share": 0.4}])
def test_frequency_meets_the_target(combine: str, size: dict[str, float]) -> None:
    rows = zipf(10_000)
    counts = counts_of(TextCounts(), rows)
    stage = SelectFrequency(combine=combine, **size)
    picked = ran(stage, rows, counts)
    wanted = size.get("target", 10_000 * size.get("share", 1.0))
    expected = sum(row["expected"] for row in picked)
    assert expected == pytest.approx(wanted, rel=1e-5 if combine == "rarest" else 0.05)
    assert abs(sum(row["copies"] for row in picked) - expected) < 4 * np.sqrt(expected / 4)
    assert max(row["copies"] for row in picked) <= stage.multiplier
    before = {row["entry"]: row["count"] for row in counts["counts"].to_pylist()}
    after = entry_counts(rows, picked, "copies")
    common, rare = list(before)[:5], list(before)[-20:]
    change = [sum(after[e] for e in part) / sum(before[e] for e in part) for part in (common, rare)]
    assert change[0] < wanted / 10_000 < change[1]
    if wanted == 10_000:
        assert change[1] > 1.2


def test_thresholds_thin_the_head_repeat_the_tail_and_keep_the_middle() -> None:
    rows = rows_of([[["head"]]] * 400 + [[["middle"]]] * 50 + [[["tail"]]] * 10)
    picked = ran(SelectFrequency(head=100, tail=40, least=0.1), rows, counts_of(TextCounts(), rows))
    assert entry_counts(rows, picked, "expected") == pytest.approx({"head": 200, "middle": 50, "tail": 20}, rel=1e-6)
    assert entry_counts(rows, picked, "copies") == {"head": pytest.approx(200, abs=40), "middle": 50, "tail": 20}


def test_every_language_has_its_own_threshold() -> None:
    texts = [["dog"]] * 300 + [["cat"]] * 40 + [["bee"]] * 15 + [["dog"]] * 30 + [["hund"]] * 60 + [["katze"]] * 2
    rows = rows_of([[text] for text in texts], ["en"] * 355 + ["de"] * 92)
    counts = counts_of(TextCounts(by="language"), rows)
    for stage, wanted in (
        (SelectMetaClip(by="language"), [40 / 300] * 300 + [1] * 55 + [1] * 30 + [0.5] * 60 + [1] * 2),
        (
            SelectMetaClip(by="language", threshold=15),
            [0.05] * 300 + [0.375] * 40 + [1] * 15 + [0.5] * 30 + [0.25] * 60 + [1] * 2,
        ),
    ):
        expected = {row["key"]: row["expected"] for row in ran(stage, rows, counts)}
        assert [expected[key] for key in rows.column("key").to_pylist()] == pytest.approx(wanted, rel=1e-6)


def test_entries_never_counted_are_the_rarest() -> None:
    counts = counts_of(TextCounts(), rows_of([[["a"]]] * 100 + [[["b"]]] * 90))
    picked = ran(SelectFrequency(head=50, tail=4), rows_of([[["new", "a"], ["a"]]]), counts)
    assert [row["expected"] for row in picked] == pytest.approx([2, 0.5**0.5])
    assert ran(SelectMetaClip(threshold=1), rows_of([[["new", "a"]]]), counts)[0]["expected"] == 1


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"target": 5, "share": 0.5}, "target: 5, share: 0.5; give `target`, or `share`"),
        ({"share": 0.5, "tail": 3}, "share: 0.5, tail: 3.0; give"),
        ({"head": 5, "tail": 9}, "tail: 9 is above head: 5"),
    ],
)
def test_only_one_size_may_be_given(values: dict[str, float], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        SelectFrequency(**values)
    with pytest.raises(ValueError, match=r"threshold: 5 with tail_share: 0.1; give one of the two"):
        SelectMetaClip(threshold=5, tail_share=0.1)


def test_a_target_beyond_the_texts_names_the_limits() -> None:
    rows = zipf(30)
    with pytest.raises(TargetError, match=r"expected 200 samples, but the 30 texts .* give 0 to 150 \(least 0, mult"):
        ran(SelectFrequency(target=200), rows, counts_of(TextCounts(), rows))


def test_counts_by_another_column_are_rejected() -> None:
    counts = counts_of(TextCounts(), zipf(3))
    with pytest.raises(CurateError, match="by 'language', but its `counts` are by None; give both stages the same"):
        SelectMetaClip(by="language").setup({"counts": counts})


def test_a_canary_has_a_smaller_target() -> None:
    assert SelectFrequency(target=1000).scaled(0.01).target == 10
    assert SelectFrequency(head=1000, tail=100).scaled(0.01).model_dump()["head"] == 10
    assert SelectMetaClip(threshold=1000).scaled(0.01).threshold == 10
    assert SelectMetaClip().scaled(0.01) == SelectMetaClip()
