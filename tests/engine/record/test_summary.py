"""What lists of runs need: names, attempts, summaries; and the neighbourhood of an output."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from curate.api import LineageNode, Options, Workspace
from curate.core.errors import LOST, InputError, UnreachableError
from curate.core.store import lease
from curate.core.store.storage import Storage, open_storage
from curate.engine.backends.local import LocalBackend
from curate.engine.record.lineage import lineage
from curate.engine.record.summary import attempt, summary
from curate.engine.run import run
from tests.engine import toys


@pytest.fixture(scope="module")
def place(memory: Path) -> Workspace:
    """A workspace with a run, `first`, that has made everything, and `second`, that has found it."""
    made = str(memory / "summaries")
    for name in ("first", "second"):
        run(toys.pipeline(), made, run_id=name)
    return Workspace(made)


class Reads:
    """Counts what is read."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.files: list[str] = []
        for name in ("read", "exists", "list", "entries"):
            monkeypatch.setattr(Storage, name, self._counted(getattr(Storage, name)))

    def _counted(self, method: Any) -> Any:
        def counted(storage: Storage, path: str) -> Any:
            self.files.append(path)
            return method(storage, path)

        return counted


def open_run(storage: Storage, run_id: str, started: float) -> None:
    record = storage.read_json("runs/first/run.json") | {"run_id": run_id, "started": started}
    storage.create(f"runs/{run_id}/run.json", json.dumps(record).encode())


def test_the_summary_of_a_run_that_has_ended(place: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    assert place.run_names() == ["first", "second"]
    reads = Reads(monkeypatch)
    found = place.summary("first")
    assert reads.files == ["runs/first/run.json", "runs/first/result.json"]
    monkeypatch.undo()
    [dataset] = place.datasets()
    assert (found.state, found.error, found.engine, found.submission) == ("done", "", "local", {})
    assert found.stages == found.stages_done == len(toys.STAGES)
    assert found.datasets == ((dataset.base, dataset.name, dataset.rows),)
    assert found.started and found.ended and 0 < found.seconds <= found.ended - found.started + 1
    assert found.cpu_hours > 0.0 and (found.gpu_hours, found.tokens, found.dollars) == (0.0, 0, 0.0)
    assert place.summary("second").datasets == found.datasets
    with pytest.raises(InputError, match="run 'third': not in"):
        place.summary("third")


def test_one_dataset(place: Workspace) -> None:
    [dataset] = place.datasets()
    found = place.dataset(dataset.base)
    assert found and (found.name, found.rows, found.committed) == (dataset.name, dataset.rows, dataset.committed)
    assert dataset.runs == ("first", "second") and found.runs == () and abs(time.time() - found.committed) < 600
    assert place.dataset("datasets/none/0") is None and place.dataset("runs/first") is None


def test_attempts(place: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    storage, reads = open_storage(place.url), Reads(monkeypatch)
    place.heartbeat("first")
    assert (place.attempt("first").state, len(reads.files)) == ("done", 1)
    assert (place.attempt("never").state, place.attempt("never").error) == ("none", "")
    open_run(storage, "open", time.time())
    reads.files.clear()
    assert (place.attempt("open").state, len(reads.files)) == ("open", 2)
    for name, error in (("stopped", "stopped; the same"), ("failed", "size: no rows"), ("refused", "no such op")):
        file = "refused" if name == "refused" else "result"
        storage.create_json(f"runs/{name}/{file}.json", {"error": error, "time": 1.0})
        assert (place.attempt(name).state, place.attempt(name).error) == (name, error)
    for name in ("open", "stopped", "failed", "refused"):
        storage.remove(f"runs/{name}")


def test_whether_a_run_without_result_is_alive(place: Workspace) -> None:
    """From one look, so that a list of many such runs takes no time."""
    storage, now = open_storage(place.url), time.time()
    open_run(storage, "young", now)
    open_run(storage, "old", now - 1000)
    assert (summary(storage, "young").state, summary(storage, "old").state) == ("running", "killed")
    assert place.heartbeat("old").look() is False
    with lease.hold(storage, "runs/old", lambda: False):
        assert summary(storage, "old").state == "running" and place.heartbeat("old").look() is True
    place.request_kill("young")
    found = summary(storage, "young")
    assert found.state == "killed" and found.ended is None and found.stages_done == 0
    assert place.request_stop("young", "ann") and not place.request_stop("young", "ben")
    assert storage.read_json("runs/young/stop.json")["user"] == "ann"
    for name in ("young", "old"):
        storage.remove(f"runs/{name}")


def test_a_run_under_way_is_known_by_its_events(workspace: Path) -> None:
    run(toys.chain(toys.Brightness()), str(workspace), run_id="one")
    storage = open_storage(str(workspace))
    whole = summary(storage, "one")
    storage.remove("runs/one/result.json")
    with lease.hold(storage, "runs/one", lambda: False):
        found = summary(storage, "one")
    assert (found.state, found.ended, found.stages_done) == ("running", None, whole.stages_done)


def test_rows_lost_to_failures_are_known(workspace: Path, at_once: None) -> None:
    pipeline = toys.chain(toys.Bad(numbers=(1, 2)))
    run(pipeline, str(workspace), options=Options(failure_budget=0.5), run_id="one")
    one = Workspace(str(workspace)).run("one")
    events = [event for event in one.events() if event["event"] == "lost"]
    assert one.status().lost == events[-1]["rows"] == 2 and one.status().budget_used == 0.0
    open_storage(str(workspace)).remove("runs/one/result.json")
    now = one.status()
    assert (now.lost, now.allowed) == (2, events[-1]["allowed"]) and now.budget_used == 2 / events[-1]["allowed"]


# --- lineage ----------------------------------------------------------------------------------------------------------


def stages(nodes: tuple[LineageNode, ...]) -> set[str]:
    return {node.stage for node in nodes}


def test_the_neighbourhood_of_a_dataset(place: Workspace) -> None:
    [dataset] = place.datasets()
    near = place.lineage(dataset.base, hops=1)
    assert near.run in ("first", "second") and near.more
    assert stages(near.nodes) == {"even", "dataset", "page"}
    nodes = {node.stage: node for node in near.nodes}
    assert nodes["dataset"].id == dataset.base and nodes["dataset"].up == (nodes["even"].id,)
    assert nodes["even"].up == () and nodes["page"].up == (dataset.base,)
    assert [nodes[name].noun for name in ("even", "dataset", "page")] == ["selection", "dataset", "report"]
    assert nodes["dataset"].rows == dataset.rows
    whole = place.lineage(dataset.base, hops=99)
    assert stages(whole.nodes) == set(toys.STAGES) and not whole.more
    assert len({node.id for node in whole.nodes}) == len(whole.nodes)
    assert [node.stage for node in whole.nodes] == list(toys.STAGES)
    assert [node.noun for node in whole.nodes if node.stage in ("pool", "bright", "light")] == ["pool", "facts", "mask"]


def test_only_the_paths_through_an_output(place: Workspace) -> None:
    """Siblings are not neighbours; stages that share a folder are told apart."""
    [dataset] = place.datasets()
    nodes = {node.stage: node for node in place.lineage(dataset.base, hops=99).nodes}
    found = place.lineage(nodes["total"].id, hops=1)
    assert stages(found.nodes) == {"light", "total", "contrast"} and found.more
    assert place.lineage(nodes["light"].id, hops=0).nodes[0].stage == "light"


def test_which_run_has_an_output(place: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run that is named, so that no other record is read."""
    [dataset] = place.datasets()
    storage, reads = open_storage(place.url), Reads(monkeypatch)
    assert lineage(storage, dataset.base, 1, ["first"]).run == "first"
    assert {path.split("/")[1] for path in reads.files if path.startswith("runs/")} == {"first"}
    assert lineage(storage, dataset.base, 1, ["gone"]).run == "second"
    with pytest.raises(InputError, match="datasets/none/0: not the output of a run of"):
        lineage(storage, "datasets/none/0", 1)


def test_artifacts(place: Workspace) -> None:
    """Pages of reports are not among them."""
    found = {artifact.stage: artifact for artifact in place.artifacts()}
    assert set(found) == {"total"} and found["total"].run == "second" and found["total"].op.endswith("total")
    assert found["total"].base.startswith("artifacts/")


def test_a_run_that_lost_its_cluster_failed_and_may_be_resubmitted(workspace: Path) -> None:
    class Lost(LocalBackend):
        def trouble(self) -> str:
            raise UnreachableError(f"{LOST} at here (Connection refused)")

    with pytest.raises(UnreachableError, match="lost the Ray cluster at here"):
        run(toys.pipeline(), str(workspace), engine=Lost(), run_id="one")
    storage = open_storage(str(workspace))
    found = summary(storage, "one")
    assert (found.state, found.error) == ("failed", "lost the Ray cluster at here (Connection refused)")
    found = attempt(storage, "one")
    assert (found.state, found.error) == ("open", "lost the Ray cluster at here (Connection refused)")
    assert not lease.is_alive(storage, lease.lease_path("runs/one"))
    assert not all(run(toys.pipeline(), str(workspace), run_id="two").reused.values())
