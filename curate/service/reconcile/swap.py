"""Compare-and-swap."""

from __future__ import annotations

from typing import Any, cast

from sqlalchemy import Update
from sqlalchemy.engine import CursorResult
from sqlalchemy.orm import Session


def swapped(session: Session, statement: Update) -> bool:
    """Execute an UPDATE whose WHERE names a key and the version that was read. Whether the row still had it."""
    options = {"synchronize_session": False}
    return cast("CursorResult[Any]", session.execute(statement, execution_options=options)).rowcount == 1
