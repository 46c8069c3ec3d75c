"""A derived pool: when children are computed, which exist, and the pool as filters change."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from curate.core.errors import BudgetError, InputError
from curate.core.hashing import make_child_key, make_key
from curate.core.nouns import tombstones
from curate.core.recipe.pipeline import Pipeline
from curate.core.store.storage import open_storage
from curate.engine.record.diff import diff
from curate.engine.record.explain import explain
from curate.engine.record.runs import RunRecord, latest
from curate.engine.run import run
from curate.engine.state import Options
from tests.engine import derived, toys, workspaces
from tests.engine.derived import ALL, LOOSE, STRICT, alive, members, number_of, rows, shards


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log"


# --- what is made -----------------------------------------------------------------------------------------------------


def test_children_have_separate_keys_places_and_bytes(workspace: Path) -> None:
    run(derived.pipeline(light__darkest=LOOSE), str(workspace))
    found = rows(workspace)
    assert len(found) == 20 and len({row["key"] for row in found}) == 20
    for row in found:
        parent = make_key("toys", f"{number_of(row):06d}")
        left = row["width"] * (len(row["meta"]) - len('{"tile": 0}') + int(row["meta"][-2]))
        assert (row["parent"], row["root"], row["span"]) == (parent, parent, f'{{"left":{left}}}')
        assert row["key"] == make_child_key(parent, "tile", {"left": left})
        assert row["source_id"] == f"{number_of(row):06d}#left={left}"
        assert (row["width"], row["height"], row["format"], row["ext"]) == (4, 8, "bmp", "bmp")
        assert row["data"][:2] == b"BM" and row["parent_row"] == number_of(row) % 5
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


@pytest.mark.long
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
    assert {number_of(row) for row in found} == set(range(20)) - {1, 2, 3, 4, 5, 6, 7}
    assert all(row["data"][:2] == b"BM" for row in found)  # what they had written is gone
    storage = open_storage(str(workspace))
    tried = {n: explain(latest(storage, None), f"{n:06d}") for n in (1, 2, 4, 8)}
    said = {n: next(about for name, _, about in story if name == "tiles") for n, story in tried.items()}
    assert said[1] == {"status": "unusable", "reason": "unwanted", "message": ""}
    assert said[2] == {"status": "error", "reason": "ValueError", "message": "ValueError: cannot cut 2"}
    assert (said[4], said[8]) == ({"children": 0}, {"children": 2})


def test_errors_are_retried_on_request(workspace: Path, log: Path) -> None:
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
    with pytest.raises(InputError, match=r"tiles: toy\.tiles made no samples from 20 parents; they are unwanted 20"):
        run(derived.pipeline(tiles__refused=tuple(range(20))), str(workspace))
    with pytest.raises(InputError, match=r"tiles: toy\.tiles made no samples from 0 parents; loosen the filters"):
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
    dark = {number_of(row) for row in rows(workspace)} - {number_of(row) for row in alive(workspace)}
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
        item.stage: item
        for item in diff(*(RunRecord.load(open_storage(str(workspace)), i) for i in ("loose", "strict")))
    }
    assert differing["tiles"].after is not None and differing["tiles"].after.children == 18


def test_going_back_and_forth_finds_everything(workspace: Path) -> None:
    """The alive rows decide what later stages build, regardless of how the shards were computed."""
    first = run(derived.pipeline(light__darkest=STRICT), str(workspace))
    run(derived.pipeline(), str(workspace))
    back = run(derived.pipeline(light__darkest=STRICT), str(workspace))
    assert {name: back.outputs[name] for name in ("total", "even", "dataset")} == {
        name: first.outputs[name] for name in ("total", "even", "dataset")
    }
    assert all(run(derived.pipeline(light__darkest=STRICT), str(workspace)).reused.values())
    assert all(run(derived.pipeline(), str(workspace)).reused.values())


def test_a_threshold_that_rejects_no_further_rows_builds_nothing(workspace: Path) -> None:
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


def test_a_selection_right_after_it_gets_the_alive_rows(workspace: Path) -> None:
    """No pass in between, so no mask: the pool itself has the alive rows."""

    def pipeline(darkest: float) -> Pipeline:
        stages = derived.pipeline(light__darkest=darkest)
        short = Pipeline()
        for name in ("pool", "bright", "light", "tiles"):
            short.add(name, stages.nodes[name].stage, stages.nodes[name].inputs)
        return short.add("every", derived.Every(), "tiles").add("dataset", derived.Plain(), "every").check()

    loose, strict = run(pipeline(0.0), str(workspace)), run(pipeline(STRICT), str(workspace))
    assert (loose.ledger["every"].before, strict.ledger["every"].before) == (40, 18)
    assert len(members(strict)) == 18
    assert all(run(pipeline(0.0), str(workspace)).reused.values())


def test_children_of_what_was_selected(workspace: Path) -> None:
    def pipeline(each: int) -> Pipeline:
        chosen = toys.chain(toys.Brightness(), toys.Parity(), toys.Even(each=each), rows=20, shard_rows=5)
        chosen.add("tiles", derived.Tiles(), "stage_3").add("shade", toys.Brightness(), "tiles")
        return chosen.add("every", derived.Every(), "shade").add("dataset", derived.Plain(), "every").check()

    many, few = run(pipeline(6), str(workspace)), run(pipeline(2), str(workspace))
    assert (many.ledger["tiles"].before, few.ledger["tiles"].before, few.counts["tiles"].computed) == (15, 6, 0)
    assert (few.ledger["tiles"].children, few.ledger["shade"].before, len(members(few))) == (12, 12, 12)
    gone = next(row for row in rows(workspace) if row["key"] not in {line["key"] for line in members(few)})
    story = explain(latest(open_storage(str(workspace)), None), gone["key"])
    assert story[0][2]["reject"] == "absent: its parent was rejected at stage_3: not_sampled"


def test_children_of_children(workspace: Path) -> None:
    def pipeline(darkest: float) -> Pipeline:
        stages = derived.pipeline(light__darkest=darkest).nodes
        deep = Pipeline()
        for name in ("pool", "bright", "light", "tiles", "shade"):
            deep.add(name, stages[name].stage, stages[name].inputs)
        deep.add("again", toys.Light(), "shade").add("strips", derived.Tiles(namespace="strips"), "again")
        return deep.add("every", derived.Every(), "strips").add("dataset", derived.Plain(), "every").check()

    loose = run(pipeline(0.0), str(workspace))
    strict = run(pipeline(STRICT), str(workspace))
    assert (loose.ledger["every"].before, strict.ledger["every"].before) == (80, 36)
    storage = open_storage(str(workspace))
    key = members(strict)[0]["key"]
    story = explain(latest(storage, None), key)
    by_name = {name: about for name, _, about in story}
    child, grandchild = by_name["parent: tiles"], by_name["strips"]
    assert grandchild["parent"] == child["key"] and grandchild["root"] == child["parent"] == child["root"]
    assert grandchild["source_id"].startswith(child["source_id"] + "#left=")
    assert "parent: parent: light" in by_name
    tombstones.add(storage, [child["key"]], "asked for")
    left = run(pipeline(STRICT), str(workspace))
    assert left.ledger["every"].rejected == {"tombstone": 2}
