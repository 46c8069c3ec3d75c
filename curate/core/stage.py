"""The stage contracts: what somebody who adds a stage has to know, and nothing else.

A stage is a frozen pydantic model. Its fields are its parameters; the constructor only stores them. Those marked
`Execution` (threads, batch size, endpoints, paths, secrets) never change what comes out and stay outside of the
fingerprint. A stage knows nothing of Ray, paths, retries or progress: the engine hands it tables and takes tables.

    Source   plan() -> portions, read(portion) -> samples             a pool
    Map      process(batch) -> as many rows of new columns            columns
    Reduce   partial(table) -> state, merge(states), finish(state)    an artifact
    Fit      load(table) -> arrays, fit(group)                        an artifact
    Select   units(table), plan(counts) -> quotas, pick(rows)         a selection
    Pack     write(rows, fetch, tar) per shard, finish(index)         a dataset
    Report   render(view) -> files                                    an artifact that people look at
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, field_validator

from curate.core.errors import Undecodable

if TYPE_CHECKING:
    from PIL.Image import Image

    from curate.core.group import Group
    from curate.core.view import View

Table: TypeAlias = pa.Table
Artifact: TypeAlias = Mapping[str, Any]  # name -> pa.Table | np.ndarray | JSON-able dict or list


PLAIN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
"""What becomes part of a path in the workspace: namespaces, run ids."""


class Execution:
    """Marks a parameter that changes speed or place, never the result: `threads: Annotated[int, Execution()] = 2`."""


@dataclass(frozen=True)
class Resources:
    """What one task of a stage holds while it runs. The engine turns it into its scheduler's terms."""

    cpus: float = 1
    gpus: float = 0
    memory_bytes: int = 0


class Stage(BaseModel):
    """Common to all contracts. `op` names the stage in recipes; `version` rises when its output changes."""

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)

    op: ClassVar[str] = ""
    version: ClassVar[int] = 1
    ports: ClassVar[dict[str, str]] = {}
    """Named inputs besides `from`: port -> kind of artifact (what a Reduce calls its `kind`)."""
    optional_ports: ClassVar[tuple[str, ...]] = ()
    """Ports that a recipe may leave out; `setup` then finds nothing under their names. One that bears a parameter's
    name stands in for its value: exactly one of the two is given, and the parameter is null where it is the port."""

    def parameters(self) -> dict[str, Any]:
        """The semantic parameters, JSON-able: what enters the fingerprint."""
        hidden = {name for name, info in type(self).model_fields.items() if is_execution(info.metadata)}
        return json.loads(self.model_dump_json(exclude=hidden))

    def identity(self) -> dict[str, Any]:
        """What else decides the output: weight digests, preprocessing, precision. Called on the driver; cheap."""
        return {}

    def resources(self) -> Resources:
        return Resources(cpus=getattr(self, "threads", 1))

    def scaled(self, fraction: float) -> Self:
        """The same stage for a canary run on `fraction` of the pool: absolute targets shrink with it."""
        return self

    def preflight(self) -> list[str]:
        """Problems that would stop this stage later, a line each: missing weights, credentials, folders."""
        return []

    def setup(self, artifacts: Mapping[str, Artifact]) -> None:
        """Load what the work needs, once per process; `artifacts` by port. Keep it in pydantic private attributes."""


def is_execution(metadata: Iterable[Any]) -> bool:
    """Whether a field's metadata marks it as an execution parameter."""
    return any(isinstance(item, Execution) or item is Execution for item in metadata)


# --- Source -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Portion:
    """What goes into one shard. `content` (JSON-able) is all that `read` needs and all that decides the shard."""

    content: dict[str, Any]
    rows: int | None = None
    """Rows at most, where that is known without reading; None otherwise."""
    bytes: int = 0
    """Bytes that will be copied into the pool, as far as is known without reading."""


@dataclass
class Incoming:
    """One sample on its way into a pool: bytes to copy, or the place of its member in a tar that stays where it is."""

    source_id: str
    name: str = ""
    """Member stem in the source; becomes the member's name in our tar when empty (then the key)."""
    ext: str = ""
    data: bytes | None = None
    offset: int | None = None
    size: int | None = None
    caption: str | None = None
    url: str | None = None
    meta: dict[str, Any] = field(default_factory=dict)
    reject: str | None = None


class Source(Stage):
    unique_keys: ClassVar[bool] = False
    """Whether keys cannot repeat across portions; otherwise the engine looks for repeats across shards."""
    namespace: str
    """Enters every key: the same source id in another namespace is another sample. Names a folder too."""

    @field_validator("namespace", check_fields=False)
    @classmethod
    def _plain_namespace(cls, value: str) -> str:
        if not PLAIN_NAME.fullmatch(value):
            raise ValueError("expected letters, digits, . - and _, and a letter or digit first; it names a folder")
        return value

    def plan(self) -> list[Portion]:
        """What there is to read, cut into shards. Raises InputError when there is nothing."""
        raise NotImplementedError

    def tar(self, portion: Portion) -> str | None:
        """URL of the tar that already holds the portion's members and stays in place; None when bytes are copied."""
        return None

    def read(self, portion: Portion) -> Iterator[Incoming]:
        raise NotImplementedError


# --- Map --------------------------------------------------------------------------------------------------------------


class Sample:
    """One encoded picture in a decoding thread; decoded once, however many stages look at it."""

    def __init__(self, data: bytes, decode: Callable[..., Image], row: Mapping[str, Any] | None = None) -> None:
        self.data = data
        self.row = row or {}
        self._decode = decode
        self._image: Image | None = None

    def image(self, max_pixels: int = 100_000_000) -> Image:
        """RGB, upright, alpha over white. Raises Undecodable (a Reject)."""
        if self._image is None:
            self._image = self._decode(self.data, max_pixels=max_pixels)
        width, height = self._image.size
        if width * height > max_pixels:  # decoded for a stage that allows more
            raise Undecodable("too_many_pixels", f"{width} x {height} pixels, at most {max_pixels:,}")
        return self._image


@dataclass
class Batch:
    """Live rows of one shard, cut by row index. Rejected rows are absent: no stage ever sees one."""

    table: Table
    """`key`, and what the stage `reads`."""
    prepared: list[Any] = field(default_factory=list)
    """What `prepare` returned, a value per row (pixel stages only)."""
    counters: Counter[str] = field(default_factory=Counter)
    """Counts that are not rejects (a cleaning rule's hits); added up into the ledger."""

    def __len__(self) -> int:
        return self.table.num_rows

    def column(self, name: str) -> list[Any]:
        return self.table.column(name).to_pylist()


class Map(Stage):
    """Facts about samples, a row each. `process` returns the columns it `writes` and, if it refuses any, `reject`."""

    pixels: ClassVar[bool] = False
    """Whether `prepare` is called with each picture."""
    costly: ClassVar[bool] = False
    """Whether rows are dear enough to commit segments inside a shard."""
    batch_rows: ClassVar[int] = 128
    """Rows of a batch; a power of two, since batches are cut by row index."""

    def reads(self) -> tuple[str, ...]:
        """Columns of the pool's table or of upstream stages; `key` is always there."""
        return ()

    def writes(self) -> tuple[str, ...]:
        """Names of the new columns, without `reject`."""
        raise NotImplementedError

    def schema(self) -> pa.Schema:  # type: ignore[override]  # pydantic's own is deprecated
        """Types, units and provenance (field metadata) of `writes`; called after `setup`."""
        raise NotImplementedError

    def prepare(self, sample: Sample) -> Any:
        """Per picture, in decoding threads, ahead of `process`. Raise Reject to refuse the sample."""
        raise NotImplementedError

    def process(self, batch: Batch) -> dict[str, Any]:
        """Columns by name: lists, numpy or Arrow arrays of len(batch); `reject`: reason or None per row."""
        raise NotImplementedError


# --- Reduce -----------------------------------------------------------------------------------------------------------


class Reduce(Stage):
    """A global fact. States are tables, so that they can lie in files and be looked at."""

    kind: ClassVar[str] = ""
    """What other stages' ports call this artifact."""

    def reads(self) -> tuple[str, ...]:
        return ()

    def counting(self) -> dict[str, Any]:
        """What decides `partial`, JSON-able: states are kept under it. Parameters of `merge` and `finish` alone may be
        left out; another value of them then looks at no row again."""
        return {"parameters": self.parameters(), "identity": self.identity()}

    def partial(self, table: Table) -> Table:
        """State of one shard's live rows (`key` and what it `reads`)."""
        raise NotImplementedError

    def merge(self, states: Iterator[Table]) -> Table:
        """States in shard order -> one state."""
        return pa.concat_tables(list(states))

    def finish(self, state: Table) -> Artifact:
        raise NotImplementedError


# --- Fit --------------------------------------------------------------------------------------------------------------


class Fit(Stage):
    """A global fact that takes many passes over the rows, or their regrouping: workers hold them in parts."""

    kind: ClassVar[str] = ""
    """What other stages' ports call this artifact."""

    def reads(self) -> tuple[str, ...]:
        return ()

    def made(self, schema: pa.Schema) -> dict[str, str]:
        """What the columns say of how they were made, as far as all shards must agree: `fit` finds it in the group."""
        return {}

    def load(self, table: Table) -> dict[str, NDArray[Any]]:
        """What workers hold of one shard's live rows: arrays of as many rows as should take part, of the same names,
        types and trailing shapes for every shard, also for one without rows. Raises InputError."""
        raise NotImplementedError

    def fit(self, group: Group) -> Artifact:
        """Runs in the driver: steps see rows, it sees what they return. What steps `store` is part of the artifact."""
        raise NotImplementedError


# --- Select -----------------------------------------------------------------------------------------------------------


class Select(Stage):
    """Which rows go on, and how often. `units` are what quotas are given to: clusters, concepts."""

    spread: ClassVar[bool] = False
    """Whether `pick` looks at rows one by one, so that the rows of a unit may be dealt to several buckets."""
    multiplier: int = 1
    """The most copies of one row, or of one of its items."""

    def reads(self) -> tuple[str, ...]:
        return ()

    def target_rows(self) -> int | None:
        """Rows asked for, copies counted; None when the stage takes what it takes."""
        return None

    def dealt(self, table: Table) -> Table:
        """What the methods below see of the live rows of a shard, and what goes to buckets: `key` and what the stage
        reads, or something smaller that says as much."""
        return table

    def units(self, table: Table) -> NDArray[np.int64]:
        """Unit (>= 0) of each live row of a shard."""
        return np.zeros(table.num_rows, dtype=np.int64)

    def counted(self, table: Table, units: NDArray[np.int64]) -> NDArray[np.int64]:
        """Units (m,) of what `plan` counts: the live rows, or the items of these for stages that choose among items."""
        return units

    def plan(self, counts: NDArray[np.int64]) -> NDArray[np.int64]:
        """counts (U,): what is `counted`, per unit -> quotas (U,): copies per unit. Raises TargetError, naming the
        maximum."""
        raise NotImplementedError

    def planned(self, counts: NDArray[np.int64], quotas: NDArray[np.int64]) -> None:
        """What `plan` was given and has returned, before every `pick`: for stages that pick by more than the quotas."""

    def pick(self, rows: Table, units: NDArray[np.int64], quotas: NDArray[np.int64]) -> dict[str, Any]:
        """All rows of some whole units (any rows, if `spread`) -> `copies` (0 = rejected), `reject` (reason where 0).

        Stages that choose among items return them one by one: `row` (m,), ascending places in `rows`, each at least
        once; `item` (m,), their names; and `copies`, `reject` (m,). `expected` (m,), if any, is how many copies chance
        was to give: what a report holds against what it gave. `unit` (m,), if any, is what each item was counted under.
        """
        raise NotImplementedError


# --- Pack and Report --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Packed:
    """One member group as it lies in an output tar: what the dataset's index says of it."""

    ext: str
    offset: int
    size: int
    text_offset: int = -1
    text_size: int = 0
    width: int | None = None
    height: int | None = None


class Pack(Stage):
    """Writes the dataset. The engine ranks the selection, hands each output shard its rows and publishes the files."""

    name: str
    shard_rows: int = 1000
    seed: int = 0

    def texts(self) -> tuple[str, ...]:
        """Columns of which the first that is there holds an item's text: with a value per item, if items are packed."""
        return ()

    def reads(self) -> tuple[str, ...]:
        """Columns that `write` needs or that the index carries."""
        return ()

    def reads_if_there(self) -> tuple[str, ...]:
        """Columns that `write` uses when something upstream writes them."""
        return ()

    def write(self, row: Mapping[str, Any], data: bytes, add: Callable[[str, bytes], int]) -> Packed:
        """Put one sample into the tar; `add(member name, bytes)` returns the offset of the member's bytes. Raise Reject
        before anything is added, to leave the sample out. Of per-item columns, `row` has the item's element."""
        raise NotImplementedError

    def carried(self) -> tuple[str, ...]:
        """Columns that go into the index beside the fixed ones."""
        return ()

    def carried_values(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """Their values for a row."""
        return {name: row[name] for name in self.carried()}

    def finish(self, tars: list[tuple[str, int]]) -> dict[str, bytes]:
        """(file name, samples) of every tar -> further files by name (sizes.json, wids index)."""
        return {}


class Report(Stage):
    """A page about everything upstream. `view` reads any noun; see curate.core.view."""

    kind: ClassVar[str] = "report"

    def render(self, view: View) -> dict[str, bytes]:
        """File name -> content; `index.html` is the page."""
        raise NotImplementedError
