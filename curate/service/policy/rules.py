"""What recipes of a workspace may use: everything that an admin has registered for it, or for all workspaces."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from ipaddress import ip_network
from typing import TYPE_CHECKING

from curate.core.secrets import is_reference
from curate.service.policy.paths import OutsideError, parse
from curate.service.problems import InvalidProblem

if TYPE_CHECKING:
    from curate.service.database.models import Registration, WorkspaceRow

_OP = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*", re.ASCII)
_PROXY = re.compile(r"http://[^\s/@]+:[0-9]{1,5}/?")


@dataclass(frozen=True)
class Rules:
    workspace: str
    url: str
    registered: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Kind -> name -> what it stands for."""

    @classmethod
    def of(cls, workspace: WorkspaceRow, rows: Iterable[Registration]) -> Rules:
        """A workspace's own registration takes precedence over one of the same name for all workspaces."""
        found: dict[str, dict[str, str]] = {}
        for row in sorted(rows, key=lambda row: row.workspace_id is not None):
            if row.workspace_id in (None, workspace.id):
                found.setdefault(row.kind, {})[row.name] = row.value
        return cls(workspace.name, workspace.url, found)

    def names(self, kind: str) -> Mapping[str, str]:
        return self.registered.get(kind, {})

    def value(self, kind: str, text: str) -> str | None:
        """What a registered name stands for. The value itself may be written too. None if it is not registered."""
        known = self.names(kind)
        return known.get(text, text if text in known.values() else None)

    def known(self, *kinds: str) -> str:
        """Registered names, for messages."""
        found = sorted({name for kind in kinds for name in self.names(kind)})
        return ", ".join(found[:20]) or "none"


def check_registration(kind: str, value: str) -> None:
    """Raises InvalidProblem if the value is not of the form that its kind needs."""
    try:
        problem = _problem(kind, value)
    except (OutsideError, ValueError) as error:
        problem = str(error)
    if problem:
        shown = "this" if kind in ("secret", "proxy") else repr(value)  # it may be the secret itself
        raise InvalidProblem(f"value: {shown} {problem}")


def _problem(kind: str, value: str) -> str:
    if kind in ("root", "file", "endpoints"):
        parse(value)
    if kind == "root" and any(sign in value for sign in "*?[{"):
        return "is a pattern; expected the folder or URL that contains the files"
    if kind == "op" and not _OP.fullmatch(value):
        return "is not a class; expected package.module:Class"
    if kind == "secret" and not is_reference(value):
        return "is not a reference; expected env:NAME or file:PATH"
    if kind == "proxy" and not _PROXY.fullmatch(value):
        return "is not a proxy; expected http://HOST:PORT, without user and password"
    if kind == "network":
        ip_network(value)
    return ""
