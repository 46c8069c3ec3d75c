"""What artifacts about clusters say of those on show: the facts of a profile, the verdict of a drift."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from curate.core.contracts import Artifact
from curate.core.errors import CurateError
from curate.core.recipe import registry
from curate.core.view import View
from curate.report.format import number, percent
from curate.report.survey import Level

FLAGS = {
    "noise": "Its pictures are hardly more alike than those of the whole pool.",
    "single_source": "Nearly all of its pictures come from one source.",
    "tiny": "It holds very few pictures.",
    "empty": "No picture lies in it.",
}
"""Flag -> what it says. `empty` clusters are not on show."""
CHANGED_SHOWN = 6


def artifacts(view: View, kind: str) -> dict[str, Artifact]:
    """Artifacts of a kind upstream, by stage name, in DAG order; pinned ones last, by `pin:NAME`."""
    made = {**view.stages, **view.pinned}
    return {name: view.artifact(name) for name, manifest in made.items() if _kind(manifest.op) == kind}


def _kind(op: str) -> str:
    try:
        return str(getattr(registry.resolve(op), "kind", ""))
    except CurateError:  # the op of a package that is not installed here
        return ""


@dataclass(frozen=True)
class Facts:
    """What a profile says of one cluster, as words."""

    name: str
    flags: list[tuple[str, str]]
    """(flag, what it says)."""
    told: list[str]


@dataclass(frozen=True)
class Profile:
    table: pa.Table
    clusters: Sequence[int]
    """Clusters of each level, finest first: where its rows begin in the table."""

    def of(self, level: int, cluster: int) -> Facts | None:
        place = sum(self.clusters[: level - 1]) + cluster
        if level > len(self.clusters) or cluster >= self.clusters[level - 1]:
            return None
        [row] = self.table.slice(place, 1).to_pylist()
        flags = [(flag.replace("_", " "), FLAGS.get(flag, "")) for flag in row["flags"]]
        return Facts(row["name"], flags, _told(row))


def profile_of(view: View, levels: Sequence[Level]) -> Profile | None:
    """The profile of the clusters on show: of two, the first with as many levels."""
    for artifact in artifacts(view, "cluster_profile").values():
        clusters = [level["clusters"] for level in artifact["profile"]["levels"]]
        if len(clusters) == len(levels):
            return Profile(artifact["clusters"], clusters)
    return None


def _told(row: Mapping[str, Any]) -> list[str]:
    told = []
    if row["mean_distance"] is not None:
        told.append(f"mean distance {number(row['mean_distance'], 3)}")
    if row["explained"] is not None:
        told.append(f"{percent(max(0.0, row['explained']), 1)} explained")
    if row["sources"]:
        if row["sources"] == 1:
            told.append(f"all from {row['top_source']}")
        else:
            most = f"most from {row['top_source']} ({percent(row['top_source_share'], 1)})"
            told.append(f"{row['sources']:,} sources, {most}")
    return [text.replace(" %", "\N{NO-BREAK SPACE}%") for text in told]


@dataclass(frozen=True)
class Drift:
    """One drift artifact: is a refit due, why, and the figures."""

    stage: str
    due: bool
    enough: bool
    reasons: list[str]
    new_rows: int
    fitted_rows: int
    least_rows: int
    far: Mapping[str, Any]
    levels: list[Mapping[str, Any]]
    """Coarsest first; those that could be compared."""
    changed: list[tuple[str, str, Mapping[str, Any]]]
    """(name, anchor in the browser or "", row) of the finest clusters that changed most."""


def drifts(view: View, profile: Profile | None, shown: set[tuple[int, int]]) -> list[Drift]:
    """`shown`: (level, cluster) of those in the browser."""
    made = []
    for stage, artifact in artifacts(view, "cluster_drift").items():
        told = artifact["drift"]
        levels = [level for level in reversed(told["levels"]) if "shift_bits" in level]
        rows = artifact["clusters"].slice(0, CHANGED_SHOWN).to_pylist() if levels else []
        changed = [(*_named(row, profile, shown), row) for row in rows if row["level"] == 1 and row["shift_bits"] > 0]
        names = ("due", "enough", "reasons", "new_rows", "fitted_rows", "least_rows", "far")
        made.append(Drift(stage, **{name: told[name] for name in names}, levels=levels, changed=changed))
    return made


def _named(row: Mapping[str, Any], profile: Profile | None, shown: set[tuple[int, int]]) -> tuple[str, str]:
    place = (row["level"], row["cluster"])
    facts = profile.of(*place) if profile else None
    name = (facts.name if facts else "") or f"Cluster {row['cluster']:,}"
    return name, f"cluster-{place[0]}-{place[1]}" if place in shown else ""
