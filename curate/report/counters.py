"""What stages have counted beside rows refused: of a cleaning stage, how many texts each of its rules has changed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from curate.core.nouns import Manifest
from curate.report.terms import human


@dataclass(frozen=True)
class Hits:
    name: str
    count: int
    width: float
    """Percent of the greatest count of its stage."""


@dataclass(frozen=True)
class Counters:
    """Those of one stage, greatest first."""

    stage: str
    op: str
    rows: int
    """Alive before it."""
    hits: list[Hits]


def counters(stages: Mapping[str, Manifest]) -> list[Counters]:
    """Of the stages that look at rows one by one; a selection's counts of items are told in its own section."""
    made = []
    for name, manifest in stages.items():
        known = manifest.entry.counters if manifest.noun == "columns" and manifest.ledger else {}
        found = sorted(((what, count) for what, count in known.items() if count), key=lambda one: (-one[1], one[0]))
        if found:
            hits = [Hits(human(what), count, 100 * count / found[0][1]) for what, count in found]
            made.append(Counters(name, manifest.op, manifest.entry.before, hits))
    return made
