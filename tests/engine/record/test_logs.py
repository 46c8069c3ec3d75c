"""Logs of workers: failed attempts, child processes, and segments that cannot be published."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from curate.core.store.storage import open_storage
from curate.engine.backends import CallOptions
from curate.engine.backends.local import LocalBackend
from curate.engine.record import logs
from curate.engine.tasks import beat
from curate.engine.tasks import running as tasks
from curate.engine.workers.scheduler import Scheduler
from tests.engine.workers.tasks import CPU, log_lines


def test_a_failed_attempt_is_logged_with_its_traceback(tmp_path: Path, at_once: None) -> None:
    storage = open_storage(str(tmp_path))
    made = Scheduler(LocalBackend(), storage=storage, run_id="one")

    def fails(_: int) -> None:
        raise ValueError("a bad value")

    assert [outcome.error for outcome in made.map(fails, [1], CPU, label="merge")] == ["ValueError: a bad value"]
    made.close()
    lines = log_lines(tmp_path / "runs/one/logs")
    failed = [line for line in lines if "attempt 1 of 3 failed" in line["message"]]
    assert len(failed) == 1 and "ValueError: a bad value" in failed[0]["traceback"]
    assert failed[0]["level"] == "warning" and failed[0]["unit"] == "merge 0" and failed[0]["lane"] == "cpu"
    assert failed[0]["worker"] == "driver" and not [h for h in logs.LOGGER.handlers if isinstance(h, logs.Log)]


def test_the_log_contains_what_an_isolated_process_logs(
    tmp_path: Path, at_once: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tasks, "START_METHOD", "fork")
    made = Scheduler(LocalBackend(), storage=open_storage(str(tmp_path)), run_id="one")

    def fails(_: int) -> None:
        beat.current().doing("caption", [3])
        raise ValueError(f"a bad value in {beat.current().run}")

    outcomes = list(made.map(fails, [1], CPU, CallOptions(isolated=True), label="merge"))
    assert [outcome.error for outcome in outcomes] == ["ValueError: a bad value in one"]
    made.close()
    failed = [line for line in log_lines(tmp_path / "runs/one/logs") if "attempt 1 of 3 failed" in line["message"]]
    assert len(failed) == 1 and "ValueError: a bad value in one" in failed[0]["traceback"]
    assert (failed[0]["level"], failed[0]["unit"], failed[0]["stage"]) == ("warning", "merge 0", "caption")


def test_a_log_that_cannot_be_published_ends_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    logs.attach(str(tmp_path), "one", "driver")
    log = next(handler for handler in logs.LOGGER.handlers if isinstance(handler, logs.Log))
    with monkeypatch.context() as patch:
        patch.setattr(type(log.storage), "publish_bytes", lambda *_: (_ for _ in ()).throw(OSError("gone")))
        logging.getLogger("curate.any").warning("%s", "kept")
        log.publish()
    logs.detach(str(tmp_path), "one")
    assert [line["message"] for line in log_lines(tmp_path / "runs/one/logs")] == ["kept"]
