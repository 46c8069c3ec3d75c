"""`Map`: facts about samples, a row each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa

from curate.core.contracts.stage import Stage, Table
from curate.core.errors import Undecodable

if TYPE_CHECKING:
    from PIL.Image import Image


class Sample:
    """One encoded image in a decoding thread; decoded once, however many stages look at it."""

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
    """Rows that are alive at the stage and lack its facts."""

    table: Table
    """`key`, and what the stage `reads`."""
    prepared: list[Any] = field(default_factory=list)
    """What `prepare` returned, a value per row (stages with `pixels` only)."""
    counters: Counter[str] = field(default_factory=Counter)
    """Counts that are not rejects (a cleaning rule's hits); added up into the ledger."""
    failed: dict[int, str] = field(default_factory=dict)
    unfit: dict[int, str] = field(default_factory=dict)

    def __len__(self) -> int:
        return self.table.num_rows

    def column(self, name: str) -> list[Any]:
        return self.table.column(name).to_pylist()

    def fail(self, row: int, reason: str) -> None:
        """Row `row` of this batch could not be computed this time: status `error`, which `curate retry` tries again.
        The other rows are kept. Its values are ignored."""
        self.failed[int(row)] = reason

    def unusable(self, rows: int | Iterable[int], reason: str) -> None:
        """Rows that will never have these facts, because of what the sample is: status `unusable`."""
        for row in [rows] if isinstance(rows, int) else rows:
            self.unfit[int(row)] = reason


class Map(Stage):
    """Facts about samples, a row each. What a row gets must not depend on the rows beside it."""

    pixels: ClassVar[bool] = False
    """Whether `prepare` is called with each image."""
    costly: ClassVar[bool] = False
    """Whether rows are expensive enough to be looked up by the values they are computed from before they are computed,
    and to be saved while a shard is under way."""
    batch_rows: ClassVar[int] = 128
    """Rows of a batch."""
    by_shard: ClassVar[bool] = False
    """Whether the batch's table has a column `shard` too, with the id of each row's shard: for looking up what a Fit
    has stored by stretch of shards (curate.core.stretches)."""

    def reads(self) -> tuple[str, ...]:
        """Columns of the pool's table or of upstream stages; `key` is always there."""
        return ()

    def schema(self) -> pa.Schema:  # type: ignore[override]  # pydantic's own is deprecated
        """Names, types, units and provenance (field metadata) of the new columns. Called before and after `setup`; a
        type that only a loaded model knows is `pa.null()` before. List columns whose places are items say so with
        `places` (curate.core.items)."""
        raise NotImplementedError

    def padded(self) -> int:
        """Batches are filled up to a multiple of so many rows, where a row's last bits depend on how many are computed
        at once (models); 0 where they do not. Called after `setup`."""
        return 0

    def hardware(self) -> str:
        """Model of the device that computes, where it may change a result's last bits; noted in the tables. Called
        after `setup`."""
        return ""

    def prepare(self, sample: Sample) -> Any:
        """Per image, in decoding threads, ahead of `process`. Raise Reject: the sample is unusable for this stage."""
        raise NotImplementedError

    def process(self, batch: Batch) -> dict[str, Any]:
        """Columns of the schema by name: lists, numpy or Arrow arrays of len(batch). Bad rows are named with
        `batch.fail` and `batch.unusable`; if it raises, the engine finds the row by halving the batch."""
        raise NotImplementedError
