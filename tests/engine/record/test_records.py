"""Queries after a run: its record, one sample's path, differences of two runs, datasets with tombstoned samples."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import ClassVar

import pytest
import yaml
from PIL import Image

from curate.acquire.folder import AcquireFolder
from curate.core.errors import BudgetError, CorruptError, InputError, PreflightError
from curate.core.nouns import tombstones
from curate.core.recipe.load import parse
from curate.core.recipe.pipeline import Pipeline
from curate.core.store import lease
from curate.core.store.storage import Storage, open_storage
from curate.engine.record import events as told
from curate.engine.record.affected import affected_datasets
from curate.engine.record.diff import diff
from curate.engine.record.events import Events, follow_events, read_events
from curate.engine.record.explain import explain
from curate.engine.record.runs import RunRecord, latest, list_runs
from curate.engine.record.status import LaneRate, status_of
from curate.engine.run import Result, run
from curate.engine.state import Options
from curate.engine.workers import dispatch
from tests.e2e.image_files import write_good
from tests.engine import toys


@pytest.fixture(scope="module")
def done(memory: Path) -> tuple[Storage, Result]:
    workspace = str(memory / "records")
    options = Options(failure_budget=0.2)
    result = run(toys.pipeline(light__darkest=120.0, pool__broken=13), workspace, run_id="first", options=options)
    run(toys.pipeline(light__darkest=120.0, pool__broken=13, even__seed=1), workspace, run_id="second")
    return open_storage(workspace), result


def test_the_record_is_the_result(done: tuple[Storage, Result]) -> None:
    storage, result = done
    record = RunRecord.load(storage, "first")
    assert list_runs(storage) == ["first", "second"] and latest(storage, None).run_id == "second"
    assert record.state == "done" and record.ledger() == result.ledger and record.ops() == result.ops
    assert record.builds() == []
    assert record.upstream("even") == ["pool", "bright", "light", "dear", "parity", "contrast", "brighter", "even"]
    told = [event["stage"] for event in read_events(storage, "first") if event["event"] == "stage"]
    assert sorted(told) == sorted(toys.STAGES)
    assert all(told.index(up) < told.index(name) for name in told for up in record.upstream(name)[:-1])
    with pytest.raises(InputError, match=r"run 'third': not in .*; the latest runs are first, second"):
        RunRecord.load(storage, "third")


def test_outputs_are_in_the_order_of_the_recipe(done: tuple[Storage, Result]) -> None:
    record = RunRecord.load(done[0], "first")
    assert record.result is not None
    names = list(record.outputs)
    assert names == [name for name in toys.STAGES if name in names]
    record.result["outputs"] = dict(reversed(record.result["outputs"].items()))  # as if they had ended so
    assert list(record.outputs) == names


def ways(done: tuple[Storage, Result]) -> dict[str, dict[str, dict[str, object]]]:
    """Source id -> stage -> what is known there."""
    record = RunRecord.load(done[0], "first")
    return {f"{n:06d}": {stage: facts for stage, _, facts in explain(record, f"{n:06d}")} for n in range(40)}


def test_every_samples_way_agrees_with_the_ledger(done: tuple[Storage, Result]) -> None:
    known, ledger = ways(done), done[1].ledger
    for stage in ("bright", "light", "dear", "parity", "contrast", "brighter", "even"):
        left = [way[stage]["reject"] for way in known.values() if way[stage].get("reject")]
        untouched = [way for way in known.values() if {"not computed", "not judged", "not reached"} & set(way[stage])]
        assert len(untouched) == 40 - ledger[stage].before
        assert Counter(left) == ledger[stage].lost
        status = Counter(way[stage]["reason"] for way in known.values() if way[stage].get("status") == "unusable")
        assert status == ledger[stage].unusable
    assert ledger["bright"].unusable and ledger["light"].rejected
    packed = [way for way in known.values() if way["dataset"]["members"] != "none"]
    assert len(packed) == ledger["dataset"].after


def test_the_path_of_a_row_names_the_stage_that_rejected_it(done: tuple[Storage, Result]) -> None:
    way = ways(done)["000013"]
    assert way["bright"] == {
        "status": "unusable",
        "reject": "not_an_image",
        "reason": "not_an_image",
        "brightness": None,
    }
    assert way["light"] == {"not judged": "bright: not_an_image"}
    assert way["parity"] == {"not computed": "bright: not_an_image"}
    assert way["even"] == {"not reached": "bright: not_an_image"} and way["dataset"]["members"] == "none"
    dark = next(way for way in ways(done).values() if way["light"].get("reject"))
    assert dark["light"] == {"reject": "too_dark"} and dark["bright"]["brightness"] < 120.0
    assert dark["dear"] == dark["parity"] == {"not computed": "light: too_dark"}
    assert dark["brighter"] == {"not judged": "light: too_dark"}


def test_a_key_may_be_cut_but_not_to_what_many_have(done: tuple[Storage, Result]) -> None:
    record = RunRecord.load(done[0], "first")
    key = str(explain(record, "000001")[0][2]["key"])
    assert explain(record, key) == explain(record, key[:12]) == explain(record, "000001")
    with pytest.raises(InputError, match=r"'zz': no sample of run first has this key, .*, name or URL"):
        explain(record, "zz")


def test_a_sample_is_found_by_its_file_name_or_the_end_of_its_path(tmp_path: Path) -> None:
    names = ("may/cat/IMG_1.png", "june/cat/IMG_1.png", "june/a (1).b.png", "IMG_2.png", "june/IMG_2.png")
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (9, 9)).save(tmp_path / name)
    source = AcquireFolder(path=str(tmp_path), namespace="mine")
    run(Pipeline().add("pool", source), str(tmp_path / "workspace"), run_id="one")
    record = RunRecord.load(open_storage(str(tmp_path / "workspace")), "one")
    found = {
        "cat/IMG_1.png": None, "img_1": None, "june/cat/img_1.png": names[1], "june/cat/IMG_1": names[1],
        "a (1).b.png": names[2], "a (1).b": names[2], "IMG_2.png": names[3], "june/IMG_2": names[4],
    }  # fmt: skip
    for wanted, name in found.items():
        if name is None:
            with pytest.raises(InputError, match=r"2 samples of run one match .* give more of its path, or a key$"):
                explain(record, wanted)
        else:
            assert explain(record, wanted)[0][2]["source_id"] == name
    for wanted in ("MG_1.png", "cat", "a (1)", ".png", "nowhere/IMG_2.png"):
        with pytest.raises(InputError, match="no sample of run one has this key, key prefix, source id, name or URL"):
            explain(record, wanted)


def test_a_shard_without_its_table_is_one_line(workspace: Path) -> None:
    run(toys.chain(), str(workspace), run_id="one")
    table = sorted(workspace.glob("pools/toys/shards/*.parquet"))[0]
    table.unlink()
    told = (
        rf"{table.name}: this table of a pool is corrupt or missing \(no such file\); restore it, or remove it and the "
        "folders pools/toys/portions and pools/toys/repeats and rerun the recipe$"
    )
    with pytest.raises(CorruptError, match=told):
        explain(RunRecord.load(open_storage(str(workspace)), "one"), "no such")


def test_two_runs_differ_where_they_differ(done: tuple[Storage, Result]) -> None:
    found = {item.stage: item for item in diff(RunRecord.load(done[0], "first"), RunRecord.load(done[0], "second"))}
    assert [name for name, item in found.items() if not item.same] == ["even", "dataset", "page"]
    assert found["even"].parameters == {"seed": (0, 1)}
    only_first, both, only_second = found["even"].keys or (0, 0, 0)
    assert only_first == only_second > 0 and only_first + both == done[1].ledger["even"].after


def test_two_runs_differ_in_where_they_read(tmp_path: Path) -> None:
    """Places do not decide the result, so that only the recipe has them."""
    for name in ("may", "june"):
        write_good(tmp_path / name, 2)
        pool = {"op": "acquire.folder", "path": str(tmp_path / name), "namespace": "mine"}
        embed = {"op": "image.embed", "from": "pool", "encoder": "descriptor"}
        made = parse(yaml.safe_dump({"stages": {"pool": pool, "embed": embed}}))
        run(made, str(tmp_path / "workspace"), run_id=name)
    storage = open_storage(str(tmp_path / "workspace"))
    found = diff(RunRecord.load(storage, "may"), RunRecord.load(storage, "june"))
    assert [one.parameters for one in found] == [{"path": (str(tmp_path / "may"), str(tmp_path / "june"))}, {}]


def test_datasets_with_tombstoned_rows_are_named(workspace: Path) -> None:
    result = run(toys.pipeline(), str(workspace))
    storage = open_storage(str(workspace))
    assert affected_datasets(storage, tombstones.load(storage)) == {}
    index = open_storage(result.outputs["dataset"]).read_table("index.parquet")
    packed = index.column("key").to_pylist()
    way = explain(latest(storage, None), packed[0])[0][2]
    strangers = [key for key in pool_keys(workspace) if key not in packed]
    tombstones.add(storage, [str(way["sha256"]), packed[1], strangers[0]], "asked for")
    base = result.outputs["dataset"].removeprefix(f"{workspace}/")
    assert affected_datasets(storage, tombstones.load(storage)) == {base: 2}


def pool_keys(workspace: Path) -> list[str]:
    storage = open_storage(str(workspace))
    tables = sorted(name for name in storage.list("pools/toys/shards") if name.endswith(".parquet"))
    return [key for name in tables for key in storage.read_table(f"pools/toys/shards/{name}")["key"].to_pylist()]


def test_a_failed_run_records_its_error_and_its_outputs(workspace: Path) -> None:
    with pytest.raises(BudgetError):
        run(toys.chain(toys.Brightness(), toys.Bad(numbers=(3, 4))), str(workspace), run_id="failed")
    record = RunRecord.load(open_storage(str(workspace)), "failed")
    assert record.state == "failed" and set(record.outputs) == {"pool"}
    assert {event["stage"] for event in record.builds()} == {"stage_1", "stage_2"}


class Unready(toys.Brightness):
    op: ClassVar[str] = "toy.unready"

    def preflight_on_worker(self) -> list[str]:
        return ["not ready"]


def test_slow_checks_leave_nothing(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "PROGRESS_SECONDS", 0.0)  # as if the check took a minute
    monkeypatch.setattr(told, "FLUSH_SECONDS", 0.0)
    with pytest.raises(PreflightError, match="not ready"):
        run(toys.chain(Unready()), str(workspace))
    assert open_storage(str(workspace)).list("runs") == {}


def test_events_are_segments_in_order(tmp_path: Path) -> None:
    storage = Storage(str(tmp_path))
    events = Events(storage, "run")
    for number in range(5):
        events.emit("thing", number=number)
        if number % 2:
            events.flush()
    events.flush()
    events.flush()
    assert sorted(storage.list("runs/run/events")) == ["000001.jsonl", "000002.jsonl", "000003.jsonl"]
    assert [event["number"] for event in read_events(storage, "run")] == [0, 1, 2, 3, 4]


def test_a_segment_keeps_the_newest_progress(tmp_path: Path) -> None:
    storage = Storage(str(tmp_path))
    events = Events(storage, "run")
    for rows in range(5):
        events.emit("progress", stage="a", lane="cpu", rows=rows)
        events.emit("progress", stage="a", lane="gpu", rows=10 * rows)
        events.emit("failure", number=rows)
    events.flush()
    found = read_events(storage, "run")
    assert [event["number"] for event in found if event["event"] == "failure"] == [0, 1, 2, 3, 4]
    assert [(e["lane"], e["rows"]) for e in found if e["event"] == "progress"] == [("cpu", 4), ("gpu", 40)]


def test_progress_of_a_long_run_comes_more_seldom(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A quarter of a day of progress; what else happens is written down in two seconds all the same."""
    now = 1000.0
    monkeypatch.setattr(told.time, "monotonic", lambda: now)
    storage = Storage(str(workspace))
    events = Events(storage, "run")
    for _ in range(10_800):
        now += 2.0
        events.emit("progress", stage="a", lane="cpu", rows=int(now))
    assert 400 < len(storage.list("runs/run/events")) < 800
    before = len(storage.list("runs/run/events"))
    events.emit("failure", number=1)
    now += 2.1
    events.emit("progress", stage="a", lane="cpu", rows=1)
    assert len(storage.list("runs/run/events")) == before + 1


def test_events_can_be_followed(tmp_path: Path) -> None:
    storage = Storage(str(tmp_path))
    events = Events(storage, "run")
    looks = 0

    def ended() -> bool:
        nonlocal looks
        looks += 1
        events.emit("look", number=looks)
        events.flush()
        return looks == 3

    found = follow_events(storage, "run", ended, poll_seconds=0.0)
    assert [event["number"] for event in found] == [1, 2, 3]


def test_the_status_of_a_run_under_way(workspace: Path) -> None:
    run(toys.chain(toys.Brightness(), toys.Light()), str(workspace), run_id="one")
    storage = open_storage(str(workspace))
    for path in ("runs/one/result.json", "runs/one/events"):
        storage.remove(path)
    events = Events(storage, "one")
    events.emit("build", stage="stage_1", base="x", path="", mask="")
    events.emit("step", stage="stage_1 + stage_2", rows=10, total=40, text="", rows_per_s=5.0, left_seconds=6.0)
    events.emit("progress", stage="stage_1", lane="gpu", rows=8, rows_per_s=4.0, bytes_per_s=1e6, busy=0.9)
    events.emit("progress", stage="stage_1", lane="cpu", rows=2, rows_per_s=1.0)
    events.emit("progress", stage="pool", done=0.5, text="half of it")
    events.flush()
    status = status_of(RunRecord.load(storage, "one"))
    pool, one, two = status.stages
    assert status.state == "killed" and {stage.state for stage in status.stages} == {"unfinished"}
    assert (pool.text, pool.total) == ("50%, half of it", None)
    assert (one.rows, one.total, two.rows, two.total) == (10, 40, 10, 40)
    assert one.lanes == (LaneRate("cpu", 2, 1.0), LaneRate("gpu", 8, 4.0, 1e6, 0.9))
    with lease.hold(storage, "runs/one", lambda: False):
        one = status_of(RunRecord.load(storage, "one")).stages[1]
    assert (one.state, one.left_seconds) == ("running", 6.0)
