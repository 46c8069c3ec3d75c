"""The lists of runs and datasets, kept up to date and rebuilt."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import select

from curate.core.errors import CurateError, StorageError
from curate.service.database.models import IndexedDataset, IndexedRun
from curate.service.reconcile.index import Counts, attempt_of, reindex
from curate.service.states import State
from tests.service.reconcile.worlds import World

CATS = "datasets/cats/ab"


def dataset(base: str, rows: int = 5) -> Any:
    _, name, fingerprint = base.split("/")
    sizes = {"rows": rows, "tars": 2, "bytes": 900, "committed": 150.0}
    return SimpleNamespace(base=base, name=name, fingerprint=fingerprint, **sizes)


def lines(world: World) -> dict[str, IndexedRun]:
    with world.service.database.read() as session:
        return {row.id: row for row in session.scalars(select(IndexedRun))}


def datasets(world: World) -> dict[str, str]:
    """Dataset -> the run that built it."""
    with world.service.database.read() as session:
        return {row.base: row.run_id for row in session.scalars(select(IndexedDataset))}


def started_by_hand(world: World, run: str, state: str = "done", **about: Any) -> None:
    driver = world.workspace.driver(run)
    driver.state, driver.summary = state, {"state": state, **about}


@pytest.mark.parametrize(
    ("name", "attempt"),
    [
        ("20261123-050000-1a2b3c4d-2", ("20261123-050000-1a2b3c4d", 2)),
        ("run-12", ("run", 12)),
        ("run-0", None),
        ("run-01", None),
        ("run", None),
        ("-3", None),
        ("run-²", None),
    ],
)
def test_the_name_of_an_attempt(name: str, attempt: tuple[str, int] | None) -> None:
    assert attempt_of(name) == attempt


def test_a_run_started_without_the_service_is_found(world: World) -> None:
    started_by_hand(
        world, "by-hand", datasets=[(CATS, "cats", 5)], gpu_hours=0.5, dollars=2.0, error="", stages=4, stages_done=4
    )
    world.workspace.datasets[CATS] = dataset(CATS)

    world.reconciler.discover()

    line = lines(world)["by-hand"]
    assert (line.state, line.submitted, line.attempt_id, line.rows) == ("done", False, "by-hand", 5)
    assert (line.started, line.ended, line.seconds, line.stages, line.gpu_hours) == (100.0, 160.0, 60.0, 4, 0.5)
    assert datasets(world) == {CATS: "by-hand"}


def test_without_news_a_discovery_reads_names_only(world: World) -> None:
    for number in range(1, 30):
        started_by_hand(world, f"r{number}")
    world.reconciler.discover()
    world.workspace.calls.clear()

    world.reconciler.discover()

    assert world.workspace.calls == ["names", "takedowns"]


def test_a_run_under_way_is_read_until_it_has_ended(world: World) -> None:
    started_by_hand(world, "by-hand", "running", ended=None)
    world.reconciler.discover()
    assert lines(world)["by-hand"].state == "running"

    started_by_hand(world, "by-hand", "killed", ended=None)
    world.reconciler.discover()

    line = lines(world)["by-hand"]
    assert (line.state, line.ended) == ("killed", 160.0)


def test_an_attempt_of_a_submission_is_not_a_separate_run(world: World) -> None:
    world.running()
    world.workspace.driver("run-1").summary = {"state": "running"}
    started_by_hand(world, "exp")
    started_by_hand(world, "exp-1")

    world.reconciler.discover()

    assert set(lines(world)) == {"run", "exp", "exp-1"}
    assert lines(world)["run"].submitted


def test_a_run_that_was_removed_disappears(world: World) -> None:
    started_by_hand(world, "by-hand")
    world.submit()
    world.reconciler.discover()

    del world.workspace.drivers["by-hand"]
    world.reconciler.discover()

    assert set(lines(world)) == {"run"}


def test_a_dataset_that_was_removed_disappears(world: World) -> None:
    started_by_hand(world, "by-hand", datasets=[(CATS, "cats", 5)])
    world.workspace.datasets[CATS] = dataset(CATS)
    world.reconciler.discover()

    world.workspace.datasets.clear()
    world.reconciler.discover()

    assert datasets(world) == {}


def test_what_a_takedown_made_of_a_dataset_has_its_run(world: World) -> None:
    """Also if the service has never seen that dataset, which an erasure may have removed."""
    made, seen = "datasets/cats/cd", "datasets/cats/ef"
    started_by_hand(world, "by-hand", datasets=[(CATS, "cats", 5)])
    world.workspace.datasets |= {made: dataset(made, 4)}
    world.workspace.origins = {made: [CATS]}
    world.reconciler.discover()
    assert datasets(world) == {made: "by-hand"}

    del world.workspace.datasets[made]
    world.workspace.datasets |= {seen: dataset(seen, 3)}
    world.workspace.origins |= {seen: [CATS, made]}
    world.reconciler.discover()
    assert datasets(world) == {seen: "by-hand"}
    reindex(world.service, opened=lambda url: world.workspace)  # type: ignore[arg-type,return-value]
    assert datasets(world) == {seen: "by-hand"}


def test_attempts_of_a_lost_database_are_one_run(world: World) -> None:
    about = {"submission": {"run": "old", "attempt": "1", "user": "ann", "service": "service"}}
    started_by_hand(world, "old-1", "killed", gpu_hours=1.0, **about)
    started_by_hand(world, "old-2", "done", started=200.0, gpu_hours=2.0, **about)

    for _ in range(2):
        world.reconciler.discover()

    (line,) = lines(world).values()
    assert (line.id, line.attempt_id, line.state, line.user) == ("old", "old-2", "done", "ann")
    assert (line.gpu_hours, line.started) == (3.0, 100.0)


def test_a_corrupt_record_hides_no_other_run(world: World) -> None:
    started_by_hand(world, "good")
    started_by_hand(world, "corrupt")
    summary = world.workspace.summary

    def read(name: str) -> Any:
        if name == "corrupt":
            raise ValueError("Expecting value: line 1 column 1 (char 0)")
        return summary(name)

    world.workspace.summary = read  # type: ignore[method-assign]
    world.reconciler.discover()
    assert set(lines(world)) == {"good"}

    assert reindex(world.service, opened=lambda url: world.workspaces[url]) == {"main": Counts(1, 0)}  # type: ignore[arg-type,return-value]


def test_a_workspace_that_stops_to_answer_while_it_is_read_keeps_its_lists(world: World) -> None:
    started_by_hand(world, "by-hand")
    world.reconciler.discover()

    def read(name: str) -> Any:
        raise StorageError("s3://bucket: the object store does not answer")

    world.workspace.summary = read  # type: ignore[method-assign]
    with pytest.raises(StorageError):
        reindex(world.service, opened=lambda url: world.workspaces[url])  # type: ignore[arg-type,return-value]

    assert set(lines(world)) == {"by-hand"}


def test_a_workspace_that_does_not_answer_is_left_as_it_is(world: World) -> None:
    started_by_hand(world, "by-hand")
    world.reconciler.discover()
    world.workspace.error = StorageError("no answer")

    world.reconciler.discover()
    with pytest.raises(StorageError):
        reindex(world.service, opened=lambda url: world.workspaces[url])  # type: ignore[arg-type,return-value]

    assert set(lines(world)) == {"by-hand"}


def test_the_dataset_of_a_submitted_run_is_indexed_when_it_ends(world: World) -> None:
    driver = world.running()
    driver.summary = {"datasets": [(CATS, "cats", 5)]}
    world.workspace.datasets[CATS] = dataset(CATS)
    driver.end()

    world.until(State.DONE)

    assert datasets(world) == {CATS: "run"}


def test_a_corrupt_dataset_does_not_keep_its_run_from_ending(world: World) -> None:
    driver = world.running()
    driver.summary = {"datasets": [(CATS, "cats", 5)]}

    def broken(base: str) -> Any:
        raise StorageError(f"{base}/manifest.json: cannot read the manifest")

    world.workspace.dataset = broken  # type: ignore[method-assign]
    driver.end()

    world.until(State.DONE)


def test_reindex_makes_the_same_lists_again(world: World) -> None:
    driver = world.running()
    driver.summary = {"datasets": [(CATS, "cats", 5)], "gpu_hours": 0.5}
    world.workspace.datasets[CATS] = dataset(CATS)
    driver.end()
    world.until(State.DONE)
    started_by_hand(world, "by-hand", started=500.0, datasets=[(CATS, "cats", 5)])
    world.submit("waiting")
    world.reconciler.discover()
    before = {run: _values(line) for run, line in lines(world).items()}, datasets(world)
    with world.service.database.write() as session:
        session.query(IndexedRun).delete()
        session.query(IndexedDataset).delete()

    found = reindex(world.service, "main", opened=lambda url: world.workspaces[url])  # type: ignore[arg-type,return-value]

    assert found == {"main": Counts(3, 1)}
    assert ({run: _values(line) for run, line in lines(world).items()}, datasets(world)) == before


def test_a_pinned_dataset_is_indexed_although_its_run_is_gone(world: World) -> None:
    old = "datasets/cats/old"
    world.submit("run", state="done", ended=1.0)
    world.workspace.pins = {
        "a": SimpleNamespace(base=CATS, run="run-1"), "b": SimpleNamespace(base=old, run="by-hand"),
        "tree": SimpleNamespace(base="artifacts/cluster.fit/1", run="by-hand"),
        "gone": SimpleNamespace(base="datasets/cats/gone", run="by-hand"),
    }  # fmt: skip
    world.workspace.datasets |= {CATS: dataset(CATS), old: dataset(old)}
    reindex(world.service, opened=lambda url: world.workspaces[url])  # type: ignore[arg-type,return-value]
    assert datasets(world) == {CATS: "run", old: "by-hand"}

    with world.service.database.write() as session:
        session.query(IndexedDataset).delete()
    started_by_hand(world, "new")
    world.reconciler.discover()
    assert datasets(world) == {CATS: "run", old: "by-hand"}


def _values(line: IndexedRun) -> dict[str, Any]:
    return {name: value for name, value in vars(line).items() if not name.startswith("_")}


def test_an_unknown_workspace_is_an_error(world: World) -> None:
    with pytest.raises(CurateError, match="workspace other: not found"):
        reindex(world.service, "other")
