"""How busy a GPU lane and a remote lane are side by side, what captions cost a GPU lane, what a second worker brings.

    python -m bench.engine.lanes [ROWS]
    python -m bench.engine.lanes --captions [ROWS]     # only what captions cost a GPU lane

On a Ray of this machine with two cores and a logical GPU: a Map that holds the GPU and sleeps 0.25 s a batch of 32
rows, an AsyncMap that asks a loopback endpoint of 200 ms and 32 slots, and both in one recipe as two branches of a
pool. Seconds are those of whole runs over an existing pool; workers run from the start. `busy` of the GPU is the
share of time that it sleeps, of the endpoint that of its slots, each from its first to its last request.

Then the GPU's Map alone, and beside `caption.generate`, which decodes photos of 512 x 384 pixels, encodes them (50 kB)
and asks for a caption. Both take equally long. Each is run three times, in turn; `slowed` compares the medians of the
times from the first to the last batch of the GPU. Then a Map that computes 20 ms a row: on Ray with two workers against
the local engine, which has one thread.
"""

from __future__ import annotations

import io
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import ClassVar

import numpy as np
import ray
from PIL import Image

from bench.engine.simulated import Pool, Sleeping, Spinning
from bench.kit.measure import machine
from curate.caption.generate import Generate
from curate.core.contracts import Incoming, Map, Portion
from curate.core.recipe.pipeline import Pipeline
from curate.engine.backends import Backend
from curate.engine.backends.local import LocalBackend
from curate.engine.run import run
from tests.engine.asks import Say
from tests.engine.warm import WarmRay
from tests.servers.scripted import Endpoint, started

SHARD_ROWS = 160
GRAIN = 0.06
BATCH_SECONDS = 0.2
"""With batches of 32 rows, the GPU takes as long as the endpoint with its 32 slots of 200 ms."""
REPEATS = 3


class Photos(Pool):
    """Different JPEGs of 512 x 384 pixels, which at quality 90 have about 50 kB."""

    op: ClassVar[str] = "bench.photos"

    def read(self, portion: Portion) -> Iterator[Incoming]:
        drawn = np.random.default_rng(portion.content["shard"])
        grain = Image.fromarray(drawn.integers(0, 256, (384, 512, 3), dtype=np.uint8))
        for one in super().read(portion):
            colours = Image.fromarray(drawn.integers(0, 256, (6, 8, 3), dtype=np.uint8))
            photo, file = colours.resize(grain.size, Image.Resampling.BICUBIC), io.BytesIO()
            Image.blend(photo, grain, GRAIN).save(file, "JPEG", quality=95)
            yield Incoming(one.source_id, ext="jpg", data=file.getvalue(), caption=one.caption)


def recipe(rows: int, source: type[Pool] = Pool, **stages: Map) -> Pipeline:
    """A pool, and stages beside each other."""
    made = Pipeline().add("pool", source(namespace="lanes", shards=-(-rows // SHARD_ROWS), shard_rows=SHARD_ROWS))
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


def spans_of(log: Path) -> list[tuple[float, float]]:
    """Start and end of each batch."""
    return [(float(start), float(stop)) for start, stop in map(str.split, log.read_text().splitlines())]


def length(log: Path) -> float:
    """Seconds from the start of the first to the end of the last batch."""
    spans = spans_of(log)
    return max(stop for _, stop in spans) - min(start for start, _ in spans)


def busy(log: Path) -> float:
    """Share of the time from the first to the last batch that the stage slept."""
    return sum(stop - start for start, stop in spans_of(log)) / length(log)


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


def captions(backend: Backend, endpoint: Endpoint, rows: int) -> None:
    """A GPU lane alone and beside captions, in runs over one pool."""
    with tempfile.TemporaryDirectory() as folder:
        run(recipe(rows, Photos), folder, engine=backend)
        found: dict[bool, list[float]] = {False: [], True: []}
        told: list[str] = []
        for turn in range(2 * REPEATS + 2):  # the first two warm up the workers
            asks, log = turn % 2 == 1, Path(folder, f"{turn}.log")
            script = endpoint.script(latency_seconds=0.2, slots=32, style="captions")
            urls = {"local": {"base_urls": script.base_url, "model": "scripted"}}
            gpu = Sleeping(seconds=BATCH_SECONDS, log=str(log), units=turn + 1)  # so that nothing is reused
            stages: dict[str, Map] = {"generate": Generate(endpoints=urls, seed=turn)} if asks else {}
            run(recipe(rows, Photos, gpu=gpu, **stages), folder, engine=backend)
            stats = script.stats()
            assert stats["answered"] == rows * asks
            if turn > 1:
                found[asks].append(length(log))
            if turn > 1 and asks:
                told.append(f"{stats['busy']:.1%}")
                size = stats["bytes"] / stats["requests"]
    for asks, name in enumerate(("GPU alone", "GPU beside captions")):
        print(f"{name:<20} {median(found[bool(asks)]):6.2f} s ({', '.join(f'{one:.2f}' for one in found[bool(asks)])})")
    print(f"endpoint busy {', '.join(told)}; {size / 1000:.0f} kB a request, in base64")
    print(f"slowed by {median(found[True]) / median(found[False]) - 1:.1%} (at most 5 %)")


def workers(backend: Backend, rows: int) -> None:
    seconds_of(backend, SHARD_ROWS, spin=Spinning(seconds=0.0))
    one = seconds_of(LocalBackend(), rows, spin=Spinning(seconds=0.02))
    two = seconds_of(backend, rows, spin=Spinning(seconds=0.02))
    print(
        f"a core's work: local engine {one:.1f} s, Ray with two workers {two:.1f} s: "
        f"{one / two:.2f} times as fast (at least 1.70)"
    )


def main(*given: str) -> None:
    only = "--captions" in given
    rows = next((int(one) for one in given if one.isdigit()), 2560)
    print(machine())
    ray.init("local", num_cpus=2, num_gpus=1, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    backend = WarmRay()
    try:
        with started() as endpoint:
            if not only:
                lanes(backend, endpoint, rows)
            captions(backend, endpoint, rows)
        if not only:
            workers(backend, rows)
    finally:
        backend.close()
        ray.shutdown()


if __name__ == "__main__":
    main(*sys.argv[1:])
