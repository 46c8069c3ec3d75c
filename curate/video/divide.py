"""`video.divide` says where clips are in a video; `video.clips` and `video.windows` make samples of them, uncopied."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, ClassVar, Literal

import pyarrow as pa
from pydantic import Field, model_validator

from curate.codec.video.times import duration_of
from curate.core.contracts import Batch, Child, Derive, Map, Sample
from curate.core.errors import Reject
from curate.video.clips import FATES, Range, Rules, divide, ledger, windows

_CLIPS, _SIZE = "clips_ms", ("width", "height")


class Divide(Map):
    """Divide each video into clips at the cuts and black stretches of `video.look`.

    Writes the clips, and a ledger whose milliseconds add up to the video's duration: in clips, in shots that are too
    short, trimmed, black, or rejected because they are too long. Unusable: too_long, more than 100,000 windows.
    """

    op: ClassVar[str] = "video.divide"

    min_seconds: float = Field(2.0, ge=0, le=86_400, description="Least duration of a clip, after trimming.")
    max_seconds: float = Field(
        60.0, gt=0, le=86_400, description="Greatest duration of a clip, at least twice `min_seconds`."
    )
    trim_seconds: float = Field(
        0.0, ge=0, le=3_600, description="Removed at each end of a clip that is at a cut or at black."
    )
    longer: Literal["windows", "reject"] = Field(
        "windows",
        description="What becomes of longer clips: the fewest windows of nearly equal durations, or nothing.",
    )

    @model_validator(mode="after")
    def _windows_are_long_enough(self) -> Divide:
        rules = self._rules()
        if rules.most_ms < max(1, 2 * rules.least_ms):
            raise ValueError(
                f"max_seconds: {self.max_seconds:g}, but min_seconds is {self.min_seconds:g}; expected at least twice "
                "as much, and a millisecond"
            )
        return self

    def _rules(self) -> Rules:
        least, most, trim = (round(it * 1000) for it in (self.min_seconds, self.max_seconds, self.trim_seconds))
        return Rules(least, most, trim, self.longer)

    def reads(self) -> tuple[str, ...]:
        return ("duration_ms", "cuts_ms", "black_ms")

    def schema(self) -> pa.Schema:
        clips = pa.field(_CLIPS, pa.list_(pa.int64()), metadata={"of": "start, stop, start, stop … of the clips"})
        sums = [pa.field(f"clips_{fate}_ms", pa.int64(), metadata={"unit": "ms"}) for fate in FATES]
        return pa.schema([clips, *sums])

    def process(self, batch: Batch) -> dict[str, Any]:
        """Raises LedgerError if the milliseconds do not add up."""
        columns: dict[str, list[Any]] = {name: [] for name in self.schema().names}
        for row, (duration, cuts, black) in enumerate(zip(*(batch.column(name) for name in self.reads()), strict=True)):
            try:
                pieces = divide(duration or 0, cuts or [], _ranges(black or []), self._rules())
            except Reject as why:
                batch.unusable(row, why.reason)
                duration, pieces = 0, []
            sums = ledger(duration or 0, pieces)
            columns[_CLIPS].append([ms for p in pieces if p.fate == "kept" for ms in (p.start_ms, p.stop_ms)])
            for fate in FATES:
                columns[f"clips_{fate}_ms"].append(sums[fate])
        return columns


class _Spans(Derive):
    """Virtual children, one per range of their parent, with its metadata."""

    sees: ClassVar[tuple[str, ...]] = ("video",)
    media: ClassVar[tuple[str, ...]] = ("video",)

    @property
    def virtual(self) -> bool:
        return True

    def ranges(self, sample: Sample) -> list[Range]:
        raise NotImplementedError

    def children(self, sample: Sample) -> Iterator[Child]:
        size = [sample.row.get(name) for name in _SIZE]
        meta = json.loads(sample.row.get("meta") or "{}")
        for start, stop in self.ranges(sample):
            known = _Known("mp4", stop - start, self.child_kind, *size)
            yield Child({"start_ms": start, "stop_ms": stop}, None, "mp4", meta, known)


class Clips(_Spans):
    """Make each clip of `video.divide` a sample, which is extracted from its video whenever it is read.

    Spans: {"start_ms", "stop_ms"}, half-open. A clip keeps its key while its span is the same. It has its video's
    caption and metadata.
    """

    op: ClassVar[str] = "video.clips"
    child_kind: ClassVar[str] = "clip"

    def reads(self) -> tuple[str, ...]:
        return (_CLIPS, *_SIZE)

    def ranges(self, sample: Sample) -> list[Range]:
        """Raises ValueError unless they are ascending and do not overlap; the column may be another stage's."""
        flat, end = sample.row[_CLIPS] or [], 0
        for start, stop in zip_longest(flat[::2], flat[1::2]):
            if stop is None or not end <= start < stop:
                raise ValueError(
                    f"{_CLIPS}: {start} to {stop} after {end} ms; expected start < stop, ascending and without overlap"
                )
            end = stop
        return _ranges(flat)


class Windows(_Spans):
    """Make consecutive windows of each video or clip samples, to caption long ones in parts.

    Spans: {"start_ms", "stop_ms"} within the video or clip. Rejects videos without a known duration as no_duration:
    put `video.look` before; and those of more than 100,000 windows as too_long.
    """

    op: ClassVar[str] = "video.windows"
    child_kind: ClassVar[str] = "window"

    max_seconds: float = Field(10.0, ge=0.1, le=86_400, description="Greatest duration of a window.")

    def reads(self) -> tuple[str, ...]:
        return ("duration_ms", *_SIZE)

    def ranges(self, sample: Sample) -> list[Range]:
        return windows(0, duration_of(sample.reader, sample.row), round(self.max_seconds * 1000))


@dataclass(frozen=True)
class _Known:
    """What a clip's probe would find."""

    format: str
    duration_ms: int
    kind: str
    width: int | None
    height: int | None


def _ranges(flat: list[int]) -> list[Range]:
    return list(zip(flat[::2], flat[1::2], strict=True))
