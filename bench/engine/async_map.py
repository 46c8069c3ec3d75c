"""How busy an AsyncMap keeps an endpoint, and what a request costs: a scripted server of 200 ms and 32 slots, 50 kB
images sent as data URLs.

    python -m bench.engine.async_map [ROWS]
    python -m bench.engine.async_map --memory ROWS SHARD_ROWS

The costs of a request are CPU time of this process, for the same images in the same run: of a bare aiohttp loop, of our
client, and of a whole run without decoding (reading the shard, requests, answers, tables).
"""

from __future__ import annotations

import asyncio
import base64
import resource
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Hashable, Mapping
from contextlib import suppress
from multiprocessing import get_context
from typing import Any, ClassVar

import aiohttp

from curate.core.contracts import Client
from curate.core.errors import DrainedError
from curate.engine.requests.client import Requester
from curate.engine.run import run
from curate.engine.state import Options
from tests.engine import toys
from tests.engine.asks import Ask
from tests.servers.scripted import Endpoint, Scripted, started

SIDE = 128
"""Pixels: a BMP of 49 kB."""
SLOTS, LATENCY = 32, 0.2
IN_FLIGHT = 40
PREFIX = (
    b'{"model":"scripted","max_tokens":60,"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":'
)
SUFFIX = b'"}},{"type":"text","text":"%s"}]}]}'


def body(text: str, image: bytes) -> bytes:
    return b"".join([PREFIX, b'"data:image/bmp;base64,', base64.b64encode(image), SUFFIX % text.encode()])


class AskImage(Ask):
    """The answer of a named endpoint to an image."""

    op: ClassVar[str] = "bench.ask"
    pixels: ClassVar[bool] = True

    def request(self, row: Mapping[str, Any]) -> Hashable | None:
        return row["caption"], row["image"]

    async def answer(self, request: Any, client: Client) -> dict[str, Any]:
        found = await client.post("/chat/completions", body(*request), endpoint=self.endpoint)
        return {"said": found["choices"][0]["message"]["content"], "model": found["model"]}


def stage(script: Scripted, of: type[Ask] = AskImage) -> Ask:
    return of(endpoints={"local": {"base_urls": script.base_url, "model": "scripted"}}, max_in_flight=IN_FLIGHT)


# --- what a request costs ---------------------------------------------------------------------------------------------


def bare(script: Scripted, images: list[tuple[str, bytes]]) -> None:
    """An aiohttp loop with as many requests in flight, and nothing else."""

    async def one(session: aiohttp.ClientSession, slots: asyncio.Semaphore, text: str, image: bytes) -> None:
        async with slots, session.post(script.url, data=body(text, image), headers=JSON) as response:
            assert (await response.json())["choices"]

    async def loop() -> None:
        slots = asyncio.Semaphore(IN_FLIGHT)
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
            await asyncio.gather(*(one(session, slots, text, image) for text, image in images))

    asyncio.run(loop())


JSON = {"Content-Type": "application/json"}


def client(script: Scripted, images: list[tuple[str, bytes]]) -> None:
    """Our client, as a unit uses it: some requests ahead of those in flight."""
    requester = Requester(stage(script))
    ahead: deque[Any] = deque()
    for image in images:
        ahead.append(requester.send(image))
        if len(ahead) > 2 * IN_FLIGHT:
            assert ahead.popleft().result().columns
    assert all(found.result().columns for found in ahead)
    requester.close()


def whole_run(script: Scripted, rows: int) -> tuple[float, float]:
    """A run over a pool that exists; returns its (seconds, seconds of CPU)."""
    with tempfile.TemporaryDirectory() as workspace:
        source = {"rows": rows, "shard_rows": 500, "side": SIDE}
        run(toys.chain(**source), workspace)  # the pool, which is not measured
        began, used = time.perf_counter(), cpu()
        run(toys.chain(stage(script), **source), workspace)
        return time.perf_counter() - began, cpu() - used


def cpu() -> float:
    """Seconds of this process; the endpoint is another."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def costs(endpoint: Endpoint, rows: int) -> None:
    images = [(f"image {n}", toys.image(n, side=SIDE)) for n in range(64)]
    several = [images[n % 64] for n in range(rows)]
    client(endpoint.script(), several[:100])  # imports, and the first connections
    first = 0.0
    print(f"{rows:,} requests of {len(images[0][1]) / 1000:.0f} kB; {SLOTS} slots of {LATENCY * 1000:.0f} ms")
    print(
        "| | ms of CPU a request | times bare | requests/s | slots busy | most in flight |\n|---|---|---|---|---|---|"
    )
    for name in ("bare aiohttp", "client", "whole run"):
        script = endpoint.script(latency_seconds=LATENCY, slots=SLOTS)
        began, used = time.perf_counter(), cpu()
        if name == "whole run":
            seconds, spent = whole_run(script, rows)
        else:
            (bare if name == "bare aiohttp" else client)(script, several)
            seconds, spent = time.perf_counter() - began, cpu() - used
        each, told = spent / rows * 1e3, script.stats()
        first = first or each
        slots = f"{told['busy']:.1%} | {told['most']}"
        print(f"| {name} | {each:.2f} | {each / first:.2f} | {rows / seconds:.0f} | {slots} |", flush=True)


# --- memory -----------------------------------------------------------------------------------------------------------


def memory(endpoint: Endpoint, rows: int, shard_rows: int, answers: int = 20_000) -> None:
    """Memory of a run over `rows` short texts, which is stopped after `answers`. Another process makes the pool, so
    that the peak is the run's."""
    script = endpoint.script(logged=0)
    with tempfile.TemporaryDirectory() as workspace:
        source = {"rows": rows, "shard_rows": shard_rows, "side": 1}
        made = get_context("spawn").Process(target=run, args=(toys.chain(**source), workspace))
        made.start()
        made.join()
        empty, stop, began = peak(), threading.Event(), time.perf_counter()
        threading.Thread(target=stop_after, args=(script, answers, stop), daemon=True).start()
        with suppress(DrainedError):
            run(toys.chain(stage(script, Ask), **source), workspace, options=Options(task_rows=shard_rows), stop=stop)
        rate = script.stats()["requests"] / (time.perf_counter() - began)
    print(
        f"| {rows:,} | {shard_rows:,} | {script.stats()['requests']:,} | {rate:,.0f} | {empty:,.0f} | {peak():,.0f} |"
    )


def stop_after(script: Scripted, answers: int, stop: threading.Event) -> None:
    while script.stats()["requests"] < answers:
        time.sleep(0.5)
    stop.set()


def peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3


def main(rows: int = 2000) -> None:
    with started() as endpoint:
        costs(endpoint, rows)


if __name__ == "__main__":
    if "--memory" in sys.argv:
        print(
            "| rows | rows of a shard | requests | requests/s | MB before | MB at the peak |\n|---|---|---|---|---|---|"
        )
        with started() as server:
            memory(server, *map(int, sys.argv[2:]))
    else:
        main(*map(int, sys.argv[1:]))
