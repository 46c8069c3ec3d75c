"""How busy a GPU lane and a remote lane are side by side, and what a second worker brings.

    python -m bench.engine.lanes [ROWS]

On a Ray of this machine with two cores and a logical GPU: a Map that holds the GPU and sleeps 0.25 s a batch of 32
rows, an AsyncMap that asks a loopback endpoint of 200 ms and 32 slots, and both in one recipe as two branches of a
pool. Seconds are those of whole runs over an existing pool; workers run from the start. `busy` of the GPU is the
share of time that it sleeps, of the endpoint that of its slots, each from its first to its last request. Then a Map
that computes 20 ms a row: on Ray with two workers against the local engine, which has one thread.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

import ray

from bench.engine.simulated import Pool, Sleeping, Spinning
from curate.core.contracts import Map
from curate.core.recipe.pipeline import Pipeline
from curate.engine.backends import Backend
from curate.engine.backends.local import LocalBackend
from curate.engine.backends.ray import RayBackend
from curate.engine.run import run
from tests.engine.asks import Say
from tests.engine.endpoint import Endpoint, started

SHARD_ROWS = 160


def recipe(rows: int, **stages: Map) -> Pipeline:
    """A pool, and stages beside each other."""
    made = Pipeline().add("pool", Pool(namespace="lanes", shards=-(-rows // SHARD_ROWS), shard_rows=SHARD_ROWS))
    for name, stage in stages.items():
        made.add(name, stage, "pool")
    return made.check()


def seconds_of(backend: Backend, rows: int, **stages: Map) -> float:
    """Seconds of a run of some stages over an existing pool."""
    with tempfile.TemporaryDirectory() as workspace:
        run(recipe(rows), workspace, engine=backend)
        began = time.perf_counter()
        run(recipe(rows, **stages), workspace, engine=backend)
        return time.perf_counter() - began


def busy(log: Path) -> float:
    """Share of the time from the first to the last batch that the stage slept."""
    spans = [tuple(map(float, line.split())) for line in log.read_text().splitlines()]
    return sum(stop - start for start, stop in spans) / (
        max(stop for _, stop in spans) - min(start for start, _ in spans)
    )


def lanes(backend: Backend, endpoint: Endpoint, rows: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        script = endpoint.script(latency_seconds=0.2, slots=32)
        warm = Sleeping(seconds=0.0, log=str(Path(folder, "warm")))
        seconds_of(backend, SHARD_ROWS, gpu=warm, remote=Say(url=script.url))
        alone = seconds_of(backend, rows, gpu=Sleeping(log=str(Path(folder, "alone"))))
        script = endpoint.script(latency_seconds=0.2, slots=32)
        asked = seconds_of(backend, rows, remote=Say(url=script.url))
        told_alone = script.stats()["busy"]
        script, log = endpoint.script(latency_seconds=0.2, slots=32), Path(folder, "both")
        both = seconds_of(backend, rows, gpu=Sleeping(log=str(log)), remote=Say(url=script.url))
        print(f"GPU alone     {alone:6.1f} s, busy {busy(Path(folder, 'alone')):.1%}")
        print(f"remote alone  {asked:6.1f} s, busy {told_alone:.1%}")
        print(f"both          {both:6.1f} s, GPU busy {busy(log):.1%}, endpoint busy {script.stats()['busy']:.1%}")
        print(f"both / slower alone: {both / max(alone, asked):.2f} (at most 1.10)")


def workers(backend: Backend, rows: int) -> None:
    seconds_of(backend, SHARD_ROWS, spin=Spinning(seconds=0.0))
    one = seconds_of(LocalBackend(), rows, spin=Spinning(seconds=0.02))
    two = seconds_of(backend, rows, spin=Spinning(seconds=0.02))
    print(
        f"a core's work: local engine {one:.1f} s, Ray with two workers {two:.1f} s: "
        f"{one / two:.2f} times as fast (at least 1.70)"
    )


def main(rows: int = 2560) -> None:
    ray.init("local", num_cpus=2, num_gpus=1, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    backend = RayBackend()
    try:
        with started() as endpoint:
            lanes(backend, endpoint, rows)
        workers(backend, rows)
    finally:
        backend.close()
        ray.shutdown()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
