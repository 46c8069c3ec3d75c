"""Clients of event streams, in a separate process, and an engine that writes events for them.

    python -m bench.service.streams FOLDER URL CLIENTS SECONDS

Each of the running runs gets one event every two seconds, each at another moment; as the engine does, it is written
with the next segment, two seconds later at most. Prints how late each client saw each event, as JSON.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path
from urllib.parse import urlsplit

from bench.service.world import World, progress
from curate.core.store.storage import Storage, open_workspace

SEGMENT_SECONDS = 2.0


async def client(url: str, run: str, token: str, seen: list[float], connected: list[str]) -> None:
    where = urlsplit(url)
    reader, writer = await asyncio.open_connection(where.hostname, where.port)
    lines = [f"GET /api/v1/runs/{run}/events HTTP/1.1", f"Host: {where.netloc}", f"Authorization: Bearer {token}"]
    writer.write("\r\n".join([*lines, "Accept: text/event-stream", "", ""]).encode())
    connected.append((await reader.readline()).decode().split()[1])
    while line := await reader.readline():
        if b'"mark": ' in line or b'"mark":' in line:
            at = float(line.split(b'"mark":')[1].split(b",")[0].split(b"}")[0])
            seen.append(time.time() - at)


async def engine(storage: Storage, runs: list[str], until: float) -> int:
    """Returns the number of events."""
    segment, written = 1, 0
    while time.time() < until:
        began = time.time()
        segment += 1
        for number, run in enumerate(runs):
            at = began - SEGMENT_SECONDS * number / len(runs)
            events = [progress("embed", segment * 10, at) | {"mark": at}]
            text = "".join(json.dumps(event) + "\n" for event in events)
            path = f"runs/{run}-1/events/{segment:06d}.jsonl"
            await asyncio.to_thread(storage.publish_bytes, path, text.encode())
            written += 1
        await asyncio.sleep(max(0.0, SEGMENT_SECONDS - (time.time() - began)))
    return written


async def watched(world: World, url: str, clients: int, seconds: float) -> dict[str, object]:
    seen, connected = list[float](), list[str]()
    tasks = [
        asyncio.create_task(
            client(url, world.running[one % len(world.running)], world.tokens[one % len(world.tokens)], seen, connected)
        )
        for one in range(clients)
    ]
    while len(connected) < clients:
        await asyncio.sleep(0.1)
    began, cpu = time.time(), time.process_time()
    written = await engine(open_workspace(world.workspace), world.running, began + seconds)
    await asyncio.sleep(6.0)
    for task in tasks:
        task.cancel()
    expected = written * clients // len(world.running)
    about = {"connected": connected.count("200"), "expected": expected, "cpu": time.process_time() - cpu}
    return about | {"seconds": time.time() - began, "late": seen}


def main() -> None:
    folder, url, clients, seconds = sys.argv[1:]
    print(json.dumps(asyncio.run(watched(World.read(Path(folder)), url, int(clients), float(seconds)))))


if __name__ == "__main__":
    main()
