"""Viewers see images and videos by a grant."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("grants", schema=None) as batch_op:
        batch_op.add_column(sa.Column("see_pixels", sa.Boolean(), nullable=False, server_default=sa.false()))
