"""What runs made: datasets, artifacts, samples; and the upkeep of a workspace."""

from __future__ import annotations

from typing import Any

from pydantic import AliasChoices, Field

from curate.service.shapes.common import Amount, Name, Order, Shape, Text, Time


class TagShape(Shape):
    """`name@tag`, now or at some time."""

    name: str
    tag: str
    base: str | None
    """The dataset's folder in the workspace; None: the tag was removed."""
    time: Time
    user: str
    version: int = Field(validation_alias=AliasChoices("version", "id"))
    """Grows with each change. If-Match names it."""


class NewTag(Order):
    base: str = Field(max_length=300, pattern=r"^datasets/[^/]+/[^/]+$")


class DatasetShape(Shape):
    name: str
    base: str
    url: str
    """Where training reads it."""
    fingerprint: str
    rows: int
    tars: int
    bytes: int
    committed: Time
    run: str
    tags: list[str]
    pins: list[str]


class Resolved(Shape):
    """What `curate://SERVER/NAME@TAG` is now."""

    workspace: str
    name: str
    tag: str
    base: str
    url: str
    fingerprint: str
    rows: int


class LineageNode(Shape):
    """A stage's output in the run that made it. `up`: what it was made from; loaded by neighbourhood, never whole."""

    id: str
    """Its folder in the workspace."""
    stage: str
    op: str
    noun: str
    """pool, facts, mask, artifact, selection, dataset, report."""
    rows: int | None
    up: list[str]


class Lineage(Shape):
    run: str
    nodes: list[LineageNode]
    more: bool
    """Whether there is more beyond the distance that was asked for."""


class ArtifactShape(Shape):
    base: str
    stage: str
    op: str
    kind: str
    run: str
    pins: list[str]


class SampleFact(Shape):
    """What one stage says about a sample."""

    stage: str
    op: str
    facts: dict[str, Any]


class SampleShape(Shape):
    key: str
    run: str
    facts: list[SampleFact]


class PinShape(Shape):
    name: str
    base: str
    fingerprint: str
    run: str
    stage: str


class NewPin(Order):
    run: Name
    stage: str = Field(max_length=200)


class TombstonesShape(Shape):
    counts: dict[str, int]
    """Kind (key, sha256, url) -> number of entries."""
    affected: dict[str, int]
    """URL of each dataset that still has tombstoned samples -> their number."""


class NewTombstones(Order):
    entries: list[str] = Field(min_length=1, max_length=10_000)
    """Keys, sha256 digests, URLs."""
    why: Text = Field(min_length=1)


class StorageLine(Shape):
    noun: str
    name: str
    stages: list[str]
    files: int
    bytes: int
    garbage: int
    """Bytes that gc would free."""


class StorageShape(Shape):
    lines: list[StorageLine]
    bytes: int
    garbage: int
    checked: Time


class GcOrder(Order):
    keep: Amount | None = None
    """Latest successful runs of each recipe to keep; those that pins name stay too."""
    drop: list[Name] = []
    costly: bool = False
    delete: bool = False
    """False: only say what would be freed."""


class GcShape(Shape):
    paths: int
    bytes: int
    runs: list[str]
    deleted: bool
