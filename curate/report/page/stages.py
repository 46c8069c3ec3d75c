"""Sections about the stages, from their manifests: funnel, counts, times and recipe."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from curate.core.ledger import Entry
from curate.core.nouns.manifest import Manifest
from curate.html.numbers import duration
from curate.report.page.terms import human
from curate.report.survey.survey import Survey

VALUE_CHARACTERS = 600


@dataclass(frozen=True)
class FunnelRow:
    stage: str
    op: str
    before: int
    after: int
    reasons: list[tuple[str, int, str]]
    """(reason, rows, anchor in the gallery or "")."""
    copies: int | None
    items: int | None
    """Selected texts, if the stage selects texts one by one."""
    counted: bool
    without_facts: int
    """Rows that pass although the stage has no facts for them (keep_null)."""
    before_share: float
    after_share: float
    """Lengths of the bars, in percent of the longest."""
    seconds: tuple[str, str] | None = None
    """Durations of the videos before and after."""
    children: tuple[int, str] | None = None
    """Videos derived from these rows, and their durations."""
    found: int | None = None
    """For a source: its rows, and what it skipped."""
    skipped: tuple[tuple[str, int, str], ...] = ()
    """(kind, how many, names of the first)."""

    @property
    def lost(self) -> int:
        return sum(count for _, count, _ in self.reasons)

    @property
    def adds_up(self) -> bool:
        return self.before - self.lost + self.without_facts == self.after


def funnel(stages: Mapping[str, Manifest], anchors: Mapping[tuple[str, str], str], found: Survey) -> list[FunnelRow]:
    """`anchors`: element id of the gallery of each (stage, reason)."""
    times = _Times(found)
    most = max((manifest.entry.before for manifest in stages.values()), default=0) or 1
    rows = []
    for stage, manifest in stages.items():
        entry = manifest.entry
        named = [(human(reason), count) for reason, count in entry.lost.most_common()]
        rows.append(
            FunnelRow(
                stage=stage,
                op=manifest.op,
                before=entry.before,
                after=entry.after,
                reasons=[(reason, count, anchors.get((stage, reason), "")) for reason, count in named],
                copies=entry.copies,
                items=entry.items,
                counted=bool(manifest.ledger),
                without_facts=entry.kept,
                before_share=100 * min(1.0, entry.before / most),
                after_share=100 * min(1.0, entry.after / most),
                children=(entry.children, times.shown()) if entry.children and times.ms else None,
                seconds=times.after(stage, entry),
                found=None if entry.skipped is None else entry.found,
                skipped=tuple((kind, one.count, ", ".join(one.names)) for kind, one in (entry.skipped or {}).items()),
            )
        )
    return rows


class _Times:
    """Time of the videos that are left, stage by stage. What was read of a large pool stands for all of it."""

    def __init__(self, found: Survey) -> None:
        self.of, self.rows, self.ms = found.videos, found.videos.rows, found.videos.ms
        self._scale = found.rows / max(1, found.read.rows) if found.read else 1.0
        self._about = "about " if found.read else ""

    def shown(self) -> str:
        return self._about + duration(self._scale * self.ms / 1000)

    def after(self, stage: str, entry: Entry) -> tuple[str, str] | None:
        """Before and after a stage; None without videos, and where branches meet, so that the rows are not those of the
        ledger."""
        before, rows = self.shown(), self.rows
        self.rows -= self.of.lost_rows[stage]
        self.ms -= self.of.lost_ms[stage]
        exact = bool(self._about) or (rows, self.rows) == (entry.before, entry.after)
        return (before, self.shown()) if self.of.ms and exact and entry.children is None else None


@dataclass(frozen=True)
class Hits:
    name: str
    count: int
    width: float
    """Percent of the largest count of the stage."""


@dataclass(frozen=True)
class Counters:
    """Counts of a stage, largest first."""

    stage: str
    op: str
    rows: int
    """Rows before the stage."""
    hits: list[Hits]


def counters(stages: Mapping[str, Manifest]) -> list[Counters]:
    """Counts of the stages that process single rows. A selection's counts of items are in the section of entries."""
    found = []
    for stage, manifest in stages.items():
        known = manifest.entry.counters if manifest.noun == "columns" and manifest.ledger else {}
        counts = sorted(((name, count) for name, count in known.items() if count), key=lambda one: (-one[1], one[0]))
        if counts:
            hits = [Hits(human(name), count, 100 * count / counts[0][1]) for name, count in counts]
            found.append(Counters(stage, manifest.op, manifest.entry.before, hits))
    return found


@dataclass(frozen=True)
class Timing:
    stage: str
    op: str
    seconds: float
    share: float
    """Percent of the longest."""
    rows: int
    built_rows: int
    rate: float | None
    """Rows per second; None if no row was computed or the time is too short to measure."""
    bytes: int

    @property
    def state(self) -> str:
        if self.rows and not self.built_rows:
            return "cached"
        return "computed" if self.built_rows >= self.rows else "partly cached"


def timings(stages: Mapping[str, Manifest]) -> list[Timing]:
    longest = max((manifest.seconds for manifest in stages.values()), default=0.0) or 1.0
    return [_timing(stage, manifest, longest) for stage, manifest in stages.items()]


def _timing(stage: str, manifest: Manifest, longest: float) -> Timing:
    rows = manifest.entry.before or manifest.rows
    built = min(manifest.built_rows, rows)
    rate = built / manifest.seconds if built and manifest.seconds > 0 else None
    share = 100 * manifest.seconds / longest
    return Timing(stage, manifest.op, manifest.seconds, share, rows, built, rate, manifest.bytes)


@dataclass(frozen=True)
class Card:
    """One stage of the recipe. Values are (name, text) pairs."""

    stage: str
    op: str
    noun: str
    version: int
    fingerprint: str
    parameters: list[tuple[str, str]]
    identity: list[tuple[str, str]]
    inputs: list[tuple[str, str]]
    counters: list[tuple[str, int]]


def cards(stages: Mapping[str, Manifest]) -> list[Card]:
    return [
        Card(
            stage=stage,
            op=manifest.op,
            noun=manifest.noun,
            version=manifest.version,
            fingerprint=manifest.fingerprint,
            parameters=_pairs(manifest.parameters),
            identity=_pairs(manifest.identity),
            inputs=_pairs(manifest.inputs),
            counters=manifest.entry.counters.most_common(),
        )
        for stage, manifest in stages.items()
    ]


def _pairs(values: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [(name, _text(value)) for name, value in values.items()]


def _text(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= VALUE_CHARACTERS else text[: VALUE_CHARACTERS - 1] + "…"
