"""Tables. Times are seconds since the epoch, by the clock of the service.

Only people and what they asked for are kept here: users, grants, tokens, sessions, submissions with their attempts and
changes of state, tags, audit. `IndexedRun` and `IndexedDataset` are copies of what the workspaces say, made for lists;
`curate service reindex` rebuilds them. Events are never copied.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import JSON, BigInteger, ForeignKey, Index, Integer, String, Text, UniqueConstraint, false, text
from sqlalchemy.orm import DeclarativeBase, Mapped, MappedAsDataclass, mapped_column

from curate.service.states import State

ID = 64
"""Characters of a name or an id."""


class Base(MappedAsDataclass, DeclarativeBase):
    """Constraints have names, so that migrations can change them."""

    type_annotation_map = {
        dict[str, Any]: JSON,
        list[Any]: JSON,
        list[str]: JSON,
        int: BigInteger().with_variant(Integer, "sqlite"),  # SQLite's are 64 bits; only an Integer counts up by itself
    }


Base.metadata.naming_convention = {
    "ix": "ix_%(column_0_label)s",
    "uq": "uq_%(table_name)s_%(column_0_name)s",
    "fk": "fk_%(table_name)s_%(column_0_name)s",
    "pk": "pk_%(table_name)s",
}


def _once(name: str, column: str, *others: str) -> Index:
    """At most one row without a value in `column`: a unique constraint takes any number of nulls."""
    condition = text(f"{column} IS NULL")
    return Index(name, *others, unique=True, sqlite_where=condition, postgresql_where=condition)


# --- people -----------------------------------------------------------------------------------------------------------


class User(Base, kw_only=True):
    __tablename__ = "users"

    id: Mapped[int] = mapped_column(primary_key=True, init=False)
    name: Mapped[str] = mapped_column(String(ID), unique=True)
    created: Mapped[float]
    disabled: Mapped[float | None] = mapped_column(default=None)
    """When an admin disabled it: its tokens and sessions end."""


class Grant(Base, kw_only=True):
    """A role of a user: in one workspace, or (no workspace) in the whole service."""

    __tablename__ = "grants"
    __table_args__ = (
        UniqueConstraint("user_id", "workspace_id"),
        _once("uq_grants_service", "workspace_id", "user_id"),
    )

    id: Mapped[int] = mapped_column(primary_key=True, init=False)
    user_id: Mapped[int] = mapped_column(ForeignKey("users.id", ondelete="CASCADE"), index=True)
    workspace_id: Mapped[int | None] = mapped_column(ForeignKey("workspaces.id", ondelete="CASCADE"), default=None)
    role: Mapped[str] = mapped_column(String(16))
    """viewer, operator or admin."""
    see_pixels: Mapped[bool] = mapped_column(default=False, server_default=false())
    """Whether a viewer sees images and videos; operators and admins do."""


class Token(Base, kw_only=True):
    """`cur_<id>_<43 characters>`; only the SHA-256 digest of all of it is stored."""

    __tablename__ = "tokens"

    id: Mapped[str] = mapped_column(String(8), primary_key=True)
    user_id: Mapped[int] = mapped_column(ForeignKey("users.id", ondelete="CASCADE"), index=True)
    digest: Mapped[str] = mapped_column(String(64), unique=True)
    label: Mapped[str] = mapped_column(String(200), default="")
    role: Mapped[str] = mapped_column(String(16), default="admin")
    """The most that it may do, even if its user may do more."""
    created: Mapped[float]
    expires: Mapped[float | None] = mapped_column(default=None)
    used: Mapped[float | None] = mapped_column(default=None)
    """Last use, to the minute."""
    revoked: Mapped[float | None] = mapped_column(default=None)


class BrowserSession(Base, kw_only=True):
    """A browser that has logged in with a token, and ends with it."""

    __tablename__ = "sessions"

    digest: Mapped[str] = mapped_column(String(64), primary_key=True)
    """SHA-256 of the cookie."""
    token_id: Mapped[str] = mapped_column(ForeignKey("tokens.id", ondelete="CASCADE"), index=True)
    csrf: Mapped[str] = mapped_column(String(64))
    created: Mapped[float]
    expires: Mapped[float]


class AuditEntry(Base, kw_only=True):
    """One write, whether it succeeded or not, in the transaction of the write itself."""

    __tablename__ = "audit"
    __table_args__ = (
        Index("ix_audit_user", "user", "id"),
        Index("ix_audit_action", "action", "id"),
        Index("ix_audit_workspace", "workspace", "id"),
    )

    id: Mapped[int] = mapped_column(primary_key=True, init=False)
    time: Mapped[float]
    user: Mapped[str] = mapped_column(String(ID))
    """By name; `-` without a login, `service` for the service itself."""
    token_id: Mapped[str | None] = mapped_column(String(8), default=None)
    action: Mapped[str] = mapped_column(String(ID))
    """Such as run.submit, token.revoke."""
    workspace: Mapped[str] = mapped_column(String(ID), default="")
    target: Mapped[str] = mapped_column(String(500), default="")
    """What it was done to."""
    outcome: Mapped[str] = mapped_column(String(ID), default="ok")
    """`ok`, or the code of the problem."""
    request_id: Mapped[str] = mapped_column(String(ID), default="")
    detail: Mapped[dict[str, Any]] = mapped_column(default_factory=dict)


# --- where runs run ---------------------------------------------------------------------------------------------------


class WorkspaceRow(Base, kw_only=True):
    __tablename__ = "workspaces"

    id: Mapped[int] = mapped_column(primary_key=True, init=False)
    name: Mapped[str] = mapped_column(String(ID), unique=True)
    url: Mapped[str] = mapped_column(String(1000), unique=True)
    target: Mapped[str] = mapped_column(String(ID), default="")
    """Name of the target that runs go to unless they name another."""
    created: Mapped[float]
    version: Mapped[int] = mapped_column(default=1)


class TargetRow(Base, kw_only=True):
    """A Ray cluster."""

    __tablename__ = "targets"

    id: Mapped[int] = mapped_column(primary_key=True, init=False)
    name: Mapped[str] = mapped_column(String(ID), unique=True)
    address: Mapped[str] = mapped_column(String(1000))
    """URL of its dashboard, http://HOST:8265."""
    token: Mapped[str] = mapped_column(String(500), default="")
    """Reference to its token, env:NAME or file:PATH, which the service reads; "" if it needs none."""
    max_runs: Mapped[int] = mapped_column(default=4)
    """Runs at a time."""
    max_gpus: Mapped[int] = mapped_column(default=0)
    """GPUs that it can scale up to, if those are more than it has."""
    created: Mapped[float]
    version: Mapped[int] = mapped_column(default=1)


class Registration(Base, kw_only=True):
    """What recipes may use although it lies outside: in one workspace, or (no workspace) in all."""

    __tablename__ = "registrations"
    __table_args__ = (
        UniqueConstraint("workspace_id", "kind", "name"),
        _once("uq_registrations_service", "workspace_id", "kind", "name"),
    )

    id: Mapped[int] = mapped_column(primary_key=True, init=False)
    workspace_id: Mapped[int | None] = mapped_column(ForeignKey("workspaces.id", ondelete="CASCADE"), default=None)
    kind: Mapped[str] = mapped_column(String(16))
    """root (a folder or URL that recipes may read), endpoints, file, encoder, op, secret, proxy, network."""
    name: Mapped[str] = mapped_column(String(ID))
    """What recipes write."""
    value: Mapped[str] = mapped_column(String(1000))
    """What it stands for: a folder or URL, a file, an encoder, module:Class, env:NAME or file:PATH, http://HOST:PORT,
    10.1.0.0/16."""
    created: Mapped[float]


class Quota(Base, kw_only=True):
    """Limits of a user, or (no user) the default. None: no limit."""

    __tablename__ = "quotas"

    id: Mapped[int] = mapped_column(primary_key=True, init=False)
    user_id: Mapped[int | None] = mapped_column(ForeignKey("users.id", ondelete="CASCADE"), unique=True, default=None)
    running: Mapped[int | None] = mapped_column(default=None)
    queued: Mapped[int | None] = mapped_column(default=None)
    gpu_hours: Mapped[float | None] = mapped_column(default=None)
    """In the last 30 days."""


# --- runs -------------------------------------------------------------------------------------------------------------


class Submission(Base, kw_only=True):
    """A run that was submitted to the service, with the state of its current attempt (see `states`)."""

    __tablename__ = "submissions"
    __table_args__ = (
        Index("ix_submissions_state_priority", "state", "priority"),
        Index("ix_submissions_spent", "workspace_id", "gpu_hours", "dollars", "tokens"),  # their sums read it alone
    )

    id: Mapped[str] = mapped_column(String(ID), primary_key=True)
    workspace_id: Mapped[int] = mapped_column(ForeignKey("workspaces.id", ondelete="CASCADE"))
    target_id: Mapped[int] = mapped_column(ForeignKey("targets.id"), index=True)
    user_id: Mapped[int] = mapped_column(ForeignKey("users.id"), index=True)
    digest: Mapped[str] = mapped_column(String(64), default="")
    """SHA-256 of the order, if this release took it: who repeats the order with this id gets this run."""
    title: Mapped[str] = mapped_column(String(200), default="")
    recipe: Mapped[str] = mapped_column(Text)
    """As it was sent."""
    sets: Mapped[list[str]] = mapped_column(default_factory=list)
    resolved: Mapped[str] = mapped_column(Text)
    """As the job runs it: variables and registered names replaced."""
    options: Mapped[dict[str, Any]] = mapped_column(default_factory=dict)
    """Options of the engine: those of `shapes.runs.RunOptions`."""
    needs: Mapped[dict[str, Any]] = mapped_column(default_factory=dict)
    """What its stages need: {"gpus": most per task, "stage": the stage that needs them}."""
    stages: Mapped[list[Any]] = mapped_column(default_factory=list)
    """Its stages (`shapes.runs.StageLine`), as they are shown before it begins."""
    priority: Mapped[int] = mapped_column(default=0)
    """Larger ones start first."""
    retries: Mapped[int] = mapped_column(default=1)
    """How often it is resubmitted after it was lost."""
    drain_seconds: Mapped[float] = mapped_column(default=60.0)
    created: Mapped[float]

    state: Mapped[str] = mapped_column(String(16))
    reason: Mapped[str] = mapped_column(Text, default="")
    """Why it is in this state, or why it waits, in one line."""
    since: Mapped[float]
    """Since when it is in this state."""
    queued: Mapped[float]
    """Since when it waits or waited, for the order of the queue."""
    request: Mapped[str] = mapped_column(String(16), default="")
    """stop or kill."""
    requested: Mapped[float | None] = mapped_column(default=None)
    requested_by: Mapped[str] = mapped_column(String(ID), default="")
    attempt: Mapped[int] = mapped_column(default=1)
    lost: Mapped[int] = mapped_column(default=0)
    """How often it was lost since it was last submitted or resumed."""
    started: Mapped[float | None] = mapped_column(default=None)
    """When its current attempt began."""
    seconds: Mapped[float] = mapped_column(default=0.0)
    """How long the attempts before took, from their beginning to their end."""
    ended: Mapped[float | None] = mapped_column(default=None)
    gpu_hours: Mapped[float] = mapped_column(default=0.0)
    """Sum over its attempts."""
    dollars: Mapped[float] = mapped_column(default=0.0)
    tokens: Mapped[int] = mapped_column(default=0)
    alert: Mapped[str] = mapped_column(Text, default="")
    """Stalled, or failure budget at 80 %; "" if nothing is wrong."""
    version: Mapped[int] = mapped_column(default=1)
    """Counts every change; a change applies only to the version that was read."""

    @property
    def attempt_id(self) -> str:
        """Id of the current attempt: the engine's run and Ray's job."""
        return f"{self.id}-{self.attempt}"

    @property
    def resubmitted(self) -> bool:
        """Whether it is lost, and the service is about to submit it again."""
        return self.state == State.LOST and self.lost <= self.retries

    @property
    def over(self) -> bool:
        """Whether it has ended, and stays so unless it is resumed."""
        return State(self.state).ended and not self.resubmitted

    def seconds_until(self, now: float) -> float | None:
        """How long its attempts have run, without the time between them; None if none has begun."""
        if self.started is None:
            return self.seconds or None
        return self.seconds + max(0.0, (now if self.ended is None else self.ended) - self.started)


class Change(Base, kw_only=True):
    """A change of a submission's state."""

    __tablename__ = "changes"

    id: Mapped[int] = mapped_column(primary_key=True, init=False)
    submission_id: Mapped[str] = mapped_column(ForeignKey("submissions.id", ondelete="CASCADE"), index=True)
    time: Mapped[float]
    attempt: Mapped[int]
    before: Mapped[str] = mapped_column(String(16))
    after: Mapped[str] = mapped_column(String(16))
    reason: Mapped[str] = mapped_column(Text, default="")
    gpu_hours: Mapped[float] = mapped_column(default=0.0)
    """What the attempt used, if this change is its end; taken back if its driver turns out to be alive. The same for
    the others. The sums over all changes of a submission are its own."""
    dollars: Mapped[float] = mapped_column(default=0.0)
    tokens: Mapped[int] = mapped_column(default=0)


# --- the index, which can be rebuilt ----------------------------------------------------------------------------------


class IndexedRun(Base, kw_only=True):
    """A run for lists: one that was submitted here (all attempts are one row), or one that was started in the
    workspace without the service."""

    __tablename__ = "indexed_runs"
    __table_args__ = (
        Index("ix_indexed_runs_started_id", "started", "id"),
        Index("ix_indexed_runs_workspace_started", "workspace_id", "started", "id"),
        Index("ix_indexed_runs_state_started", "state", "started", "id"),
    )

    workspace_id: Mapped[int] = mapped_column(ForeignKey("workspaces.id", ondelete="CASCADE"), primary_key=True)
    id: Mapped[str] = mapped_column(String(ID), primary_key=True)
    attempt_id: Mapped[str] = mapped_column(String(ID))
    """The engine's run to read."""
    submitted: Mapped[bool] = mapped_column(default=False)
    title: Mapped[str] = mapped_column(String(200), default="")
    user: Mapped[str] = mapped_column(String(ID), default="")
    target: Mapped[str] = mapped_column(String(ID), default="")
    state: Mapped[str] = mapped_column(String(16))
    reason: Mapped[str] = mapped_column(Text, default="")
    started: Mapped[float]
    """Or submitted, whichever was first."""
    ended: Mapped[float | None] = mapped_column(default=None)
    seconds: Mapped[float | None] = mapped_column(default=None)
    stages: Mapped[int] = mapped_column(default=0)
    stages_done: Mapped[int] = mapped_column(default=0)
    rows: Mapped[int | None] = mapped_column(default=None)
    """Rows of its largest dataset."""
    gpu_hours: Mapped[float] = mapped_column(default=0.0)
    dollars: Mapped[float] = mapped_column(default=0.0)
    alert: Mapped[str] = mapped_column(Text, default="")


class IndexedDataset(Base, kw_only=True):
    __tablename__ = "indexed_datasets"
    __table_args__ = (Index("ix_indexed_datasets_committed", "workspace_id", "committed"),)

    workspace_id: Mapped[int] = mapped_column(ForeignKey("workspaces.id", ondelete="CASCADE"), primary_key=True)
    base: Mapped[str] = mapped_column(String(300), primary_key=True)
    """Its folder in the workspace: datasets/<name>/<fingerprint>."""
    name: Mapped[str] = mapped_column(String(200), index=True)
    fingerprint: Mapped[str] = mapped_column(String(ID))
    rows: Mapped[int]
    tars: Mapped[int]
    bytes: Mapped[int]
    committed: Mapped[float]
    run_id: Mapped[str] = mapped_column(String(ID), default="")
    """The run (of `IndexedRun`) that built it; "" if its record is gone."""


class Tag(Base, kw_only=True):
    """A change of a tag: `name@good` is the dataset of the newest one; without a base the tag was removed."""

    __tablename__ = "tags"
    __table_args__ = (Index("ix_tags_name_tag", "workspace_id", "name", "tag", "id"),)

    id: Mapped[int] = mapped_column(primary_key=True, init=False)
    workspace_id: Mapped[int] = mapped_column(ForeignKey("workspaces.id", ondelete="CASCADE"))
    name: Mapped[str] = mapped_column(String(200))
    tag: Mapped[str] = mapped_column(String(ID))
    base: Mapped[str | None] = mapped_column(String(300), default=None)
    time: Mapped[float]
    user: Mapped[str] = mapped_column(String(ID))
    newest: Mapped[bool] = mapped_column(default=True)
    """Whether no later change exists."""


# --- the service itself -----------------------------------------------------------------------------------------------


class Leader(Base, kw_only=True):
    """Which replica reconciles. Others watch `beat` by their own clocks; no clocks are compared."""

    __tablename__ = "leaders"

    name: Mapped[str] = mapped_column(String(ID), primary_key=True)
    holder: Mapped[str] = mapped_column(String(200))
    beat: Mapped[int] = mapped_column(default=0)
