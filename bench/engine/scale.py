"""What the engine costs per shard, step by step, as the pool grows: seconds, storage operations and memory.

    python -m bench.engine.scale 1000 4000 16000 --json FILE [--rows 40] [--engine local|ray] [--markdown] [--folder D]

Each size runs in a separate process, so that its peak memory is measured alone. A step is built by a run of the
pipeline that ends with it, in one workspace, so that the steps before it are reused. Its seconds and operations are
those of that run after the last of these steps, and those of its thread before. `again` is a run that reuses
everything.

The bare time of a step is that of reading and writing as many bytes in as many files, one at a time, in the same
folder, with an fsync per written file and folder (of up to 1,000 files of each kind, right after the step, scaled).
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from bench.engine import counting, simulated
from bench.engine.counting import Done
from curate.core.recipe.pipeline import Pipeline
from curate.engine.backends import Backend
from curate.engine.run import make_backend, run
from curate.engine.runner import Runner
from curate.engine.units.step import Step

AGAIN = "again"
SECONDS = ("seconds", "cpu_seconds")
POLL_SECONDS = 0.5
ALLOWED = 8
"""Operations per shard and step, not counting the tables that it reads."""


class Clock:
    """Tells what a run does for one step from what it does to reuse the others."""

    def __init__(self, step: str) -> None:
        self.step, self.done, self.reuse = step, Done(), Done()
        self.others = 1
        """Other steps that have not ended."""
        self.mine: set[int] = set()
        """The step's own thread."""
        self.began = self.ended = (0.0, 0.0)
        """Seconds of the clock, and of this process's cores."""
        self.lock = threading.Lock()

    @property
    def seconds(self) -> tuple[float, float]:
        """Seconds by the clock, and seconds of this process's cores."""
        return self.ended[0] - self.began[0], self.ended[1] - self.began[1]

    def note(self, what: str, count: int, way: str, path: str, size: int) -> None:
        with self.lock:
            mine = not self.others or threading.get_ident() in self.mine
            (self.done if mine else self.reuse).add(what, count, way, path, size)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """In the block, `Runner` says when its steps begin and end."""
        walk, carry_out = Runner.walk, Runner._run_step

        def is_mine(step: Step) -> bool:
            return any(node.name == self.step for node in step.nodes)

        def watched_walk(runner: Runner) -> None:
            self.others = sum(not is_mine(step) for step in runner.steps)
            self.began = now()
            walk(runner)
            self.ended = now()

        def watched(runner: Runner, step: Step) -> None:
            mine = is_mine(step)
            with self.lock:
                self.mine |= {threading.get_ident()} if mine else set()
                self.began = now() if mine else self.began
            carry_out(runner, step)
            with self.lock:
                self.others -= not mine
                self.began = self.began if mine else now()

        Runner.walk, Runner._run_step = watched_walk, watched  # type: ignore[method-assign]
        try:
            yield
        finally:
            Runner.walk, Runner._run_step = walk, carry_out  # type: ignore[method-assign]


def now() -> tuple[float, float]:
    return time.perf_counter(), time.process_time()


class Workers(threading.Thread):
    """The most memory (resident bytes) that any of Ray's workers below this process had, looked at twice a second."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.most, self.over = 0, threading.Event()
        self.start()

    def run(self) -> None:
        while not self.over.wait(POLL_SECONDS):
            for child in psutil.Process().children(recursive=True):
                try:
                    if child.cmdline()[:1] and child.cmdline()[0].startswith("ray::Worker"):
                        self.most = max(self.most, child.memory_info().rss)
                except psutil.Error:
                    continue


def one_size(shards: int, rows: int, engine: str, folder: Path) -> dict[str, Any]:
    """`steps`: figures of each step over a pool of `shards` shards; `memory`: peaks of driver and workers."""
    workspace, logs = str(folder / "workspace"), folder / "operations"
    logs.mkdir()
    before = peak_bytes()
    backend, workers = make_backend(engine), Workers()
    steps: dict[str, Any] = {}
    try:
        for name, tables in simulated.STEPS.items():
            clock = build(name, simulated.pipeline(name, shards, rows), workspace, backend, logs)
            bare = counting.bare_seconds(workspace, str(folder / "bare"), clock.done)
            steps[name] = figures(clock.done, clock.seconds, shards, tables, bare)
            print(f"{shards:>7,} {name:<10} {summary(steps[name])}", file=sys.stderr, flush=True)
        last = list(simulated.STEPS)[-1]
        began = now()
        clock = build(AGAIN, simulated.pipeline(last, shards, rows), workspace, backend, logs)
        seconds = now()[0] - began[0], now()[1] - began[1]
        bare = counting.bare_seconds(workspace, str(folder / "bare"), clock.reuse)
        steps[AGAIN] = figures(clock.reuse, seconds, shards, 0, bare)
        print(f"{shards:>7,} {AGAIN:<10} {summary(steps[AGAIN])}", file=sys.stderr, flush=True)
    finally:
        backend.close()
        workers.over.set()
    memory = {"driver_bytes": peak_bytes(), "driver_before_bytes": before, "worker_bytes": workers.most}
    return {"steps": steps, "memory": memory}


def build(name: str, pipeline: Pipeline, workspace: str, backend: Backend, logs: Path) -> Clock:
    """A run that builds the step `name`, and what it took."""
    clock = Clock(name)
    counting.install(clock.note, str(logs))
    with clock.watching():
        run(pipeline, workspace, engine=backend)
    counting.collect(str(logs), clock.done if name != AGAIN else clock.reuse)
    return clock


def peak_bytes() -> int:
    """The most memory this process has had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def figures(done: Done, seconds: tuple[float, float], shards: int, tables: int, bare: float) -> dict[str, Any]:
    total = done.operations.total()
    return {
        "seconds": round(seconds[0], 3),
        "cpu_seconds": round(seconds[1], 3),
        "operations": total,
        "operations_per_shard": round(total / shards, 2),
        "allowed_per_shard": ALLOWED + tables,
        "bare_seconds": round(bare, 3),
        "times_bare": round(seconds[0] / bare, 2) if bare else None,
        "by_operation": dict(sorted(done.operations.items())),
        "bytes_read": done.bytes["read"],
        "bytes_written": done.bytes["written"],
        "files_written": done.files["written"],
    }


def summary(found: dict[str, Any]) -> str:
    kinds = ", ".join(f"{name} {count:,}" for name, count in found["by_operation"].items())
    ratio = f"{found['times_bare']:.2f}" if found["times_bare"] else "-"
    times = f"{found['seconds']:8.1f} s ({found['cpu_seconds']:.1f} of CPU)  {ratio:>5} x bare"
    return f"{times}  {found['operations_per_shard']:6.2f} a shard  ({kinds})"


def exponent(seconds: dict[int, float]) -> float | None:
    """Slope of log(seconds) over log(shards), by least squares; None for one size."""
    if len(seconds) < 2:
        return None
    x, y = np.log(list(seconds)), np.log(np.maximum(list(seconds.values()), 1e-3))
    return round(float(np.polyfit(x, y, 1)[0]), 3)


def joined(sizes: dict[int, dict[str, Any]], rows: int, engine: str) -> dict[str, Any]:
    """What every size says, step by step; `whole` adds the steps up. `cpu_exponent` is that of this process's cores,
    which hardly depends on what else the machine does."""
    names = next(iter(sizes.values()))["steps"]
    steps = {}
    for name in names:
        found = {shards: one["steps"][name] for shards, one in sizes.items()}
        slopes = {what: exponent({shards: one[what] for shards, one in found.items()}) for what in SECONDS}
        about = {"exponent": slopes["seconds"], "cpu_exponent": slopes["cpu_seconds"]}
        steps[name] = about | {"sizes": {str(shards): one for shards, one in found.items()}}
    whole = {}
    for shards, one in sizes.items():
        sums = {
            what: round(sum(step[what] for step in one["steps"].values()), 3) for what in (*SECONDS, "bare_seconds")
        }
        whole[str(shards)] = sums | {"times_bare": round(sums["seconds"] / sums["bare_seconds"], 2)}
    memory = {str(shards): one["memory"] for shards, one in sizes.items()}
    return {"rows": rows, "engine": engine, "steps": steps, "whole": whole, "memory": memory}


def markdown(found: dict[str, Any]) -> str:
    """The table of docs/scale.md."""
    sizes = list(found["memory"])
    lines = [
        "| step | exponent (of CPU) | "
        + " | ".join(f"{int(size):,} shards" for size in sizes)
        + " | operations a shard |",
        "|---|---|" + "---|" * (len(sizes) + 1),
    ]
    for name, step in found["steps"].items():
        cells = []
        for size in sizes:
            one = step["sizes"][size]
            bare = f" ({one['times_bare']:.1f} x)" if one["times_bare"] else ""
            cells.append(f"{one['seconds'] / int(size) * 1e3:.1f} ms{bare}")
        last = step["sizes"][sizes[-1]]
        slope = "–" if step["exponent"] is None else f"{step['exponent']:.2f} ({step['cpu_exponent']:.2f})"
        operations = f"{last['operations_per_shard']:.2f} of {last['allowed_per_shard']}"
        lines.append(f"| `{name}` | {slope} | {' | '.join(cells)} | {operations} |")
    cells = [
        f"{one['seconds'] / int(size) * 1e3:.1f} ms ({one['times_bare']:.1f} x)" for size, one in found["whole"].items()
    ]
    lines.append(f"| all | – | {' | '.join(cells)} | – |")
    for what, key in (("driver, peak", "driver_bytes"), ("worker, peak", "worker_bytes")):
        cells = [
            f"{found['memory'][size][key] / 2**20:,.0f} MB" if found["memory"][size][key] else "–" for size in sizes
        ]
        lines.append(f"| {what} | – | {' | '.join(cells)} | – |")
    return "\n".join(lines)


def measured(shards: int, rows: int, engine: str, folder: Path | None) -> dict[str, Any]:
    """One size, in a separate process."""
    with tempfile.TemporaryDirectory(dir=folder) as place:
        command = [sys.executable, "-m", "bench.engine.scale", str(shards), "--rows", str(rows), "--engine", engine]
        done = subprocess.run([*command, "--alone", place], stdout=subprocess.PIPE, check=False)
        if done.returncode:
            sys.exit(f"bench.engine.scale: the run of {shards:,} shards failed")
        return json.loads(done.stdout)  # type: ignore[no-any-return]


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench.engine.scale", description="What the engine costs as the pool grows.")
    parser.add_argument("shards", type=int, nargs="+", help="sizes of the pool; two or more give exponents")
    parser.add_argument("--rows", type=int, default=40, help="rows of a shard")
    parser.add_argument("--engine", choices=("local", "ray"), default="local")
    parser.add_argument("--json", type=Path, help="where the figures go")
    parser.add_argument("--markdown", action="store_true", help="print them as a table")
    parser.add_argument("--folder", type=Path, help="folder for the workspaces; a temporary one by default")
    parser.add_argument("--alone", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if min(*given.shards, given.rows) < 1:
        parser.error("SHARDS and --rows: expected 1 or more")
    if given.alone:
        print(json.dumps(one_size(given.shards[0], given.rows, given.engine, given.alone)))
        return
    sizes = {shards: measured(shards, given.rows, given.engine, given.folder) for shards in sorted(set(given.shards))}
    found = joined(sizes, given.rows, given.engine)
    if given.json:
        given.json.write_text(json.dumps(found, indent=1) + "\n")
    if given.markdown or not given.json:
        print(markdown(found))


if __name__ == "__main__":
    main()
