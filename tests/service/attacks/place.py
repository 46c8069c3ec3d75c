"""The real application on a real server, with all that an attacker may want: two workspaces, and their users."""

from __future__ import annotations

import logging
import shutil
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx2
import uvicorn
from sqlalchemy import select

from curate.core.store.storage import open_workspace
from curate.service.app import create_app
from curate.service.auth import tokens
from curate.service.auth.roles import Role
from curate.service.database.models import AuditEntry, Base, Registration, Token, WorkspaceRow
from curate.service.policy.sandbox import Sandbox
from curate.service.service import Service
from curate.service.serving import configured, listening, url_of
from curate.service.settings import Limits, Settings
from tests.service.people import People, Person, people, person

Rows = dict[str, list[tuple[Any, ...]]]


@dataclass(frozen=True)
class Place:
    """`other`: operator of the workspace `other` alone. `folder` has the roots `photos` and the workspaces."""

    url: str
    service: Service
    people: People
    other: Person
    folder: Path
    log: Log
    client: httpx2.Client

    def ask(self, method: str, path: str, who: Person | None = None, **options: Any) -> httpx2.Response:
        """A request, without a token unless a user is given."""
        headers = dict(who.headers if who else {}) | options.pop("headers", {})
        url = path if path.startswith("/") else f"/api/v1/{path}"
        return self.client.request(method, url, headers=headers, **options)

    def connected(self) -> socket.socket:
        parts = urlsplit(self.url)
        assert parts.hostname and parts.port
        return socket.create_connection((parts.hostname, parts.port), 30)

    def token(self, who: Person, **values: Any) -> str:
        """Another token of a user."""
        role, days = values.pop("role", Role.ADMIN), values.pop("days", 90.0)
        with self.service.database.write() as session:
            made, text = tokens.made(who.principal.user_id, self.service.clock(), role=role, days=days)
            for name, value in values.items():
                setattr(made, name, value)
            session.add(made)
        return text

    def rows(self) -> Rows:
        """All that the database has, except the audit and the last use of tokens."""
        with self.service.database.read() as session:
            return {
                name: [tuple(value for key, value in row.items() if key != Token.used.key) for row in rows]
                for name, table in Base.metadata.tables.items()
                if name != AuditEntry.__tablename__
                for rows in [session.execute(select(table).order_by(*table.primary_key)).mappings().all()]
            }

    def files(self) -> set[str]:
        """All files below the folder, but those of the database."""
        return {str(path) for path in self.folder.rglob("*") if not path.name.startswith("service.db")}

    def audit(self, after: int = 0) -> list[AuditEntry]:
        with self.service.database.read() as session:
            return list(session.scalars(select(AuditEntry).where(AuditEntry.id > after).order_by(AuditEntry.id)))


def said(connection: socket.socket) -> bytes:
    """All that the service says until it closes the connection."""
    found = b""
    while True:
        try:
            more = connection.recv(65_536)
        except ConnectionResetError:
            return found
        if not more:
            return found
        found += more


@dataclass
class Log(logging.Handler):
    """Everything that the process logs."""

    lines: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()
        self.setFormatter(logging.Formatter("%(name)s %(message)s"))

    def __hash__(self) -> int:
        return id(self)

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(self.format(record))


@contextmanager
def place(migrated_file: Path, folder: Path, sandbox: Sandbox, limits: Mapping[str, Any]) -> Iterator[Place]:
    shutil.copy(migrated_file, folder / "service.db")
    bound = listening("127.0.0.1", 0)
    settings = Settings(database=f"sqlite:///{folder}/service.db", url=url_of(bound), limits=Limits(**limits))
    service = Service.of(settings)
    service.sandbox.close()
    service.sandbox = sandbox
    for name in ("main", "other"):
        open_workspace(str(folder / name))
    known = people(service, str(folder / "main"))
    beside = WorkspaceRow(name="other", url=str(folder / "other"), target="local", created=service.clock())
    (folder / "photos").mkdir()
    (folder / "photos" / "out").symlink_to("/etc")
    with service.database.write() as session:
        session.add(beside)
        session.add(Registration(kind="root", name="photos", value=str(folder / "photos"), created=0.0))
    other = person(service, "other", Role.OPERATOR, beside)
    app = create_app(service, reconcile=False)
    config = configured(service, app, lifespan="off", timeout_graceful_shutdown=1)
    server, log = uvicorn.Server(config), Log()
    thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]})
    thread.start()
    logging.getLogger().addHandler(log)
    try:
        with httpx2.Client(base_url=settings.url, timeout=60, follow_redirects=False) as client:
            yield Place(settings.url, service, known, other, folder, log, client)
    finally:
        logging.getLogger().removeHandler(log)
        server.should_exit = True
        thread.join()
        bound.close()
        service.database.close()
