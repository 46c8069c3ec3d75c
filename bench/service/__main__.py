"""The service under load: 10,000 runs and 200 datasets, the server in a separate process.

    python -m bench.service [--only local mixed replicas streams s3 loop starting plans] [--short]

Server time is that of the header Server-Timing. `bare` is a FastAPI application with SQLAlchemy and pydantic that
answers with as many rows of the same database, in the same run.
"""

from __future__ import annotations

import argparse
import json
import logging
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from bench.kit.measure import line, load, machine
from bench.service.load import MIX, Client, Question, questions
from bench.service.loop import passes, rebuilt
from bench.service.plans import plans, silent_hub
from bench.service.starting import starting
from bench.service.world import World, made

PARTS = ("local", "mixed", "replicas", "streams", "s3", "loop", "starting", "plans")
ON_S3 = ("runs", "run", "funnel", "datasets", "logs", "events", "page of a run")
AIM, PAGE_AIM = 0.2, 300_000


@contextmanager
def serving(world: World, *options: str) -> Iterator[tuple[str, psutil.Process]]:
    command = [sys.executable, "-m", "bench.service.server", world.folder, *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield process.stdout.readline().split()[1], psutil.Process(process.pid)
    finally:
        process.terminate()
        process.wait()


def cpu(process: psutil.Process) -> float:
    """Seconds of a process and its children."""
    family = [process, *process.children(recursive=True)]
    return sum(one.cpu_times().user + one.cpu_times().system for one in family)


def quantile(values: Sequence[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


# --- one request at a time --------------------------------------------------------------------------------------------

Ask = Callable[[random.Random], Question]


@dataclass(frozen=True)
class Cost:
    middle: float
    """Server time: p50, p95."""
    high: float
    cpu: float
    """Seconds of the server's cores per request, which other work on the machine hardly changes."""
    size: int
    """Most bytes."""


def each(world: World, asked: dict[str, Ask], count: int, *options: str) -> Iterator[tuple[str, Cost]]:
    """What each kind costs the second time it is asked."""
    with serving(world, *options) as (url, process):
        time.sleep(3.0)
        client = Client(url, world.tokens[0])
        for kind, ask in asked.items():
            chance = random.Random(0)
            listed = [ask(chance) for _ in range(count)]
            for question in listed:
                client.ask(question)
            before = cpu(process)
            answers = [client.ask(question) for question in listed]
            spent = (cpu(process) - before) / count
            wrong = {answer.status for answer in answers} - {200, 202}
            if wrong:
                raise RuntimeError(f"{kind}: answered {wrong}")
            times = [answer.server for answer in answers]
            yield kind, Cost(quantile(times, 0.5), quantile(times, 0.95), spent, max(one.size for one in answers))


def local(world: World, count: int) -> None:
    asked = {kind: ask for kind, ask in questions(world).items() if kind != "submit"}
    bare = dict(each(world, {name: _bare(name) for name in ("runs", "datasets")}, count, "--bare"))
    largest = 0
    for kind, cost in each(world, asked, count):
        than = bare.get(kind)
        times = f"; bare {1000 * than.middle:.1f}, CPU {1000 * than.cpu:.1f}" if than else ""
        notes = f"p50 {1000 * cost.middle:.1f} ms; CPU {1000 * cost.cpu:.1f} ms; {cost.size / 1000:.0f} kB{times}"
        line(f"{kind}: p95 (aim {1000 * AIM:.0f})", f"{1000 * cost.high:.1f} ms", notes)
        largest = max(largest, cost.size if kind.startswith("page") else 0)
    line(f"largest page (aim {PAGE_AIM // 1000})", f"{largest / 1000:.0f} kB", load())


def _bare(name: str) -> Ask:
    return lambda _: Question(name, f"/{name}")


# --- many requests ----------------------------------------------------------------------------------------------------


def mixed(world: World, seconds: float, rate: float, replicas: int) -> None:
    with ExitStack() as stack:
        urls, servers = zip(*[stack.enter_context(serving(world)) for _ in range(replicas)], strict=True)
        time.sleep(3.0)
        command = [sys.executable, "-m", "bench.service.load", world.folder]
        subprocess.run([*command, "10", str(rate / 2), *urls], check=True, capture_output=True)  # warm
        before = sum(map(cpu, servers))
        done = subprocess.run([*command, str(seconds), str(rate), *urls], check=True, capture_output=True, text=True)
        spent = sum(map(cpu, servers)) - before
        family = [one for server in servers for one in (server, *server.children(True))]
        memory = sum(one.memory_full_info().pss for one in family) / replicas
    *answers, about = map(json.loads, done.stdout.splitlines())
    errors = sum(one["status"] not in (200, 202) for one in answers)
    own = [one["seconds"] - one["late"] for one in answers]
    name = "mixed" if replicas == 1 else f"{replicas} replicas"
    line(f"{name}, {rate:.0f}/s for {seconds:.0f} s: p99 (aim 500)", _ms(own, 0.99), f"p50 {_ms(own, 0.5)}, {load()}")
    line("  with the load generator's delay", _ms([one["seconds"] for one in answers], 0.99), "from when it was due")
    line("  server time", _ms([one["server"] for one in answers], 0.99), f"{len(answers)} requests, {errors} errors")
    line("  CPU of the server", f"{spent:.1f} s", f"{1000 * spent / len(answers):.1f} ms each")
    line("  CPU of the load generator", f"{about['cpu']:.1f} s")
    line("  memory of a server, with the process of checks", f"{memory / 2**20:.0f} MiB", "PSS at the end")
    for kind in MIX:
        line(f"  {kind} ({MIX[kind]} %): p99", _ms([one["server"] for one in answers if one["kind"] == kind], 0.99))


def _ms(values: Sequence[float], share: float) -> str:
    return f"{1000 * quantile(values, share):.0f} ms"


def streams(world: World, clients: int, seconds: float) -> None:
    with serving(world, "--cores", "0") as (url, process):
        time.sleep(3.0)
        before = cpu(process)
        command = [sys.executable, "-m", "bench.service.streams", world.folder, url, str(clients), str(seconds)]
        about = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        spent = cpu(process) - before
    late, seen = about["late"], len(about["late"])
    connected = about["connected"]
    line(
        f"{connected} streams on one core: most behind (aim 5)", f"{max(late):.1f} s", f"p50 {quantile(late, 0.5):.1f}"
    )
    line("  events seen, of those expected", f"{seen}/{about['expected']}", load())
    line("  share of the core", f"{spent / about['seconds']:.2f}", "with connecting")


def during_plans(world: World, folder: Path) -> None:
    with silent_hub(folder), serving(world) as (url, _):
        time.sleep(3.0)
        plans(world, url)


# --- an object store --------------------------------------------------------------------------------------------------


def s3(folder: Path, runs: int, count: int) -> None:
    """The same on moto's server and on a folder: the same runs, in turn."""
    from tests.core.store.object_store import started, used

    logging.getLogger("werkzeug").setLevel(logging.WARNING)  # a line for each request
    with started() as server, used(server) as client:
        client.create_bucket(Bucket="bench")
        places = [Path(tempfile.mkdtemp(dir=folder)) for _ in range(2)]
        there = made(places[0], "s3://bench/workspace", runs=runs, recorded=30, running=3)
        here = made(places[1], str(places[1] / "workspace"), runs=runs, recorded=30, running=3)
        results: list[dict[str, Cost]] = []
        for world in (here, there):
            asked = questions(world)
            results.append(dict(each(world, {kind: asked[kind] for kind in ON_S3}, count)))
    for kind in ON_S3:
        near, far = (1000 * result[kind].high for result in results)
        line(f"{kind} on S3: p95 (aim 3 times)", f"{far:.1f} ms", f"local {near:.1f} ms: {far / near:.1f} times")


# --- the reconciler ---------------------------------------------------------------------------------------------------


def loop(world: World, folder: Path, running: int) -> None:
    """On both databases; on PostgreSQL without the records of runs that have ended."""
    from tests.servers import postgres

    rebuilt(world)
    passes(world, running)
    with postgres.started() as server:
        url = server.empty(template="migrated").render_as_string(hide_password=False)
        place = tempfile.mkdtemp(dir=folder)
        other = made(Path(place), f"{place}/workspace", runs=len(world.ended), recorded=0, running=1, database=url)
        passes(other, running)


def main(words: Sequence[str] = ()) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", nargs="*", choices=PARTS, default=PARTS)
    parser.add_argument("--runs", type=int, default=10_000)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--rate", type=float, default=100.0)
    parser.add_argument("--count", type=int, default=60, help="Requests of each kind, one at a time.")
    parser.add_argument("--running", type=int, default=1000, help="Running runs of a pass of the reconciler.")
    parser.add_argument("--short", action="store_true", help="Small numbers: whether each part runs to the end.")
    parser.add_argument("--folder", type=Path, help="Kept, with the made-up service; a new one is removed.")
    given = parser.parse_args(words)
    if given.short:
        given.runs, given.seconds, given.rate, given.count, given.running = 600, 5.0, 30.0, 5, 50
    print(machine())
    folder = given.folder or Path(tempfile.mkdtemp(prefix="curate-bench-"))
    try:
        kept = folder / "world"
        if (kept / "world.json").exists():
            world = World.read(kept)
        else:
            world = made(kept, str(kept / "workspace"), runs=given.runs, recorded=given.runs, running=20)
        parts: dict[str, Callable[[], None]] = {
            "local": lambda: local(world, given.count),
            "mixed": lambda: mixed(world, given.seconds, given.rate, 1),
            "replicas": lambda: mixed(world, given.seconds, given.rate, 2),
            "streams": lambda: streams(world, *((20, 6.0) if given.short else (200, 30.0))),
            "s3": lambda: s3(folder, given.runs, given.count),
            "loop": lambda: loop(world, folder, given.running),
            "starting": lambda: starting(folder, 1 if given.short else 3),
            "plans": lambda: during_plans(world, folder),
        }
        for part in given.only:
            parts[part]()
    finally:
        if given.folder is None:
            shutil.rmtree(folder)


if __name__ == "__main__":
    main(sys.argv[1:])
