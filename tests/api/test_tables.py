"""`Workspace.table` and `curate table`: columns of the rows that are alive at a stage."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from curate.api import Pipeline, Result, Workspace, make_stage
from curate.core.errors import InputError
from curate.core.nouns.pools import read_shards
from curate.core.store.storage import open_storage
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
