"""State of a run: its options, pools and masks, and the outputs built so far."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from curate.core.contracts import Portion
from curate.core.errors import InputError
from curate.core.nouns.manifest import Manifest
from curate.core.nouns.pools import Shard
from curate.core.rows import Rows


@dataclass(frozen=True)
class Options:
    """How a run is executed. Except for `sample`, `sample_rows` and `to`, options never change its results."""

    failure_budget: float = 0.01
    """Share of the pool's rows, rounded up, that may be lost to errors, killed processes and shards set aside."""
    sample: float = 1.0
    """Share of the pool for a canary run."""
    sample_rows: int | None = None
    """Rows to take of each pool, approximately; instead of `sample`."""
    to: str | None = None
    """Last stage: only it and the stages that it depends on. None: all stages."""
    segment_seconds: float = 60.0
    """How often results of costly Maps are logged. Answers of endpoints are logged within a second."""
    deadline: float | None = None
    """Seconds without a finished batch after which a unit counts as hung; None: a multiple of the median batch."""
    task_rows: int = 1000
    """Small shards are joined into tasks of up to this many rows."""
    retry: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Stage -> reasons whose rows in error are computed again (an empty tuple: all reasons)."""
    retry_status: str = "error"
    """`unusable`: retry unusable rows with these reasons, of a source that may read something else the next time."""
    cpus: int | None = None
    """CPUs of a cluster that the run's workers may take, and of a Ray that the run starts. None: all."""
    gpus: int | None = None
    """GPUs that its workers may take."""
    max_tokens: int | None = None
    """Ceiling of the tokens that this run may use at endpoints."""
    max_dollars: float | None = None
    """Ceiling of what this run may spend at endpoints."""

    def share(self, portions: Sequence[Portion]) -> float:
        """Share of a pool to take. Raises InputError if rows are asked for and cannot be counted in advance."""
        if self.sample_rows is None:
            return self.sample
        if any(portion.rows is None for portion in portions):
            raise InputError(
                f"--sample {self.sample_rows}rows: the rows of this source cannot be counted in advance; give a share, "
                "such as 1%"
            )
        return min(1.0, self.sample_rows / max(1, sum(portion.rows or 0 for portion in portions)))


@dataclass
class Pool:
    namespace: str
    fingerprint: str
    shards: list[Shard]
    parents: Rows | None = None
    """For a derived pool: the rows that its samples were made from."""
    alive: dict[str, str] = field(default_factory=dict)
    """For a derived pool: shard -> digest of the children whose parent is alive; "" if no parent is."""

    @property
    def rows(self) -> int:
        return sum(shard.rows for shard in self.shards)

    @cached_property
    def of_parents(self) -> dict[str, tuple[Shard, ...]]:
        """For a derived pool: parents' shard -> shards of their children."""
        found: dict[str, list[Shard]] = {}
        for shard in self.shards:
            found.setdefault(shard.parent_shard().id, []).append(shard)
        return {parent: tuple(shards) for parent, shards in found.items()}


@dataclass
class Counts:
    """Work of a run at a stage, in rows. `requests` are rows handed to the stage, repeats included."""

    computed: int = 0
    copied: int = 0
    requests: int = 0
    repeated: int = 0
    rebuilt: bool = False


@dataclass
class Built:
    """Output of a stage. Stages that read it depend on `content`; `path` is the folder of a Map's facts."""

    fingerprint: str
    base: str
    path: str = ""
    manifest: Manifest | None = None
    began: float = 0.0
    """When its build began (time.monotonic())."""
    reused: bool = False
    content: str = ""
    mask: str = ""
    """For a Map or a Filter: manifest of the mask of its pass."""
    counts: Counts = field(default_factory=Counts)
    numbers: dict[str, int] = field(default_factory=dict)
    """For a Map: shard -> number of its current table, as far as the pass has got."""


@dataclass
class Mask:
    """Mask of a pass: its folder, its manifest once it is complete, and for each point the digests of the rows that
    pass, overall and by shard, as far as the pass has got."""

    chain: str
    names: frozenset[str]
    points: tuple[str, ...]
    base: str = ""
    contents: dict[str, str] = field(default_factory=dict)
    by_shard: dict[str, dict[str, str]] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    """Point -> digest of all rejects and their reasons, which a report depends on."""
