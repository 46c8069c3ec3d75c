"""The record of all writes: one row per write, in the transaction of the write, and one JSON line in the log
`curate.audit` after the commit. A rejected write is recorded too, in a separate transaction."""

from __future__ import annotations

import contextlib
import json
import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from sqlalchemy import event
from sqlalchemy.orm import Session

from curate.core.errors import CurateError
from curate.core.secrets import redact
from curate.service.auth.clock import now
from curate.service.auth.roles import Principal
from curate.service.database.models import AuditEntry
from curate.service.problems import Problem, UnavailableProblem

if TYPE_CHECKING:
    from curate.service.service import Service

MOST_TARGET = 500
SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
"""Methods that only read."""
_PASSWORD = re.compile(r"(?<=://)[^/\s]*@")
"""User and password in a URL."""
log = logging.getLogger("curate.audit")


def record(
    session: Session,
    who: Principal,
    action: str,
    *,
    workspace: str = "",
    target: str = "",
    outcome: str = "ok",
    **detail: Any,
) -> None:
    """Add the entry of a write to its transaction. `detail`: JSON, without secrets."""
    entry = AuditEntry(
        time=now(),
        user=who.user,
        token_id=who.token_id or None,
        action=action,
        workspace=workspace[:64],
        target=_plain(target)[:MOST_TARGET],
        outcome=outcome,
        request_id=who.request_id[:64],
        detail=_plain(detail),
    )
    session.add(entry)
    line = _line(entry)
    event.listen(session, "after_commit", lambda _: log.info(line), once=True)


@contextmanager
def audited(
    service: Service,
    who: Principal,
    action: str,
    *,
    workspace: str = "",
    target: str = "",
    alone: str = "",
    **detail: Any,
) -> Iterator[Session]:
    """A write transaction that ends with its audit entry. A rejected write is recorded separately.

    `alone`: see `Database.write`."""
    with rejections(service, who, action, workspace, target, **detail), service.database.write(alone) as session:
        yield session
        record(session, who, action, workspace=workspace, target=target, **detail)


@contextmanager
def rejections(
    service: Service, who: Principal, action: str, workspace: str = "", target: str = "", **detail: Any
) -> Iterator[None]:
    """Record an error of the block as the outcome of the action. Not within a transaction."""
    try:
        yield
    except CurateError as error:
        rejected(service, who, action, error, workspace=workspace, target=target, **detail)
        raise


@contextmanager
def recorded(
    service: Service, who: Principal, action: str, workspace: str, target: str = ""
) -> Iterator[dict[str, Any]]:
    """Record a write whose effect is in a workspace, with the details that the block puts into the dictionary, or its
    error. No transaction of the database spans it, because storage may be slow."""
    detail: dict[str, Any] = {}
    try:
        yield detail
        with service.database.write() as session:
            record(session, who, action, workspace=workspace, target=target, **detail)
    except CurateError as error:
        rejected(service, who, action, error, workspace=workspace, target=target, **detail)
        raise


def rejected(
    service: Service,
    who: Principal,
    action: str,
    error: CurateError,
    *,
    workspace: str = "",
    target: str = "",
    **detail: Any,
) -> None:
    """Record a write that was not made, once. Without a database there is only the line in the log."""
    if getattr(error, "audited", False):
        return
    error.audited = True  # type: ignore[attr-defined]
    outcome = error.code
    about: dict[str, Any] = {"workspace": workspace, "target": _plain(target), "outcome": outcome}
    detail = _plain(detail)
    with contextlib.suppress(Problem):
        if not isinstance(error, UnavailableProblem):
            with service.database.write() as session:
                record(session, who, action, **about, **detail)
            return
    log.warning(json.dumps({"time": now(), "user": who.user, "action": action, **about, "detail": detail}, default=str))


def malformed(service: Service, who: Principal, method: str, path: str, error: CurateError) -> None:
    """Record a write whose form is wrong, so that no action has seen it. Without its values, which may be secrets. Does
    nothing for a request that only reads, or by an unknown user, who could fill the database."""
    if method not in SAFE and who.user_id:
        rejected(service, who, "request", error, target=f"{method} {path}")


def _plain(value: Any) -> Any:
    """Without passwords: what was rejected may hold any text."""
    if isinstance(value, str):
        return redact(_PASSWORD.sub("…@", value))
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value


def _line(entry: AuditEntry) -> str:
    names = ("time", "user", "token_id", "action", "workspace", "target", "outcome", "request_id", "detail")
    return json.dumps({name: getattr(entry, name) for name in names}, default=str)
