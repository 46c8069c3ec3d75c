"""Slices: the rows that a stage passes on or rejects."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from PIL import Image

from curate.api import Pipeline, Run, Slice, Workspace, make_stage
from curate.api.slices import name_of
from curate.core.errors import InputError
from curate.core.ledger import Entry
from curate.engine.run import run
from tests.engine import toys

STAGES = ("pool", "inspect", "bright", "lit", "wide", "seen", "half")


def recipe() -> Pipeline:
    """Rows are rejected by a pool, two filters on paths that meet, and a selection; some are unusable."""
    made = Pipeline().add("pool", toys.Numbers(namespace="toys", rows=60, shard_rows=6, broken=7))
    made.add("inspect", make_stage("image.inspect"), "pool").add("bright", toys.Brightness(), "inspect")
    made.add("lit", make_stage("filter.where", keep="brightness > 120", reason="dark"), "bright")
    made.add("wide", make_stage("filter.where", keep="strpos(caption, '3') = 0", reason="three"), "bright")
    made.add("seen", toys.Costly(column="seen"), "wide")
    made.add("half", make_stage("select.uniform", share=0.5), ("seen", "lit"))
    return made.add("dataset", make_stage("pack.webdataset", name="slices"), "half").check()


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = str(tmp_path_factory.mktemp("slices") / "workspace")
    run(recipe(), folder, run_id="one")
    return Workspace(folder).run("one")


def everything(done: Run, which: Slice, limit: int = 7) -> list[dict[str, object]]:
    rows, cursor = list[dict[str, object]](), ""
    while True:
        page = done.slice(which, ["width"], cursor=cursor, limit=limit)
        rows += page.table.to_pylist()
        if not (cursor := page.next):
            assert page.searched == page.shards
            return rows


@pytest.mark.parametrize("stage", STAGES)
def test_a_stage_passes_on_and_rejects_what_the_ledger_says(done: Run, stage: str) -> None:
    entry = done.ledger()[stage]
    alive, rejected = everything(done, Slice(stage)), everything(done, Slice(stage, ""))
    assert len(alive) == entry.after and {row["reason"] for row in alive} <= {None}
    assert Counter(row["reason"] for row in rejected) == entry.lost
    assert not {row["key"] for row in alive} & {row["key"] for row in rejected}
    for reason, rows in entry.lost.items():
        assert len(everything(done, Slice(stage, reason))) == rows


def test_rows_that_continue_with_nulls_have_not_left() -> None:
    assert Entry(3, unusable=Counter(a=2), after=3, kept=2).left == Counter()
    assert Entry(3, unusable=Counter(a=2), after=1).left == Counter(a=2)


def test_a_dataset_has_samples_by_their_keys(done: Run) -> None:
    assert done.packed_of(done.slice(Slice("half"), limit=3)) == {"dataset": 3}
    assert done.packed_of(done.slice(Slice("half", ""), limit=3)) == {}


def test_a_preview_is_a_spread_and_not_the_first_rows(done: Run) -> None:
    page = done.preview(Slice("pool"), ["width"], limit=8)
    keys = page.table["key"].to_pylist()
    assert len(set(page.table["shard"].to_pylist())) == 8 and keys == sorted(keys)
    assert page.table.equals(done.preview(Slice("pool"), ["width"], limit=8).table)
    first = done.slice(Slice("pool"), limit=8).table["key"].to_pylist()
    assert set(keys) != set(first)
    for which in (Slice("lit", ""), Slice("pool")):  # all of it, also where most is in shards that were not read
        every = {row["key"] for row in everything(done, which)}
        assert {*done.preview(which, limit=100).table["key"].to_pylist()} == every


def test_a_run_has_captions_if_samples_came_with_some(done: Run, tmp_path: Path) -> None:
    assert done.has_captions()
    Image.new("RGB", (8, 8)).save(tmp_path / "one.png")
    made = Pipeline().add("pool", make_stage("acquire.folder", namespace="n", path=str(tmp_path)))
    run(made.add("text", make_stage("text.clean"), "pool").check(), str(tmp_path / "workspace"), run_id="one")
    assert not Workspace(str(tmp_path / "workspace")).run("one").has_captions()


def test_a_page_holds_no_more_than_its_rows(done: Run) -> None:
    sizes = [done.slice(Slice("pool"), ["width"], limit=limit).table.get_total_buffer_size() for limit in (1, 6)]
    assert sizes[0] < sizes[1] / 2


def test_the_place_of_a_row_is_that_in_its_shard(done: Run) -> None:
    for row in everything(done, Slice("lit")):
        assert done.file(str(row["shard"]), int(str(row["row"]))).about["key"] == row["key"]


def test_a_page_ends_when_time_is_up_and_the_next_one_continues(done: Run) -> None:
    which, cursor, keys, pages = Slice("lit", where="width > 1000"), "", 0, 0
    while True:
        page = done.slice(which, cursor=cursor, seconds=0.0)
        pages, keys, cursor = pages + 1, keys + len(page.table), page.next
        assert page.searched == pages
        if not cursor:
            break
    assert (keys, pages) == (0, page.shards)


def test_a_cursor_belongs_to_its_slice(done: Run) -> None:
    cursor = done.slice(Slice("lit"), limit=1).next
    assert len(done.slice(Slice("lit"), cursor=cursor, limit=1).table) == 1
    for which, columns in ((Slice("wide"), []), (Slice("lit", ""), []), (Slice("lit"), ["width"])):
        with pytest.raises(InputError, match="cursor"):
            done.slice(which, columns, cursor=cursor, limit=1)


def test_what_a_slice_cannot_be(done: Run) -> None:
    for which in (Slice("none"), Slice("dataset"), Slice("lit", where="none > 1"), Slice("lit", where="width >")):
        with pytest.raises(InputError):
            done.slice(which)
    with pytest.raises(InputError, match="1 to 1000"):
        done.slice(Slice("lit"), limit=0)
    assert everything(done, Slice("lit", "no such reason")) == []


@pytest.mark.parametrize(
    ("name", "source_id", "expected"),
    [
        ("0" * 32, "a/b.png", "b.png"), (None, "https://e.org/a/b.jpg?x=1", "b.jpg?x=1"),
        ("cat.png", "b.png", "cat.png"),
        ("0" * 32 + "#start_ms=0", "film.mp4#start_ms=0", "film.mp4#start_ms=0"), ("0" * 32, "a/", "a"),
        ("0" * 32, None, "0" * 32), (None, None, None),
    ],
)  # fmt: skip
def test_a_sample_has_the_name_of_its_file(name: str | None, source_id: str | None, expected: str | None) -> None:
    assert name_of(name, source_id) == expected


def test_copies_are_told_apart_where_two_stages_write_their_columns(tmp_path: Path) -> None:
    made = Pipeline().add("pool", toys.Numbers(namespace="toys", rows=6, shard_rows=6))
    made.add("prints", make_stage("image.fingerprint"), "pool")
    for name in ("first", "second"):
        made.add(f"{name}_sets", make_stage("duplicates.find"), "prints")
        made.add(name, make_stage("duplicates.members"), "prints", sets=f"{name}_sets")
    folder = str(tmp_path / "workspace")
    run(made.check(), folder, run_id="one")
    one = Workspace(folder).run("one")
    key = one.slice(Slice("pool")).table["key"][0].as_py()
    assert [which.where for which, _ in one.copies_of(key)] == [
        f"\"{name}.duplicate_of\" = '{key}'" for name in ("first", "second")
    ]
