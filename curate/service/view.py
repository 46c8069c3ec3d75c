"""`curate view`: the pages over one workspace, on loopback and without accounts, Ray or a target.

Every program that reaches the port is the one user, an operator of this workspace; `rest.frame` and `auth.sessions`
keep the pages of other sites out. The state is in a temporary folder. Tombstones and pins stay in the workspace, and
the next start restores the tags from the pins.
"""

from __future__ import annotations

import getpass
import re
import webbrowser
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import typer

from curate.api import Workspace
from curate.service.auth.roles import Principal, Role
from curate.service.database.migrate import migrate
from curate.service.database.models import ID, Grant, User, WorkspaceRow
from curate.service.datasets.tags import restore
from curate.service.reconcile.index import reindex
from curate.service.service import Service
from curate.service.serving import listening, serve, url_of
from curate.service.settings import Limits, Settings

HOST = "127.0.0.1"
REQUESTS = 100_000
"""A minute: a page of samples asks for hundreds of thumbnails."""


@dataclass(frozen=True)
class View:
    workspace: str
    """Folder or URL."""
    port: int = 8090
    """0: any free one."""
    browser: bool = False
    """Whether to open a browser."""

    def serve(self) -> None:
        """Until SIGTERM or Ctrl-C. Prints `url: …`. Raises CurateError if there is no workspace, or the port is in
        use."""
        place = Workspace(self.workspace)
        place.check()
        with TemporaryDirectory(prefix="curate-view-") as state, closing(listening(HOST, self.port)) as bound:
            url = url_of(bound)
            limits = Limits(requests_per_minute=REQUESTS)
            settings = Settings(database=f"sqlite:///{Path(state) / 'view.db'}", url=url, host=HOST, limits=limits)
            with closing(Service.of(settings)) as service:
                migrate(service.database)
                service.alone = set_up(service, place)
                serve(service, bound, lambda: self._announce(url))

    def _announce(self, url: str) -> None:
        typer.echo(f"url: {url}")
        if self.browser:
            webbrowser.open(url)


def set_up(service: Service, place: Workspace) -> Principal:
    """Index the workspace in a new database; returns its only user."""
    now = service.clock()
    name = re.sub(r"[^A-Za-z0-9_-]+", "-", place.root.rstrip("/").rpartition("/")[2]).strip("-_")[:ID] or "workspace"
    with service.database.write() as session:
        row = WorkspaceRow(name=name, url=place.root, target="", created=now)
        user = User(name=_user(), created=now)
        session.add_all([row, user])
        session.flush()
        session.add(Grant(user_id=user.id, workspace_id=row.id, role=Role.OPERATOR.value))
        who = Principal(user.id, user.name, "", roles={row.id: Role.OPERATOR}, token_role=Role.OPERATOR, alone=True)
    reindex(service)
    restore(service, row, who)
    return who


def _user() -> str:
    try:
        return getpass.getuser()[:ID]
    except (KeyError, OSError):  # a container's user without a name
        return "you"
