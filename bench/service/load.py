"""Requests at a fixed rate, from a separate process.

    python -m bench.service.load FOLDER SECONDS RATE URL...

Request n is due at n / RATE, however long the ones before it take. Prints a line of JSON for each request.
"""

from __future__ import annotations

import http.client
import json
import random
import re
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from urllib.parse import urlsplit

import yaml

from bench.service.world import SUBMITTED, World

THREADS = 32
RECENT = 500
"""Runs that people look at; one request of ten is about any other."""
MIX = {
    "runs": 18, "runs by state": 4, "run": 14, "datasets": 8, "logs": 8, "events": 15, "metrics": 1,
    "page of runs": 12, "page of a run": 18, "submit": 2,
}  # fmt: skip
"""Share of each kind, in percent."""
TIMING = re.compile(r"dur=([\d.]+)")


@dataclass(frozen=True)
class Answer:
    kind: str
    status: int
    seconds: float
    """From when it was due to the last byte."""
    late: float
    """How late it was sent: the load generator's own share."""
    server: float
    """By its Server-Timing."""
    size: int


@dataclass(frozen=True)
class Question:
    kind: str
    path: str
    body: bytes | None = None


def questions(world: World) -> dict[str, Callable[[random.Random], Question]]:
    """Kind -> one of its requests."""
    order = json.dumps({"workspace": "main", "recipe": yaml.safe_dump(SUBMITTED, sort_keys=False)}).encode()

    def run(chance: random.Random) -> str:
        if chance.random() < 0.3:
            return chance.choice(world.running)
        return chance.choice(world.ended if chance.random() < 0.14 else world.ended[:RECENT])

    paths: dict[str, Callable[[random.Random], str]] = {
        "runs": lambda _: "/api/v1/runs",
        "runs by state": lambda _: "/api/v1/runs?state=failed&workspace=main",
        "runs by title": lambda _: "/api/v1/runs?query=run+7777",
        "runs, one more page": lambda chance: f"/api/v1/runs?limit={chance.randint(60, 70)}",
        "run": lambda chance: f"/api/v1/runs/{run(chance)}",
        "funnel": lambda chance: f"/api/v1/runs/{run(chance)}/funnel",
        "datasets": lambda _: "/api/v1/workspaces/main/datasets",
        "logs": lambda chance: f"/api/v1/runs/{run(chance)}/logs",
        "events": lambda chance: f"/api/v1/runs/{run(chance)}/events",
        "audit": lambda _: "/api/v1/audit",
        "metrics": lambda _: "/metrics",
        "page of runs": lambda _: "/runs",
        "page of a run": lambda chance: f"/runs/{run(chance)}",
        "page of datasets": lambda _: "/datasets",
        "page of targets": lambda _: "/targets",
        "page of people": lambda _: "/people",
        "page of the audit": lambda _: "/audit",
        "page of a new run": lambda _: "/new",
        "page of a workspace": lambda _: "/workspaces/main",
    }
    asked = {kind: _get(kind, path) for kind, path in paths.items()}
    return asked | {"submit": lambda _: Question("submit", "/api/v1/runs", order)}


def _get(kind: str, path: Callable[[random.Random], str]) -> Callable[[random.Random], Question]:
    return lambda chance: Question(kind, path(chance))


class Client:
    """One connection that is kept."""

    def __init__(self, url: str, token: str) -> None:
        where = urlsplit(url)
        self.connection = http.client.HTTPConnection(where.hostname or "", where.port, timeout=60)
        self.token = token

    def ask(self, question: Question, due: float | None = None) -> Answer:
        began = time.monotonic()
        due = began if due is None else due
        headers = {"Authorization": f"Bearer {self.token}", "Accept": "application/json"}
        if question.body is not None:
            headers["Content-Type"] = "application/json"
        try:
            self.connection.request("POST" if question.body else "GET", question.path, question.body, headers)
            answer = self.connection.getresponse()
            size, status = len(answer.read()), answer.status
            found = TIMING.search(answer.getheader("Server-Timing") or "")
            server = float(found[1]) / 1000 if found else 0.0
        except (OSError, http.client.HTTPException):
            self.connection.close()
            size, status, server = 0, 599, 0.0
        return Answer(question.kind, status, time.monotonic() - due, began - due, server, size)


def mixed(world: World, urls: Sequence[str], seconds: float, rate: float) -> list[Answer]:
    chance = random.Random(1)
    asked = questions(world)
    kinds = chance.choices(list(MIX), list(MIX.values()), k=int(seconds * rate))
    waiting = iter(list(enumerate(asked[kind](chance) for kind in kinds)))
    lock, answers, start = threading.Lock(), list[Answer](), time.monotonic() + 0.5

    def work(number: int) -> None:
        client = Client(urls[number % len(urls)], world.tokens[number % len(world.tokens)])
        while True:
            with lock:
                place, question = next(waiting, (-1, None))
            if question is None:
                return
            due = start + place / rate
            time.sleep(max(0.0, due - time.monotonic()))
            answers.append(client.ask(question, due))

    threads = [threading.Thread(target=work, args=[number]) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return answers


def main() -> None:
    folder, seconds, rate, *urls = sys.argv[1:]
    answers = mixed(World.read(Path(folder)), urls, float(seconds), float(rate))
    print("\n".join(json.dumps(asdict(answer)) for answer in answers))
    print(json.dumps({"cpu": time.process_time()}))


if __name__ == "__main__":
    main()
