"""The page's section about entries, compared with a loop over the rows."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from curate.core.ledger import Entry
from curate.report.page.stages import counters
from curate.report.survey.entries import EntryBalance, entry_columns, entry_section, head_and_tail, item_values, shifts
from curate.report.survey.scope import scope_of
from curate.report.survey.survey import survey
from curate.select.frequency import SelectFrequency
from curate.select.items import SelectItems
from curate.select.metaclip import SelectMetaClip
from tests.report.memory_view import MemoryView, balanced_pool, manifest, small_pool
from tests.report.test_html import render

STAGES: list[SelectItems] = [SelectFrequency(multiplier=3), SelectMetaClip(tail_share=0.2)]


def counted(view: MemoryView, field: str) -> Counter[str]:
    found: Counter[str] = Counter()
    for row in view.rows:
        for place, text in enumerate(row.get("concepts") or []):
            for entry in set(text):
                found[entry] += 1 if field == "before" else row[field][place]
    return found


@pytest.mark.parametrize("stage", STAGES, ids=lambda stage: stage.op)
def test_entries_are_counted_before_and_after(stage: SelectItems) -> None:
    view = balanced_pool(stage)
    scope = scope_of(view, None, None)
    assert scope.entries == ("concepts",)
    found = survey(view, scope, 0, 3, 3).entries
    for field, values in (("before", found.before), ("item_expected", found.expected), ("item_copies", found.after)):
        expected = counted(view, field)
        assert dict(zip(found.names, values.tolist(), strict=True)) == pytest.approx(
            {n: expected[n] for n in found.names}
        )
    section = entry_section(found, view.stages["select"], scope.entries)
    assert section is not None
    assert section.drawn == sum(sum(row.get("item_copies") or []) for row in view.rows)
    assert section.figures.evenness[1] > section.figures.evenness[0]
    assert section.figures.top[1] < section.figures.top[0]
    assert section.figures.tail is not None
    assert section.figures.tail.kept == section.figures.tail.entries > 3
    assert section.reduced[0].before == max(found.before)
    assert bool(section.repeated) == (stage.multiplier > 1)


def test_the_page_shows_them() -> None:
    view = balanced_pool()
    page = render(view)
    ids = {attributes.get("id") for _, attributes in page.tags}
    assert {"entries", "counters"} <= ids and {link["href"][1:] for link in page.all("a")} <= ids
    items = view.stages["select"].entry.items
    assert f"{items} texts" in page.text
    assert re.search(r"Reduced most .* dog\.n\.00 .* Repeated most", page.text)
    assert "None of them is lost." in page.text
    assert re.search(r"Counts of stages .* file names 190 79 % html entities 12 5.0 %", page.text)
    assert "unheard of" not in page.text and "entrys" not in page.text


def test_other_selections_have_no_entries() -> None:
    view = small_pool()
    assert scope_of(view, None, None).entries == ()
    assert {"entries", "counters"}.isdisjoint(attributes.get("id") for _, attributes in render(view).tags)
    columns = frozenset({"concepts", "item_copies"})
    for named, known in ((["concepts"], True), (["gone"], False), ("concepts", False), ([], False), (None, False)):
        made = manifest("selection", "select.x", Entry(), parameters={"columns": named})
        assert bool(entry_columns(made, columns)) == known


def test_texts_without_entries_have_no_section() -> None:
    assert entry_section(EntryBalance(), None, ["concepts"]) is None
    view = balanced_pool()
    for row in view.rows:
        row["concepts"] = [[]]
    assert "entries" not in {attributes.get("id") for _, attributes in render(view).tags}


@pytest.mark.parametrize(
    ("parameters", "threshold", "target_share", "tail"),
    [
        ({}, 60, 0.06, 2),
        ({"tail_share": 0.8, "by": None}, 400, 0.8, 3),
        ({"tail_share": 1e-6}, 10, 1e-6, 1),
        ({"threshold": 9}, 9, None, 1),
        ({"threshold": 1}, 1, None, 0),
        ({"tail": 2.5, "head": 50}, 2.5, None, 0),
    ],
)
def test_the_tail_follows_the_recipe(
    parameters: dict[str, Any], threshold: float, target_share: float | None, tail: int
) -> None:
    before, after = np.array([400, 60, 10, 5, 0]), np.array([40, 60, 0, 5, 0])
    found = head_and_tail(before, after, parameters)
    assert found.top_entries == 4 and found.tail is not None
    assert (found.tail.threshold, found.tail.target_share, found.tail.entries) == (threshold, target_share, tail)
    assert found.tail.kept == tail - (tail > 1)
    assert found.tail.share[0] == [0, 5, 15, 75][tail] / 475


def test_each_group_has_its_own_tail() -> None:
    counts = np.array([400, 60, 10])
    for parameters in ({"tail_share": 0.1}, {"threshold": 50}):
        found = head_and_tail(counts, counts, parameters | {"by": "language"})
        assert found.tail is None and found.by == "language"


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        (
            {"tail_share": 0.2},
            r"They have \d+ % of matches, as close to 20 % as the counts allow\.",
        ),
        ({"threshold": 7}, r"fewer than 7 texts\. (None|\d+) of them"),
        ({"threshold": 1}, r"No entry has fewer texts than the recipe's threshold of 1, so there is no tail\."),
        ({"by": "language"}, r"a tail for each language separately\. These figures are over all"),
    ],
)
def test_the_page_explains_the_tail(parameters: dict[str, Any], words: str) -> None:
    view = balanced_pool(SelectMetaClip(tail_share=0.2))
    view.stages["select"].parameters = {"columns": ["concepts"], **parameters}
    page = render(view)
    assert re.search(words, page.text)
    assert ("Entries in the tail" in page.text) == ("by" not in parameters)


def test_equal_entries_have_no_tail() -> None:
    view = balanced_pool(SelectMetaClip())
    for row in view.rows:
        row["concepts"] = [["dog.n.01"] for _ in row.get("concepts") or []]
    assert re.search(r"All entries have equally many texts \(\d+\), so there is no tail\.", render(view).text)


def test_an_item_has_the_value_at_its_place() -> None:
    column = pa.chunked_array([[[1.0, 2.0], None], [[], [3.0, None]]], pa.list_(pa.float32()))
    row, place = np.array([0, 0, 0, 1, 2, 3, 3]), np.array([0, 1, 2, 0, 0, 0, 1])
    assert item_values(column, row, place).tolist() == [1, 2, 0, 0, 0, 3, 0]
    assert item_values(column.slice(3), np.array([0]), np.array([0])).tolist() == [3]


def test_shifts_are_the_largest_and_by_name_if_equal() -> None:
    counts = EntryBalance(["b", "a", "c"], np.array([9.0, 9, 4]), np.array([5.0, 5, 6]), np.array([4.0, 6, 8]))
    assert [(one.name, one.widths[0]) for one in shifts(counts, counts.before - counts.expected)] == [
        ("a", 100),
        ("b", 100),
    ]
    assert [(one.name, one.after, one.widths) for one in shifts(counts, counts.expected - counts.before)] == [
        ("c", 8, (50, 100))
    ]


def test_counters_are_those_of_stages_that_process_rows() -> None:
    entry = Entry(10, after=10, counters=Counter(a_rule=3, other=9))
    stages = {noun: manifest(noun, f"x.{noun}", entry) for noun in ("pool", "columns", "selection")}
    [found] = counters(stages)
    assert (found.stage, found.rows) == ("columns", 10)
    assert [(hit.name, hit.count, hit.width) for hit in found.hits] == [("other", 9, 100), ("a rule", 3, 100 / 3)]
