"""Workspaces, targets, registrations."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from curate.service.auth.roles import Role
from curate.service.shapes.common import Name, Order, Shape, Time

Kind = Literal["root", "endpoints", "file", "encoder", "op", "secret", "proxy", "network"]


class WorkspaceShape(Shape):
    name: str
    url: str
    target: str
    role: Role
    """The role of the user who asks."""
    created: Time
    version: int


class NewWorkspace(Order):
    name: Name
    url: str = Field(min_length=1, max_length=1000)
    target: Name | Literal[""] = ""


class ChangedWorkspace(Order):
    target: Name


class Health(Shape):
    """A target, as it answered `checked`."""

    healthy: bool
    checked: Time
    error: str = ""
    version: str = ""
    """Of Ray."""
    nodes: int = 0
    cpus: float = 0
    gpus: float = 0
    free_cpus: float = 0
    free_gpus: float = 0


class TargetShape(Shape):
    name: str
    address: str
    token: str
    """A reference, never the token."""
    max_runs: int
    max_gpus: int
    active: int
    """Runs of the service on it."""
    created: Time
    version: int
    health: Health | None
    """None before the first check."""


class NewTarget(Order):
    name: Name
    address: str = Field(pattern=r"^https?://[^\s/@]+$", max_length=1000, examples=["http://ray-head:8265"])
    token: str = Field(default="", pattern=r"^$|^(env:[A-Za-z_][A-Za-z0-9_]*|file:\S.*)$", max_length=500)
    max_runs: int = Field(default=4, ge=1, le=10_000)
    max_gpus: int = Field(default=0, ge=0, le=1_000_000)
    """GPUs that a cluster with an autoscaler can scale up to; 0: no more than it has."""


class ChangedTarget(Order):
    address: str | None = Field(default=None, pattern=r"^https?://[^\s/@]+$", max_length=1000)
    token: str | None = Field(default=None, pattern=r"^$|^(env:[A-Za-z_][A-Za-z0-9_]*|file:\S.*)$", max_length=500)
    max_runs: int | None = Field(default=None, ge=1, le=10_000)
    max_gpus: int | None = Field(default=None, ge=0, le=1_000_000)


class RegistrationShape(Shape):
    workspace: str | None
    kind: Kind
    name: str
    value: str
    created: Time


class NewRegistration(Order):
    workspace: Name | None = None
    kind: Kind
    name: Name
    value: str = Field(min_length=1, max_length=1000)
