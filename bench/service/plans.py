"""A viewer's `GET /me` while users send plans whose encoder's hub takes connections and never answers."""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import yaml

from bench.kit.measure import line, load
from bench.service.load import Answer, Client, Question
from bench.service.world import World

USERS, PLANS = 5, 8
TWO_ENCODERS = {
    "stages": {
        "pool": {"op": "acquire.folder", "path": "images", "namespace": "toy"},
        "large": {"op": "image.embed", "from": "pool", "encoder": "timm:vit_base_patch16_dinov3"},
        "small": {"op": "image.embed", "from": "pool", "encoder": "timm:vit_small_patch16_dinov3", "column": "small"},
    }
}


@contextmanager
def silent_hub(folder: Path) -> Iterator[None]:
    """For the server that is started meanwhile: an empty cache, and a hub that never answers."""
    with socket.create_server(("127.0.0.1", 0), backlog=1000) as hub:
        values = {"HF_ENDPOINT": f"http://127.0.0.1:{hub.getsockname()[1]}", "HF_HOME": str(folder / "hub")}
        before = {name: os.environ.get(name) for name in values}
        os.environ |= values
        try:
            yield
        finally:
            for name, value in before.items():
                os.environ.pop(name, None) if value is None else os.environ.update({name: value})


def plans(world: World, url: str) -> None:
    """All plans at once; each answers with a plan, or 429 with Retry-After."""
    body = json.dumps({"workspace": "main", "recipe": yaml.safe_dump(TWO_ENCODERS, sort_keys=False)}).encode()
    viewer, seen, over = Client(url, world.tokens[USERS]), list[Answer](), threading.Event()
    plan, me = Question("plan", "/api/v1/recipes/plan", body), Question("me", "/api/v1/me")
    Client(url, world.tokens[USERS]).ask(plan)  # the process of plans is warm

    def look() -> None:
        while not over.is_set():
            seen.append(viewer.ask(me))
            over.wait(0.1)

    watching = threading.Thread(target=look)
    watching.start()
    began = time.monotonic()
    with ThreadPoolExecutor(USERS * PLANS) as pool:
        asked = [Client(url, token) for token in world.tokens[:USERS] for _ in range(PLANS)]
        answers = list(pool.map(lambda client: client.ask(plan), asked))
    took = time.monotonic() - began
    over.set()
    watching.join()
    said = Counter(answer.status for answer in answers)
    times = sorted(answer.seconds for answer in seen)
    line(
        f"GET /me during {USERS} x {PLANS} plans: p95 (aim 0.5)",
        f"{_high(times):.2f} s",
        f"{len(times)} requests, most {times[-1]:.2f} s, {load()}",
    )
    planned = [answer.seconds for answer in answers if answer.status == 200]
    line("  plans", f"{took:.0f} s", f"{dict(said)}; the slowest plan {max(planned, default=0):.1f} s")


def _high(times: Sequence[float]) -> float:
    return times[min(len(times) - 1, int(0.95 * len(times)))]
