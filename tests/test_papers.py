"""docs/papers.md has one row for each item of the papers, and what it names exists."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
STATES = {"works", "partly", "differs", "absent"}
PATH = re.compile(r"`((?:bench|curate|distill|docs|pipelines|tests)/[\w./-]+\.\w+)`")
TEST = re.compile(r"\btest_\w+\b(?!\.py)")


class Row(NamedTuple):
    id: str
    what: str
    section: str
    state: str
    where: str


PAGE = (ROOT / "docs/papers.md").read_text()
ROWS = [
    Row(*(cell.strip() for cell in line.strip("|").split("|")))
    for line in PAGE.splitlines()
    if re.match(r"\| (N-)?[APX]-?\d+ \|", line)
]


def test_each_item_has_one_row_in_the_order_of_the_papers() -> None:
    assert [row.id for row in ROWS] == (ROOT / "tests/paper_ids.txt").read_text().split()
    assert len(ROWS) == 153 + 26


def test_a_row_has_a_state_and_unless_it_is_absent_a_pointer() -> None:
    assert {row.state for row in ROWS} <= STATES
    assert all(row.what and row.section for row in ROWS)
    assert [
        row.id for row in ROWS if row.state != "absent" and not (PATH.search(row.where) or TEST.search(row.where))
    ] == []


def test_what_the_page_names_exists() -> None:
    tests = {
        name for file in (ROOT / "tests").rglob("test_*.py") for name in re.findall(r"def (test_\w+)", file.read_text())
    }
    assert [path for path in PATH.findall(PAGE) if not (ROOT / path).is_file()] == []
    assert sorted(set(TEST.findall(PAGE)) - tests) == []
