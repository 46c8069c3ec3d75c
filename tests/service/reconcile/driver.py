"""A driver in a separate process: writes a run's record, holds its lease, and ends on request.

python -m tests.service.reconcile.driver WORKSPACE ATTEMPT
"""

from __future__ import annotations

import os
import signal
import sys
import time

from curate.core.store import lease
from curate.core.store.storage import open_storage


def main(url: str, attempt: str) -> None:
    storage, folder = open_storage(url), f"runs/{attempt}"
    storage.create_json(f"{folder}/run.json", _record(storage.read_json(f"{folder}/submission.json"), attempt))
    with lease.hold(storage, folder, lambda: False):
        while True:
            if storage.exists(f"{folder}/kill.json"):
                os.kill(os.getpid(), signal.SIGKILL)
            if storage.exists(f"{folder}/stop.json"):
                error = "stopped: " + storage.read_json(f"{folder}/stop.json")["user"]
                storage.create_json(f"{folder}/result.json", _result(attempt, error))
                return
            time.sleep(0.02)


def _record(submission: dict[str, object], attempt: str) -> dict[str, object]:
    about = {"run_id": attempt, "started": time.time(), "engine": "ray", "options": {}, "owner": lease.owner()}
    stages = {"pool": {"op": "acquire.folder", "from": [], "ports": {}, "parameters": {}}}
    return about | {"recipe": {}, "stages": stages, "endpoints": {}, "submission": submission.get("submission")}


def _result(attempt: str, error: str) -> dict[str, object]:
    empty: dict[str, object] = {name: {} for name in ("outputs", "counts", "pins", "reused", "ledger", "spend")}
    allocated = {"gpu_seconds": 3600.0, "cpu_seconds": 0.0}
    return empty | {"run_id": attempt, "error": error, "seconds": 1.0, "ended": time.time(), "allocated": allocated}


if __name__ == "__main__":
    main(*sys.argv[1:])
