"""The event log of a run: numbered segments of JSON lines, because objects cannot be appended to."""

from __future__ import annotations

import json
import time
from typing import Any

from curate.core.storage import Storage

FLUSH_SECONDS = 2.0


class Events:
    def __init__(self, storage: Storage, run_id: str) -> None:
        self.storage, self.folder = storage, f"runs/{run_id}/events"
        self._lines: list[str] = []
        self._number = 0
        self._flushed = time.monotonic()

    def emit(self, event: str, **fields: Any) -> None:
        self._lines.append(json.dumps({"time": round(time.time(), 3), "event": event} | fields, sort_keys=True))
        if time.monotonic() - self._flushed > FLUSH_SECONDS:
            self.flush()

    def flush(self) -> None:
        self._flushed = time.monotonic()
        if self._lines:
            self._number += 1
            self.storage.publish_bytes(
                f"{self.folder}/{self._number:06d}.jsonl", "\n".join([*self._lines, ""]).encode()
            )
            self._lines = []


def read_events(storage: Storage, run_id: str) -> list[dict[str, Any]]:
    """All events of a run, in order."""
    folder = f"runs/{run_id}/events"
    lines = [line for file in sorted(storage.list(folder)) for line in storage.read(f"{folder}/{file}").splitlines()]
    return [json.loads(line) for line in lines]
