"""Logs of a run: standard `logging` records of its processes, as JSON lines in numbered segments.

    runs/<id>/logs/<worker>-000001.jsonl     {time, level, unit, stage, lane, worker, node, message, traceback?}

Every process of a run writes its own segments. DEBUG records are kept only if `CURATE_LOG_LEVEL` is DEBUG. Secrets that
a process has read are redacted.
"""

from __future__ import annotations

import atexit
import json
import logging
import os
import platform
import re
import threading
import time
import traceback
from typing import Any

from curate.core.secrets import redact
from curate.core.store.storage import open_storage
from curate.engine.tasks import beat

FOLDER = "logs"
FLUSH_SECONDS = 10.0
SOON_SECONDS = 2.0
"""Delay until an error is published."""
MOST_LINES = 20_000
"""Limit of unpublished lines; further lines are counted and dropped."""
LOGGER = logging.getLogger("curate")
_guard = threading.Lock()
_attached: dict[tuple[str, str], Log] = {}
"""(workspace, run) -> log of this process."""


class Log(logging.Handler):
    """Collects the records of one run and publishes them periodically."""

    def __init__(self, url: str, run_id: str, worker: str) -> None:
        super().__init__()
        self.storage, self.folder, self.worker = open_storage(url), f"runs/{run_id}/{FOLDER}", worker
        self.url, self.run_id = url, run_id
        self.node = platform.node()
        self._lines: list[str] = []
        self._lost = 0
        self._number = 0
        self._due = 0.0
        self._due_changed = threading.Condition()
        self._publishing = threading.Lock()
        self._over = False
        threading.Thread(target=self._serve, daemon=True, name="log").start()

    def emit(self, record: logging.LogRecord) -> None:
        mine = beat.current()
        if mine.run not in ("", self.run_id):
            return
        try:
            line = json.dumps(self._line(record, mine), ensure_ascii=False, default=str)
        except Exception:  # noqa: BLE001 - a message that cannot be formatted must not end a task
            return
        wait = SOON_SECONDS if record.levelno >= logging.ERROR or record.exc_info or record.exc_text else FLUSH_SECONDS
        with self._due_changed:
            if len(self._lines) < MOST_LINES:
                self._lines.append(line)
            else:
                self._lost += 1
            due = time.monotonic() + wait
            if not self._due or due < self._due:
                self._due = due
                self._due_changed.notify()

    def _line(self, record: logging.LogRecord, mine: beat.Beat) -> dict[str, Any]:
        line = {
            "time": round(record.created, 3),
            "level": record.levelname.lower(),
            "unit": mine.unit,
            "stage": getattr(record, "stage", "") or mine.stage or mine.unit.rpartition(" ")[0],
            "lane": mine.lane,
            "worker": self.worker,
            "node": self.node,
            "message": redact(record.getMessage()),
        }
        if record.exc_info and record.exc_info[0] is not None:
            line["traceback"] = redact("".join(traceback.format_exception(*record.exc_info)))
        elif record.exc_text:  # relayed from a child process
            line["traceback"] = redact(record.exc_text)
        return line

    def _serve(self) -> None:
        while not self._over:
            with self._due_changed:
                left = self._due - time.monotonic() if self._due else None
                if left is None or left > 0:
                    self._due_changed.wait(left)
                    continue
            self.publish()

    def publish(self) -> None:
        """Publish the collected lines. If the workspace cannot be written, the next call tries again."""
        with self._publishing:
            with self._due_changed:
                lines, self._lines, self._due = self._lines, [], 0.0
                lost, self._lost = self._lost, 0
            if lost:
                lines.append(json.dumps({"time": time.time(), "level": "warning", "worker": self.worker,
                                         "message": f"{lost} lines were dropped: too many at a time"}))  # fmt: skip
            if not lines:
                return
            path = f"{self.folder}/{self.worker}-{self._number + 1:06d}.jsonl"
            try:
                self.storage.publish_bytes(path, ("\n".join(lines) + "\n").encode("utf-8", "replace"))
                self._number += 1
            except Exception:  # noqa: BLE001 - a file system raises anything; logs must not end a task
                with self._due_changed:
                    self._lines = [*lines, *self._lines][:MOST_LINES]
                    self._due = time.monotonic() + FLUSH_SECONDS

    def close(self) -> None:
        self._over = True
        with self._due_changed:
            self._due_changed.notify()
        self.publish()
        super().close()


def attach(url: str, run_id: str, worker: str) -> None:
    """Collect this process's records under a run from now on. Repeating it for the same run has no effect."""
    with _guard:
        if (url, run_id) not in _attached:
            level = os.environ.get("CURATE_LOG_LEVEL", "INFO").upper()
            LOGGER.setLevel(level if level in logging.getLevelNamesMapping() else "INFO")
            _attached[url, run_id] = log = Log(url, run_id, worker)
            LOGGER.addHandler(log)


def for_worker(where: tuple[str, str, str]) -> None:
    """`attach` in a worker process, which belongs to one run at a time. `where`: workspace, run and worker name."""
    url, run_id, worker = where
    if (url, run_id) in _attached:
        return
    for other in [key for key in _attached if key != (url, run_id)]:
        detach(*other)
    host = re.sub(r"[^A-Za-z0-9.]+", "_", platform.node())
    attach(url, run_id, f"{worker}-{host}-{os.getpid()}")


def detach(url: str, run_id: str) -> None:
    """Publish the collected lines and stop collecting for the run."""
    with _guard:
        log = _attached.pop((url, run_id), None)
    if log is not None:
        LOGGER.removeHandler(log)
        log.close()


def flush(_: Any = None) -> None:
    for log in list(_attached.values()):
        log.publish()


atexit.register(flush)
