"""${message}."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = ${repr(up_revision)}
down_revision = ${repr(down_revision)}
branch_labels = None
depends_on = None

INTEGER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    ${upgrades if upgrades else "pass"}
