"""Logs of answers: each unit writes some, and the next attempt or run puts those of dead units into tables."""

from __future__ import annotations

import errno
import os
import queue
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from curate.core.errors import CurateError, StorageError
from curate.core.nouns import facts
from curate.core.store.storage import Storage, open_storage
from curate.engine.passes import async_map
from curate.engine.passes.answers import index
from curate.engine.passes.answers import log as answer_log
from curate.engine.passes.answers.lookup import Answers
from curate.engine.passes.recovery import UnitRunner
from curate.engine.passes.run import Adopted, _Pass
from curate.engine.record import gc
from curate.engine.requests.client import Answered
from curate.engine.run import run
from tests.draw import drawn
from tests.engine import toys, workspaces
from tests.engine.asks import Say, answer_rows, go, segments
from tests.engine.passes.test_answer_kills import POINTS, ROOT, child, kept
from tests.servers.scripted import Endpoint


@pytest.fixture
def dead(workspace: Path, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch) -> str:
    """Folder of facts of a run of which only the log is left, as a kill leaves it: all answers, and no tables."""
    close = answer_log.Log.close
    monkeypatch.setattr(answer_log.Log, "close", lambda log, published: close(log, published=False))
    go(workspace, Say(url=endpoint.script().url, flush_seconds=0.0), rows=20)
    monkeypatch.undo()
    [folder] = [path for path in workspace.glob("facts/toy.say/*/*") if path.name not in ("index", "log")]
    for path in [*folder.glob("*/0*.parquet"), *(folder.parent / "index").glob("*")]:
        path.unlink()
    for path in workspace.glob("masks/*/versions/*/manifest.json"):
        path.unlink()
    return str(folder.relative_to(workspace))


def test_the_next_run_puts_a_dead_runs_answers_into_tables(workspace: Path, endpoint: Endpoint, dead: str) -> None:
    """Also answers for rows that it does not need itself: the darker half."""
    script = endpoint.script()
    made = toys.Pipeline().add("pool", toys.Numbers(namespace="toys", rows=20)).add("bright", toys.Brightness(), "pool")
    made.add("light", toys.Light(darkest=127.5), "bright").add("say", Say(url=script.url), "light")
    result = run(made.check(), str(workspace))
    assert script.stats()["requests"] == 0 and 0 < result.ledger["say"].after < 20
    assert workspaces.rows_of(workspace, "toy.say") == 20
    assert go(workspace, Say(url=script.url), rows=20).counts["stage_1"].requests == 0
    assert go(workspace, Say(url=script.url), namespace="other", rows=20).counts["stage_1"].requests == 0


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_a_kill_while_logs_are_put_into_tables(workspace: Path, tmp_path: Path, endpoint: Endpoint, dead: str) -> None:
    script, visited = endpoint.script(), drawn(POINTS[2:])
    assert visited
    for number, point in enumerate(visited):
        at = shutil.copytree(workspace, tmp_path / f"killed-{number}")
        kill = os.environ | {"CURATE_FAULT_KILL": point}
        command = child(at, script, 20, 10)
        assert subprocess.run(command, cwd=ROOT, env=kill, timeout=200).returncode == -signal.SIGKILL, point
        assert go(at, Say(url=script.url), rows=20).ledger["stage_1"].after == 20, point
        assert script.stats()["requests"] == 0 and workspaces.rows_of(at, "toy.say") == 20, point
        assert not segments(at), point


def test_a_log_with_a_live_writer_is_left_alone(workspace: Path, dead: str) -> None:
    storage = open_storage(str(workspace))
    other = f"{dead.rpartition('/')[0]}/{'0' * 32}"
    before = segments(workspace)
    with answer_log.lease.hold(storage, dead, lambda: False):
        answer_log.fold_all(storage, other)
    assert segments(workspace) == before
    answer_log.fold_all(storage, other)
    assert not segments(workspace) and workspaces.rows_of(workspace, "toy.say") == 20


def test_a_log_is_indexed_where_it_was_put(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another run has published the next table meanwhile."""
    storage, path = open_storage(str(workspace)), "facts/op/stage/f"
    logged = workspaces.answers_table(range(50))
    logged = logged.append_column(answer_log.SHARD_FIELD, pa.array(["s"] * 50))
    storage.publish_table(f"{answer_log.folder_of(path)}/{'0' * 12}-000001-{'0' * 8}.parquet", logged)
    publish = facts.publish

    def second(*args: Any) -> facts.Published:
        publish(storage, path, "s", 0, None, workspaces.answers_table(range(50, 60)), facts.Notes())
        return publish(*args)

    monkeypatch.setattr(facts, "publish", second)
    answer_log.fold_all(storage, path)
    index.forget()
    files = index.files_of(storage.list(f"facts/op/stage/{index.FOLDER}"))
    found = Answers(storage, "facts/op/stage", {}, files).find(dict.fromkeys(map(workspaces.an_input, range(50)), "t"))
    assert len(found) == 50 and not storage.list(answer_log.folder_of(path))


def test_gc_keeps_logs_by_default(workspace: Path, dead: str) -> None:
    storage = open_storage(str(workspace))
    log = answer_log.folder_of(dead)
    assert not [path for path in gc.unreachable(storage, keep=0)[0] if path.startswith(log)]
    assert [path for path in gc.unreachable(storage, keep=0, costly=True)[0] if path.startswith(log)]


def test_gc_keeps_logs_of_kept_runs_and_knows_stages_by_them() -> None:
    """Also if costly results are to go: their tables stay too. A stage without an index is still a costly one."""
    table, segment = "op/stage/f/s/000001.parquet", "op/stage/log/f/a-000001-u.parquet"
    kept = gc._answers([table, segment], {"facts/op/stage/f"}, costly=True)
    assert kept == {"facts/op/stage/log/f", f"facts/op/stage/{index.FOLDER}"}
    assert gc.highest([table]) == set()
    for other in (segment, "op/stage/removed/000001.json", "op/stage/index/complete.json"):
        assert gc.highest([table, other]) == {f"facts/{table}"}


class Closing(async_map.AsyncMember):
    """A member with a request in flight, and nothing else."""

    def __init__(self, log: Any, future: Future[Answered]) -> None:
        self._log, self._published, self.stale, self._requester = log, True, False, None
        self._ended = queue.SimpleQueue()
        self._flying, self._rows = {future: "request"}, {"request": [0]}
        future.add_done_callback(partial(self._ended_in_loop, 0, [0]))


def test_an_answer_that_arrives_while_its_unit_is_closed_is_logged() -> None:
    """The event loop's thread has not come to log it."""
    seen: list[Any] = []

    class Slow:
        def add(self, several: Any) -> None:
            time.sleep(0.2)
            seen.extend(several)

        def close(self, published: bool) -> None:
            seen.append(published)

    future: Future[Answered] = Future()
    member, answer = Closing(Slow(), future), Answered({"said": "a"})
    loop = threading.Thread(target=future.set_result, args=(answer,))
    loop.start()
    while not future.done():
        time.sleep(0.001)
    member.close()
    loop.join()
    assert seen == [(0, answer), False]


@pytest.mark.parametrize("stale", [False, True])
def test_stale_answers_are_not_logged(stale: bool) -> None:
    closed: list[bool] = []

    class Noted:
        def close(self, published: bool) -> None:
            closed.append(published)

    future: Future[Answered] = Future()
    member = Closing(Noted(), future)
    member._flying.clear()
    member._published, member.stale = False, stale
    member.close()
    assert closed == [stale]


def test_results_become_stale_with_what_they_were_computed_from() -> None:
    def member(name: str, adopts: bool, *depends: str) -> Any:
        return SimpleNamespace(name=name, depends=set(depends), stale=False, publish=lambda whole: adopts)

    unit: Any = _Pass.__new__(_Pass)
    unit.maps = [member("a", False), member("b", True, "a"), member("c", False), member("d", False, "a", "b")]
    with pytest.raises(Adopted):
        unit._publish(whole=True)
    assert [each.name for each in unit.maps if each.stale] == ["d"]


def test_a_shard_is_tried_again_with_the_answers_of_its_log(workspace: Path) -> None:
    """Its other rows may have the same inputs; the worker has not seen the log put into tables."""
    storage, path = open_storage(str(workspace)), "facts/toy.say/stage/f"
    logged = workspaces.answers_table([1]).append_column(answer_log.SHARD_FIELD, pa.array(["s"]))
    file = f"{'0' * 12}-000001-{answer_log.token(['s'])}.parquet"
    storage.publish_table(f"{answer_log.folder_of(path)}/{file}", logged)
    runner: Any = UnitRunner.__new__(UnitRunner)
    spec = SimpleNamespace(name="say", path=path, stage=Say(url=""))
    runner.ctx, runner._failed = SimpleNamespace(storage=storage), {}
    runner.plan = SimpleNamespace(stages=[spec], numbers={"say": {}}, indexes={"say": {}})
    runner.refresh(SimpleNamespace(id="s"))
    index.forget()
    answers = Answers(storage, "facts/toy.say/stage", {}, runner.plan.indexes["say"])
    assert runner.plan.numbers == {"say": {"s": 1}} and answers.find({workspaces.an_input(1): "s"})


def fail_segments(monkeypatch: pytest.MonkeyPatch, times: int) -> list[str]:
    """The storage fails to write segments `times` times. Returns the segments that failed."""
    publish, failed = Storage.publish_table, list[str]()

    def broken(storage: Storage, relative: str, *args: Any, **options: Any) -> None:
        if f"/{answer_log.FOLDER}/" in relative and len(failed) < times:
            failed.append(relative)
            raise StorageError(f"{relative}: no answer")
        publish(storage, relative, *args, **options)

    monkeypatch.setattr(Storage, "publish_table", broken)
    return failed


def test_a_log_that_cannot_be_written_for_a_while_loses_nothing(
    workspace: Path, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """None is repeated."""
    monkeypatch.setattr(async_map, "LOOK_SECONDS", 0.01)
    failed = fail_segments(monkeypatch, 2)
    script = endpoint.script(latency_seconds=0.05, slots=4)
    result = go(workspace, Say(url=script.url, max_in_flight=4, flush_seconds=0.0), rows=40, shard_rows=40)
    assert len(failed) >= 2
    assert script.stats()["texts"] == {f"picture {n}": 1 for n in range(40)}
    assert result.ledger["stage_1"].after == 40
    assert not segments(workspace)


def test_segments_are_put_into_tables_a_unit_at_a_time(
    workspace: Path, endpoint: Endpoint, dead: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    units = {name.removesuffix(".parquet").split("-")[2] for name in segments(workspace)}
    into, seen = answer_log._into_tables, list[int]()

    def counting(storage: Any, path: str, tables: Any) -> None:
        seen.append(sum(table.num_rows for table in tables))
        into(storage, path, tables)

    monkeypatch.setattr(answer_log, "_into_tables", counting)
    script = endpoint.script()
    result = go(workspace, Say(url=script.url), rows=20)
    assert (script.stats()["requests"], result.ledger["stage_1"].after) == (0, 20)
    assert not segments(workspace) and len(seen) == len(units) > 1 and sum(seen) == 20


def test_segments_of_an_earlier_version_are_put_into_tables(workspace: Path, endpoint: Endpoint, dead: str) -> None:
    """One segment had rows of several units, and rows without a status: requests in flight."""
    paths = sorted(workspace.glob("facts/*/*/log/*/*.parquet"))
    whole = pa.concat_tables([pq.read_table(path, partitioning=None) for path in paths])
    flying = {"_row": [3], "_status": [-1], "_reason": ["00000000"], "_marked": [False], "_input": [b"x" * 16]}
    lines = {field.name: pa.array(flying.get(field.name, [None]), field.type) for field in whole.schema}
    lines["_shard"] = whole.column("_shard").slice(0, 1)
    for path in paths:
        path.unlink()
    name = paths[0].with_name("0123456789ab-000001-00000000-11111111.parquet")
    pq.write_table(pa.concat_tables([whole, pa.table(lines)]), name)
    only = whole.schema.empty_table().select([*facts.FIXED.names, "_input", "_shard"])
    pq.write_table(only, paths[0].with_name("0123456789ab-000000.parquet"))
    script = endpoint.script()
    result = go(workspace, Say(url=script.url), rows=20)
    assert (script.stats()["requests"], result.ledger["stage_1"].after) == (0, 20)
    assert not segments(workspace) and workspaces.rows_of(workspace, "toy.say") == 20


def test_results_outlast_a_kill_only_with_what_they_were_computed_from(workspace: Path) -> None:
    """A rewritten text whose original is lost would not fit the next one."""
    storage, written = open_storage(str(workspace)), list[str]()
    table = pa.table({"_row": [1]})

    def rows(name: str) -> Any:
        return lambda several: written.append(name) or table

    first = answer_log.Log(storage, "facts/one/s/f", "unit", rows("first"))
    second = answer_log.Log(storage, "facts/two/s/f", "unit", rows("second"), [first])
    first.add([1])
    second.add([2])
    second.flush()
    second.flush()
    assert written == ["first", "second"]


def test_a_full_disk_ends_the_run_and_the_next_one_repeats_what_was_not_written(
    workspace: Path, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is full from the fourth segment on, also for tables. Nothing that was published is lost."""
    finish, seen, kept_then = Storage._finish, list[str](), list[set[bytes]]()

    def full(storage: Storage, aside: Path, relative: str, *, exclusive: bool) -> None:
        seen.extend([relative] if f"/{answer_log.FOLDER}/" in relative else [])
        if len(seen) > 3 and relative.startswith("facts/"):
            kept_then[:] = kept_then or [kept(workspace)]
            raise OSError(errno.ENOSPC, "No space left on device")
        finish(storage, aside, relative, exclusive=exclusive)

    monkeypatch.setattr(Storage, "_finish", full)
    monkeypatch.setattr(async_map, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(async_map, "PATIENCE_SECONDS", 0.1)
    script = endpoint.script(latency_seconds=0.05, slots=4)
    stage = Say(url=script.url, max_in_flight=4, flush_seconds=0.1)
    with pytest.raises(CurateError, match=r"(?i)space") as raised:
        go(workspace, stage, rows=60, shard_rows=60)
    assert "\n" not in str(raised.value) and len(script.stats()["texts"]) < 60
    monkeypatch.undo()
    assert kept_then[0] and kept(workspace) == kept_then[0]
    result = go(workspace, stage, rows=60, shard_rows=60)
    asked, counts = script.stats()["texts"], result.counts["stage_1"]
    assert len(asked) == result.ledger["stage_1"].after == 60
    assert counts.requests == 60 - len(kept_then[0])
    assert [row["said"] for row in answer_rows(workspace)] == sorted(f"said picture {n}" for n in range(60))
    assert not segments(workspace)


def test_no_request_is_sent_while_answers_cannot_be_logged(
    workspace: Path, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only those that were sent before that was known."""
    monkeypatch.setattr(async_map, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(async_map, "PATIENCE_SECONDS", 0.05)
    monkeypatch.setattr(answer_log, "PAUSE_SECONDS", 0.01)
    fail_segments(monkeypatch, sys.maxsize)
    script = endpoint.script(latency_seconds=0.2, slots=2)
    stage = Say(url=script.url, max_in_flight=2, flush_seconds=0.0)
    result = go(workspace, stage, rows=100, shard_rows=100)
    assert result.ledger["stage_1"].error == Counter(shard_set_aside=100)
    assert 0 < script.stats()["requests"] < 50


@pytest.mark.parametrize("times", [0, 1])
def test_a_unit_that_failed_leaves_its_answers_to_the_next_attempt(
    workspace: Path, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    """Its tables could not be written, once; nor could its log."""
    failed = fail_segments(monkeypatch, times)
    remember = index.add
    left = [OSError("try again")]

    def broken(*args: Any) -> None:
        if left:
            raise left.pop()
        remember(*args)

    monkeypatch.setattr(index, "add", broken)
    script = endpoint.script()
    result = go(workspace, Say(url=script.url), rows=10)
    assert script.stats()["requests"] == 10 and result.ledger["stage_1"].after == 10
    assert len(failed) == times and not segments(workspace)
    assert go(workspace, Say(url=script.url), namespace="other", rows=10).counts["stage_1"].copied == 10


def test_a_log_that_is_closed_just_as_its_writer_wakes_up_ends(workspace: Path) -> None:
    closing = threading.Event()

    class Late(threading.Event):
        """Is set right after a wait for it has ended without it."""

        def wait(self, timeout: float | None = None) -> bool:
            found = self.is_set()
            closing.set()
            while not self.is_set():
                time.sleep(0.001)
            time.sleep(0.05)  # `close` has woken the writer
            return found

    made = answer_log.Log(open_storage(str(workspace)), "facts/toy/s/f", "unit", lambda rows: pa.table({}))
    made._closed = Late()
    closer = threading.Thread(target=lambda: closing.wait() and made.close(published=True), daemon=True)
    closer.start()
    made.start()
    made.add([1])
    closer.join(60)
    assert not closer.is_alive()
