"""Records of runs in a workspace, written by hand: a service that reads them needs no engine."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from typing import Any

from curate.core.store.storage import Storage, open_workspace

Event = Mapping[str, Any]
EMPTY: dict[str, Any] = {name: {} for name in ("outputs", "counts", "reused", "ledger", "spend")}


class Recorded:
    """An attempt in a workspace."""

    def __init__(self, url: str, attempt: str, stages: Sequence[str] = ("pool", "facts")) -> None:
        self.storage: Storage = open_workspace(url)
        self.attempt, self.segments = attempt, 0
        about = {
            "run_id": attempt, "started": time.time() - 5, "engine": "ray", "options": {}, "owner": {}, "recipe": {},
            "endpoints": {},
        }  # fmt: skip
        before = dict(zip(stages[1:], stages, strict=False))
        graph = {
            name: {"op": f"toy.{name}", "from": [before[name]] if name in before else [], "ports": {}}
            for name in stages
        }
        self.storage.create(f"runs/{attempt}/run.json", json.dumps(about | {"stages": graph}).encode())

    def events(self, *events: Event) -> Recorded:
        """One more segment."""
        self.segments += 1
        lines = "".join(f"{_line(event)}\n" for event in events)
        self.storage.publish_bytes(f"runs/{self.attempt}/events/{self.segments:06d}.jsonl", lines.encode())
        return self

    def logs(self, *records: Mapping[str, Any], worker: str = "driver", number: int = 1) -> Recorded:
        """A segment of a minute ago; younger ones are left to the next page."""
        lines = "".join(f"{_line({'level': 'info', 'worker': worker} | dict(record))}\n" for record in records)
        path, then = f"runs/{self.attempt}/logs/{worker}-{number:06d}.jsonl", time.time() - 60 + number
        self.storage.publish_bytes(path, lines.encode())
        os.utime(self.storage.path(path), (then, then))
        return self

    def result(self, error: str | None = None, **values: Any) -> Recorded:
        result = EMPTY | {"run_id": self.attempt, "error": error, "seconds": 5.0, "ended": time.time()}
        self.storage.create_json(f"runs/{self.attempt}/result.json", result | {"pins": {}} | values)
        return self


def _line(event: Event) -> str:
    return json.dumps({"time": 1.7e9} | dict(event))


def step(stage: str, rows: int, total: int = 100) -> Event:
    return {"event": "step", "stage": stage, "rows": rows, "total": total}


def progress(stage: str, rows: int, lane: str = "cpu") -> Event:
    return {"event": "progress", "stage": stage, "lane": lane, "rows": rows, "rows_per_s": 2.0, "busy": 0.5}


def done(stage: str, before: int = 10, after: int = 8) -> Event:
    """The end of a stage that rejected the difference."""
    ledger = {"before": before, "rejected": {"small": before - after}, "after": after}
    counts: dict[str, Any] = {}
    return {
        "event": "stage", "stage": stage, "base": f"facts/{stage}/f", "ledger": ledger, "counts": counts,
        "reused": False,
    }  # fmt: skip
