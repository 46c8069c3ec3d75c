"""What every stage must keep, whoever wrote it. `contract.py` says what a new op needs."""

from __future__ import annotations

import inspect
import io
import json
import pickle
import re
import tarfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from curate.core import registry
from curate.core.contracts import Fit, Map, Pack, Reduce, Select, Source, Stage, is_runtime
from curate.core.errors import CurateError
from curate.core.nouns import POOL_SCHEMA
from curate.core.pipeline import Pipeline
from curate.core.storage import open_storage
from curate.engine.record import Run
from curate.engine.run import run
from tests.engine import contract, workspaces
from tests.engine.contract import Mixed, Output

OPS = sorted(registry.OPS)
KINDS = {
    op: next(base for base in (Source, Map, Reduce, Fit, Select, Pack, Stage) if issubclass(registry.resolve(op), base))
    for op in OPS
}
MAPS, REDUCES, FITS, SELECTS, PACKS, SOURCES = (
    [op for op in OPS if KINDS[op] is kind] for kind in (Map, Reduce, Fit, Select, Pack, Source)
)
REPORTS = [op for op in OPS if KINDS[op] is Stage]
REASON = re.compile(r"[a-z][a-z0-9_]*|error_\w+")


@pytest.fixture(scope="module", autouse=True)
def words(tiny_wordnet: Path) -> Iterator[None]:
    """As where the goldens were made."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CURATE_WORDNET", str(tiny_wordnet))
        yield


@pytest.fixture(scope="module")
def made(memory: Path) -> Output:
    """All stages over a pool with an empty shard, a refused shard, broken and repeated pictures."""
    folder = memory / "contract"
    return Output(str(folder), run(contract.pipeline(Mixed(namespace="contract")), str(folder)))


@pytest.fixture(scope="module")
def imported(memory: Path) -> dict[str, tuple[Source, Path, Output]]:
    found = {}
    for op in SOURCES:
        files = memory / op
        files.mkdir()
        source = contract.stage_of(op, files)
        assert isinstance(source, Source)
        pool = Pipeline().add("pool", source)
        found[op] = source, files, Output(f"{files}-workspace", run(pool, f"{files}-workspace"))
    return found


@pytest.fixture
def stage(request: pytest.FixtureRequest, tmp_path: Path) -> Stage:
    return contract.stage_of(request.param, tmp_path)


every = pytest.mark.parametrize("stage", OPS, indirect=True, ids=str)


# --- what a stage is --------------------------------------------------------------------------------------------------


@every
def test_says_what_it_is(stage: Stage) -> None:
    op, cls = stage.op, type(stage)
    assert registry.resolve(op) is cls
    assert cls.version >= 1
    assert inspect.getdoc(cls) and cls.__doc__ != cls.__mro__[1].__doc__, f"{op}: no docstring; `curate ops` shows it"
    bare = [name for name, field in cls.model_fields.items() if not field.description and name not in inherited(cls)]
    assert not bare, f"{op}: no description of {', '.join(bare)}; write Field(..., description=...)"


def inherited(cls: type[Stage]) -> set[str]:
    """Parameters that are the contract's, with the contract's description."""
    own = set(vars(cls).get("__annotations__", {}))
    return set(cls.model_fields) - own


@every
def test_its_constructor_only_stores(stage: Stage) -> None:
    assert not stage.__pydantic_private__, f"{stage.op}: {stage.__pydantic_private__} set before `setup`"
    assert type(stage)(**stage.model_dump()) == stage
    with pytest.raises(ValueError, match="frozen"):
        stage.op_ = 1  # type: ignore[attr-defined]


@every
def test_it_travels(stage: Stage) -> None:
    again = pickle.loads(pickle.dumps(stage))
    assert again == stage and again.parameters() == stage.parameters()


@every
def test_its_parameters_are_what_decides(stage: Stage) -> None:
    parameters = stage.parameters()
    assert json.loads(json.dumps(parameters)) == parameters
    execution = {name for name, field in type(stage).model_fields.items() if is_runtime(field.metadata)}
    assert not execution & set(parameters)
    assert set(parameters) | execution == set(type(stage).model_fields)
    assert json.loads(json.dumps(stage.identity())) == stage.identity()
    assert stage.resources().cpus > 0 and isinstance(stage.preflight(), list)


def test_every_port_has_a_maker() -> None:
    kinds = {getattr(registry.resolve(op), "kind", None) for op in OPS}
    ports = {(op, port, kind) for op in OPS for port, kind in registry.resolve(op).ports.items()}
    assert [port for port in ports if port[2] not in kinds] == []


# --- goldens ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("op", OPS)
def test_golden(op: str, made: Output, imported: dict[str, tuple[Source, Path, Output]]) -> None:
    stored = json.loads(contract.GOLDENS.read_text())
    contract.case(op)
    assert op in stored, f"{op}: no golden; write it with {contract.UPDATE} and commit it"
    if op in imported:
        source, files, output = imported[op]
        now = contract.goldens_of(output, op, contract.neutral(source, files))
    else:
        now = contract.goldens_of(made, op, contract.stage_of(op))
    was = stored[op]
    version = f"{op}: version {was['version']} -> {now['version']}"
    if now["version"] == was["version"]:
        assert now["fingerprint"] == was["fingerprint"], (
            f"{op}: its parameters, their defaults, its identity or its ports changed: every cached output of it is "
            f"lost. If that is meant, {contract.UPDATE}"
        )
        assert same(now["output"], was["output"]), (
            f"{op}: its output changed, its version did not: caches would mix old and new. Raise `version` if that is "
            f"meant (then {contract.UPDATE}); look first at the stages upstream of it"
        )
    assert now["version"] == was["version"], f"{version}: if that is meant, {contract.UPDATE}"


def same(now: dict[str, Any], was: dict[str, Any]) -> bool:
    exact = (now["digest"], now["floats"]) == (was["digest"], was["floats"])
    return exact and np.allclose(now["sums"], was["sums"], rtol=1e-4, atol=1e-2)


def test_goldens_are_of_registered_ops() -> None:
    assert sorted(json.loads(contract.GOLDENS.read_text())) == OPS


# --- what it does -----------------------------------------------------------------------------------------------------


def test_the_same_again(made: Output, memory: Path) -> None:
    """But for the report, which tells times."""
    again = memory / "contract-again"
    run(contract.pipeline(Mixed(namespace="contract")), str(again))
    a, b = (workspaces.files(place) for place in (made.storage.root, again))
    assert sorted(a) == sorted(b)
    assert [name for name in a if a[name] != b[name] and "report.html" not in name] == []


def test_the_same_on_ray(made: Output, workspace: Path, on_ray: Any) -> None:
    """With one CPU for every stage: two workers for each, and the same two for all."""
    pipeline = Pipeline()
    for node in contract.pipeline(Mixed(namespace="contract"), without=contract.ON_TORCH).nodes.values():
        changes = {"threads": 1} if "threads" in type(node.stage).model_fields else {}
        pipeline.add(node.name, node.stage.model_copy(update=changes), node.inputs, **node.ports)
    result = run(pipeline, str(workspace), engine=on_ray)
    assert result.ledger == {name: made.result.ledger[name] for name in pipeline.nodes}
    a, b = (workspaces.files(place) for place in (made.storage.root, workspace))
    missing = tuple(made.bases[name].split("/versions/")[0] for name in contract.ON_TORCH)
    missing += tuple(made.manifest(name).extra.get("states", missing[0]) for name in contract.ON_TORCH)
    a = {name: digest for name, digest in a.items() if not name.startswith(missing)}
    assert sorted(a) == sorted(b)
    assert [name for name in a if a[name] != b[name] and "report.html" not in name] == []


@pytest.fixture(scope="module")
def cut(memory: Path) -> Output:
    """The same samples in other shards."""
    folder = memory / "contract-cut"
    return Output(str(folder), run(contract.pipeline(Mixed(namespace="contract", shard_rows=5)), str(folder)))


@pytest.mark.parametrize("op", [*MAPS, *REDUCES, *FITS, *SELECTS, *PACKS])
def test_the_same_however_the_pool_is_cut(op: str, made: Output, cut: Output) -> None:
    stage, name = contract.stage_of(op), contract.case(op)
    values = [output.value(name, stage) for output in (made, cut)]
    for value in values:
        if isinstance(stage, Fit) and isinstance(value, dict):
            value.pop("shards", None)  # which shards it was fitted on
    assert same(*map(contract.golden, values))


@pytest.mark.parametrize("op", MAPS)
def test_map_keeps_rows(op: str, made: Output) -> None:
    name = contract.case(op)
    stage = contract.stage_of(op)
    assert isinstance(stage, Map)
    entry = made.manifest(name).entry.check(name)
    counted: Counter[str] = Counter()
    alive_before = 0
    for (pool, columns), before in zip(made.tables(name), alive(made, name), strict=True):
        assert columns.num_rows == pool.num_rows
        assert columns.column_names == [*stage.writes(), "reject"]
        refused = columns.filter(pa.array(~before))
        assert all(column.null_count == len(column) for column in refused.columns), f"{op}: computed a refused row"
        counted.update(reason for reason in columns.column("reject").to_pylist() if reason)
        alive_before += int(before.sum())
    assert (entry.before, entry.rejected) == (alive_before, counted)
    assert all(REASON.fullmatch(reason) for reason in counted), f"{op}: reasons are snake_case words: {counted}"
    assert not entry.errors(), f"{op}: {counted}"


def alive(made: Output, name: str) -> list[np.ndarray]:
    """Rows of every shard that nothing upstream of a stage has refused."""
    pipeline = contract.pipeline(Mixed(namespace="contract"))
    masks = [pool.column("reject").is_null().to_numpy() for pool, _ in made.tables("pool")]
    for up in pipeline.along(name):
        if isinstance(up.stage, Map):
            masks = [
                m & c.column("reject").is_null().to_numpy()
                for m, (_, c) in zip(masks, made.tables(up.name), strict=True)
            ]
    return masks


@pytest.mark.parametrize("op", MAPS)
def test_map_batches_are_a_power_of_two(op: str) -> None:
    rows = registry.resolve(op).batch_rows  # type: ignore[attr-defined]
    assert rows & (rows - 1) == 0, f"{op}.batch_rows: {rows}; segments and passes cut by powers of two"


@pytest.mark.parametrize("op", [*MAPS, *REDUCES, *FITS])
def test_nothing_alive(op: str, workspace: Path) -> None:
    """Every row refused upstream: none is computed; a Reduce has an artifact of nothing, or says in a line why not."""
    name = contract.case(op)
    pipeline = contract.pipeline(Mixed(namespace="contract", alive=False), upto=name)
    said = refusal(pipeline, workspace)
    ledger = Run.load(open_storage(str(workspace)), "nothing").ledger()
    if said is None:
        assert (ledger[name].before, ledger[name].after) == (0, 0)
    else:
        assert re.match(r"[a-z._]+: ", said) and name not in ledger
        assert any(isinstance(node.stage, (Reduce, Fit)) for node in pipeline.nodes.values())
    assert all(entry.after == 0 for entry in ledger.values())


def refusal(pipeline: Pipeline, workspace: Path) -> str | None:
    try:
        run(pipeline, str(workspace), run_id="nothing")
    except CurateError as error:
        return str(error)
    return None


@pytest.mark.parametrize("op", SELECTS)
def test_select_counts_every_row_once(op: str, made: Output) -> None:
    name = contract.case(op)
    stage = contract.stage_of(op)
    assert isinstance(stage, Select)
    rows, entry = made.selection(name), made.manifest(name).entry.check(name)
    places = {(row["shard"], row["row"]) for row in rows}
    expected = {
        (s.id, int(r)) for s, mask in zip(made.shards, alive(made, name), strict=True) for r in np.flatnonzero(mask)
    }
    assert places == expected
    assert all((row["copies"] == 0) == (row["reject"] is not None) for row in rows)
    assert all(0 <= row["copies"] <= stage.multiplier for row in rows)
    assert entry.copies == sum(row["copies"] for row in rows)
    assert stage.target_rows() in (None, entry.copies)
    keys = {row["key"] for row in rows}
    assert keys <= {key for pool, _ in made.tables("pool") for key in pool.column("key").to_pylist()}


@pytest.mark.parametrize("op", PACKS)
def test_pack_holds_every_copy(op: str, made: Output) -> None:
    name = contract.case(op)
    [select] = contract.pipeline(Mixed(namespace="contract")).nodes[name].inputs
    base, manifest = made.bases[name], made.manifest(name)
    index = made.storage.read_table(f"{base}/index.parquet")
    wanted = {f"{r['key']}-{r['item']}-{c}" for r in made.selection(select) for c in range(r["copies"])}
    assert set(index.column("name").to_pylist()) == wanted and index.num_rows == len(wanted) == manifest.rows
    files = made.storage.list(base)
    tars = sorted(file for file in files if file.endswith(".tar"))
    assert manifest.extra["tars"] == len(tars)
    for number, tar in enumerate(tars):
        data = made.storage.read(f"{base}/{tar}")
        with tarfile.open(fileobj=io.BytesIO(data)) as opened:
            members = {m.name: m for m in opened.getmembers()}
        assert all((m.mtime, m.uid, m.gid, m.uname) == (0, 0, 0, "") for m in members.values())
        for row in index.filter(pa.compute.field("shard") == number).to_pylist():
            picture = members[f"{row['name']}.{row['ext']}"]
            assert (picture.offset_data, picture.size) == (row["offset"], row["size"])
            text = members.get(f"{row['name']}.txt")
            assert (row["text_offset"], row["text_size"]) == ((text.offset_data, text.size) if text else (-1, 0))
    assert not [file for file in files if file.startswith(("order/", "parts/"))]


@pytest.mark.parametrize("op", REPORTS)
def test_report_has_a_page(op: str, made: Output) -> None:
    page = made.storage.read(f"{made.bases[contract.case(op)]}/index.html")
    assert page.lstrip().lower().startswith(b"<!doctype html>") and b"http://" not in page


@pytest.mark.parametrize("op", SOURCES)
def test_source_plans_and_reads_the_same_again(op: str, imported: dict[str, tuple[Source, Path, Output]]) -> None:
    source, _, output = imported[op]
    portions = source.plan()
    assert portions == source.plan() and len(portions) > 1
    for portion in portions:
        assert json.loads(json.dumps(portion.content)) == portion.content
        read, again = list(source.read(portion)), list(source.read(portion))
        assert read == again and (portion.rows is None or len(read) <= portion.rows)
        in_place = source.tar(portion) is not None
        for incoming in read:
            assert incoming.reject is None or REASON.fullmatch(incoming.reject)
            assert (incoming.data is None) or not in_place
            assert incoming.reject or incoming.data is not None or incoming.size is not None
    tables = pa.concat_tables([pool for pool, _ in output.tables("pool")])
    assert tables.schema.remove_metadata() == POOL_SCHEMA.remove_metadata()
    ids = tables.column("source_id").to_pylist()
    assert len(set(ids)) == len(ids) == tables.num_rows == contract.ROWS
    assert tables.column("sha256").null_count == 0
    assert run(Pipeline().add("pool", source), str(output.storage.root)).reused["pool"]


@pytest.mark.parametrize("op", SOURCES)
def test_source_names_what_is_not_there(op: str, tmp_path: Path) -> None:
    source = contract.stage_of(op, tmp_path)
    gone = source.model_copy(update={"path": str(tmp_path / "nowhere")})
    assert isinstance(gone, Source)
    with pytest.raises(CurateError, match="nowhere"):
        gone.plan()
