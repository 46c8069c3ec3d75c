"""The contract of every registered stage. `contract.py` describes what a new op needs."""

from __future__ import annotations

import io
import json
import re
import tarfile
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from curate.core.contracts import Collect, Derive, Filter, Fit, Map, Pack, Reduce, Report, Select, Source
from curate.core.contracts.collect import GROUP, ROW
from curate.core.errors import CurateError
from curate.core.items import per_item
from curate.core.nouns import facts
from curate.core.nouns.artifacts import STATES, StoredArtifact
from curate.core.nouns.pools import MEDIA_COLUMNS, POOL_SCHEMA
from curate.core.recipe import registry
from curate.core.recipe.pipeline import Pipeline
from curate.core.store.storage import open_storage
from curate.engine.record.runs import RunRecord
from curate.engine.run import run
from tests.engine import contract, workspaces
from tests.engine.contract import alive, alive_before_derive, alive_rows
from tests.engine.mixed import ROWS, Mixed
from tests.engine.output import Output, plain

OPS = sorted(registry.OPS)
CONTRACTS = (Collect, Source, Map, Filter, Derive, Reduce, Fit, Select, Pack, Report)
KINDS = {op: next(base for base in CONTRACTS if issubclass(registry.resolve(op), base)) for op in OPS}
COLLECTS, SOURCES, MAPS, FILTERS, DERIVES, REDUCES, FITS, SELECTS, PACKS, REPORTS = (
    [op for op in OPS if KINDS[op] is kind and op not in contract.ELSEWHERE] for kind in CONTRACTS
)
REASON = re.compile(r"[a-z][a-z0-9_]*")


@pytest.fixture(scope="module", autouse=True)
def words(tiny_wordnet: Path) -> Iterator[None]:
    """As where the goldens were made."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CURATE_WORDNET", str(tiny_wordnet))
        yield


@pytest.fixture(scope="module")
def built(memory: Path) -> Output:
    """All stages over a pool with an empty shard, a rejected shard, broken and repeated images."""
    folder = memory / "contract"
    return Output(str(folder), run(contract.pipeline(Mixed(namespace="contract")), str(folder)))


@pytest.fixture(scope="module")
def imported(memory: Path) -> dict[str, tuple[Collect | Source, Path, Output]]:
    found = {}
    for op in (*COLLECTS, *SOURCES):
        files = memory / op
        files.mkdir()
        source = contract.stage_of(op, files)
        assert isinstance(source, (Collect, Source))
        pool = Pipeline().add("pool", source)
        found[op] = source, files, Output(f"{files}-workspace", run(pool, f"{files}-workspace"))
    return found


# --- goldens ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("op", OPS)
def test_golden(op: str, built: Output, imported: dict[str, tuple[Any, Path, Output]]) -> None:
    stored = json.loads(contract.GOLDENS.read_text())
    contract.case(op)
    assert op in stored, f"{op}: no golden; write it with {contract.UPDATE} and commit it"
    if op in imported:
        source, files, output = imported[op]
        now = contract.goldens_of(output, op, contract.neutral(source, files))
    elif op in contract.ELSEWHERE:
        now = contract.goldens_of(None, op, contract.stage_of(op))
    else:
        now = contract.goldens_of(built, op, contract.stage_of(op))
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


def differing(one: dict[str, Any], two: dict[str, Any]) -> list[str]:
    """Names in only one of the two, or with different values, except for the report, which contains times."""
    names = [name for name in sorted({*one, *two}) if "report.html" not in name]
    return [name for name in names if name not in one or name not in two or one[name] != two[name]]


def test_the_same_again(built: Output, memory: Path) -> None:
    again = memory / "contract-again"
    run(contract.pipeline(Mixed(namespace="contract")), str(again))
    for held in (workspaces.nouns, workspaces.facts, workspaces.masks, workspaces.answers):
        assert differing(held(built.storage.root), held(again)) == [], held.__name__


def test_nothing_is_computed_again(built: Output) -> None:
    before = workspaces.times(built.storage.root)
    result = run(contract.pipeline(Mixed(namespace="contract")), built.storage.root)
    assert [name for name, reused in result.reused.items() if not reused] == []
    assert [name for name, counts in result.counts.items() if counts.computed or counts.requests] == []
    assert workspaces.times(built.storage.root) == before and result.ledger == built.result.ledger


def test_the_same_on_ray(built: Output, workspace: Path, on_ray: Any) -> None:
    """With one CPU for every stage: two workers for each, and the same two for all."""
    pipeline = Pipeline()
    for node in contract.pipeline(Mixed(namespace="contract"), without=contract.ON_TORCH).nodes.values():
        changes = {"threads": 1} if "threads" in type(node.stage).model_fields else {}
        pipeline.add(node.name, node.stage.model_copy(update=changes), node.inputs, **node.ports)
    result = run(pipeline, str(workspace), engine=on_ray)
    assert result.ledger == {name: built.result.ledger[name] for name in pipeline.nodes}
    there = Output(str(workspace), result)
    values = [{n: o.value(n, node.stage) for n, node in pipeline.nodes.items()} for o in (built, there)]
    assert differing(*values) == []
    # The masks cover fewer stages but have the same live rows. All other files have the same name and bytes.
    missing = tuple(built.bases[name].split("/versions/")[0] for name in contract.ON_TORCH)
    missing += tuple(built.manifest(name).extra["states"] for name in contract.ON_TORCH if is_reduce(built, name))
    a, b = workspaces.nouns(built.storage.root), workspaces.nouns(workspace)
    assert differing({name: digest for name, digest in a.items() if not name.startswith(missing)}, b) == []
    a, b = workspaces.facts(built.storage.root), workspaces.facts(workspace)
    gone = tuple(path.removeprefix("facts/") for path in missing)
    assert differing({name: rows for name, rows in a.items() if not name.startswith(gone)}, b) == []


def is_reduce(built: Output, name: str) -> bool:
    return "states" in built.manifest(name).extra


@pytest.mark.parametrize("op", REDUCES)
def test_reduce_merges_as_a_tree(op: str, built: Output) -> None:
    """However the states are put together, in stretches and these again, the artifact is the same."""
    stage, manifest = contract.stage_of(op), built.manifest(contract.case(op))
    assert isinstance(stage, Reduce)
    node = contract.pipeline(Mixed(namespace="contract")).nodes[contract.case(op)]
    base, storage = built.bases[contract.case(op)], built.storage
    stage.setup({port: StoredArtifact(storage, built.bases[name]) for port, name in node.ports.items()})
    names = storage.read_table(f"{base}/{STATES}").column("file").to_pylist()
    states = [storage.read_table(f"{manifest.extra['states']}/{name}") for name in names]
    assert len(states) > 2
    whole = contract.golden(plain(dict(stage.finish(stage.merge(iter(states))))))
    for seed in range(4):
        level, chance = states, np.random.default_rng(seed)
        while len(level) > 1:
            cuts = np.cumsum(chance.integers(1, 4, len(level)))
            edges = [0, *cuts[cuts < len(level)].tolist(), len(level)]
            level = [stage.merge(iter(level[a:b])) for a, b in pairwise(edges)]
        merged = contract.golden(plain(dict(stage.finish(stage.merge(iter(level))))))
        assert same(merged, whole), f"{op}: merge is not associative"


@pytest.fixture(scope="module")
def cut(memory: Path) -> Output:
    """The same samples in other shards."""
    folder = memory / "contract-cut"
    return Output(str(folder), run(contract.pipeline(Mixed(namespace="contract", shard_rows=5)), str(folder)))


@pytest.mark.parametrize("op", [*MAPS, *FILTERS, *DERIVES, *REDUCES, *FITS, *SELECTS, *PACKS])
def test_the_same_however_the_pool_is_cut(op: str, built: Output, cut: Output) -> None:
    stage, name = contract.stage_of(op), contract.case(op)
    values = [output.value(name, stage) for output in (built, cut)]
    for value in values:
        if isinstance(stage, Fit) and isinstance(value, dict):
            value.pop("shards", None)  # which shards it was fitted on
    assert same(*map(contract.golden, values))


@pytest.mark.parametrize("op", MAPS)
def test_map_has_a_row_for_each_that_is_needed(op: str, built: Output) -> None:
    """Those that are alive before it, and no other: each has its status, and its values where it is done."""
    name, stage = contract.case(op), contract.stage_of(op)
    assert isinstance(stage, Map)
    entry, schema, costly = built.ledger(name), stage.schema(), [facts.INPUT_FIELD] if stage.costly else []
    unusable: Counter[str] = Counter()
    needed = 0
    for (_, table), before in zip(built.facts(name), alive(built, name), strict=True):
        assert table.column(facts.ROW).to_pylist() == np.flatnonzero(before).tolist(), f"{op}: rows that are not needed"
        assert table.column_names == [f.name for f in (*facts.FIXED, *costly, *schema)]
        for field in schema:
            stored = table.schema.field(field.name)
            assert pa.types.is_null(field.type) or stored.type.equals(field.type), f"{op}.{field.name}"
            assert per_item(stored) == per_item(field)
        status, reasons = (table.column(column).to_pylist() for column in (facts.STATUS_COLUMN, facts.REASON))
        assert all((found == facts.DONE) == (reason is None) for found, reason in zip(status, reasons, strict=True))
        bad = table.filter(pa.compute.not_equal(table.column(facts.STATUS_COLUMN), facts.DONE)).select(schema.names)
        assert all(column.null_count == len(column) for column in bad.columns), f"{op}: values of a row without facts"
        unusable.update(reason for reason in reasons if reason)
        assert facts.ERROR not in status, f"{op}: {unusable}"
        needed += table.num_rows
    assert (entry.before, entry.unusable, entry.after) == (needed, unusable, needed - unusable.total())
    assert not entry.rejected and not entry.error
    assert all(REASON.fullmatch(reason) for reason in unusable), f"{op}: reasons are snake_case words: {unusable}"


@pytest.mark.parametrize("op", MAPS)
def test_map_batches_are_a_power_of_two(op: str) -> None:
    rows = registry.resolve(op).batch_rows  # type: ignore[attr-defined]
    assert rows & (rows - 1) == 0, f"{op}.batch_rows: {rows}; batches are halved"


@pytest.mark.parametrize("op", FILTERS)
def test_filter_judges_alive_rows(op: str, built: Output) -> None:
    name, stage = contract.case(op), contract.stage_of(op)
    entry, before, after = built.ledger(name), alive(built, name), alive(built, name, behind=True)
    rejected: Counter[str] = Counter()
    for (_, fate), was, is_ in zip(built.fates(name), before, after, strict=True):
        mine = fate.stage == built.order[name]
        assert (fate.alive == is_).all() and not (mine & ~was).any(), f"{op}: judged a rejected row"
        assert all((reason is None) == live for reason, live in zip(fate.reason, fate.alive, strict=True))
        rejected.update(fate.reason[mine])
    counts = [int(sum(mask.sum() for mask in masks)) for masks in (before, after)]
    assert (entry.before, entry.rejected, entry.after) == (counts[0], rejected, counts[1])
    assert not entry.unusable and not entry.error
    assert all(REASON.fullmatch(reason) for reason in rejected), f"{op}: reasons are snake_case words: {rejected}"
    assert rejected and entry.after, f"{op}: give it parameters that reject some rows and keep others"
    behind = built.value(f"{name}_alive", contract.Alive())["alive"]
    live = [
        built.keys(shard)[row] for shard, mask in zip(built.shards, after, strict=True) for row in np.flatnonzero(mask)
    ]
    assert behind[0] == sorted(live)
    assert isinstance(stage, Filter) and bool(entry.of_items) == (stage.places() is not None)
    for items in entry.of_items.values():
        assert items.after == sum(sum(row or ()) for row in behind[1])


@pytest.mark.parametrize("op", FILTERS)
def test_filter_judges_each_row_alone(op: str, built: Output) -> None:
    name, stage = contract.case(op), contract.stage_of(op)
    assert isinstance(stage, Filter)
    table = alive_rows(built, name, stage)
    reasons = listed(stage.keep(table))
    assert len(reasons) == table.num_rows > 2
    assert [listed(stage.keep(table.slice(row, 1)))[0] for row in range(table.num_rows)] == reasons
    assert listed(stage.keep(table.take(pa.array(range(table.num_rows)[::-1])))) == reasons[::-1]
    assert listed(stage.keep(table.slice(0, 0))) == []
    chunks = pa.concat_tables([table.slice(0, 2), table.slice(2, 0), table.slice(2)])
    assert listed(stage.keep(chunks)) == reasons
    if stage.places():
        lengths = pa.compute.list_value_length(table.column(stage.places())).to_pylist()
        assert [None if row is None else len(row) for row in reasons] == lengths


def listed(reasons: Any) -> list[Any]:
    return reasons.to_pylist() if isinstance(reasons, (pa.Array, pa.ChunkedArray)) else list(reasons)


@pytest.mark.parametrize("op", DERIVES)
def test_derive_makes_children_of_alive_rows(op: str, built: Output) -> None:
    name = contract.case(op)
    entry, children = built.ledger(name), built.value(name, contract.stage_of(op))
    before = alive_before_derive(built, name)
    assert entry.before == len(before) and entry.children == len(children)
    assert entry.after + entry.unusable.total() == entry.before and not entry.error
    made_of: Counter[str] = Counter()
    for key, child in children.items():
        assert child["parent"] in before and child["root"] == child["parent"] and key != child["parent"]
        assert json.loads(child["span"]) and child["reject"] is None
        made_of[child["parent"]] += 1
    assert len(made_of) == entry.after and max(made_of.values()) > 1, f"{op}: give it a sample with several children"
    spans = {(child["parent"], child["span"]) for child in children.values()}
    assert len(spans) == len(children)


def test_nothing_alive(workspace: Path) -> None:
    """Every row rejected upstream: none is computed; what needs some has an artifact of nothing, or says why not.
    Such a stage ends the run, which is repeated without it and what is downstream of it."""
    source = Mixed(namespace="contract", alive=False)
    whole, above = contract.pipeline(source), dict[str, set[str]]()
    for name, node in whole.nodes.items():
        above[name] = {name}.union(*(above[up] for up in node.upstream))
    cases = [contract.case(op) for op in (*MAPS, *FILTERS, *DERIVES, *REDUCES, *FITS)]
    ended: set[str] = set()
    """Stages that said why not."""
    said: str | None = ""
    while said is not None:
        wanted = set().union(*(above[name] for name in cases if not above[name] & ended))
        said = complaint(contract.pipeline(source, whole.nodes.keys() - wanted), workspace, f"nothing-{len(ended)}")
        ledger = RunRecord.load(open_storage(str(workspace)), f"nothing-{len(ended)}").ledger()
        if said is not None:
            stage = re.match(r"(?:pipeline: )?([a-z_]+): ", said)
            assert stage and stage[1] in wanted, said
            assert isinstance(whole.nodes[stage[1]].stage, (Reduce, Fit, Derive)), said
            ended.add(stage[1])
        assert not [name for name in ledger if above[name] & ended]
        assert [name for name, entry in ledger.items() if entry.after] == []
    computed = [(name, ledger[name].before, ledger[name].after) for name in cases if not above[name] & ended]
    assert computed == [(name, 0, 0) for name, *_ in computed]
    assert len(computed) > 3 * len(ended)


def complaint(pipeline: Pipeline, workspace: Path, run_id: str) -> str | None:
    try:
        run(pipeline, str(workspace), run_id=run_id)
    except CurateError as error:
        return str(error)
    return None


@pytest.mark.parametrize("op", SELECTS)
def test_select_counts_every_row_once(op: str, built: Output) -> None:
    name = contract.case(op)
    stage = contract.stage_of(op)
    assert isinstance(stage, Select)
    rows, entry = built.selection(name), built.ledger(name)
    places = {(row["shard"], row["row"]) for row in rows}
    expected = {
        (s.id, int(r)) for s, mask in zip(built.shards, alive(built, name), strict=True) for r in np.flatnonzero(mask)
    }
    assert places == expected
    assert all((row["copies"] == 0) == (row["reject"] is not None) for row in rows)
    assert all(0 <= row["copies"] <= stage.multiplier for row in rows)
    assert entry.copies == sum(row["copies"] for row in rows)
    assert stage.target_rows() in (None, entry.copies)
    keys = {row["key"] for row in rows}
    assert keys <= {key for shard in built.shards for key in built.keys(shard)}


@pytest.mark.parametrize("op", PACKS)
def test_pack_holds_every_copy(op: str, built: Output) -> None:
    name = contract.case(op)
    [select] = contract.pipeline(Mixed(namespace="contract")).nodes[name].inputs
    base, manifest = built.bases[name], built.manifest(name)
    index = built.storage.read_table(f"{base}/index.parquet")
    wanted = {f"{r['key']}-{r['item']}-{c}" for r in built.selection(select) for c in range(r["copies"])}
    assert set(index.column("name").to_pylist()) == wanted and index.num_rows == len(wanted) == manifest.rows
    files = built.storage.list(base)
    tars = sorted(file for file in files if file.endswith(".tar"))
    assert manifest.extra["tars"] == len(tars)
    for number, tar in enumerate(tars):
        data = built.storage.read(f"{base}/{tar}")
        with tarfile.open(fileobj=io.BytesIO(data)) as opened:
            members = {m.name: m for m in opened.getmembers()}
        assert all((m.mtime, m.uid, m.gid, m.uname) == (0, 0, 0, "") for m in members.values())
        for row in index.filter(pa.compute.field("shard") == number).to_pylist():
            picture = members[f"{row['name']}.{row['ext']}"]
            assert (picture.offset_data, picture.size) == (row["offset"], row["size"])
            text = members.get(f"{row['name']}.txt")
            assert (row["text_offset"], row["text_size"]) == ((text.offset_data, text.size) if text else (-1, 0))
            about = members[f"{row['name']}.json"]
            assert (row["json_offset"], row["json_size"]) == (about.offset_data, about.size)
    assert not [file for file in files if file.startswith(("order/", "parts/"))]


@pytest.mark.parametrize("op", REPORTS)
def test_report_has_a_page(op: str, built: Output) -> None:
    page = built.storage.read(f"{built.bases[contract.case(op)]}/index.html")
    assert page.lstrip().lower().startswith(b"<!doctype html>") and b"http://" not in page


@pytest.mark.parametrize("op", SOURCES)
def test_source_plans_and_reads_the_same_again(op: str, imported: dict[str, tuple[Any, Path, Output]]) -> None:
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
    tables = pa.concat_tables([output.storage.read_table(shard.table) for shard in output.shards])
    expected = pa.schema([field for field in POOL_SCHEMA if field.name not in ("source", *MEDIA_COLUMNS)])
    assert tables.schema.remove_metadata() == expected.remove_metadata()
    ids = tables.column("source_id").to_pylist()
    assert len(set(ids)) == len(ids) == tables.num_rows == ROWS
    assert tables.column("sha256").null_count == 0
    assert run(Pipeline().add("pool", source), str(output.storage.root)).reused["pool"]


@pytest.mark.parametrize("op", COLLECTS)
def test_collect_reads_every_row(op: str, imported: dict[str, tuple[Any, Path, Output]]) -> None:
    collect, _, output = imported[op]
    parts = collect.plan()
    assert parts == collect.plan() and all(json.loads(json.dumps(part.content)) == part.content for part in parts)
    tables = [table for part in parts for table in collect.read(part)]
    assert all({GROUP, ROW, "reject"} <= set(table.column_names) for table in tables)
    entry = output.result.ledger["pool"]
    assert sum(table.num_rows for table in tables) == entry.before == entry.rejected.total() + entry.after
    assert run(Pipeline().add("pool", collect), str(output.storage.root)).reused["pool"]
