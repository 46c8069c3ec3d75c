"""A made-up service to measure: a database with runs, datasets and people, and the records of the runs in a workspace.

Runs look like those of the quickstart: 15 stages, a ledger, some hundred events and log lines.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import delete, insert

from curate.core.store.storage import open_workspace
from curate.service.auth.roles import Role
from curate.service.database.database import Database
from curate.service.database.migrate import migrate
from curate.service.database.models import (
    AuditEntry,
    Change,
    IndexedDataset,
    IndexedRun,
    Registration,
    Submission,
    Tag,
    TargetRow,
    WorkspaceRow,
)
from curate.service.reconcile.index import indexed
from curate.service.service import Service
from curate.service.settings import Limits, Settings
from tests.service.people import people, person

STAGES = (
    "pool", "inspect", "size", "text", "prints", "embed", "sets", "members", "unique", "tree", "clusters", "profile",
    "sample", "dataset", "report",
)  # fmt: skip
RECIPE = "stages:\n" + "".join(f"  {name}: {{op: toy.{name}}}\n" for name in STAGES) + f"# {'x' * 2500}\n"
SUBMITTED = {
    "stages": {
        "pool": {"op": "acquire.folder", "path": "images", "namespace": "toy"},
        "inspect": {"op": "image.inspect", "from": "pool"},
        "all": {"op": "select.all", "from": "inspect"},
        "dataset": {"op": "pack.webdataset", "from": "all", "name": "toy"},
    }
}
EVENTS, LOG_LINES = 150, 300
TOKENS = 20


@dataclass(frozen=True)
class World:
    folder: str
    workspace: str
    """URL of the workspace."""
    tokens: list[str]
    ended: list[str]
    """Runs that have ended and have a record, newest first."""
    running: list[str]
    dataset: str
    """Folder of one."""
    database: str
    """URL."""

    def settings(self, url: str = "http://127.0.0.1:8080") -> Settings:
        return Settings(database=self.database, url=url, limits=Limits(requests_per_minute=1_000_000))

    @classmethod
    def read(cls, folder: Path) -> World:
        return cls(**json.loads((folder / "world.json").read_text()))


def made(
    folder: Path, url: str, *, runs: int, recorded: int, running: int, datasets: int = 200, database: str = ""
) -> World:
    """`recorded`: newest runs that have a record in the workspace. `database`: SQLite in the folder unless given."""
    folder.mkdir(parents=True, exist_ok=True)
    open_workspace(url)
    world = World(
        str(folder), url, [], [_name(number) for number in range(runs - 1, runs - 1 - recorded, -1)], [], "",
        database or f"sqlite:///{folder}/service.db",
    )  # fmt: skip
    migrate(Database(world.database))
    service = Service.of(world.settings())
    known = people(service, url)
    world.tokens.extend(person(service, f"user{number}", Role.ADMIN).token for number in range(TOKENS))
    put = _putter(url)
    now = time.time()
    for number in range(runs - recorded, runs):
        dataset = _base(number) if number < datasets else ""
        record(put, f"{_name(number)}-1", now - 60 * (runs - number), with_log=number >= runs - 500, dataset=dataset)
    world.running.extend(f"live{number:04d}" for number in range(running))
    for name in world.running:
        record(put, f"{name}-1", now - 100, with_log=True, ended=False)
    _database(service, known.workspace, known.operator.principal.user_id, known.target, world, runs, now)
    _datasets(service, known.workspace.id, put, datasets, now)
    service.close()
    (folder / "images").mkdir(exist_ok=True)
    world = World(**asdict(world) | {"dataset": _base(0)})
    (folder / "world.json").write_text(json.dumps(asdict(world)))
    return world


def _name(number: int) -> str:
    return f"r-{number:06d}-bench"


def _base(number: int) -> str:
    return f"datasets/set{number % 40:02d}/{number:016x}"


# --- records ----------------------------------------------------------------------------------------------------------

Put = Callable[[str, Any], None]


def _putter(url: str) -> Put:
    """Writes JSON, or lines of it, without the care for crashes that the engine takes."""
    if "://" in url:
        storage = open_workspace(url)
        return lambda path, value: storage.publish_bytes(path, _text(value).encode())
    root = Path(url)

    def put(path: str, value: Any) -> None:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(_text(value))

    return put


def _text(value: Any) -> str:
    return "".join(json.dumps(one) + "\n" for one in value) if isinstance(value, list) else json.dumps(value, indent=1)


def record_running(service: Service, world: World, count: int) -> list[str]:
    """Further running runs, with a record and a row each."""
    names, put, now = [f"more{number:04d}" for number in range(count)], _putter(world.workspace), time.time()
    with service.database.write() as session:
        first = session.get_one(Submission, world.running[0])
        for table in (Submission, IndexedRun):  # of an earlier measurement
            session.execute(delete(table).where(table.id.in_(names)))
        columns = [column.key for column in Submission.__table__.columns]
        rows = [{key: getattr(first, key) for key in columns} | {"id": name} for name in names]
        session.execute(insert(Submission), rows)
        session.execute(insert(IndexedRun), [indexed(Submission(**row), "operator", "local") for row in rows])
    for name in names:
        record(put, f"{name}-1", now, with_log=False, ended=False)
    return names


def record(put: Put, attempt: str, began: float, *, with_log: bool, ended: bool = True, dataset: str = "") -> None:
    """What the engine writes of an attempt. `dataset`: folder of the one that it made."""
    graph = {
        name: {"op": f"toy.{name}", "from": [before] if before else [], "ports": {}, "parameters": {"text": "x" * 40}}
        for before, name in zip(("", *STAGES), STAGES, strict=False)
    }
    about = {"run_id": attempt, "started": began, "engine": "ray", "options": {}, "owner": {}, "recipe": {}}
    put(f"runs/{attempt}/run.json", about | {"endpoints": {}, "stages": graph})
    put(f"runs/{attempt}/events/000001.jsonl", list(_events(began, len(STAGES) if ended else 6)))
    if with_log:
        put(f"runs/{attempt}/logs/driver-000001.jsonl", list(_log(began)))
    if ended:
        outputs = {name: {"base": f"facts/{name}/f", "path": "", "fingerprint": "f", "mask": None} for name in STAGES}
        empty: dict[str, Any] = {name: {} for name in ("counts", "reused", "pins", "spend")}
        outputs["dataset"]["base"] = dataset or outputs["dataset"]["base"]
        ledger = {name: _ledger(number) for number, name in enumerate(STAGES)}
        allocated = {"gpu_seconds": 3600.0, "cpu_seconds": 100.0}
        end = {"run_id": attempt, "error": None, "seconds": 60.0, "ended": began + 60, "allocated": allocated}
        put(f"runs/{attempt}/result.json", empty | end | {"outputs": outputs, "ledger": ledger})


def _ledger(number: int) -> dict[str, Any]:
    return {"before": 10_000 - 100 * number, "rejected": {"small": 100}, "after": 9_900 - 100 * number}


def _events(began: float, stages: int) -> Iterator[dict[str, Any]]:
    for number, stage in enumerate(STAGES[:stages]):
        for rows in range(0, 10_000, 10_000 * len(STAGES) // EVENTS):
            yield progress(stage, rows, began + number)
        yield {
            "event": "stage", "stage": stage, "base": f"facts/{stage}/f", "ledger": _ledger(number), "counts": {},
            "reused": False, "time": began + number + 1,
        }  # fmt: skip


def progress(stage: str, rows: int, at: float) -> dict[str, Any]:
    return {
        "event": "progress", "stage": stage, "lane": "cpu", "rows": rows, "rows_per_s": 20.0, "busy": 0.5, "time": at,
    }  # fmt: skip


def _log(began: float) -> Iterator[dict[str, Any]]:
    for number in range(LOG_LINES):
        yield {
            "time": began + number / 5, "level": "info" if number % 7 else "warning", "worker": "driver", "node": "n",
            "stage": STAGES[number % len(STAGES)], "message": f"shard {number}: 1000 rows, {'words ' * 10}",
        }  # fmt: skip


# --- rows -------------------------------------------------------------------------------------------------------------


def _database(
    service: Service, place: WorkspaceRow, user: int, target: TargetRow, world: World, runs: int, now: float
) -> None:
    chance = random.Random(0)
    stages = [{"stage": name, "op": f"toy.{name}", "contract": "map", "inputs": [], "ports": {}} for name in STAGES]
    submissions, lines, changes, audit = [], [], [], []
    named = [(_name(number), chance.choice(("done",) * 8 + ("failed", "stopped"))) for number in range(runs)]
    for number, (name, state) in enumerate([*named, *((name, "running") for name in world.running)]):
        began = now - 60 * max(0, runs - number)
        ended = None if state == "running" else began + 60
        row: dict[str, Any] = {
            "id": name, "workspace_id": place.id, "target_id": target.id, "user_id": user, "recipe": RECIPE,
            "title": f"run {number} of {chance.choice(('birds', 'cars', 'streets'))}", "resolved": RECIPE, "sets": [],
            "options": {}, "needs": {}, "stages": stages, "created": began, "state": state, "since": began,
            "queued": began, "started": began, "ended": ended, "seconds": 0.0, "priority": 0, "retries": 1,
            "drain_seconds": 60.0,
            "request": "", "requested_by": "", "attempt": 1, "lost": 0, "gpu_hours": 1.0, "dollars": 0.1,
            "tokens": 10, "alert": "", "version": 4, "reason": "stage embed: out of memory" * (state == "failed"),
        }  # fmt: skip
        submissions.append(row)
        lines.append(indexed(Submission(**row), "operator", "local") | {"stages": 15, "stages_done": 15, "rows": 9000})
        for before, after in (
            ("", "queued"),
            ("queued", "submitting"),
            ("submitting", "starting"),
            ("starting", state),
        ):
            changes.append(
                {"submission_id": name, "time": began, "attempt": 1, "before": before, "after": after, "reason": "",
                 "gpu_hours": 0.0}
            )  # fmt: skip
        audit += [
            {"time": began, "user": "operator", "action": action, "workspace": "main", "target": name, "outcome": "ok",
             "request_id": name, "detail": {}} for action in ("run.submit", "hook.due")
        ]  # fmt: skip
    with service.database.write() as session:
        session.execute(insert(Submission), submissions)
        session.execute(insert(IndexedRun), lines)
        session.execute(insert(Change), changes)
        session.execute(insert(AuditEntry), audit)
        root = Registration(kind="root", name="images", value=f"{world.folder}/images", created=0.0)
        session.add(root)


def _datasets(service: Service, place: int, put: Put, count: int, now: float) -> None:
    rows = [
        {
            "workspace_id": place, "base": _base(number), "name": f"set{number % 40:02d}",
            "fingerprint": f"{number:016x}", "rows": 9000, "tars": 3, "bytes": 1 << 30, "committed": now - number,
            "run_id": _name(number),
        }
        for number in range(count)
    ]  # fmt: skip
    for row in rows:
        about = {"noun": "dataset", "op": "pack.webdataset", "version": 1, "fingerprint": row["fingerprint"]}
        put(f"{row['base']}/manifest.json", about | {name: row[name] for name in ("rows", "bytes")})
    tags = [
        {"workspace_id": place, "name": row["name"], "tag": "good", "base": row["base"], "time": now,
         "user": "operator", "newest": True}
        for row in rows[:20]
    ]  # fmt: skip
    with service.database.write() as session:
        session.execute(insert(IndexedDataset), rows)
        session.execute(insert(Tag), tags)
