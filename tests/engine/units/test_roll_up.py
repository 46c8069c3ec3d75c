"""Facts of children in a column of their parent: filters, retries, engines, kills, plans, gc and `explain`."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, ClassVar

import pyarrow as pa
import pytest

from curate.core.contracts import Batch, Filter, Map, Runtime, Table
from curate.core.nouns import facts, tombstones
from curate.core.nouns.pools import read_shards
from curate.core.recipe.pipeline import Pipeline
from curate.core.store.storage import open_storage
from curate.derive.roll_up import RollUp
from curate.engine.plan.lines import ESTIMATED, EXACT
from curate.engine.record import gc
from curate.engine.record.explain import explain
from curate.engine.record.runs import latest
from curate.engine.run import Result, run
from curate.engine.state import Options
from tests.draw import drawn
from tests.engine import derived, toys, workspaces
from tests.engine.derived import ALL, number_of
from tests.engine.forks import Drivers
from tests.engine.test_plan import assert_nothing_to_do, planned

STRICT, LOOSE = 127.0, 0.0
"""Thresholds that some tiles pass, and all."""
RETRY = Options(failure_budget=1.0, retry={"note": ()})


class Note(Map):
    """The place of a tile, times ten; in error for the tiles of some images."""

    op: ClassVar[str] = "toy.note"
    fails: Annotated[tuple[int, ...], Runtime()] = ()

    def reads(self) -> tuple[str, ...]:
        return ("caption", "meta")

    def schema(self) -> pa.Schema:
        return pa.schema([pa.field("note", pa.int64())])

    def process(self, batch: Batch) -> dict[str, Any]:
        for row, caption in enumerate(batch.column("caption")):
            if int(caption.split()[-1]) in self.fails:
                batch.fail(row, "flaky")
        return {"note": [10 if '"tile": 1' in meta else 0 for meta in batch.column("meta")]}


class Lit(Filter):
    """Rejects images without light tiles."""

    op: ClassVar[str] = "toy.lit"
    least: int = 0

    def reads(self) -> tuple[str, ...]:
        return ("shades",)

    def keep(self, table: Table) -> list[str | None]:
        return ["dark" if len(shades) < self.least else None for shades in table.column("shades").to_pylist()]


def pipeline(
    darkest: float = STRICT,
    light: float = 0.0,
    fails: tuple[int, ...] = (),
    keep_null: bool = False,
    least: int = 0,
) -> Pipeline:
    """Numbers -> brightness, light -> tiles -> brightness, light, note; the parents' roll-ups of these -> dataset."""
    made = Pipeline().add("pool", toys.Numbers(namespace="toys", rows=12, shard_rows=4))
    made.add("bright", toys.Brightness(), "pool").add("light", toys.Light(darkest=light), "bright")
    made.add("tiles", derived.Tiles(none=(1,)), "light").add("shade", toys.Brightness(), "tiles")
    made.add("lit", toys.Light(darkest=darkest), "shade").add("note", Note(fails=fails), "lit", keep_null=keep_null)
    made.add("rolled", RollUp(column="brightness", how="list", into="shades"), "light", children="lit")
    made.add("notes", RollUp(column="note", how="list", into="notes"), "light", children="note")
    made.add("seen", RollUp(how="count", into="seen"), "light", children="tiles")
    made.add("some", Lit(least=least), ("rolled", "notes", "seen"))
    made.add("parity", toys.Parity(), "bright")
    made.add("every", derived.Every(), "some").add("dataset", derived.Plain(), "every")
    return made.check()


def table(workspace: Path, stage: str = "rolled", column: str = "shades") -> dict[int, Any]:
    """Number of each image -> its value, in the last run."""
    storage, found = open_storage(str(workspace)), dict[int, Any]()
    record = latest(storage, None)
    output = record.outputs[stage]
    for shard in read_shards(storage, record.outputs["pool"]["base"]):
        number = facts.latest(storage.list(output["path"]))[shard.id]
        read = facts.read(storage, output["path"], shard.id, number, [facts.ROW, column])
        names = storage.read_table(shard.table, columns=["caption"]).column("caption").to_pylist()
        for row, value in zip(read.column(facts.ROW).to_pylist(), read.column(column).to_pylist(), strict=True):
            found[int(names[row].split()[-1])] = value
    return found


def shades(workspace: Path, darkest: float) -> dict[int, list[float]]:
    """The roll-up by hand, out of the facts of the children of all alive parents."""
    storage = open_storage(str(workspace))
    output, found = latest(storage, None).outputs["shade"], {number: list[float]() for number in table(workspace)}
    for shard in derived.shards(workspace):
        number = facts.latest(storage.list(output["path"]))[shard.id]
        read = facts.read(storage, output["path"], shard.id, number, [facts.ROW, "brightness"]).to_pydict()
        rows = [row for row in derived.rows(workspace) if row["shard"] == shard.id]
        for row, value in zip(read[facts.ROW], read["brightness"], strict=True):
            if value >= darkest:
                found[number_of(rows[row])].append(value)
    return found


def computed(result: Result) -> dict[str, int]:
    return {name: counts.computed for name, counts in result.counts.items() if counts.computed}


def go(workspace: Path, options: Options = ALL, engine: Any = "local", **changes: Any) -> Result:
    return run(pipeline(**changes), str(workspace), options=options, engine=engine)


# --- several in one pass ----------------------------------------------------------------------------------------------


def test_roll_ups_of_one_pass_have_their_own_children(workspace: Path) -> None:
    """One column after two stages, and two derived pools."""
    made = pipeline()
    made.add("more", derived.Tiles(namespace="more", each=4), "light")
    made.add("all", RollUp(column="brightness", how="list", into="all"), "light", children="shade")
    made.add("four", RollUp(how="count", into="four"), "light", children="more")
    run(made.check(), str(workspace), options=ALL)
    assert table(workspace) == shades(workspace, STRICT) != table(workspace, "all", "all") == shades(workspace, LOOSE)
    assert set(table(workspace, "four", "four").values()) == {4}
    assert table(workspace, "seen", "seen") == {number: 2 * (number != 1) for number in range(12)}
    steps = planned(made, workspace)
    assert_nothing_to_do(steps)


# --- filters ----------------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_filters_of_children_and_of_parents(workspace: Path) -> None:
    first = go(workspace, light=STRICT)
    assert table(workspace) == shades(workspace, STRICT) and 3 < len(table(workspace)) < 9
    loose = go(workspace)  # other parents
    assert table(workspace) == shades(workspace, STRICT) and len(table(workspace)) == 12
    assert loose.counts["shade"].computed == 2 * (12 - first.ledger["tiles"].before)
    before = loose.outputs["rolled"]
    again = go(workspace, light=STRICT)  # the children of rejected parents are absent
    assert not computed(again) and again.ledger["rolled"].before == first.ledger["rolled"].before
    wide = go(workspace, darkest=LOOSE)  # other children
    assert table(workspace) == shades(workspace, LOOSE) and wide.outputs["rolled"] != before
    assert computed(wide) == {"note": 22 - loose.ledger["note"].before, "rolled": 12, "notes": 12}
    assert not computed(go(workspace, darkest=LOOSE)) and not computed(go(workspace))


@pytest.mark.parametrize("keep_null", [False, True])
@pytest.mark.long
def test_the_history_of_a_workspace_does_not_matter(workspace: Path, memory: Path, keep_null: bool) -> None:
    """Tables in two parts, and a retry, name the same roll-up as one run."""

    def path(at: Path) -> str:
        return str(latest(open_storage(str(at)), None).outputs["notes"]["path"])

    once, twice, clean = (workspace / name for name in ("once", "twice", "clean"))
    go(twice, darkest=STRICT, fails=(5, 7), keep_null=keep_null)
    for at in (once, twice):
        go(at, darkest=LOOSE, fails=(5, 7), keep_null=keep_null)
    assert path(once) == path(twice) and table(once, "notes", "notes") == table(twice, "notes", "notes")
    go(twice, RETRY, darkest=LOOSE, keep_null=keep_null)
    go(clean, darkest=LOOSE, keep_null=keep_null)
    assert path(twice) == path(clean) != path(once)


# --- retries ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("keep_null", [False, True])
def test_a_childs_error_that_is_retried_reaches_its_parent(workspace: Path, keep_null: bool) -> None:
    first = go(workspace, darkest=LOOSE, fails=(5, 7), keep_null=keep_null)
    missing = [None, None] if keep_null else []
    expected = {number: [] if number == 1 else [0, 10] for number in range(12)}
    assert table(workspace, "notes", "notes") == expected | {5: missing, 7: missing}
    assert not computed(go(workspace, darkest=LOOSE, fails=(5, 7), keep_null=keep_null))
    last = go(workspace, RETRY, darkest=LOOSE, fails=(7,), keep_null=keep_null)
    assert table(workspace, "notes", "notes") == expected | {7: missing}
    assert computed(last) == {"note": 4, "notes": 12}  # what does not depend on it is reused
    assert first.outputs["seen"] == last.outputs["seen"]
    assert last.reused["dataset"]  # the same rows are alive
    go(workspace, RETRY, darkest=LOOSE, keep_null=keep_null)
    assert table(workspace, "notes", "notes") == expected
    assert not computed(go(workspace, darkest=LOOSE, keep_null=keep_null))


# --- tombstones -------------------------------------------------------------------------------------------------------


def test_a_takedown_of_a_child_computes_nothing(workspace: Path) -> None:
    """As elsewhere, tombstones apply to selections and datasets, not to what was computed before."""
    first, before = go(workspace), table(workspace)
    child = next(row for row in derived.rows(workspace) if number_of(row) == 3)
    tombstones.add(open_storage(str(workspace)), [child["key"]], "asked for")
    second = go(workspace)
    assert not computed(second) and table(workspace) == before
    assert second.ledger["dataset"].copies == first.ledger["dataset"].copies


# --- engines and kills ------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_the_other_engine_reuses_all_of_it(workspace: Path, on_ray: Any) -> None:
    for number, engines in enumerate((("local", on_ray), (on_ray, "local"))):
        at = workspace / str(number)
        for keep_null in (False, True):
            go(at, engine=engines[0], fails=(5,), keep_null=keep_null)
            result = go(at, engine=engines[1], fails=(5,), keep_null=keep_null)
            assert not computed(result) and all(result.reused.values())
    workspaces.assert_same(workspace / "0", workspace / "1")


@pytest.fixture(scope="module")
def drivers() -> Iterator[Drivers]:
    with Drivers(__name__) as made:
        yield made


def order(**arguments: Any) -> dict[str, Any]:
    about = {"made": f"{__name__}:pipeline", "arguments": {"fails": [5]} | arguments}
    return about | {"options": {"failure_budget": 1.0, "task_rows": 4}}


@pytest.mark.long
@pytest.mark.parametrize(("keep_null", "every"), [(True, 20), (False, 1)])
def test_killed_and_resumed(workspace: Path, tmp_path: Path, drivers: Drivers, keep_null: bool, every: int) -> None:
    log, about = tmp_path / "points", order(keep_null=keep_null)
    clean, killed = workspace / "clean", workspace / "killed"
    assert drivers.run(clean, environment={"CURATE_FAULT_LOG": str(log)}, **about)["error"] is None
    points = [line for line in dict.fromkeys(log.read_text().splitlines()) if "runs/" not in line]
    some = [line for line in points if "roll_up" in line or "toy.note" in line or "masks/" in line]
    assert len(some) > 20
    visited = drawn(some[::every])
    assert visited
    for number, point in enumerate(visited):
        at = killed / str(number)
        assert drivers.run(at, environment={"CURATE_FAULT_KILL": point}, **about)["signal"] == signal.SIGKILL, point
        assert drivers.run(at, **about) == {"signal": 0, "error": None, "calls": 0}
        workspaces.assert_same(clean, at)


# --- records ----------------------------------------------------------------------------------------------------------


def test_explain_tells_the_value_and_where_it_is_from(workspace: Path) -> None:
    go(workspace)
    record = latest(open_storage(str(workspace)), None)
    said = {name: about for name, _, about in explain(record, "000003")}
    assert said["rolled"] == {"shades": table(workspace)[3], "children": "lit"}
    assert said["seen"] == {"seen": 2, "children": "tiles"}
    child = next(row for row in derived.rows(workspace) if number_of(row) == 3)
    said = {name: about for name, _, about in explain(record, child["key"])}
    assert said["parent: rolled"] == {"shades": table(workspace)[3], "children": "lit"}


def test_a_plan_before_and_after(workspace: Path) -> None:
    go(workspace)
    assert_nothing_to_do(planned(pipeline(), workspace))
    steps = planned(pipeline(darkest=LOOSE), workspace)
    counts = {name: (steps[name].needed, steps[name].compute, steps[name].certainty) for name in ("rolled", "seen")}
    assert counts == {"rolled": (12, 12, EXACT), "seen": (12, 0, EXACT)}
    assert steps["notes"].compute is None or steps["notes"].certainty == ESTIMATED  # some notes are missing
    result = computed(go(workspace, darkest=LOOSE))
    assert (result["rolled"], result["notes"], result["note"]) == (12, 12, steps["note"].compute)
    assert_nothing_to_do(planned(pipeline(darkest=LOOSE), workspace))
    fresh = planned(pipeline(), workspace / "fresh")
    assert fresh["rolled"].compute is None or fresh["rolled"].certainty == ESTIMATED


def test_gc_removes_roll_ups_that_no_kept_run_has(workspace: Path) -> None:
    storage = open_storage(str(workspace))
    go(workspace)
    old = {name: output["path"] for name, output in latest(storage, None).outputs.items() if output.get("path")}
    go(workspace, darkest=LOOSE)
    new = {name: output["path"] for name, output in latest(storage, None).outputs.items() if output.get("path")}
    garbage = gc.unreachable(storage, keep=1)[0]
    removed = {name for name in old if old[name] != new[name]}
    assert removed == {"rolled", "notes"}
    assert all(any(path.startswith(old[name]) for path in garbage) for name in removed)
    assert not any(path.startswith(new[name]) for path in garbage for name in (*removed, "seen"))
