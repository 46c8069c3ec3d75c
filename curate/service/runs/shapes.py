"""Recipes and runs."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from curate.service.shapes import Amount, Name, Order, Shape, Text, Time
from curate.service.states import State

Sets = list[str]
LONGEST = 31_536_000.0
"""Seconds of a year: clocks and waiting take no infinite times."""
MOST = 1_000_000_000_000
"""Dollars, and anything in a second or minute."""


class RecipeOrder(Order):
    """A recipe to check or to plan."""

    workspace: Name
    recipe: str = Field(min_length=1)
    """YAML."""
    set: Sets = Field(default=[], max_length=200)
    """`variable=value`, `stage.parameter=value` or `stage={op: …}`."""


class RunOptions(Order):
    """As those of `curate run`."""

    failure_budget: float = Field(default=0.01, ge=0, le=1)
    sample: float = Field(default=1.0, gt=0, le=1)
    sample_rows: int | None = Field(default=None, gt=0, lt=1 << 53)
    to: Text | None = None
    deadline: float | None = Field(default=None, gt=0, le=LONGEST)
    cpus: int | None = Field(default=None, gt=0, le=MOST)
    gpus: int | None = Field(default=None, ge=0, le=MOST)
    max_tokens: Amount | None = None
    max_dollars: float | None = Field(default=None, ge=0, le=MOST)
    retry: dict[str, list[Text]] = {}
    retry_status: Literal["error", "unusable"] = "error"


class NewRun(RecipeOrder):
    id: str | None = Field(default=None, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,47}$")
    """Chosen by the client, such as a UUID: the same order with the same id submits one run, and an order that differs
    is a conflict. None: the service chooses."""
    title: Text = ""
    target: Name | None = None
    """None: the workspace's."""
    options: RunOptions = RunOptions()
    priority: int = Field(default=0, ge=-100, le=100)
    """Larger ones start first; above 0 needs the role admin."""
    retries: int | None = Field(default=None, ge=0, le=100)
    """How often it is resubmitted after it was lost. None: the service's default."""
    drain_seconds: float | None = Field(default=None, gt=0, le=86_400)


class ChangedRun(Order):
    """What can be changed of a queued run."""

    priority: int = Field(ge=-100, le=100)
    """Larger ones start first; above 0 needs the role admin."""


class EndpointLimits(Order):
    """Null: no limit."""

    requests_per_minute: int | None = Field(default=None, gt=0, le=MOST)
    tokens_per_minute: int | None = Field(default=None, gt=0, le=MOST)


class NewLimits(Order):
    """Limits of a running run to change. Null: no limit; what is left out is unchanged."""

    requests_per_second: float | None = Field(default=None, gt=0, le=MOST)
    """Requests of downloads."""
    bytes_per_second: float | None = Field(default=None, gt=0, le=MOST)
    max_tokens: Amount | None = None
    max_dollars: float | None = Field(default=None, ge=0, le=MOST)
    endpoints: dict[str, EndpointLimits] = Field(default={}, max_length=100)


class Mistake(Shape):
    """What is wrong with a recipe, in one line."""

    code: str
    """recipe, policy, too_large, input or timeout."""
    text: str
    stage: str = ""
    line: int | None = None


class StageLine(Shape):
    """A stage of a checked recipe."""

    stage: str
    op: str
    contract: str
    inputs: list[str]
    ports: dict[str, str] = {}
    gpus: float = 0


class Checked(Shape):
    """Whether a recipe may be submitted."""

    ok: bool
    mistakes: list[Mistake]
    stages: list[StageLine]


class PlanStage(Shape):
    """A line of a plan: rows, and seconds for one worker (see `curate plan`)."""

    stage: str
    op: str
    kind: str
    done: int | None
    needed: int | None
    compute: int | None
    after: int | None
    certainty: str
    seconds: float | None
    bytes: int | None
    gpu_hours: float | None
    requests: int | None
    tokens: int | None
    dollars: float | None
    """What its requests to endpoints will cost, at the rate of the last run that sent some. To learn it: a run with the
    options `sample_rows` and `to`."""
    note: str


class Planned(Checked):
    plan: list[PlanStage]


class StateChange(Shape):
    time: Time
    attempt: int
    before: str
    after: str
    reason: str


class RunLine(Shape):
    """A run in a list."""

    id: str
    workspace: str
    title: str
    user: str
    target: str
    submitted: bool
    """False: started in the workspace without the service."""
    state: State
    reason: str
    """Why it waits, failed or was lost."""
    position: int | None = None
    """In the queue, from 1."""
    created: Time
    """When it was submitted, or started without the service. Lists are sorted by it."""
    started: Time | None
    """When its current attempt began; null before."""
    ended: Time | None
    seconds: float | None
    stages: int
    stages_done: int
    rows: int | None
    gpu_hours: float
    dollars: float
    alert: str


class LaneShape(Shape):
    lane: str
    rows: int
    rows_per_s: float
    bytes_per_s: float
    busy: float | None


class StageShape(Shape):
    """A stage of a run, live."""

    stage: str
    op: str
    contract: str
    inputs: list[str]
    ports: dict[str, str]
    state: str
    """done, reused, running, waiting, unfinished."""
    rows: int
    total: int | None
    left_seconds: float | None
    text: str
    lanes: list[LaneShape]
    remedy: str = ""
    """For a stage that failed: what to do."""


class RunShape(RunLine):
    """One run."""

    attempt: int
    attempt_id: str
    changes: list[StateChange]
    request: str
    requested_by: str
    priority: int
    retries: int
    drain_seconds: float
    recipe: str
    set: Sets
    options: dict[str, Any]
    tokens: int
    resumable: bool
    stoppable: bool
    stage_list: list[StageShape]
    datasets: list[str]
    """Their folders in the workspace."""
    reports: list[str]
    version: int


class FunnelLine(Shape):
    """Rows at a stage: before + kept = rejected + unusable + error + after. `found` by a source: its rows and what it
    skipped."""

    stage: str
    op: str
    before: int
    rejected: dict[str, int]
    unusable: dict[str, int]
    error: dict[str, int]
    kept: int = 0
    """Unusable rows and rows in error that pass with nulls."""
    after: int
    children: int | None = None
    items: dict[str, dict[str, Any]] = {}
    found: int | None = None
    skipped: dict[str, int] = {}
    """Reason and extension -> how many."""
    seconds: float | None = None
    """That it took; null if an earlier run had built its output."""


class Event(Shape):
    """An event of a run. `id`: `<segment>:<line>` in its attempt, a cursor."""

    id: str
    event: str
    time: Time
    data: dict[str, Any]


class LogLine(Shape):
    time: Time
    level: str
    stage: str
    worker: str
    node: str
    message: str
    traceback: str = ""
