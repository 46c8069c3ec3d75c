"""What alembic runs. The connection comes from `migrate.py`, in a transaction that it has started."""

from __future__ import annotations

from typing import Any, Literal

from alembic import context
from sqlalchemy import BigInteger

from curate.service.database.models import Base


def _rendered(kind: str, item: Any, _: Any) -> str | Literal[False]:
    """Short for the type of all integers; the template defines it."""
    return "INTEGER" if kind == "type" and isinstance(item, BigInteger) else False


context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=Base.metadata,
    compare_type=True,
    render_as_batch=True,  # SQLite changes a table by copying it
    render_item=_rendered,
)
context.run_migrations()
