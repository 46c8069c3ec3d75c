"""Audit of writes whose effect is in a workspace. No transaction of the database spans them, because storage may be
slow; see `audit.audited` for writes to the database."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from curate.core.errors import CurateError
from curate.service.auth import audit
from curate.service.auth.roles import Principal
from curate.service.service import Service


@contextmanager
def recorded(
    service: Service, who: Principal, action: str, workspace: str, target: str = ""
) -> Iterator[dict[str, Any]]:
    """Record the write that the block makes, with the details that it puts into the dictionary, or its error."""
    detail: dict[str, Any] = {}
    try:
        yield detail
        with service.database.write() as session:
            audit.record(session, who, action, workspace=workspace, target=target, **detail)
    except CurateError as error:
        audit.rejected(service, who, action, error, workspace=workspace, target=target, **detail)
        raise
