"""`Map`: facts about samples, one row each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa

from curate.core.contracts.stage import Stage, Table
from curate.core.errors import Undecodable
from curate.core.reader import Reader, as_reader

if TYPE_CHECKING:
    from PIL.Image import Image


class Sample:
    """An encoded image in a decoding thread; decoded once, and shared by all stages."""

    def __init__(
        self, data: bytes | Reader, decode: Callable[..., Image], row: Mapping[str, Any] | None = None
    ) -> None:
        self.reader = as_reader(data)
        self.row = row or {}
        self._decode = decode
        self._image: Image | None = None

    @property
    def data(self) -> bytes:
        """All bytes; `reader` reads parts, for large samples."""
        return self.reader.bytes()

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
    """Rows that are alive at the stage and do not have its facts."""

    table: Table
    """`key` and the columns that the stage `reads`."""
    prepared: list[Any] = field(default_factory=list)
    """Results of `prepare`, one per row (only for stages with `pixels`)."""
    counters: Counter[str] = field(default_factory=Counter)
    """Counts other than rejects, such as the hits of a cleaning rule; the ledger adds them up."""
    failed: dict[int, str] = field(default_factory=dict)
    unfit: dict[int, str] = field(default_factory=dict)

    def __len__(self) -> int:
        return self.table.num_rows

    def column(self, name: str) -> list[Any]:
        return self.table.column(name).to_pylist()

    def fail(self, row: int, reason: str) -> None:
        """Row `row` of the batch could not be computed this time: status `error`, which `curate retry` retries. Its
        values are ignored; other rows are kept."""
        self.failed[int(row)] = reason

    def unusable(self, rows: int | Iterable[int], reason: str) -> None:
        """Rows whose samples can never have these facts: status `unusable`."""
        for row in [rows] if isinstance(rows, int) else rows:
            self.unfit[int(row)] = reason


class Map(Stage):
    """Facts about samples, one row each. The result for a row must not depend on other rows."""

    pixels: ClassVar[bool] = False
    """Whether `prepare` is called with each image. The version of the medium then enters the fingerprint."""
    costly: ClassVar[bool] = False
    """Whether rows are expensive enough to be looked up by their input values first, and to be saved while a shard is
    running."""
    batch_rows: ClassVar[int] = 128
    """Rows of a batch."""
    by_shard: ClassVar[bool] = False
    """Whether the batch's table has a column `shard` with the id of each row's shard, to look up results of a Fit
    (curate.core.row_lookup)."""

    def use_of(self, column: str) -> str:
        """What reads a column, for messages, if the stage's parameters do not show it: a part of a prompt."""
        return ""

    def schema(self) -> pa.Schema:  # type: ignore[override]  # pydantic's own is deprecated
        """Names, types, units and provenance (field metadata) of the new columns. Called before and after `setup`; a
        type that depends on a loaded model is `pa.null()` before. List columns with a value per item are marked with
        `places` (curate.core.items)."""
        raise NotImplementedError

    def padded(self) -> int:
        """Multiple of rows to which batches are padded, for models whose last bits depend on the batch size; otherwise
        0. Called after `setup`."""
        return 0

    def hardware(self) -> str:
        """Model of the computing device, if it may change the last bits of results; recorded in the tables. Called
        after `setup`."""
        return ""

    def prepare(self, sample: Sample) -> Any:
        """With `pixels`: called per image in decoding threads, before `process`. Raise Reject if the sample is unusable
        for the stage."""
        raise NotImplementedError

    def process(self, batch: Batch) -> dict[str, Any]:
        """Columns of the schema by name: lists, numpy or Arrow arrays of len(batch). Report bad rows with `batch.fail`
        and `batch.unusable`; after an exception, the engine finds the row by bisecting the batch."""
        raise NotImplementedError
