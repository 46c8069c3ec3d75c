"""Facts about the clusters shown, from the artifacts of cluster.profile and cluster.drift."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from curate.core.contracts import Artifact
from curate.core.errors import CurateError
from curate.core.recipe import registry
from curate.core.view import View
from curate.html.numbers import number, percent

FLAGS = {
    "noise": "Its images are hardly more alike than images of the whole pool.",
    "single_source": "Nearly all of its images come from one source.",
    "tiny": "It has very few images.",
    "empty": "It is empty.",
}
"""Flag -> explanation. `empty` clusters are never shown."""
CHANGED_SHOWN = 6


def artifacts(view: View, kind: str) -> dict[str, Artifact]:
    """Upstream artifacts of a kind, by stage name in DAG order; pinned ones last, by `pin:NAME`."""
    manifests = {**view.stages, **view.pinned}
    return {name: view.artifact(name) for name, manifest in manifests.items() if _kind(manifest.op) == kind}


def _kind(op: str) -> str:
    try:
        return str(getattr(registry.resolve(op), "kind", ""))
    except CurateError:  # the op of a package that is not installed here
        return ""


@dataclass(frozen=True)
class Facts:
    """A cluster's profile as text."""

    name: str
    flags: list[tuple[str, str]]
    """(flag, explanation)."""
    lines: list[str]


@dataclass(frozen=True)
class ProfileTable:
    table: pa.Table
    clusters: Sequence[int]
    """Number of clusters of each level, finest first. The table has the levels in this order."""
    even: list[str]
    """For each level, what a sample with as many rows of each cluster would do to the entropy of sources."""

    def of(self, level: int, cluster: int) -> Facts | None:
        place = sum(self.clusters[: level - 1]) + cluster
        if level > len(self.clusters) or cluster >= self.clusters[level - 1]:
            return None
        [row] = self.table.slice(place, 1).to_pylist()
        flags = [(flag.replace("_", " "), FLAGS.get(flag, "")) for flag in row["flags"]]
        return Facts(row["name"], flags, _lines(row))


def profile_of(view: View, levels: int) -> ProfileTable | None:
    """The first profile with this number of levels."""
    for artifact in artifacts(view, "cluster_profile").values():
        clusters = [level["clusters"] for level in artifact["profile"]["levels"]]
        if len(clusters) == levels:
            even = artifact["profile"].get("even", ())
            return ProfileTable(artifact["clusters"], clusters, [_even(*one) for one in enumerate(even, 1) if one[1]])
    return None


def _even(level: int, found: Mapping[str, Any]) -> str:
    sides = f"{found['selection']:.3f} bits, random {found['random']:.3f} bits"
    interval = f"95 % interval of the difference {found['low']:+.3f} to {found['high']:+.3f}"
    than = {"better": "better balanced", "worse": "worse balanced"}.get(
        found["verdict"], "neither clearly better nor worse"
    )
    what = f"As many images from each cluster of level {level} would be {than} over sources than a random sample"
    return f"{what} (entropy {sides}; {interval})."


def _lines(row: Mapping[str, Any]) -> list[str]:
    lines = []
    if row["mean_distance"] is not None:
        lines.append(f"mean distance {number(row['mean_distance'], 3)}")
    if row["explained"] is not None:
        lines.append(f"{percent(max(0.0, row['explained']), 1)} explained")
    if row["sources"]:
        if row["sources"] == 1:
            lines.append(f"all from {row['top_source']}")
        else:
            most = f"most from {row['top_source']} ({percent(row['top_source_share'], 1)})"
            lines.append(f"{row['sources']:,} sources, {most}")
    return [text.replace(" %", "\N{NO-BREAK SPACE}%") for text in lines]


@dataclass(frozen=True)
class DriftFigures:
    """A drift artifact: whether a refit is due, why, and the figures."""

    stage: str
    due: bool
    enough: bool
    reasons: list[str]
    new_rows: int
    fitted_rows: int
    least_rows: int
    far: Mapping[str, Any]
    levels: list[Mapping[str, Any]]
    """Levels that could be compared, coarsest first."""
    changed: list[tuple[str, str, Mapping[str, Any]]]
    """(name, anchor in the tree or "", row) of the finest clusters that changed most."""


def drifts(view: View, profile: ProfileTable | None, shown: set[tuple[int, int]]) -> list[DriftFigures]:
    """`shown`: (level, cluster) of the clusters in the page's tree."""
    found = []
    for stage, artifact in artifacts(view, "cluster_drift").items():
        values = artifact["drift"]
        levels = [level for level in reversed(values["levels"]) if "shift_bits" in level]
        rows = artifact["clusters"].slice(0, CHANGED_SHOWN).to_pylist() if levels else []
        changed = [(*_named(row, profile, shown), row) for row in rows if row["level"] == 1 and row["shift_bits"] > 0]
        names = ("due", "enough", "reasons", "new_rows", "fitted_rows", "least_rows", "far")
        found.append(DriftFigures(stage, **{name: values[name] for name in names}, levels=levels, changed=changed))
    return found


def _named(row: Mapping[str, Any], profile: ProfileTable | None, shown: set[tuple[int, int]]) -> tuple[str, str]:
    place = (row["level"], row["cluster"])
    facts = profile.of(*place) if profile else None
    name = (facts.name if facts else "") or f"Cluster {row['cluster']:,}"
    return name, f"cluster-{place[0]}-{place[1]}" if place in shown else ""
