"""gc removes only outputs that no kept run needs, and the rest suffices to continue."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from curate.core.errors import BudgetError, InputError, StageError, StorageError
from curate.core.store import lease
from curate.core.store.storage import Storage, open_storage
from curate.engine.record import claims, gc, pins
from curate.engine.record.explain import explain
from curate.engine.record.runs import RunRecord
from curate.engine.record.usage import described, usage
from curate.engine.run import run
from curate.engine.state import Options
from tests.draw import drawn
from tests.e2e.commands import curate
from tests.engine import toys, workspaces
from tests.engine.forks import Drivers
from tests.engine.gates import Gate


def collect(
    workspace: Path, keep: int | None = None, drop: tuple[str, ...] = (), costly: bool = False
) -> dict[str, int]:
    """Remove; what went."""
    storage = open_storage(str(workspace))
    with claims.exclusive(storage):
        garbage, runs = gc.unreachable(storage, keep, drop, costly)
        gc.collect(storage, garbage, runs)
    assert gc.unreachable(storage)[0] == {}
    return garbage


def tops(garbage: dict[str, int]) -> set[str]:
    return {path.split("/")[0] for path in garbage}


def test_nothing_is_removed_while_all_runs_are_kept(workspace: Path) -> None:
    run(toys.pipeline(), str(workspace))
    run(toys.pipeline(even__each=4), str(workspace))
    before = workspaces.times(workspace)
    assert collect(workspace) == {}
    assert workspaces.times(workspace) == before


def test_outputs_of_a_dropped_run_alone_are_removed(workspace: Path) -> None:
    run(toys.pipeline(), str(workspace), run_id="one")
    before = workspaces.files(workspace)
    run(toys.pipeline(even__each=4, light__darkest=126.0), str(workspace), run_id="two")
    gone = collect(workspace, drop=("two",))
    assert tops(gone) == {"facts", "masks", "artifacts", "selections", "datasets"}
    assert {path.split("/")[1] for path in gone if path.startswith("facts/")} == {"toy.brighter"}
    assert workspaces.files(workspace) == before
    assert all(run(toys.pipeline(), str(workspace)).reused.values())


def test_a_stricter_run_shares_the_facts_of_a_looser_one(workspace: Path) -> None:
    """Dropping either leaves what the other reads; what it alone has computed goes."""
    strict, loose = toys.pipeline(light__darkest=126.0), toys.pipeline()
    run(strict, str(workspace), run_id="strict")
    few = workspaces.facts(workspace, "toy.parity")
    run(loose, str(workspace), run_id="loose")
    many = workspaces.facts(workspace, "toy.parity")
    assert 0 < rows(few) < rows(many) == 40
    gone = collect(workspace, drop=("strict",))
    assert any(path.startswith("facts/toy.parity") and path.endswith("000001.parquet") for path in gone)
    assert workspaces.facts(workspace, "toy.parity") == many
    assert all(run(loose, str(workspace), run_id="again").reused.values())
    assert not run(strict, str(workspace), run_id="back").counts["parity"].computed
    collect(workspace, drop=("loose", "again"))
    assert all(run(strict, str(workspace)).reused.values())


def rows(facts: dict[str, Any]) -> int:
    return sum(len(shard) for shards in facts.values() for shard in shards.values())


def test_the_last_runs_are_kept(workspace: Path) -> None:
    for each in (2, 3, 4):
        run(toys.pipeline(even__each=each), str(workspace), run_id=f"each-{each}")
    collect(workspace, keep=1)
    assert len(list(workspace.glob("datasets/toys/*"))) == 1
    assert all(run(toys.pipeline(even__each=4), str(workspace)).reused.values())


def test_the_last_successful_runs_of_each_recipe_are_kept(workspace: Path) -> None:
    """Not those of an experiment, of a canary or of runs that fail; a pin keeps its run, so that `explain` works."""
    experiment = toys.pipeline(dataset__name="experiment")
    for number, (made, options) in enumerate(
        [
            (toys.pipeline(even__each=2), {}),
            (toys.pipeline(even__each=3), {}),
            (toys.pipeline(even__each=4), {}),
            (experiment, {}),
            (toys.pipeline(even__each=4), {"sample": 0.5}),
        ]
    ):
        run(made, str(workspace), run_id=f"run-{number}", options=Options(**options))
    storage = open_storage(str(workspace))
    failed = json.loads((workspace / "runs/run-2/result.json").read_text()) | {"error": "no room"}
    (workspace / "runs/run-4b").mkdir()
    record = json.loads((workspace / "runs/run-2/run.json").read_text()) | {"run_id": "run-4b", "started": time.time()}
    (workspace / "runs/run-4b/run.json").write_text(json.dumps(record))
    (workspace / "runs/run-4b/result.json").write_text(json.dumps(failed))
    pins.create(storage, "good", RunRecord.load(storage, "run-0"), "dataset")
    assert gc.unreachable(storage, keep=1)[1] == ["run-1"]
    assert gc.unreachable(storage, keep=2)[1] == []
    assert gc.unreachable(storage, keep=1, drop=["run-0"])[1] == ["run-0", "run-1"]
    collect(workspace, keep=1)
    assert explain(RunRecord.load(storage, "run-0"), "000003")[-1][0] == "dataset"


def test_a_dry_run_names_datasets_their_students_and_costly_stages_first(workspace: Path) -> None:
    run(toys.pipeline(), str(workspace), run_id="only")
    [dataset] = workspace.glob("datasets/toys/*")
    student = workspace / "students" / "small-12ab"
    student.mkdir(parents=True)
    (student / "run.json").write_text(json.dumps({"datasets": {str(dataset): "f" * 32}}))
    storage = open_storage(str(workspace))
    garbage, _ = gc.unreachable(storage, keep=0, costly=True)
    lines = described(storage, garbage)
    assert f"dataset toys/{dataset.name}, 9 samples; student small-12ab was trained on it" in lines[0]
    assert "results of the costly stage " in lines[1] and "(toy.costly), which are computed again" in lines[1]
    assert len(lines) < len(garbage)
    assert sum(int(line.split()[0].replace(",", "")) for line in lines) == sum(garbage.values())


@pytest.mark.parametrize("repeat", [0, pytest.param(15, marks=pytest.mark.long)])
def test_a_pool_can_grow_after_its_first_version_is_gone(workspace: Path, memory: Path, repeat: int) -> None:
    """With keys that repeat, shards were amended; what they were amended from is needed when the pool grows."""
    changes = {"pool__repeat": repeat}
    run(toys.pipeline(**changes, pool__rows=30), str(workspace), run_id="small")
    run(toys.pipeline(**changes, pool__rows=40), str(workspace), run_id="large")
    collect(workspace, drop=("small",))
    assert all(run(toys.pipeline(**changes, pool__rows=40), str(workspace)).reused.values())
    run(toys.pipeline(**changes, pool__rows=60), str(workspace))
    clean = memory / f"grown-{repeat}"
    run(toys.pipeline(**changes, pool__rows=60), str(clean))
    by_shard = ("/partials/", "/states.parquet", "selections/")  # they also name shards without a live row
    ours, theirs = (
        {name: digest for name, digest in workspaces.nouns(place).items() if not any(part in name for part in by_shard)}
        for place in (workspace, clean)
    )
    assert {name: ours.get(name) for name in theirs} == theirs
    for held in (workspaces.facts, workspaces.fixed, workspaces.masks):
        known, wanted = held(workspace), held(clean)
        assert {name: known.get(name) for name in wanted} == wanted


@pytest.mark.parametrize("repeat", [0, 15])
def test_a_pool_that_is_gone_is_imported_again(workspace: Path, repeat: int) -> None:
    """The record of a portion whose shard was removed goes with it."""
    half = toys.chain(toys.Brightness(), rows=40, repeat=repeat, gaps=(0, 1))
    other = toys.chain(toys.Brightness(), rows=20, repeat=repeat)
    first = run(half, str(workspace), run_id="half")
    run(other, str(workspace), run_id="other")
    assert "pools" in tops(collect(workspace, drop=("half",)))
    again = run(half, str(workspace))
    assert again.ledger == first.ledger and not again.reused["pool"]
    whole = run(toys.chain(toys.Brightness(), toys.Costly(), rows=40, repeat=repeat), str(workspace))
    assert whole.ledger["stage_2"].after == (15 if repeat else 40)


def test_all_may_go(workspace: Path) -> None:
    run(toys.pipeline(), str(workspace))
    collect(workspace, keep=0, costly=True)
    left = {name.split("/")[3] for name in workspaces.files(workspace) if name != "format.json"}
    assert left == {gc.REMOVED}  # that answers were removed is never forgotten
    assert run(toys.pipeline(), str(workspace)).ledger["dataset"].copies == 9


def test_answers_stay_unless_they_are_named(workspace: Path, tmp_path: Path) -> None:
    """Costly answers are found after their run was removed; if they were removed too, they are recomputed under another
    fingerprint."""
    log = tmp_path / "computed.log"
    made = toys.pipeline(dear__log=str(log))
    first = run(made, str(workspace))
    assert len(log.read_text().split()) == 40
    gone = collect(workspace, keep=0)
    assert not [path for path in gone if "/index/" in path] and workspaces.rows_of(workspace, "toy.costly") == 40
    assert workspaces.rows_of(workspace, "toy.parity") == 0
    second = run(made, str(workspace))
    assert len(log.read_text().split()) == 40 and second.outputs["dataset"] == first.outputs["dataset"]
    assert second.counts["dear"].computed == 0 and second.counts["parity"].computed == 40
    collect(workspace, keep=0, costly=True)
    assert workspaces.rows_of(workspace, "toy.costly") == 0
    third = run(made, str(workspace))
    assert len(log.read_text().split()) == 80
    path = {result.outputs["dear"].split("/versions/")[0] for result in (first, second, third)}
    assert len(path) == 2


def test_what_a_failed_run_has_built_stays_for_the_next(workspace: Path) -> None:
    pipeline = toys.chain(toys.Bad(numbers=(25,)), shard_rows=5)
    with pytest.raises(BudgetError):
        run(pipeline, str(workspace), options=Options(failure_budget=0.0, task_rows=5), run_id="failed")
    held = sorted(workspace.glob("facts/toy.bad/*/*/*/*.parquet"))
    assert len(held) >= 6  # and what was under way when the budget was spent
    assert collect(workspace) == {}
    assert sorted(workspace.glob("facts/toy.bad/*/*/*/*.parquet")) == held


def test_what_a_killed_import_has_done_stays_for_the_next(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CURATE_FAULT_KILL", "publish:pools/*/repeats/*")
    if not (child := os.fork()):
        run(toys.pipeline(), str(workspace), run_id="killed")
        os._exit(0)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
    monkeypatch.delenv("CURATE_FAULT_KILL")
    shards = sorted(workspace.glob("pools/toys/shards/*"))
    assert len(shards) == 8 and collect(workspace) == {}
    assert sorted(workspace.glob("pools/toys/shards/*")) == shards
    with pytest.raises(InputError, match="no sample of run killed"):
        explain(RunRecord.load(open_storage(str(workspace)), "killed"), "000001")
    assert "pools" in tops(collect(workspace, drop=("killed",)))


def test_outputs_under_construction_stay(workspace: Path) -> None:
    run(toys.pipeline(), str(workspace), run_id="one")
    storage = Storage(str(workspace))
    held = sorted({path.split("/versions/")[0] for path in storage.list("") if path.startswith("facts/toy.parity/")})
    folder = "/".join(held[0].split("/")[:4])
    before = workspaces.files(workspace, folder)
    with lease.hold(storage, folder, lambda: False), claims.exclusive(storage):
        gc.collect(storage, *gc.unreachable(storage, keep=0, costly=True))
    assert workspaces.files(workspace, folder) == before
    left = workspaces.files(workspace, "facts")
    assert all(name.startswith(folder) or f"/{gc.REMOVED}/" in name for name in left)


def test_a_running_run_keeps_what_it_reads(workspace: Path, gate: Gate) -> None:
    """A run held in its costly stage continues while gc removes everything else: it keeps the masks and facts that it
    has found, and the answers that it may find."""
    run(toys.pipeline(), str(workspace), run_id="one")
    before = workspaces.facts(workspace)
    with Drivers() as drivers:
        drivers.start(workspace, changes={"pool__rows": 60, "dear__gate": str(gate.folder)})
        gate.wait()
        storage = open_storage(str(workspace))
        with claims.exclusive(storage):
            garbage, runs = gc.unreachable(storage, keep=0, costly=True)
            gate.open()
            gc.collect(storage, garbage, runs)
        assert runs == ["one"] and {"datasets", "selections"} <= tops(garbage)
        needed = ("facts/toy.brightness", "facts/toy.costly", "facts/toy.parity", "pools/toys/shards")
        assert not [path for path in garbage if path.startswith(needed)]
        assert drivers.end()["error"] is None
    after = workspaces.facts(workspace)
    for op in ("toy.brightness", "toy.costly", "toy.parity"):
        [name] = [name for name in before if name.startswith(op)]
        assert len(after[name]) == 6 and all(after[name][shard] == rows for shard, rows in before[name].items())
    assert all(run(toys.pipeline(pool__rows=60), str(workspace)).reused.values())


def test_a_run_waits_until_gc_has_ended(workspace: Path) -> None:
    """It has said what it will look into, and looks only then."""
    run(toys.pipeline(), str(workspace), run_id="one")
    storage = open_storage(str(workspace))
    with Drivers() as drivers:
        with claims.exclusive(storage):
            drivers.start(workspace)
            while not (said := [text for text in events_but(workspace, "one") if '"event": "build"' in text]):
                time.sleep(0.02)
            garbage, runs = gc.unreachable(storage, keep=0, costly=True)
            gc.collect(storage, garbage, runs)
            assert runs == ["one"] and {"datasets", "facts", "masks"} <= tops(garbage)
            assert events_but(workspace, "one") == said
        assert drivers.end()["error"] is None
    assert len(list(workspace.glob("datasets/toys/*"))) == 1 and workspaces.rows_of(workspace, "toy.parity") == 40


def events_but(workspace: Path, run_id: str) -> list[str]:
    """Events that runs but one have written down, a text for each time."""
    return [path.read_text() for path in sorted(workspace.glob("runs/*/events/*.jsonl")) if run_id not in path.parts]


def killed_writer(storage: Storage, name: str, bytes_: int) -> str:
    """Path of what a writer leaves that is killed before it publishes."""
    pid = os.fork()
    if not pid:
        with storage.publish(name) as aside:
            aside.write_bytes(bytes(bytes_))
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(pid, 0)
    [left] = [path for path in storage.temporary("") if path.startswith(f"{name.rpartition('/')[0]}/.")]
    return left


def test_files_of_killed_writers_are_shown_and_removed_now(workspace: Path) -> None:
    run(toys.pipeline(), str(workspace))
    storage, [dataset] = open_storage(str(workspace)), workspace.glob("datasets/toys/*")
    before = workspaces.files(workspace)
    names = (f"{dataset.relative_to(workspace)}/000000.tar", "facts/some.op/x/000001.parquet", "runs/one/events/1")
    left = {killed_writer(storage, name, size): size for size, name in enumerate(names, 1000)}
    trained = killed_writer(storage, "students/one/checkpoint", 7)  # its training may be alive
    [line] = [line for line in usage(storage) if line.noun == "temporary files"]
    assert (line.files, line.bytes, line.garbage) == (4, sum(left.values()) + 7, sum(left.values()))
    assert described(storage, left) == [f"{sum(left.values()):>15,}  temporary files"]
    assert gc.unreachable(storage) == ({}, [])
    old = next(iter(left))
    os.utime(workspace / old, (0, 0))
    assert gc.unreachable(storage)[0] == {old: left[old]}
    with claims.exclusive(storage):
        garbage, runs = gc.unreachable(storage, now=True)
        gc.collect(storage, garbage, runs)
    assert (garbage, runs) == (left, [])
    assert workspaces.files(workspace) == before and list(storage.temporary("")) == [trained]


def test_files_that_a_run_may_be_writing_stay(workspace: Path, gate: Gate) -> None:
    storage = open_storage(str(workspace))
    with Drivers() as drivers:
        drivers.start(workspace, run_id="one", changes={"dear__gate": str(gate.folder)})
        gate.wait()
        left = killed_writer(storage, "facts/some.op/x/000001.parquet", 1000)
        [line] = [line for line in usage(storage) if line.noun == "temporary files"]
        assert (line.bytes, line.garbage) == (1000, 0)
        why = "--now: run one is alive and may be writing these files; stop it, or leave --now out"
        for words in ([], ["--delete"]):
            assert curate("gc", "--now", *words, "-w", workspace).error == f"curate: {why}"
        assert curate("gc", "--delete", "-w", workspace).code == 0 and (workspace / left).exists()
        os.kill(drivers.driver, signal.SIGKILL)
        drivers.end()
    assert "1 outputs, 1,000 bytes" in curate("gc", "--now", "--delete", "-w", workspace).out
    assert not (workspace / left).exists()


@pytest.mark.long
def test_unfinished_uploads_are_shown_and_removed_now(object_store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gc, "ASIDE_SECONDS", 1e12)  # this store says that all uploads were begun in 2010
    object_store.create_bucket(Bucket="lot")
    storage = open_storage("s3://lot/place")
    storage.create_json("format.json", {})
    for key in ("place/facts/a/000001.parquet", "place2/other"):
        upload = object_store.create_multipart_upload(Bucket="lot", Key=key)["UploadId"]
        object_store.upload_part(Bucket="lot", Key=key, UploadId=upload, PartNumber=1, Body=bytes(1000))
    [line] = [line for line in usage(storage) if line.noun == "temporary files"]
    assert (line.files, line.bytes, line.garbage) == (1, 1000, 1000)
    assert gc.unreachable(storage) == ({}, [])
    garbage, _ = gc.unreachable(storage, now=True)
    assert [path.partition("?")[0] for path in garbage] == ["facts/a/000001.parquet"] and sum(garbage.values()) == 1000
    with claims.exclusive(storage):
        gc.collect(storage, garbage, [])
        gc.collect(storage, garbage, [])  # again, as after a kill
    assert gc.unreachable(storage, now=True)[0] == {}
    assert [one["Key"] for one in object_store.list_multipart_uploads(Bucket="lot")["Uploads"]] == ["place2/other"]


def test_gc_stops_if_its_lease_is_gone(workspace: Path) -> None:
    run(toys.pipeline(), str(workspace), run_id="one")
    storage = open_storage(str(workspace))
    before = workspaces.files(workspace)
    with pytest.raises(StorageError, match="gc lost its lease and stopped; run it again"):
        gc.collect(storage, gc.unreachable(storage, keep=0)[0], [])
    assert workspaces.files(workspace) == before


@pytest.mark.usefixtures("at_once")
def test_states_of_an_artifact_under_way_stay(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Partial states stay if a run builds the output now or a kept run failed to; a dropped run's are removed."""
    seen = []

    def broken(*_: Any) -> None:
        storage = open_storage(str(workspace))
        seen.append(gc.unreachable(storage)[0] | gc.unreachable(storage, drop=("one",))[0])
        raise OSError("no memory")

    with monkeypatch.context() as patched:
        patched.setattr(toys.Total, "finish", broken)
        with pytest.raises(StageError, match="no memory"):
            run(toys.pipeline(), str(workspace), run_id="one")
    states = sorted(workspace.glob("artifacts/toy.total/partials/*/*"))
    assert len(states) == 4 and not any(seen) and collect(workspace) == {}
    assert sorted(workspace.glob("artifacts/toy.total/partials/*/*")) == states
    assert "artifacts" in tops(collect(workspace, drop=("one",)))


@pytest.mark.parametrize(("silent", "state"), [(0, "running"), (3600, "killed")])
def test_the_state_of_a_run_on_another_host_depends_on_the_clock(
    workspace: Path, silent: float, state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease, "LOOK_SECONDS", 0.5)  # seconds that the heart of a clock so far off is watched
    run(toys.pipeline(), str(workspace), run_id="far")
    storage = Storage(str(workspace))
    storage.remove("runs/far/result.json")
    held = {"owner": lease.owner() | {"host": "far-away"}, "beat": 9, "time": time.time() - silent}
    for output in ("runs/far", "artifacts/toy.total/0"):
        storage.create_json(lease.lease_path(output), held | {"output": output})
    assert RunRecord.load(storage, "far").state == state
    garbage, runs = gc.unreachable(storage, keep=0)
    assert runs == ([] if state == "running" else ["far"]) and bool(garbage) == (state == "killed")


def removals(workspace: Path, last: int) -> tuple[int, bool]:
    """gc of all, in a process that is killed at one of its removals of a file: how many there were, whether it was."""
    reader, writer = os.pipe()
    if not (child := os.fork()):
        unlink, count = os.unlink, 0

        def counted(*words: Any, **named: Any) -> None:
            nonlocal count
            count += 1
            if count == last:
                os.kill(os.getpid(), signal.SIGKILL)
            unlink(*words, **named)

        storage = open_storage(str(workspace))
        with claims.exclusive(storage):
            garbage, runs = gc.unreachable(storage, keep=0)
            os.unlink = counted
            gc.collect(storage, garbage, runs)
        os.write(writer, str(count).encode())
        os._exit(0)
    os.close(writer)
    killed = os.WIFSIGNALED(os.waitpid(child, 0)[1])
    with open(reader) as said:
        return int(said.read() or 0), killed


@pytest.mark.long
def test_gc_killed_anywhere_leaves_no_partial_output(workspace: Path, memory: Path) -> None:
    """Outputs with a manifest are complete, and later runs give the same results as before."""
    strict, loose = toys.pipeline(pool__rows=20, light__darkest=126.0), toys.pipeline(pool__rows=20)
    before = [run(made, str(workspace)).ledger for made in (loose, strict)]
    copy = memory / "killed-gc"
    shutil.copytree(workspace, copy)
    count, killed = removals(copy, 0)
    assert count > 60 and not killed
    for last in drawn(range(1, count, 6)):
        shutil.rmtree(copy)
        shutil.copytree(workspace, copy)
        assert removals(copy, last)[1]
        again = [run(made, str(copy)).ledger for made in (strict, loose)]
        assert again[::-1] == before, last
        theirs, ours = workspaces.nouns(workspace), workspaces.nouns(copy)
        assert {name: ours.get(name) for name in theirs} == theirs, last
        assert workspaces.facts(copy) == workspaces.facts(workspace), last
    shutil.rmtree(copy)


def test_a_missing_run(workspace: Path) -> None:
    run(toys.chain(), str(workspace), run_id="one")
    with pytest.raises(InputError, match=r"run 'two': not in .*; the latest runs are one$"):
        gc.unreachable(open_storage(str(workspace)), drop=("two",))
