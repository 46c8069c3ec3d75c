"""The embedded service as a process, as `make serve` starts it."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

SCRIPT = """
import json, sys
from curate.core.errors import CurateError
from curate.service.embedded import Embedded
workspace, cluster, roots = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
Embedded(workspace, port=0, cluster=cluster, roots=roots, cpus=2, settings={"poll_seconds": 0.5}).serve()
"""
START_SECONDS = 120.0


@dataclass
class OneMachine:
    url: str
    token: str
    """Empty unless this start made it."""
    err: Path
    """What it says on stderr."""
    process: subprocess.Popen[str]
    code: int | None = None
    end_seconds: float = 0.0

    def stop(self) -> None:
        """SIGTERM, and wait."""
        began = time.monotonic()
        self.process.terminate()
        self.code = self.process.wait(120)
        self.end_seconds = time.monotonic() - began


@contextmanager
def embedded(workspace: Path, cluster: str = "", roots: Mapping[str, str] | None = None) -> Iterator[OneMachine]:
    """Serves the workspace until the end of the block. cluster: URL of a Ray that runs; "": it starts its own."""
    err = workspace.parent / f"{workspace.name}.err"
    words = [sys.executable, "-c", SCRIPT, str(workspace), cluster, json.dumps(dict(roots or {}))]
    with err.open("ab") as log:
        process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=log, text=True)
    limit = threading.Timer(START_SECONDS, process.kill)
    limit.start()
    try:
        assert process.stdout is not None
        first = not (workspace.parent / f"{workspace.name}-service" / "service.db").exists()
        printed = [process.stdout.readline() for _ in range(2 if first else 1)]
        limit.cancel()
        found = dict(line.strip().split(": ", 1) for line in printed if line)
        assert "url" in found, err.read_text()
        made = OneMachine(found["url"], found.get("token", ""), err, process)
        yield made
        made.stop()
    finally:
        limit.cancel()
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()
