"""first."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

INTEGER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "audit",
        sa.Column("id", INTEGER, nullable=False),
        sa.Column("time", sa.Double(), nullable=False),
        sa.Column("user", sa.String(length=64), nullable=False),
        sa.Column("token_id", sa.String(length=8), nullable=True),
        sa.Column("action", sa.String(length=64), nullable=False),
        sa.Column("workspace", sa.String(length=64), nullable=False),
        sa.Column("target", sa.String(length=500), nullable=False),
        sa.Column("outcome", sa.String(length=64), nullable=False),
        sa.Column("request_id", sa.String(length=64), nullable=False),
        sa.Column("detail", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_audit")),
    )
    with op.batch_alter_table("audit", schema=None) as batch_op:
        batch_op.create_index("ix_audit_action", ["action", "id"], unique=False)
        batch_op.create_index("ix_audit_user", ["user", "id"], unique=False)
        batch_op.create_index("ix_audit_workspace", ["workspace", "id"], unique=False)

    op.create_table(
        "leaders",
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("holder", sa.String(length=200), nullable=False),
        sa.Column("beat", INTEGER, nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_leaders")),
    )
    op.create_table(
        "targets",
        sa.Column("id", INTEGER, nullable=False),
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("address", sa.String(length=1000), nullable=False),
        sa.Column("token", sa.String(length=500), nullable=False),
        sa.Column("max_runs", INTEGER, nullable=False),
        sa.Column("created", sa.Double(), nullable=False),
        sa.Column("version", INTEGER, nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_targets")),
        sa.UniqueConstraint("name", name=op.f("uq_targets_name")),
    )
    op.create_table(
        "users",
        sa.Column("id", INTEGER, nullable=False),
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("created", sa.Double(), nullable=False),
        sa.Column("disabled", sa.Double(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_users")),
        sa.UniqueConstraint("name", name=op.f("uq_users_name")),
    )
    op.create_table(
        "workspaces",
        sa.Column("id", INTEGER, nullable=False),
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("url", sa.String(length=1000), nullable=False),
        sa.Column("target", sa.String(length=64), nullable=False),
        sa.Column("created", sa.Double(), nullable=False),
        sa.Column("version", INTEGER, nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_workspaces")),
        sa.UniqueConstraint("name", name=op.f("uq_workspaces_name")),
        sa.UniqueConstraint("url", name=op.f("uq_workspaces_url")),
    )
    op.create_table(
        "grants",
        sa.Column("id", INTEGER, nullable=False),
        sa.Column("user_id", INTEGER, nullable=False),
        sa.Column("workspace_id", INTEGER, nullable=True),
        sa.Column("role", sa.String(length=16), nullable=False),
        sa.ForeignKeyConstraint(["user_id"], ["users.id"], name=op.f("fk_grants_user_id"), ondelete="CASCADE"),
        sa.ForeignKeyConstraint(
            ["workspace_id"], ["workspaces.id"], name=op.f("fk_grants_workspace_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_grants")),
        sa.UniqueConstraint("user_id", "workspace_id", name=op.f("uq_grants_user_id")),
    )
    with op.batch_alter_table("grants", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_grants_user_id"), ["user_id"], unique=False)
        batch_op.create_index(
            "uq_grants_service",
            ["user_id"],
            unique=True,
            sqlite_where=sa.text("workspace_id IS NULL"),
            postgresql_where=sa.text("workspace_id IS NULL"),
        )

    op.create_table(
        "indexed_datasets",
        sa.Column("workspace_id", INTEGER, nullable=False),
        sa.Column("base", sa.String(length=300), nullable=False),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("fingerprint", sa.String(length=64), nullable=False),
        sa.Column("rows", INTEGER, nullable=False),
        sa.Column("tars", INTEGER, nullable=False),
        sa.Column("bytes", INTEGER, nullable=False),
        sa.Column("committed", sa.Double(), nullable=False),
        sa.Column("run_id", sa.String(length=64), nullable=False),
        sa.ForeignKeyConstraint(
            ["workspace_id"], ["workspaces.id"], name=op.f("fk_indexed_datasets_workspace_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("workspace_id", "base", name=op.f("pk_indexed_datasets")),
    )
    with op.batch_alter_table("indexed_datasets", schema=None) as batch_op:
        batch_op.create_index("ix_indexed_datasets_committed", ["workspace_id", "committed"], unique=False)
        batch_op.create_index(batch_op.f("ix_indexed_datasets_name"), ["name"], unique=False)

    op.create_table(
        "indexed_runs",
        sa.Column("workspace_id", INTEGER, nullable=False),
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("attempt_id", sa.String(length=64), nullable=False),
        sa.Column("submitted", sa.Boolean(), nullable=False),
        sa.Column("title", sa.String(length=200), nullable=False),
        sa.Column("user", sa.String(length=64), nullable=False),
        sa.Column("target", sa.String(length=64), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("started", sa.Double(), nullable=False),
        sa.Column("ended", sa.Double(), nullable=True),
        sa.Column("seconds", sa.Double(), nullable=True),
        sa.Column("stages", INTEGER, nullable=False),
        sa.Column("stages_done", INTEGER, nullable=False),
        sa.Column("rows", INTEGER, nullable=True),
        sa.Column("gpu_hours", sa.Double(), nullable=False),
        sa.Column("dollars", sa.Double(), nullable=False),
        sa.Column("alert", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(
            ["workspace_id"], ["workspaces.id"], name=op.f("fk_indexed_runs_workspace_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("workspace_id", "id", name=op.f("pk_indexed_runs")),
    )
    with op.batch_alter_table("indexed_runs", schema=None) as batch_op:
        batch_op.create_index("ix_indexed_runs_started_id", ["started", "id"], unique=False)
        batch_op.create_index("ix_indexed_runs_state_started", ["state", "started", "id"], unique=False)
        batch_op.create_index("ix_indexed_runs_workspace_started", ["workspace_id", "started", "id"], unique=False)

    op.create_table(
        "quotas",
        sa.Column("id", INTEGER, nullable=False),
        sa.Column("user_id", INTEGER, nullable=True),
        sa.Column("running", INTEGER, nullable=True),
        sa.Column("queued", INTEGER, nullable=True),
        sa.Column("gpu_hours", sa.Double(), nullable=True),
        sa.ForeignKeyConstraint(["user_id"], ["users.id"], name=op.f("fk_quotas_user_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_quotas")),
        sa.UniqueConstraint("user_id", name=op.f("uq_quotas_user_id")),
    )
    op.create_table(
        "registrations",
        sa.Column("id", INTEGER, nullable=False),
        sa.Column("workspace_id", INTEGER, nullable=True),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("value", sa.String(length=1000), nullable=False),
        sa.Column("created", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(
            ["workspace_id"], ["workspaces.id"], name=op.f("fk_registrations_workspace_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_registrations")),
        sa.UniqueConstraint("workspace_id", "kind", "name", name=op.f("uq_registrations_workspace_id")),
    )
    with op.batch_alter_table("registrations", schema=None) as batch_op:
        batch_op.create_index(
            "uq_registrations_service",
            ["kind", "name"],
            unique=True,
            sqlite_where=sa.text("workspace_id IS NULL"),
            postgresql_where=sa.text("workspace_id IS NULL"),
        )

    op.create_table(
        "replies",
        sa.Column("user_id", INTEGER, nullable=False),
        sa.Column("key", sa.String(length=200), nullable=False),
        sa.Column("request", sa.String(length=64), nullable=False),
        sa.Column("created", sa.Double(), nullable=False),
        sa.Column("status", INTEGER, nullable=True),
        sa.Column("body", sa.Text(), nullable=True),
        sa.ForeignKeyConstraint(["user_id"], ["users.id"], name=op.f("fk_replies_user_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("user_id", "key", name=op.f("pk_replies")),
    )
    with op.batch_alter_table("replies", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_replies_created"), ["created"], unique=False)

    op.create_table(
        "submissions",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("workspace_id", INTEGER, nullable=False),
        sa.Column("target_id", INTEGER, nullable=False),
        sa.Column("user_id", INTEGER, nullable=False),
        sa.Column("title", sa.String(length=200), nullable=False),
        sa.Column("recipe", sa.Text(), nullable=False),
        sa.Column("sets", sa.JSON(), nullable=False),
        sa.Column("resolved", sa.Text(), nullable=False),
        sa.Column("options", sa.JSON(), nullable=False),
        sa.Column("needs", sa.JSON(), nullable=False),
        sa.Column("stages", sa.JSON(), nullable=False),
        sa.Column("priority", INTEGER, nullable=False),
        sa.Column("retries", INTEGER, nullable=False),
        sa.Column("drain_seconds", sa.Double(), nullable=False),
        sa.Column("created", sa.Double(), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("since", sa.Double(), nullable=False),
        sa.Column("queued", sa.Double(), nullable=False),
        sa.Column("request", sa.String(length=16), nullable=False),
        sa.Column("requested", sa.Double(), nullable=True),
        sa.Column("requested_by", sa.String(length=64), nullable=False),
        sa.Column("attempt", INTEGER, nullable=False),
        sa.Column("lost", INTEGER, nullable=False),
        sa.Column("started", sa.Double(), nullable=True),
        sa.Column("ended", sa.Double(), nullable=True),
        sa.Column("gpu_hours", sa.Double(), nullable=False),
        sa.Column("dollars", sa.Double(), nullable=False),
        sa.Column("tokens", INTEGER, nullable=False),
        sa.Column("alert", sa.Text(), nullable=False),
        sa.Column("version", INTEGER, nullable=False),
        sa.ForeignKeyConstraint(["target_id"], ["targets.id"], name=op.f("fk_submissions_target_id")),
        sa.ForeignKeyConstraint(["user_id"], ["users.id"], name=op.f("fk_submissions_user_id")),
        sa.ForeignKeyConstraint(
            ["workspace_id"], ["workspaces.id"], name=op.f("fk_submissions_workspace_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_submissions")),
    )
    with op.batch_alter_table("submissions", schema=None) as batch_op:
        batch_op.create_index("ix_submissions_spent", ["workspace_id", "gpu_hours", "dollars", "tokens"], unique=False)
        batch_op.create_index("ix_submissions_state_priority", ["state", "priority"], unique=False)
        batch_op.create_index(batch_op.f("ix_submissions_target_id"), ["target_id"], unique=False)
        batch_op.create_index(batch_op.f("ix_submissions_user_id"), ["user_id"], unique=False)

    op.create_table(
        "tags",
        sa.Column("id", INTEGER, nullable=False),
        sa.Column("workspace_id", INTEGER, nullable=False),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("tag", sa.String(length=64), nullable=False),
        sa.Column("base", sa.String(length=300), nullable=True),
        sa.Column("time", sa.Double(), nullable=False),
        sa.Column("user", sa.String(length=64), nullable=False),
        sa.Column("newest", sa.Boolean(), nullable=False),
        sa.ForeignKeyConstraint(
            ["workspace_id"], ["workspaces.id"], name=op.f("fk_tags_workspace_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_tags")),
    )
    with op.batch_alter_table("tags", schema=None) as batch_op:
        batch_op.create_index("ix_tags_name_tag", ["workspace_id", "name", "tag", "id"], unique=False)

    op.create_table(
        "tokens",
        sa.Column("id", sa.String(length=8), nullable=False),
        sa.Column("user_id", INTEGER, nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("label", sa.String(length=200), nullable=False),
        sa.Column("role", sa.String(length=16), nullable=False),
        sa.Column("created", sa.Double(), nullable=False),
        sa.Column("expires", sa.Double(), nullable=True),
        sa.Column("used", sa.Double(), nullable=True),
        sa.Column("revoked", sa.Double(), nullable=True),
        sa.ForeignKeyConstraint(["user_id"], ["users.id"], name=op.f("fk_tokens_user_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_tokens")),
        sa.UniqueConstraint("digest", name=op.f("uq_tokens_digest")),
    )
    with op.batch_alter_table("tokens", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_tokens_user_id"), ["user_id"], unique=False)

    op.create_table(
        "changes",
        sa.Column("id", INTEGER, nullable=False),
        sa.Column("submission_id", sa.String(length=64), nullable=False),
        sa.Column("time", sa.Double(), nullable=False),
        sa.Column("attempt", INTEGER, nullable=False),
        sa.Column("before", sa.String(length=16), nullable=False),
        sa.Column("after", sa.String(length=16), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(
            ["submission_id"], ["submissions.id"], name=op.f("fk_changes_submission_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_changes")),
    )
    with op.batch_alter_table("changes", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_changes_submission_id"), ["submission_id"], unique=False)

    op.create_table(
        "sessions",
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("token_id", sa.String(length=8), nullable=False),
        sa.Column("csrf", sa.String(length=64), nullable=False),
        sa.Column("created", sa.Double(), nullable=False),
        sa.Column("expires", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["token_id"], ["tokens.id"], name=op.f("fk_sessions_token_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("digest", name=op.f("pk_sessions")),
    )
    with op.batch_alter_table("sessions", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_sessions_token_id"), ["token_id"], unique=False)
