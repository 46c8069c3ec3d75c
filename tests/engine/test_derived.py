"""A derived pool: whose children are made and when, which of them are there, and what everything else makes of them."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from curate.codec.tars import read_spans
from curate.core import tombstones
from curate.core.contracts import Derive
from curate.core.errors import BudgetError, InputError
from curate.core.hashing import make_child_key, make_key
from curate.core.ledger import SET_ASIDE
from curate.core.nouns import Shard, read_shards
from curate.core.recipe.pipeline import Pipeline
from curate.core.rows import Rows
from curate.core.store.storage import open_storage, open_workspace
from curate.engine.backends.local import LocalBackend
from curate.engine.context import Options
from curate.engine.plan import plan
from curate.engine.preflight import preflight
from curate.engine.record import gc
from curate.engine.record.affected import affected_datasets
from curate.engine.record.diff import diff
from curate.engine.record.explain import explain
from curate.engine.record.runs import Run, latest
from curate.engine.run import Result, run
from curate.engine.units.derive import DeriveTask, derive_shards
from curate.engine.workers.scheduler import Scheduler
from tests.engine import derived, toys, workspaces
from tests.engine.deaths import deaths
from tests.engine.forks import Drivers

STRICT, LOOSE = 128.0, 126.0
"""Of the twenty parents, 9 and 10 are as light as that."""
ALL = Options(failure_budget=1.0)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log"


def shards(workspace: Path, run_id: str | None = None) -> list[Shard]:
    """Of the derived pool of a run: the last one, if none is named."""
    storage = open_storage(str(workspace))
    return read_shards(storage, latest(storage, run_id).outputs["tiles"]["base"])


def rows(workspace: Path) -> list[dict[str, Any]]:
    """Of all shards of the derived pool, in order, with their `data`."""
    storage, found = open_storage(str(workspace)), list[dict[str, Any]]()
    for shard in shards(workspace):
        lines = storage.read_table(shard.table).to_pylist()
        spans = [(line["offset"], line["size"]) for line in lines]
        data = read_spans(storage.fs, storage.path(shard.tar), spans, shard.tar_bytes)
        found += [line | {"data": part, "shard": shard.id} for line, part in zip(lines, data, strict=True)]
    return found


def number(row: dict[str, Any]) -> int:
    return int(row["caption"].split()[-1])


def members(result: Result) -> list[dict[str, Any]]:
    """The index of the run's dataset."""
    return open_storage(result.outputs["dataset"]).read_table("index.parquet").to_pylist()


# --- what is made -----------------------------------------------------------------------------------------------------


def test_children_have_keys_places_and_bytes_of_their_own(workspace: Path) -> None:
    run(derived.pipeline(light__darkest=LOOSE), str(workspace))
    found = rows(workspace)
    assert len(found) == 20 and len({row["key"] for row in found}) == 20
    for row in found:
        parent = make_key("toys", f"{number(row):06d}")
        left = row["width"] * (len(row["meta"]) - len('{"tile": 0}') + int(row["meta"][-2]))
        assert (row["parent"], row["root"], row["span"]) == (parent, parent, f'{{"left":{left}}}')
        assert row["key"] == make_child_key(parent, "tile", {"left": left})
        assert row["source_id"] == f"{number(row):06d}#left={left}"
        assert (row["width"], row["height"], row["format"], row["ext"]) == (4, 8, "bmp", "bmp")
        assert row["data"][:2] == b"BM" and row["parent_row"] == number(row) % 5
    for shard in shards(workspace):  # in order of parent and span
        mine = [(row["parent_row"], row["span"]) for row in found if row["shard"] == shard.id]
        assert mine == sorted(mine)
        assert shard.parent_shard().rows == 5


def test_the_ledger_counts_parents_and_then_children(workspace: Path) -> None:
    result = run(derived.pipeline(light__darkest=LOOSE, lit__darkest=130.0), str(workspace))
    made, seen = result.ledger["tiles"], result.ledger["shade"]
    assert (made.before, made.after, made.children, seen.before) == (10, 10, 20, 20)
    assert result.ledger["lit"].before == 20 and 0 < result.ledger["lit"].after < 20
    assert result.stages()["tiles"] | {"computed": 10, "reused": 0, "children": 20} == result.stages()["tiles"]
    packed = members(result)
    keys = {row["key"] for row in rows(workspace)}
    assert len(packed) == 9 and {row["key"] for row in packed} <= keys
    assert {(row["width"], row["height"]) for row in packed} == {(4, 8)}


def test_both_engines_make_the_same(workspace: Path, memory: Path, on_ray: Any) -> None:
    other = memory / "derived-on-ray"
    for darkest in (LOOSE, 0.0):
        run(derived.pipeline(light__darkest=darkest), str(workspace))
        run(derived.pipeline(light__darkest=darkest), str(other), engine=on_ray)
    workspaces.assert_same(workspace, other)


def test_parents_that_fail_take_no_other_along(workspace: Path) -> None:
    how = {"refused": (1, 7), "broken": (2,), "twice": (3,), "none": (4, 5, 6)}
    changes = {f"tiles__{name}": values for name, values in how.items()}
    result = run(derived.pipeline(**changes), str(workspace), options=ALL)
    entry = result.ledger["tiles"]
    assert (entry.before, entry.unusable, entry.error) == (20, {"unwanted": 2}, {"ValueError": 2})
    assert (entry.after, entry.children) == (16, 26)
    found = rows(workspace)
    assert {number(row) for row in found} == set(range(20)) - {1, 2, 3, 4, 5, 6, 7}
    assert all(row["data"][:2] == b"BM" for row in found)  # what they had written is gone
    storage = open_storage(str(workspace))
    tried = {n: explain(latest(storage, None), f"{n:06d}") for n in (1, 2, 4, 8)}
    said = {n: next(about for name, _, about in story if name == "tiles") for n, story in tried.items()}
    assert said[1] == {"status": "unusable", "reason": "unwanted", "message": ""}
    assert said[2] == {"status": "error", "reason": "ValueError", "message": "ValueError: cannot cut 2"}
    assert (said[4], said[8]) == ({"children": 0}, {"children": 2})


def test_errors_are_tried_again_when_told_to(workspace: Path, log: Path) -> None:
    broken = derived.pipeline(tiles__broken=(2, 11), tiles__log=str(log))
    fine = derived.pipeline(tiles__log=str(log))
    with pytest.raises(BudgetError, match="cannot cut 2"):
        run(broken, str(workspace))
    run(broken, str(workspace), options=ALL)
    derived.computed(log)
    before = workspaces.files(workspace, "pools/tiles/")
    again = run(fine, str(workspace), options=ALL)
    assert again.ledger["tiles"].error == {"ValueError": 2} and not derived.computed(log)
    still = run(broken, str(workspace), options=Options(retry={"tiles": ()}, failure_budget=1.0))
    assert derived.computed(log) == [2, 11] and still.ledger["tiles"].error == {"ValueError": 2}
    assert workspaces.files(workspace, "pools/tiles/") == before  # nothing new is known
    other = run(fine, str(workspace), options=Options(retry={"tiles": ("killed",)}, failure_budget=1.0))
    assert other.ledger["tiles"].error == {"ValueError": 2} and not derived.computed(log)
    result = run(fine, str(workspace), options=Options(retry={"tiles": ("ValueError",)}))
    assert derived.computed(log) == [2, 11]
    assert (result.ledger["tiles"].after, result.ledger["tiles"].children) == (20, 40)
    assert all(run(fine, str(workspace)).reused.values())
    assert len({row["key"] for row in rows(workspace)}) == len(rows(workspace)) == 40


def test_no_sample_at_all_is_one_line(workspace: Path) -> None:
    with pytest.raises(InputError, match=r"tiles: toy\.tiles made no sample out of 20; they are unwanted 20"):
        run(derived.pipeline(tiles__refused=tuple(range(20))), str(workspace))
    with pytest.raises(InputError, match=r"tiles: toy\.tiles made no sample out of 0; loosen the filters before it"):
        run(derived.pipeline(light__darkest=255.0), str(workspace))


# --- filters that change ----------------------------------------------------------------------------------------------


def test_a_looser_filter_adds_the_children_of_new_parents(workspace: Path, log: Path) -> None:
    strict = run(derived.pipeline(light__darkest=STRICT, tiles__log=str(log)), str(workspace), run_id="strict")
    first, made = shards(workspace), derived.computed(log)
    before = workspaces.files(workspace, "pools/tiles/derived")
    loose = run(derived.pipeline(tiles__log=str(log)), str(workspace), run_id="loose")
    added = derived.computed(log)
    assert sorted(made + added) == list(range(20)) and len(made) == strict.ledger["light"].after == 9
    counts = {name: (c["computed"], c["reused"]) for name, c in loose.stages().items() if name in ("tiles", "shade")}
    assert counts == {"tiles": (11, 9), "shade": (22, 18)}
    after = workspaces.files(workspace, "pools/tiles/derived")
    assert {name: after[name] for name in before} == before
    second = shards(workspace)
    assert [shard.id for shard in second if shard in first] == [shard.id for shard in first]
    places = [shard.table.rsplit("/", 2)[1:] for shard in second]
    parents = list(dict.fromkeys(folder for folder, _ in places))
    assert [parents.index(folder) for folder, _ in places] == sorted(parents.index(folder) for folder, _ in places)
    assert {name for _, name in places} == {"000001.parquet", "000002.parquet"}
    keys = [row["key"] for row in rows(workspace)]
    assert len(keys) == len(set(keys)) == 40


def test_a_stricter_filter_computes_nothing_and_its_children_are_absent(workspace: Path, log: Path) -> None:
    run(derived.pipeline(), str(workspace), run_id="loose")
    result = run(derived.pipeline(light__darkest=STRICT, tiles__log=str(log)), str(workspace), run_id="strict")
    assert not derived.computed(log) and result.reused["tiles"]
    assert {name: c["computed"] for name, c in result.stages().items() if c["computed"]} == {}
    dark = {number(row) for row in rows(workspace)} - {number(row) for row in alive(workspace)}
    assert len(rows(workspace)) == 40 and len(dark) == 11
    for name in ("shade", "lit", "parity", "total"):
        assert (result.ledger[name].before, result.ledger[name].lost.total()) == (18, 0)
    assert (result.ledger["tiles"].children, result.ledger["even"].before) == (18, 18)
    even = open_storage(result.outputs["even"])
    lines = pa.concat_tables([even.read_table(f"rows/{name}") for name in even.list("rows")])
    assert set(lines.column("key").to_pylist()) == {row["key"] for row in alive(workspace)}
    page = open_storage(result.outputs["page"]).read("index.html").decode().splitlines()
    assert "rejects 9 dataset 9" in page  # of 18 children, not of 40
    differing = {
        item.stage: item for item in diff(*(Run.load(open_storage(str(workspace)), i) for i in ("loose", "strict")))
    }
    assert differing["tiles"].after is not None and differing["tiles"].after.children == 18


def alive(workspace: Path) -> list[dict[str, Any]]:
    """Rows of the last run's derived pool whose parent is alive."""
    record = latest(open_storage(str(workspace)), None)
    stories = {row["key"]: explain(record, row["key"])[0][2]["reject"] for row in rows(workspace)}
    return [row for row in rows(workspace) if stories[row["key"]] is None]


def test_going_back_and_forth_finds_everything(workspace: Path) -> None:
    """However the shards came to be, who is alive decides what stages behind it build."""
    first = run(derived.pipeline(light__darkest=STRICT), str(workspace))
    run(derived.pipeline(), str(workspace))
    back = run(derived.pipeline(light__darkest=STRICT), str(workspace))
    assert {name: back.outputs[name] for name in ("total", "even", "dataset")} == {
        name: first.outputs[name] for name in ("total", "even", "dataset")
    }
    assert all(run(derived.pipeline(light__darkest=STRICT), str(workspace)).reused.values())
    assert all(run(derived.pipeline(), str(workspace)).reused.values())


def test_a_threshold_that_rejects_nobody_new_builds_nothing(workspace: Path) -> None:
    run(derived.pipeline(light__darkest=LOOSE), str(workspace))
    result = run(derived.pipeline(light__darkest=LOOSE + 1e-6), str(workspace))
    assert all(result.reused[name] for name in ("tiles", "total", "even", "dataset"))


def test_a_pool_that_grew_makes_the_children_of_its_new_shards(workspace: Path, log: Path) -> None:
    run(derived.pipeline(pool__rows=10), str(workspace))
    masks = workspaces.files(workspace, "masks/")
    result = run(derived.pipeline(tiles__log=str(log)), str(workspace))
    assert sorted(derived.computed(log)) == list(range(10, 20))
    assert result.stages()["shade"]["computed"] == 20
    grown = workspaces.files(workspace, "masks/")
    assert {name: grown[name] for name in masks} == masks
    assert len([name for name in grown if name not in masks and "/versions/" not in name]) == 2 * 2  # passes x shards


def test_a_selection_right_behind_it_sees_who_is_there(workspace: Path) -> None:
    """No pass in between, so no mask: the pool itself says who is alive."""

    def made(darkest: float) -> Pipeline:
        stages = derived.pipeline(light__darkest=darkest)
        short = Pipeline()
        for name in ("pool", "bright", "light", "tiles"):
            short.add(name, stages.nodes[name].stage, stages.nodes[name].inputs)
        return short.add("every", Every(), "tiles").add("dataset", Plain(), "every").check()

    loose, strict = run(made(0.0), str(workspace)), run(made(STRICT), str(workspace))
    assert (loose.ledger["every"].before, strict.ledger["every"].before) == (40, 18)
    assert len(members(strict)) == 18
    assert all(run(made(0.0), str(workspace)).reused.values())


class Every(toys.Even):
    """All rows."""

    op = "toy.every"

    def reads(self) -> tuple[str, ...]:
        return ()

    def target_rows(self) -> int | None:
        return None

    def deal(self, table: pa.Table) -> pa.Table:
        return table

    def plan(self, counts: Any) -> Any:
        return counts

    def pick(self, lines: pa.Table, counts: Any, quotas: Any) -> dict[str, Any]:
        return {"copies": [1] * lines.num_rows, "reject": [None] * lines.num_rows}


class Plain(toys.PlainPack):
    op = "toy.plain"

    def reads(self) -> tuple[str, ...]:
        return ()

    def write(self, row: Any, data: bytes, add: Any) -> Any:
        return super().write({**row, "unit_of": 0}, data, add)


def test_children_of_what_was_selected(workspace: Path) -> None:
    def made(each: int) -> Pipeline:
        chosen = toys.chain(toys.Brightness(), toys.Parity(), toys.Even(each=each), rows=20, shard_rows=5)
        chosen.add("tiles", derived.Tiles(), "stage_3").add("shade", toys.Brightness(), "tiles")
        return chosen.add("every", Every(), "shade").add("dataset", Plain(), "every").check()

    many, few = run(made(6), str(workspace)), run(made(2), str(workspace))
    assert (many.ledger["tiles"].before, few.ledger["tiles"].before, few.counts["tiles"].computed) == (15, 6, 0)
    assert (few.ledger["tiles"].children, few.ledger["shade"].before, len(members(few))) == (12, 12, 12)
    gone = next(row for row in rows(workspace) if row["key"] not in {line["key"] for line in members(few)})
    story = explain(latest(open_storage(str(workspace)), None), gone["key"])
    assert story[0][2]["reject"] == "absent, as its parent left at stage_3: not_sampled"


def test_children_of_children(workspace: Path) -> None:
    def made(darkest: float) -> Pipeline:
        stages = derived.pipeline(light__darkest=darkest).nodes
        deep = Pipeline()
        for name in ("pool", "bright", "light", "tiles", "shade"):
            deep.add(name, stages[name].stage, stages[name].inputs)
        deep.add("again", toys.Light(), "shade").add("strips", derived.Tiles(namespace="strips"), "again")
        return deep.add("every", Every(), "strips").add("dataset", Plain(), "every").check()

    loose = run(made(0.0), str(workspace))
    strict = run(made(STRICT), str(workspace))
    assert (loose.ledger["every"].before, strict.ledger["every"].before) == (80, 36)
    storage = open_storage(str(workspace))
    key = members(strict)[0]["key"]
    story = explain(latest(storage, None), key)
    by_name = {name: about for name, _, about in story}
    child, grandchild = by_name["parent: tiles"], by_name["strips"]
    assert grandchild["parent"] == child["key"] and grandchild["root"] == child["parent"] == child["root"]
    assert grandchild["source_id"].startswith(child["source_id"] + "#left=")
    assert "parent: parent: light" in by_name
    tombstones.bury(storage, [child["key"]], "asked for")
    left = run(made(STRICT), str(workspace))
    assert left.ledger["every"].rejected == {"tombstone": 2}


# --- what is said of it -----------------------------------------------------------------------------------------------


def test_explain_goes_on_with_the_parent(workspace: Path) -> None:
    run(derived.pipeline(), str(workspace), run_id="loose")
    run(derived.pipeline(light__darkest=STRICT), str(workspace), run_id="strict")
    storage = open_storage(str(workspace))
    there = alive(workspace)[0]
    gone = next(row for row in rows(workspace) if row["key"] not in {other["key"] for other in alive(workspace)})
    story = explain(latest(storage, None), there["source_id"])
    assert [name for name, _, _ in story if not name.startswith("parent: ")][:3] == ["tiles", "shade", "lit"]
    by_name = {name: about for name, _, about in story}
    assert by_name["parent: pool"]["key"] == there["parent"] and by_name["parent: light"]["reject"] is None
    assert by_name["parent: tiles"] == {"children": 2}
    told = {name: about for name, _, about in explain(latest(storage, None), gone["key"])}
    assert told["tiles"]["reject"] == "absent, as its parent left at light: too_dark"
    assert told["shade"] == {"not computed": "tiles: absent, as its parent left at light: too_dark"}
    assert told["parent: light"]["reject"] == "too_dark" and told["parent: tiles"] == {
        "not computed": "light: too_dark"
    }
    assert explain(Run.load(storage, "loose"), gone["key"])[0][2]["reject"] is None


def test_plan_knows_which_children_are_lacking(workspace: Path) -> None:
    def planned(darkest: float) -> dict[str, tuple[Any, ...]]:
        made, storage = derived.pipeline(light__darkest=darkest), open_workspace(str(workspace))
        steps = plan(made, storage, Options(), Scheduler(LocalBackend()), preflight(made, storage))
        return {step.stage: (step.done, step.needed, step.compute, step.after, step.certainty) for step in steps}

    assert planned(STRICT)["tiles"] == (None, None, None, None, "unknown")
    run(derived.pipeline(light__darkest=STRICT), str(workspace))
    there = planned(STRICT)
    assert there["tiles"] == (9, 9, 0, 18, "exact") and there["shade"] == (18, 18, 0, 18, "exact")
    assert all(compute == 0 for _, _, compute, _, _ in there.values())
    assert planned(0.0)["tiles"][1] == 20
    run(derived.pipeline(), str(workspace))
    run(derived.pipeline(light__darkest=LOOSE), str(workspace))
    first = workspace / shards(workspace)[0].table
    for version in workspace.glob("pools/tiles/versions/*"):
        shutil.rmtree(version)
    assert planned(0.0)["tiles"] == (20, 20, 0, 40, "exact")
    assert planned(LOOSE)["tiles"] == (10, 10, 0, 20, "exact") and planned(LOOSE)["even"][4] == "exact"
    shutil.rmtree(first.parent)
    done, needed, compute, _, certainty = planned(0.0)["tiles"]
    assert (done, needed, compute, certainty) == (15, 20, 5, "exact")


@pytest.mark.parametrize("by", ["key", "parent", "digest of the parent"])
def test_tombstones_of_a_parent_bury_its_children(workspace: Path, by: str) -> None:
    result = run(derived.pipeline(even__each=30), str(workspace))
    storage = open_storage(str(workspace))
    chosen = next(row for row in rows(workspace) if row["key"] in {line["key"] for line in members(result)})
    parent = {name: about for name, _, about in explain(latest(storage, None), chosen["key"])}["parent: pool"]
    mark = {"key": chosen["key"], "parent": parent["key"], "digest of the parent": parent["sha256"]}[by]
    tombstones.bury(storage, [mark], "asked for")
    held = [line["key"] for line in members(result)]
    family = {row["key"] for row in rows(workspace) if row["parent"] == parent["key"]}
    buried = {chosen["key"]} if by == "key" else family
    assert affected_datasets(storage, tombstones.load(storage)) == {
        result.outputs["dataset"].removeprefix(f"{storage.url}/"): len(buried & set(held))
    }
    after = run(derived.pipeline(even__each=30), str(workspace))
    assert after.ledger["even"].rejected["tombstone"] == len(buried)
    assert not buried & {line["key"] for line in members(after)} and not after.counts["tiles"].computed
    assert affected_datasets(storage, tombstones.load(storage)).keys() == {
        result.outputs["dataset"].removeprefix(f"{storage.url}/")
    }


def collect(workspace: Path, *drop: str) -> dict[str, int]:
    storage = open_storage(str(workspace))
    with gc.alone(storage):
        garbage, runs = gc.unreachable(storage, drop=drop)
        gc.collect(storage, garbage, runs)
    assert gc.unreachable(storage)[0] == {}
    return garbage


def test_gc_leaves_what_a_kept_version_lists(workspace: Path) -> None:
    strict, loose = derived.pipeline(light__darkest=STRICT), derived.pipeline()
    run(strict, str(workspace), run_id="strict")
    before = workspaces.files(workspace, "pools/")
    run(loose, str(workspace), run_id="loose")
    assert collect(workspace) == {}
    held = workspaces.files(workspace, "pools/")
    gone = {name for name in collect(workspace, "loose") if "/derived/" in name}
    assert gone == {name for name in held.keys() - before.keys() if "/derived/" in name}
    assert "000002.parquet" in {name.rsplit("/", 1)[1] for name in gone}
    assert workspaces.files(workspace, "pools/") == before
    assert all(run(strict, str(workspace), run_id="again").reused.values())
    run(loose, str(workspace), run_id="loose")
    collect(workspace, "strict", "again")
    assert all(run(loose, str(workspace), run_id="kept").reused.values())
    collect(workspace, "loose", "kept")
    assert workspaces.files(workspace) == {"format.json": workspaces.files(workspace)["format.json"]}


def test_gc_leaves_the_tables_that_hold_no_child(workspace: Path, log: Path) -> None:
    """They say of which parents nothing can be made."""
    short = derived.pipeline(tiles__none=tuple(range(5)), tiles__log=str(log))
    run(short, str(workspace), run_id="one")
    run(derived.pipeline(tiles__each=4), str(workspace), run_id="two")
    collect(workspace, "two")
    derived.computed(log)
    assert all(run(short, str(workspace)).reused.values()) and not derived.computed(log)


# --- what goes wrong --------------------------------------------------------------------------------------------------


def test_a_parents_tar_that_is_gone_is_missed_only_when_it_is_read(workspace: Path, log: Path) -> None:
    run(derived.pipeline(light__darkest=STRICT), str(workspace))
    lost = shards(workspace)[0].parent_shard()
    (workspace / lost.tar).unlink()
    assert all(run(derived.pipeline(light__darkest=STRICT), str(workspace)).reused.values())
    result = run(derived.pipeline(), str(workspace), options=ALL)
    assert result.ledger["tiles"].error.keys() == {SET_ASIDE}
    assert result.ledger["tiles"].before == 20 == result.ledger["tiles"].after + result.ledger["tiles"].error.total()


@pytest.mark.usefixtures("at_once")
def test_a_parents_table_that_is_gone_is_one_line(workspace: Path) -> None:
    short = Pipeline()
    short.add("pool", toys.Numbers(namespace="toys", rows=10, shard_rows=5)).add("tiles", derived.Tiles(), "pool")
    short.add("every", Every(), "tiles").add("dataset", Plain(), "every").check()
    run(short, str(workspace))
    (workspace / shards(workspace)[0].parent_shard().table).unlink()
    for folder in (*workspace.glob("pools/tiles/versions/*"), *workspace.glob("selections/*/*")):
        (folder / "manifest.json").unlink()
    with pytest.raises(Exception, match=r"this table of a pool is corrupt or missing .*; restore it") as error:
        run(short, str(workspace))
    assert "\n" not in str(error.value)


def test_a_parent_that_kills_the_process_is_found(workspace: Path, on_ray: Any) -> None:
    made = derived.pipeline(tiles__killing=(4,), pool__rows=6, pool__shard_rows=3)
    result = run(made, str(workspace), engine=on_ray, options=ALL)
    assert result.ledger["tiles"].error == {"killed": 1}
    assert (result.ledger["tiles"].after, result.ledger["tiles"].children) == (5, 10)
    assert {number(row) for row in rows(workspace)} == {0, 1, 2, 3, 5}


def test_a_parent_that_kills_the_only_process_is_found_by_the_next_run(workspace: Path) -> None:
    with Drivers() as drivers:
        order = {"derived": {"tiles__killing": [3]}, "options": {"failure_budget": 1.0}}
        assert drivers.run(workspace, **order)["signal"] == signal.SIGKILL
        assert drivers.run(workspace, **order) == {"signal": 0, "error": None, "calls": 0}
        entry = latest(open_storage(str(workspace)), None).ledger()["tiles"]
        assert (entry.error, entry.after) == ({"killed": 1}, 19)
        assert not [name for name in workspaces.files(workspace) if "/attempts/" in name]


def test_two_runs_never_make_the_same_child_twice(workspace: Path) -> None:
    """The second one thinks that no table is there, and has another idea of who is alive."""
    made = derived.pipeline(light__darkest=LOOSE)
    run(made, str(workspace))
    storage = open_storage(str(workspace))
    first = shards(workspace)[0]
    folder = first.table.rsplit("/", 2)[0]
    parents = Rows(storage)
    stage = made.nodes["tiles"].stage
    assert isinstance(stage, Derive)
    task = DeriveTask(storage, stage, "tiles", parents, {}, (first.parent_shard(),), folder, (0,))
    [line] = derive_shards(task)
    assert (line["number"], line["entry"]["children"], line["repeated"]) == (2, 10, first.rows // 2)
    keys = [
        key
        for shard in line["shards"]
        for key in storage.read_table(shard["table"], columns=["key"]).column("key").to_pylist()
    ]
    assert len(keys) == len(set(keys)) == 10
    for shard in line["shards"]:  # each tar holds what its table says
        table = storage.read_table(shard["table"]).to_pylist()
        spans = [(row["offset"], row["size"]) for row in table]
        found = read_spans(storage.fs, storage.path(shard["tar"]), spans, shard["tar_bytes"])
        assert all(data[:2] == b"BM" for data in found)
    [again] = derive_shards(task)  # too late twice: for five parents, and for the two that the first table lacks
    assert (again["number"], again["computed"], again["repeated"]) == (2, 7, 5)


# --- kills ------------------------------------------------------------------------------------------------------------

SMALL: dict[str, Any] = {"pool__rows": 10, "light__darkest": LOOSE}
LARGE: dict[str, Any] = {"pool__rows": 10}


@pytest.fixture(scope="module")
def drivers() -> Iterator[Drivers]:
    with Drivers() as made:
        yield made


@pytest.fixture(scope="module")
def clean(memory: Path, drivers: Drivers) -> tuple[list[Path], list[list[str]]]:
    """An undisturbed run, and then one with a looser filter: their workspaces, and the points in the derived pool."""
    log, points = memory / "derived.log", list[list[str]]()
    first, second = memory / "derived-first", memory / "derived-second"
    for folder, changes in ((first, SMALL), (second, LARGE)):
        said = drivers.run(folder, derived=changes, environment={"CURATE_FAULT_LOG": str(log)})
        assert said["error"] is None
        points.append([line for line in log.read_text().splitlines() if "pools/tiles/" in line])
        log.unlink()
        if folder == first:
            shutil.copytree(first, second)
    return [first, second], points


def test_bytes_are_there_before_what_names_them(clean: tuple[list[Path], list[list[str]]]) -> None:
    for number, points in enumerate(clean[1], 1):
        done = [point.removesuffix(":published") for point in points if point.endswith(":published")]
        names = [point.rsplit("/", 1)[1] for point in done if "/keys/" not in point]
        assert names[-3:] == ["covers.parquet", "shards.parquet", "manifest.json"]
        assert [name.partition("-")[0] for name in names[:-3:2]] == [f"{number:06d}"] * 2
        assert names[1:-3:2] == [f"{number:06d}.parquet"] * 2 and all(name.endswith(".tar") for name in names[:-3:2])
        assert sum("/attempts/" in point for point in points) == 2


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.long
def test_killed_at_every_point(
    memory: Path, clean: tuple[list[Path], list[list[str]]], drivers: Drivers, which: int
) -> None:
    target = memory / "derived-killed"
    for point in clean[1][which]:
        if which:
            shutil.copytree(clean[0][0], target)
        changes = (SMALL, LARGE)[which]
        killed = drivers.run(target, derived=changes, environment={"CURATE_FAULT_KILL": point})
        assert killed["signal"] == signal.SIGKILL, point
        assert drivers.run(target, derived=changes)["error"] is None
        workspaces.assert_same(clean[0][which], target)
        shutil.rmtree(target)


@pytest.mark.long
def test_workers_killed_under_ray(
    workspace: Path, tmp_path: Path, clean: tuple[list[Path], list[list[str]]], on_ray: Any
) -> None:
    points = (
        "publish:pools/tiles/derived/*.tar:published",
        "publish:pools/tiles/derived/*.parquet:published",
    )
    with deaths(on_ray, points, tmp_path):
        run(derived.pipeline(**SMALL), str(workspace), engine=on_ray)
    workspaces.assert_same(clean[0][0], workspace)
