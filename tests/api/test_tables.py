"""`Workspace.table` and `curate table`: columns of the rows that are alive at a stage."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from curate.api import Pipeline, Result, Workspace, make_stage, tables
from curate.core.contracts import Incoming, Portion
from curate.core.errors import InputError
from curate.core.nouns.pools import read_shards
from curate.core.store.storage import Storage, open_storage
from curate.engine.record.runs import RunRecord
from curate.engine.run import run
from tests.e2e.commands import curate
from tests.engine import toys

ROWS, SHARD_ROWS = 60, 6


def recipe() -> Pipeline:
    """Two filters on paths that meet before the selection: `lit` is not on the path of `wide` and `seen`."""
    made = Pipeline().add("pool", toys.Numbers(namespace="toys", rows=ROWS, shard_rows=SHARD_ROWS, broken=7))
    made.add("inspect", make_stage("image.inspect"), "pool").add("bright", toys.Brightness(), "inspect")
    made.add("lit", make_stage("filter.where", keep="brightness > 120", reason="dark"), "bright")
    made.add(
        "wide", make_stage("filter.where", keep="width > 0 and strpos(caption, '3') = 0", reason="three"), "bright"
    )
    made.add("seen", toys.Costly(column="seen"), "wide").add(
        "embed", make_stage("image.embed", encoder="descriptor"), "lit"
    )
    made.add("half", make_stage("select.uniform", share=0.5), ("seen", "embed"))
    return made.add("dataset", make_stage("pack.webdataset", name="tables"), "half").check()


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> tuple[Workspace, Result]:
    folder = tmp_path_factory.mktemp("tables") / "workspace"
    return Workspace(str(folder)), run(recipe(), str(folder), run_id="one")


def test_rows_alive_at_each_stage_are_those_of_the_ledger(done: tuple[Workspace, Result]) -> None:
    workspace, result = done
    for stage in ("inspect", "bright", "lit", "wide", "seen", "embed", "half"):
        table = workspace.table("one", stage, ["key", "caption", "brightness"]).table
        assert table.num_rows == result.ledger[stage].after, stage
        bright = [value > 120 for value in table["brightness"].to_pylist()]
        three = ["3" in caption for caption in table["caption"].to_pylist()]
        assert (all(bright), any(three)) == (stage in ("lit", "embed", "half"), stage not in ("wide", "seen", "half"))


def test_columns_of_any_stages_and_a_filter_as_in_filter_where(done: tuple[Workspace, Result]) -> None:
    workspace, _ = done
    everything = workspace.table("one", "lit", ["embedding", "width", "seen"]).table
    assert everything["embedding"].type == pa.list_(pa.float16(), everything["embedding"].type.list_size)
    vectors = np.stack(everything["embedding"].to_numpy())
    assert np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-2)
    assert everything["width"].to_pylist() == [8] * len(everything)
    assert 0 < everything["seen"].null_count < len(everything)  # rows that `wide` rejects
    bright = workspace.table("one", "lit", ["width"], where="brightness > 130").table
    values = workspace.table("one", "lit", ["brightness"]).table["brightness"].to_pylist()
    assert len(bright) == sum(value > 130 for value in values) > 0


def test_a_table_is_read_shard_by_shard(done: tuple[Workspace, Result]) -> None:
    """Never more than one shard's columns are held."""
    workspace, _ = done
    record = RunRecord.load(open_storage(workspace.url), "one")
    shards = read_shards(record.storage, record.outputs["pool"]["base"])
    whole = workspace.batches("one", "inspect", ["embedding", "caption"]).read_all().nbytes
    before, most, sizes = pa.total_allocated_bytes(), 0, []
    for batch in workspace.batches("one", "inspect", ["embedding", "caption"]):
        sizes.append(batch.num_rows)
        most = max(most, pa.total_allocated_bytes() - before)
    assert len(sizes) == len(shards) == ROWS // SHARD_ROWS and most < whole / 3


def test_pages_join_to_the_whole_table(done: tuple[Workspace, Result]) -> None:
    workspace, _ = done
    asked = ("one", "inspect", ["key", "embedding"], "brightness > 30")
    whole = workspace.table(*asked)
    assert whole.next == "" and pl.from_arrow(whole.table).height == len(whole.table) > 20  # type: ignore[union-attr]
    for step, most in ({"limit": 7}, 7), ({"shards": 3}, 3 * SHARD_ROWS), ({"shards": 2, "limit": 5}, 5):
        pages, cursor = [], ""
        while not pages or cursor:
            page = workspace.table(*asked, cursor=cursor, **step)
            pages.append(page.table)
            cursor = page.next
        assert pa.concat_tables(pages).equals(whole.table), step
        assert len(pages) > 2 and max(map(len, pages)) <= most, step
    some = workspace.table("one", "inspect", ["key"], shards=[4, 1]).table["key"].to_pylist()
    every = [workspace.table("one", "inspect", ["key"], shards=[place]).table["key"].to_pylist() for place in (4, 1)]
    assert some == every[0] + every[1]


def test_only_the_files_and_columns_that_are_needed_are_read(
    done: tuple[Workspace, Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    read = list[tuple[str, list[str] | None]]()
    kept = Storage.read_table

    def seen(self: Storage, path: str, columns: list[str] | None = None, **options: object) -> pa.Table:
        read.append((path, columns))
        return kept(self, path, columns, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(Storage, "read_table", seen)
    done[0].table("one", "embed", ["brightness"], limit=1)
    held = [(path, columns or []) for path, columns in read if path.startswith(("facts/", "pools/toys/shards/"))]
    assert held and not any("embedding" in columns or "key" in columns for _, columns in held)
    bright = RunRecord.load(open_storage(done[0].url), "one").outputs["bright"]["path"]
    assert 0 < len({path for path, _ in held if path.startswith(bright) and "versions" not in path}) <= 3  # of ten


def test_a_vector_that_is_missing_is_null_and_the_others_keep_their_bits(done: tuple[Workspace, Result]) -> None:
    workspace, _ = done
    column = workspace.table("one", "inspect", ["embedding"]).table["embedding"]
    single = workspace.batches("one", "inspect", ["embedding"]).read_all()["embedding"]
    assert 0 < column.null_count < len(column) and column.to_pylist() == single.to_pylist()
    record = RunRecord.load(open_storage(workspace.url), "one")
    files = sorted(Path(workspace.url, record.outputs["embed"]["path"]).rglob("0*.parquet"))
    stored = {bytes(value.as_py()) for file in files for value in pq.read_table(file)["embedding"] if value.is_valid}
    vectors = [np.array(value, np.float16).tobytes() for value in column.drop_null().to_pylist()]
    assert vectors and set(vectors) <= stored


def test_a_histogram_counts_every_row_once(done: tuple[Workspace, Result]) -> None:
    workspace, _ = done
    values = workspace.table("one", "wide", ["brightness", "seen", "size"]).table
    bright = values["brightness"].to_numpy()
    whole = workspace.histogram("one", "wide", "brightness", bins=5)
    counts, edges = np.histogram(bright, 5)
    assert whole.counts == counts.tolist() and np.allclose(whole.edges, edges)
    assert (whole.below, whole.above, whole.nulls, whole.nans) == (0, 0, 0, 0)
    narrow = workspace.histogram("one", "wide", "brightness", 3, (125.0, 130.0), where="brightness != 0")
    assert narrow.below == np.sum(bright < 125) > 0 and narrow.above == np.sum(bright > 130) > 0
    assert sum(narrow.counts) == np.sum((bright >= 125) & (bright <= 130)) > 0
    seen = workspace.table("one", "lit", ["seen"]).table["seen"]
    found = workspace.histogram("one", "lit", "seen", 4)
    assert found.nulls == seen.null_count > 0 and sum(found.counts) == len(seen) - seen.null_count


def test_not_a_number_and_infinity_are_counted_apart() -> None:
    values = pa.array([1, 2, 2, float("nan"), None, float("inf"), -float("inf")], pa.float32())
    found = histogram_of(values, 2, None)
    assert found == tables.Histogram([1.0, 1.5, 2.0], [1, 2], below=1, above=1, nulls=1, nans=1)


@pytest.mark.parametrize(
    ("values", "limits"),
    [([1 << 60, 1 << 60], None), ([0.1, np.nextafter(0.1, 1)], None), ([-1.7e308, 1.7e308], (0, 1))],
)
def test_values_that_floating_point_numbers_cannot_divide_are_counted(values: list[Any], limits: Any) -> None:
    found = histogram_of(values, 7, limits)
    assert sum(found.counts) + found.below + found.above == 2 and len(found.counts) == 7


@pytest.mark.parametrize("limits", [(1e16, 1e16 + 2), (-1.7e308, 1.7e308), (0, 5e-324), (0, 10**400)])
def test_a_range_that_cannot_be_divided_is_an_error_of_one_line(limits: Any) -> None:
    with pytest.raises(InputError, match=r"^range: .*expected"):
        histogram_of([1.0], 7, limits)


def histogram_of(values: Any, bins: int, limits: Any) -> tables.Histogram:
    """The histogram of one column."""
    table = pa.table({"a": values})

    class OneShard:
        schema = table.schema
        rows = type("Rows", (), {"shards": [None]})

        def shard(self, place: int) -> pa.Table:
            return table

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(tables, "Reads", lambda *_: OneShard())
        return tables.histogram(None, "stage", "a", bins, limits, None)  # type: ignore[arg-type]


class Gap(toys.Numbers):
    """A shard without rows in the middle."""

    op: ClassVar[str] = "toy.gap"

    def read(self, portion: Portion) -> Iterator[Incoming]:
        items = list(super().read(portion))
        yield from () if "4" in items[0].source_id else items


def test_pages_pass_shards_without_rows(tmp_path: Path) -> None:
    made = Pipeline().add("pool", Gap(namespace="toys", rows=12, shard_rows=4)).add("bright", toys.Brightness(), "pool")
    run(made.check(), str(tmp_path), run_id="one")
    workspace = Workspace(str(tmp_path))
    whole = workspace.table("one", "bright", ["key"], limit=10**30).table
    assert len(whole) == 8
    for step in {"limit": 4}, {"shards": 1}:
        pages, cursor = [], None
        while cursor != "":
            page = workspace.table("one", "bright", ["key"], cursor=cursor, **step)
            pages.append(page.table)
            cursor = page.next
        assert pa.concat_tables(pages).equals(whole), step


def test_lists_of_users_keep_their_type_in_a_file(tmp_path: Path) -> None:
    table = pa.table(
        {
            "box": pa.array([[0.1, 1 / 3]], pa.list_(pa.float64(), 2)),
            "half": pa.array([[0.5]], pa.list_(pa.float16(), 1)),
        }
    )
    tables.write(table.to_reader(), str(tmp_path / "a.parquet"))
    found = pq.read_table(tmp_path / "a.parquet")
    assert found["box"].equals(table["box"]) and found["half"].type.value_type == pa.float32()


def test_a_column_that_two_stages_write_is_chosen_by_its_stage(tmp_path: Path) -> None:
    made = Pipeline().add("pool", toys.Numbers(namespace="toys", rows=12, shard_rows=6))
    made.add("first", toys.Brightness(), "pool").add("left", toys.Costly(column="score"), "first")
    made.add("right", toys.Costly(column="score"), "first")
    made.add("half", make_stage("select.uniform", share=0.5), ("left",))
    run(made.add("total", toys.Total(), "right").check(), str(tmp_path), run_id="one")
    workspace = Workspace(str(tmp_path))
    with pytest.raises(InputError, match=r"^score: left and right write this column; give left.score or right.score$"):
        workspace.table("one", "half", ["score"])
    found = workspace.table("one", "half", ["left.score", "right.score", "pool.key"]).table
    assert found.column_names == ["left.score", "right.score", "pool.key"]
    where = workspace.table("one", "half", ["key"], where='"left.score" >= 0').table
    assert len(where) == len(found)


def test_a_story_has_the_stages_in_order_with_status_and_reason(done: tuple[Workspace, Result]) -> None:
    workspace, _ = done
    run, dark = workspace.run("one"), "brightness <= 120"
    key = workspace.table("one", "bright", ["key"], where=dark, limit=1).table["key"][0].as_py()
    story = run.sample(key)
    assert story.lines() == run.explain(key) and (story.run, story.key, story.parent) == ("one", key, None)
    by_stage = {told.stage: told for told in story.stages}
    assert list(by_stage) == [name for name in recipe().nodes if name in by_stage]
    assert [(told.noun, told.status) for told in story.stages[:2]] == [("pools", "done"), ("facts", "done")]
    assert (by_stage["lit"].noun, by_stage["lit"].status, by_stage["lit"].reason) == ("masks", "rejected", "dark")
    assert by_stage["embed"].status == "not reached" and by_stage["embed"].reason == "lit: dark"
    kept = run.sample(workspace.table("one", "half", ["key"], limit=1).table["key"][0].as_py())
    ends = {told.stage: (told.noun, told.status) for told in kept.stages}
    assert ends["half"] == ("selections", "done") and ends["dataset"] == ("datasets", "done")
    assert json.loads(json.dumps(kept.to_json()))["stages"][0]["facts"]["key"] == kept.key
    for wrong in ("", 7):
        with pytest.raises(InputError, match=r"^key: expected a key"):
            run.sample(wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"stage": 3}, "stage: expected the name of a stage; not '3'"),
        ({"columns": "width"}, "columns: expected a list of names; not 'width'"),
        ({"columns": ["width", "width"]}, "columns: expected each column once, not width again"),
        ({"where": 1}, "where: expected an expression"),
        ({"shards": 0}, "shards: expected a number of shards from 1 on, or a list of some of 0 to 9"),
        ({"shards": True}, "shards: expected a number of shards"),
        ({"shards": "all"}, "shards: expected a number of shards"),
        ({"shards": [1, 1]}, "shards: expected a number of shards"),
        ({"shards": [10]}, "shards: expected a number of shards"),
        ({"limit": 0}, "limit: expected a number of rows from 1 on; not '0'"),
        ({"limit": 1.5}, "limit: expected a number of rows"),
        ({"cursor": 5}, "cursor: expected `next` of another page; not '5'"),
        ({"cursor": "next"}, "cursor 'next': expected `next` of a page of this run, stage, columns, where and shards"),
        ({"cursor": "{mark}:10:0"}, "beyond the 10 shards"),
        ({"cursor": "{mark}:3:6"}, "beyond the 10 shards"),
        ({"cursor": "{mark}:1:0", "columns": ["key"]}, "expected `next` of a page of this run, stage"),
    ],
)
def test_bad_arguments_of_a_page_are_one_line(
    done: tuple[Workspace, Result], given: dict[str, Any], problem: str
) -> None:
    asked = {"run_id": "one", "stage": "inspect", "columns": ["width"]}
    mark = done[0].table(**asked, limit=1).next.split(":")[0]  # type: ignore[arg-type]
    given = {key: value.format(mark=mark) if isinstance(value, str) else value for key, value in given.items()}
    with pytest.raises(InputError) as raised:
        done[0].table(**asked | given)
    assert problem in str(raised.value) and "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"bins": 0}, "bins: expected a whole number from 1 to 100000; not '0'"),
        ({"bins": 2.0}, "bins: expected a whole number"),
        ({"range": (1, 1)}, "range: expected two finite numbers, the smaller one first"),
        ({"range": (0, float("nan"))}, "range: expected two finite numbers"),
        ({"range": 3}, "range: expected two finite numbers"),
        ({"column": "caption"}, "caption: holds string; expected a column of numbers"),
        ({"column": "embedding"}, "embedding: holds fixed_size_list"),
        ({"column": ["width"]}, "column: expected the name of a column"),
    ],
)
def test_bad_arguments_of_a_histogram_are_one_line(
    done: tuple[Workspace, Result], given: dict[str, Any], problem: str
) -> None:
    with pytest.raises(InputError) as raised:
        done[0].histogram(**{"run_id": "one", "stage": "inspect", "column": "width"} | given)
    assert problem in str(raised.value) and "\n" not in str(raised.value)


@pytest.mark.parametrize("name", ["some.parquet", "some.arrow", "some.csv"])
def test_the_command_writes_each_format(done: tuple[Workspace, Result], tmp_path: Path, name: str) -> None:
    workspace, result = done
    file = tmp_path / "new" / name
    order = ("table", "one", "lit", "--columns", "key,width", "--columns", "brightness", "--to", file)
    said = curate(*order, "-w", workspace.url)
    assert said.out == f"{result.ledger['lit'].after} rows of lit in {file}\n"
    read = {"some.parquet": pl.read_parquet, "some.arrow": pl.read_ipc, "some.csv": pl.read_csv}[name]
    found = read(file)
    assert found.columns == ["key", "width", "brightness"]
    assert found["key"].to_list() == workspace.table("one", "lit", ["key"]).table["key"].to_pylist()
    assert [path.name for path in file.parent.iterdir()] == [name]


@pytest.mark.parametrize(
    ("stage", "columns", "where", "problem"),
    [
        ("lid", ["width"], None, "lid: run one: has no such stage; did you mean 'lit'?"),
        ("dataset", ["width"], None, "dataset: run one: pack.webdataset passes on no rows; give one of"),
        ("lit", ["widht"], None, "widht: no stage over the rows of lit writes this column; did you mean 'width'?"),
        ("lit", [], None, "--columns is missing; the columns are key, "),
        ("lit", ["width"], "brightnes > 1", "brightnes: no stage over the rows of lit writes this column; did you"),
        ("lit", ["width"], "max(width, 3) > 1", "--where: function 'max' is not allowed; did you mean 'greatest'?"),
        ("lit", ["width"], "width >", "--where: not an SQL expression"),
        ("lit", ["width"], "embedding > 1", "--where: 'embedding' holds"),
        ("lit", ["width"], "width + 1", "--where: the result is"),
    ],
)
def test_errors_are_one_line(
    done: tuple[Workspace, Result], stage: str, columns: list[str], where: str | None, problem: str
) -> None:
    with pytest.raises(InputError) as raised:
        done[0].table("one", stage, columns, where)
    assert problem in str(raised.value) and "\n" not in str(raised.value)


def test_a_file_is_complete_or_missing(done: tuple[Workspace, Result], tmp_path: Path) -> None:
    place = ("-w", done[0].url)
    said = curate("table", "one", "lit", "--columns", "embedding", "--to", tmp_path / "some.csv", *place)
    assert said.code == 1 and "CSV cannot hold the lists and bytes of embedding; write .parquet or .arrow" in said.err
    said = curate("table", "one", "lit", "--columns", "width", "--to", tmp_path / "some.json", *place)
    assert said.code == 1 and "expected a name that ends in .parquet, .arrow, .csv" in said.err
    assert not list(tmp_path.iterdir())
    storage = open_storage(done[0].url)
    last = read_shards(storage, RunRecord.load(storage, "one").outputs["pool"]["base"])[-1]
    table = Path(done[0].url, last.table)
    held = table.read_bytes()
    pq.write_table(pa.table({"other": [1]}), tmp_path / "aside")
    try:
        table.write_bytes((tmp_path / "aside").read_bytes())
        said = curate("table", "one", "lit", "--columns", "caption", "--to", tmp_path / "some.parquet", *place)
    finally:
        table.write_bytes(held)
    assert said.code == 1 and said.err.count("\n") == 1 and not (tmp_path / "some.parquet").exists()
