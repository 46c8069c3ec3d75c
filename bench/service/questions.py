"""What costly questions of some users cost the others: the time of sample pages of another user meanwhile.

    python -m bench.service.questions [SECONDS]

The pool has 8 shards of 5,000 rows with captions of 540 characters. The server runs in a separate process. The pattern
of the questions takes minutes for a shard.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import httpx2

from bench.kit.measure import line, load, machine
from curate.api import Workspace
from curate.core.contracts import Incoming, Portion
from curate.core.recipe.pipeline import Pipeline
from curate.service.auth.roles import Role
from curate.service.database.database import Database
from curate.service.database.migrate import migrate
from curate.service.database.models import IndexedRun
from curate.service.policy.sandbox import Sandbox
from curate.service.settings import Limits
from tests.engine.toys import Numbers
from tests.service.attacks.place import place
from tests.service.people import person

SLOW = "regexp_like(caption, '(.{{0,200}}){{0,20}}z{}')"
PAGE = "/runs/first/samples?stage=pool&workspace=main"
USERS = 100


class Captioned(Numbers):
    op: ClassVar[str] = "toy.long_captions"

    def read(self, portion: Portion) -> Iterator[Incoming]:
        for number, incoming in enumerate(super().read(portion), portion.content["start"]):
            yield replace(incoming, caption=f"{number} " + "lorem ipsum dolor sit amet " * 20)


def serve(folder: Path) -> None:
    """Print the URL and the tokens, and serve until the input ends."""
    (folder / "place").mkdir()
    with closing(Database(f"sqlite:///{folder}/empty.db")) as database:
        migrate(database)
    sandbox = Sandbox(Limits())
    with place(folder / "empty.db", folder / "place", sandbox, {"requests_per_minute": 100_000}) as made:
        shutil.copytree(folder / "workspace", folder / "place" / "main", dirs_exist_ok=True)
        with made.service.database.write() as session:
            where = made.people.workspace.id
            run = IndexedRun(
                workspace_id=where, id="first", attempt_id="first-1", started=1e9, ended=1e9 + 5, title="toys",
                user="viewer", target="local", state="done", submitted=True,
            )  # fmt: skip
            session.add(run)
        users = [person(made.service, f"u{n}", Role.VIEWER, made.people.workspace).token for n in range(USERS + 1)]
        print(made.url, *users, flush=True)
        sys.stdin.read()
    sandbox.close()


@contextmanager
def served() -> Iterator[tuple[str, list[str]]]:
    with tempfile.TemporaryDirectory() as folder:
        pipeline = Pipeline().add("pool", Captioned(namespace="n", rows=40_000, shard_rows=5_000))
        Workspace(f"{folder}/workspace").submit(pipeline, run_id="first-1").wait()
        command = [sys.executable, "-m", "bench.service.questions", "--serve", folder]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None and process.stdin is not None
            url, *tokens = process.stdout.readline().split()
            yield url, tokens
            process.stdin.close()


def asking(url: str, token: str, path: Callable[[int], str], over: threading.Event, codes: Counter[int]) -> None:
    number = 0
    with httpx2.Client(base_url=url, headers={"Authorization": f"Bearer {token}"}, timeout=120) as client:
        while not over.is_set():
            answer = client.get(path(number))
            codes[answer.status_code] += 1
            number += 1
            over.wait(0.1)


def measured(name: str, url: str, who: list[str], other: str, seconds: float, question: str = "rows") -> None:
    """A line: the other user's pages while each of `who` asks one question after another."""
    over, codes, seen = threading.Event(), Counter[int](), list[tuple[int, float]]()

    def path(user: int) -> Callable[[int], str]:
        where = {"stage": "pool", "workspace": "main", "format": "csv"}

        def one(number: int) -> str:
            asked = where | {"where": SLOW.format(f"{name[:3]}{user}x{number}".replace(" ", ""))}
            return f"/api/v1/runs/first/{question}?{httpx2.QueryParams(asked)}"

        return one

    threads = [
        threading.Thread(target=asking, args=(url, token, path(user), over, codes), daemon=True)
        for user, token in enumerate(who)
    ]
    for thread in threads:
        thread.start()
    with httpx2.Client(base_url=url, headers={"Authorization": f"Bearer {other}"}, timeout=120) as client:
        time.sleep(1.0)
        ends, number = time.monotonic() + seconds, 0
        while time.monotonic() < ends:
            began = time.monotonic()
            answer = client.get(f"{PAGE}&columns={'caption' if number % 2 else ''}")
            seen.append((answer.status_code, time.monotonic() - began))
            number += 1
            time.sleep(0.2)
    over.set()
    times = sorted(one for _, one in seen)
    bad = sum(code != 200 for code, _ in seen)
    middle, high = times[len(times) // 2], times[int(0.95 * (len(times) - 1))]
    note = f"{len(seen)} pages, {bad} not 200, p50 {middle:.2f} s, most {times[-1]:.2f} s; questions {dict(codes)}"
    line(f"{name}: p95 of another user's pages", f"{high:.2f} s", note)
    for thread in threads:
        thread.join()


def main() -> None:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 30.0
    print(machine(), load())
    with served() as (url, (other, *users)):
        measured("no question", url, [], other, min(seconds, 10.0))
        measured("ten questions of one user", url, users[:1] * 10, other, seconds)
        measured("ten users with one question", url, users[:10], other, seconds)
        measured(f"{USERS} users with one question", url, users, other, seconds)
        measured("ten exports of one user", url, users[:1] * 10, other, seconds, "export")


if __name__ == "__main__":
    serve(Path(sys.argv[2])) if sys.argv[1:2] == ["--serve"] else main()
