"""Passes of several lanes follow each other shard by shard; hung units are ended and named; stopped runs
end within seconds and can be resumed."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, ClassVar

import pyarrow as pa
import pytest

from curate.core.contracts import Batch, Map, Resources, Runtime
from curate.core.errors import DrainedError
from curate.core.recipe.pipeline import Pipeline
from curate.core.store.storage import open_storage
from curate.engine.record.events import read_events
from curate.engine.run import Result, run
from curate.engine.state import Options
from curate.engine.tasks import beat
from curate.engine.tasks.running import run_isolated
from curate.engine.units import reduce
from tests.engine import toys, workspaces
from tests.engine.nodes import until

SEEN: list[tuple[str, int, float]] = []
"""(stage, row's number, when) of each row that a stage of this process has computed."""
EVER = 3600.0
HUNG_SECONDS = 5.0
"""A deadline that no batch misses on a busy machine, where a process takes a second or two to start."""


class Slow(Map):
    """Notes when it computes a row, and sleeps."""

    op: ClassVar[str] = "lanes.slow"
    batch_rows: ClassVar[int] = 5
    column: str
    read: tuple[str, ...] = ()
    seconds: Annotated[float, Runtime()] = 0.0
    """For each batch."""
    sleeps_at: Annotated[int | None, Runtime()] = None
    """Number of a row that never ends."""
    last_after: Annotated[str, Runtime()] = ""
    """A column: the last row waits until one of it is computed."""
    remote: Annotated[bool, Runtime()] = False

    def resources(self) -> Resources:
        return Resources(cpus=0.25 if self.remote else 1, remote=self.remote)

    def reads(self) -> tuple[str, ...]:
        return ("meta", *self.read)

    def schema(self) -> pa.Schema:
        return pa.schema([pa.field(self.column, pa.string())])

    def process(self, batch: Batch) -> dict[str, Any]:
        keys = batch.column("key")
        numbers = [json.loads(meta)["number"] for meta in batch.column("meta")]
        if self.sleeps_at is not None and self.sleeps_at in numbers:
            time.sleep(EVER)
        time.sleep(self.seconds)
        if self.last_after and 39 in numbers:
            until(lambda: any(column == self.last_after for column, _, _ in SEEN), 60)
        SEEN.extend((self.column, number, time.monotonic()) for number in numbers)
        return {self.column: [f"{self.column} of {key}" for key in keys]}


def recipe(**changes: Any) -> Pipeline:
    made = Pipeline()
    made.add("pool", toys.Numbers(namespace="pool", rows=40, shard_rows=5))
    first, second = changes.pop("first", {}), changes.pop("second", {})
    made.add("first", Slow(column="one", **first), ["pool"])
    made.add("longer", Longer(), ["first"])
    made.add("second", Slow(column="two", read=("one",), **second), ["longer"])
    return made.check()


class Longer(toys.Light):
    """Rejects keys that end in a zero, so that the passes do not see the same rows."""

    op: ClassVar[str] = "lanes.longer"
    column: str = "one"

    def keep(self, table: pa.Table) -> Any:
        return ["zero" if value.endswith("0") else None for value in table.column("one").to_pylist()]


@pytest.fixture(autouse=True)
def cleared() -> Iterator[None]:
    SEEN.clear()
    yield
    SEEN.clear()


SAID: set[tuple[str, str, str]] = set()
"""(method, stage and pace of its task's beat) while a method of a stage runs."""


def say(method: str) -> None:
    now = beat.current().snapshot()
    SAID.add((method, now["stage"], now["pace"]))


class RecordedLight(toys.Light):
    op: ClassVar[str] = "lanes.said"

    def keep(self, table: pa.Table) -> Any:
        say("keep")
        return super().keep(table)


class RecordedTotal(toys.Total):
    op: ClassVar[str] = "lanes.said_total"

    def partial(self, table: pa.Table) -> pa.Table:
        say("partial")
        return super().partial(table)

    def merge(self, states: Any) -> pa.Table:
        say("merge")
        return super().merge(states)

    def finish(self, state: pa.Table) -> Any:
        say("finish")
        return super().finish(state)


class RecordedMeans(toys.Means):
    op: ClassVar[str] = "lanes.said_means"

    def load(self, table: pa.Table) -> Any:
        say("load")
        return super().load(table)

    def fit(self, group: Any) -> Any:
        for _ in group.each(step):
            pass
        return super().fit(group)


def step(part: Any, shared: Any) -> None:
    say("step")


def go(workspace: Path, pipeline: Pipeline, **changes: Any) -> Result:
    options = Options(task_rows=5, failure_budget=1.0, deadline=changes.pop("deadline", None))
    return run(pipeline, str(workspace), options=options, **changes)


def test_a_lane_begins_with_a_shard_while_the_lane_before_it_is_at_others(workspace: Path) -> None:
    go(workspace, recipe(first={"last_after": "two"}, second={"remote": True}))
    began = min(when for stage, _, when in SEEN if stage == "two")
    ended = max(when for stage, _, when in SEEN if stage == "one")
    assert began < ended


def test_what_filters_reduces_and_fits_do_is_named_as_in_the_recipe(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So a hang is attributed to them, and their steps are not compared with another stage's short batches."""
    made = Pipeline()
    made.add("pool", toys.Numbers(namespace="pool", rows=40, shard_rows=5))
    made.add("bright", toys.Brightness(), ["pool"])
    made.add("light", RecordedLight(), ["bright"])
    made.add("total", RecordedTotal(), ["light"])
    made.add("means", RecordedMeans(), ["light"])
    monkeypatch.setattr(reduce, "FAN_IN", 2)
    SAID.clear()
    go(workspace, made.check())
    expected = {"keep": "light", "load": "means", "step": "means"}
    expected |= dict.fromkeys(("partial", "merge", "finish"), "total")
    assert {(method, stage, beat.LONG) for method, stage in expected.items()} == SAID


def test_lanes_change_nothing_that_comes_out(workspace: Path, tmp_path: Path) -> None:
    go(workspace, recipe(first={"seconds": 0.02}, second={"remote": True}))
    go(tmp_path / "one lane", recipe())
    here, there = (workspaces.facts(place) for place in (workspace, tmp_path / "one lane"))
    assert here == there


def test_a_second_run_in_lanes_computes_nothing(workspace: Path) -> None:
    go(workspace, recipe(second={"remote": True}))
    SEEN.clear()
    result = go(workspace, recipe(second={"remote": True}))
    assert not SEEN and all(result.reused.values())


def test_a_grown_pool_computes_its_new_rows_in_lanes(workspace: Path) -> None:
    go(workspace, recipe(second={"remote": True}))
    SEEN.clear()
    more = recipe(second={"remote": True})
    grown = Pipeline()
    for node in more.nodes.values():
        stage = node.stage.model_copy(update={"rows": 50}) if node.name == "pool" else node.stage
        grown.add(node.name, stage, node.inputs, **node.ports)
    go(workspace, grown.check())
    assert len([stage for stage, _, _ in SEEN if stage == "one"]) == 10


@pytest.fixture(scope="module")
def forkserver() -> None:
    """Started before a test sets a deadline of a second."""
    assert run_isolated(int, "1", 0).value == 1


@pytest.mark.long
@pytest.mark.usefixtures("forkserver")
@pytest.mark.parametrize("remote", [False, True])
def test_a_row_that_never_ends_is_found_named_and_left_out(workspace: Path, remote: bool) -> None:
    result = go(workspace, recipe(second={"sleeps_at": 13, "remote": remote}), deadline=HUNG_SECONDS)
    entry = result.ledger["second"]
    assert entry.error == {"hung": 1} and entry.after == entry.before - 1
    hung = [e for e in read_events(open_storage(str(workspace)), result.run_id) if e["event"] == "hung"]
    assert {event["stage"] for event in hung} == {"second"}
    assert [sum(len(rows) for rows in event["rows"].values()) for event in hung] == [5, 1]


@pytest.mark.long
def test_a_stopped_run_ends_within_seconds_and_resumes_later(workspace: Path) -> None:
    stop = threading.Event()

    def when_some_are_done() -> None:
        until(lambda: len(SEEN) >= 15, 60)
        stop.set()

    threading.Thread(target=when_some_are_done).start()
    pipeline = recipe(first={"seconds": 0.3}, second={"seconds": EVER, "remote": True})
    began = time.monotonic()
    with pytest.raises(DrainedError, match="resumes from there"):
        go(workspace, pipeline, stop=stop)
    assert time.monotonic() - began < 100
    done = {number for stage, number, _ in SEEN if stage == "one"}
    assert done
    SEEN.clear()
    go(workspace, recipe(second={"remote": True}))
    again = {number for stage, number, _ in SEEN if stage == "one"}
    assert len(again) < 40 and len(done | again) == 40


def test_shards_that_are_suspected_wait_for_the_pass_before(workspace: Path) -> None:
    """Marks of two runs that died, each in another pass: the first computes a shard before the second looks at it."""
    pipeline = recipe(first={"seconds": 0.02}, second={"remote": True})
    done = go(workspace, pipeline)
    storage = open_storage(str(workspace))
    passes = [e for e in read_events(storage, done.run_id) if e["event"] == "build" and e.get("mask")]
    chains = {event["stage"]: event["mask"] for event in passes}
    shards = sorted({path.name for path in workspace.glob("facts/lanes.slow/*/*/*") if path.name != "versions"})
    for folder in ("facts", "masks"):
        storage.remove(folder)
    storage.mark(f"{chains['first']}/attempts/{shards[0]}", f"{shards[0]} {shards[1]}".encode())
    storage.mark(f"{chains['second']}/attempts/{shards[1]}", shards[1].encode())
    again = go(workspace, pipeline)
    assert again.ledger == done.ledger
