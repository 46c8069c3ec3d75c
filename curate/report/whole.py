"""What a report of a few shards knows of the whole pool: counts of the ledger, and of the selection's clusters."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from curate.core.ledger import Entry
from curate.core.view import View
from curate.report.quotas import Asked, asked_of
from curate.report.stats import grown
from curate.report.survey import READ_SHARDS, Level, Read, Scope, Survey


def whole(view: View, scope: Scope, found: Survey) -> Survey:
    """The survey with the counts of the whole pool in place of those of the shards that were read, where it read some
    of them only."""
    shards, rows = view.size()
    if shards <= READ_SHARDS:
        return found
    entries = entries_of(view)
    made = next((entry.children for entry in entries.values() if entry.children is not None), None)
    pool = rows if made is None else made
    # what a stage that makes samples leaves out are rows of the pool it reads
    entries = {stage: entry for stage, entry in entries.items() if entry.children is None}
    lost = Counter({(stage, why): count for stage, entry in entries.items() for why, count in entry.lost.items()})
    kept = min((entry.after for entry in entries.values()), default=pool)
    copies = view.stages[scope.select].entry.copies if scope.select else None
    levels = levels_of(asked_of(view), found.levels)
    return replace(
        found,
        rows=pool,
        kept=kept,
        copies=kept if copies is None else copies,
        left=pool - kept,
        rejected={pair: count for pair, count in lost.items() if count},
        reject_rows={pair: found.reject_rows.get(pair, []) for pair, count in lost.items() if count},
        levels=levels or found.levels,
        read=Read(min(shards, READ_SHARDS), shards, found.rows, sizes=bool(found.levels) and levels is None),
    )


def entries_of(view: View) -> dict[str, Entry]:
    """Lines of the ledger of the stages that samples go through, from the one that makes the pool's on."""
    passed = {name: manifest for name, manifest in view.stages.items() if manifest.ledger}
    names = [name for name, manifest in passed.items() if manifest.noun not in ("artifact", "dataset")]
    pools = [place for place, name in enumerate(names) if view.stages[name].noun == "pool"]
    return {name: view.stages[name].entry for name in names[pools[-1] if pools else 0 :]}


def levels_of(asked: Asked | None, levels: list[Level]) -> list[Level] | None:
    """Sizes of all clusters, as the selection counted and asked for them; None where it did not."""
    if asked is None or len(levels) != len(asked.shape.clusters):
        return None
    sums = zip(asked.shape.sums(asked.count), asked.shape.sums(asked.quota), strict=True)
    parents: list[NDArray[np.int64]] = [*asked.shape.parents, np.zeros(0, np.int64)]
    return [
        Level(before, after, parent, seen=grown(level.before, len(before), 0)[: len(before)] > 0)
        for (before, after), parent, level in zip(sums, parents, levels, strict=True)
    ]
