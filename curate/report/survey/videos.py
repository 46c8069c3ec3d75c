"""Videos and clips by their time: how much of it passes, classes of length and motion, and what `video.divide` made."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from curate.report.survey.rows import integers, texts

DURATION = "duration_ms"
FATES = ("kept", "short", "trimmed", "black", "rejected")


class Measure(NamedTuple):
    title: str
    bounds: tuple[float, ...]
    """Lower bounds of the classes after the first."""
    names: tuple[str, ...]


_SHARES = (0.05, 0.25, 0.5, 0.75, 0.95)
_OF_SHARES = ("under 5 %", "5 to 25 %", "25 to 50 %", "50 to 75 %", "75 to 95 %", "95 % or more")
MEASURES = {
    DURATION: Measure(
        "Length",
        (1e3, 2e3, 5e3, 10e3, 20e3, 60e3, 300e3, 1200e3),
        ("under 1 s", "1 to 2 s", "2 to 5 s", "5 to 10 s", "10 to 20 s", "20 to 60 s", "1 to 5 min", "5 to 20 min",
         "20 min or more"),
    ),
    "motion_mean": Measure(
        "Motion, % of the width a second",
        (0.5, 1, 2, 5, 10, 20, 50),
        ("under 0.5", "0.5 to 1", "1 to 2", "2 to 5", "5 to 10", "10 to 20", "20 to 50", "50 or more"),
    ),
    "camera_share": Measure("Motion of the camera, share of all", _SHARES, _OF_SHARES),
    "still_share": Measure("Time without change, share of all", _SHARES, _OF_SHARES),
}  # fmt: skip
COLUMNS = ("media", *MEASURES, "cuts_ms", "black_ms", "clips_ms", *(f"clips_{fate}_ms" for fate in FATES))
"""Columns of videos that the report reads."""


@dataclass
class VideoTimes:
    """Sums over the rows read. Memory does not grow."""

    rows: int = 0
    videos: int = 0
    ms: int = 0
    """Sum of the known durations."""
    lost_rows: Counter[str] = field(default_factory=Counter)
    lost_ms: Counter[str] = field(default_factory=Counter)
    """By the stage that rejected them."""
    classes: dict[str, NDArray[np.int64]] = field(default_factory=dict)
    """Measure -> (2, classes): rows that have it, and those of them that pass."""
    fates: Counter[str] = field(default_factory=Counter)
    """Milliseconds of divided videos."""

    @property
    def noun(self) -> str:
        """What a row is called."""
        return ("video" if self.videos == self.rows else "sample") if self.videos else "image"

    def add(self, table: pa.Table, kept: NDArray[np.bool_]) -> None:
        """kept: mask (n,) of the rows that pass."""
        duration = integers(table, DURATION)
        self.rows += table.num_rows
        self.videos += pc.sum(pc.equal(texts(table, "media"), "video")).as_py() or 0
        self.ms += int(duration.sum())
        by = texts(table, "rejected_by").to_numpy(zero_copy_only=False)
        for stage in {name for name in by if name is not None}:
            self.lost_rows[stage] += int((by == stage).sum())
            self.lost_ms[stage] += int(duration[by == stage].sum())
        for name, measure in MEASURES.items():
            if name in table.column_names:
                values = table.column(name).combine_chunks()
                known = pc.is_valid(values).to_numpy(zero_copy_only=False)
                place = np.searchsorted(measure.bounds, values.drop_null().to_numpy(), side="right")
                found = [np.bincount(place[mask], minlength=len(measure.names)) for mask in (place >= 0, kept[known])]
                self.classes[name] = self.classes.get(name, 0) + np.stack(found)
        for fate in FATES:
            self.fates[fate] += int(integers(table, f"clips_{fate}_ms").sum())


def columns_of(known: Sequence[str] | frozenset[str]) -> tuple[str, ...]:
    """COLUMNS, if the pool may have videos."""
    return COLUMNS if {"media", DURATION} <= set(known) else ()
