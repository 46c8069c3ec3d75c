"""Everything on one machine: the service with SQLite and a local Ray, for one workspace. `make serve` calls it.

Its state (database, Ray's token and log) is in a folder beside the workspace, not inside: a workspace is copied, shared
and removed as a whole, and tokens must not go with it. One process at a time serves a workspace in this way. When it
ends, its Ray and the drivers end; the reconciler of the next start finds their runs lost and resubmits them.
"""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import typer
from sqlalchemy import select
from sqlalchemy.orm import Session

from curate.core.errors import CurateError
from curate.core.store.storage import open_workspace
from curate.service.auth import audit
from curate.service.auth.roles import SERVICE
from curate.service.auth.tokens import first_token
from curate.service.database.migrate import migrate
from curate.service.database.models import Registration, TargetRow, WorkspaceRow
from curate.service.local_ray import LocalRay
from curate.service.service import Service
from curate.service.serving import listening, serve, url_of
from curate.service.settings import Settings

WORKSPACE, TARGET = "main", "local"
MAX_RUNS = 2
"""Runs at a time: they share the machine's CPUs."""
RETRIES = 5
"""Each restart of the service or of its Ray loses the runs under way once."""
NOT_YET = "http://127.0.0.1:1"
"""Address of the target before Ray has started for the first time: nothing listens there."""


@dataclass(frozen=True)
class Embedded:
    workspace: str
    """Folder or URL."""
    host: str = "127.0.0.1"
    port: int = 8080
    """0: any free one."""
    state: Path | None = None
    """Folder of database and logs; None: beside the workspace."""
    recipes: Sequence[Path] = ()
    """Folders of recipes that the pages offer."""
    roots: Mapping[str, str] = field(default_factory=dict)
    """Name -> folder that recipes may read. In the offered recipes, the name replaces the folder as given here."""
    cluster: str = ""
    """Dashboard's URL of a Ray that runs already, without a token; "": start one."""
    cpus: int | None = None
    """CPUs for the local Ray; None: all."""
    settings: Mapping[str, object] = field(default_factory=dict)
    """More settings of the service."""

    def serve(self) -> None:
        """Until SIGTERM or Ctrl-C. Prints `url: …` and, the first time, `token: …`."""
        place = open_workspace(self.workspace).url
        state = self.state or state_folder(place)
        with _owned(state):
            bound = listening(self.host, self.port)
            service = Service.of(self._settings(state, url_of(bound)))
            ray = None if self.cluster else LocalRay(state, lambda url: _move(service, url), self.cpus)
            try:
                migrate(service.database)
                self._set_up(service, place, "" if ray is None else f"file:{ray.token.absolute()}")
                if ray is not None:
                    ray.start()
                serve(service, bound, lambda: _announce(service))
            finally:
                bound.close()
                if ray is not None:
                    ray.stop()
                service.close()

    def _settings(self, state: Path, url: str) -> Settings:
        values: dict[str, object] = {
            "database": f"sqlite:///{state.absolute() / 'service.db'}",
            "url": url,
            "host": self.host,
            "port": int(url.rpartition(":")[2]),
            "recipes": tuple(self._offered(state)),
            "thumbnails": str(state.absolute() / "thumbnails"),
            "retries": RETRIES,
        }
        return Settings.model_validate(values | dict(self.settings))

    def _offered(self, state: Path) -> Iterator[str]:
        """Copies of the recipes that can be submitted as they are: roots by their names."""
        for number, folder in enumerate(self.recipes):
            copies = state / "recipes" / str(number)
            copies.mkdir(parents=True, exist_ok=True)
            for old in copies.glob("*.yaml"):
                old.unlink()
            for recipe in sorted(folder.glob("*.yaml")):
                text = recipe.read_text("utf-8")
                for name, path in self.roots.items():
                    text = text.replace(path, name)
                (copies / recipe.name).write_text(text, "utf-8")
            yield str(copies)

    def _set_up(self, service: Service, place: str, token: str) -> None:
        """Bring the workspace, its target and its roots up to date with this start."""
        now = service.clock()
        with service.database.write() as session:
            target = session.scalar(select(TargetRow).where(TargetRow.name == TARGET))
            if target is None:
                address = self.cluster or NOT_YET
                target = TargetRow(name=TARGET, address=address, token=token, max_runs=MAX_RUNS, created=now)
                session.add(target)
                audit.record(session, SERVICE, "target.add", target=TARGET)
            target.address, target.token = self.cluster or target.address, token
            found = session.scalar(select(WorkspaceRow).where(WorkspaceRow.name == WORKSPACE))
            if found is None:
                found = WorkspaceRow(name=WORKSPACE, url=place, target=TARGET, created=now)
                session.add(found)
                audit.record(session, SERVICE, "workspace.add", workspace=WORKSPACE, target=WORKSPACE)
            found.url = place
            session.flush()
            self._grant(session, found.id, now)

    def _grant(self, session: Session, workspace_id: int, now: float) -> None:
        for name, path in self.roots.items():
            value = path if "://" in path else str(Path(path).absolute())
            same = (Registration.workspace_id == workspace_id, Registration.kind == "root", Registration.name == name)
            root = session.scalar(select(Registration).where(*same))
            if root is None:
                root = Registration(workspace_id=workspace_id, kind="root", name=name, value=value, created=now)
                session.add(root)
                audit.record(session, SERVICE, "registration.add", workspace=WORKSPACE, target=f"root {name}")
            root.value = value


def state_folder(place: str) -> Path:
    """Where the state of a workspace is kept: <workspace>-service; for a URL, in the working folder."""
    if "://" in place:
        return Path(re.sub(r"[^A-Za-z0-9.]+", "-", place.partition("://")[2]).strip("-") + "-service").absolute()
    return Path(f"{place.rstrip('/')}-service")


@contextmanager
def _owned(state: Path) -> Iterator[None]:
    """The folder, created and locked. Raises CurateError while another process uses it."""
    try:
        state.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = (state / "lock").open("a")
    except OSError as error:
        raise CurateError(f"{state}: cannot be written ({error.strerror}); name another folder with --state") from None
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise CurateError(
                f"{state}: another process serves this workspace; use that one, or end it first"
            ) from None
        os.chmod(state, 0o700)
        yield


def _move(service: Service, url: str) -> None:
    """The local Ray starts at another address each time."""
    with service.database.write() as session:
        target = session.scalars(select(TargetRow).where(TargetRow.name == TARGET)).one()
        target.address, target.version = url, target.version + 1


def _announce(service: Service) -> None:
    typer.echo(f"url: {service.settings.url}")
    token = first_token(service)
    if token is not None:
        typer.echo(f"token: {token}")
