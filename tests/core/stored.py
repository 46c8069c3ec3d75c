"""The artifact of a fit over a group in memory, in the form that a Map gets it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from curate.core.group import MemoryGroup


class Stored(dict[str, Any]):
    """Artifacts by name, with the methods `part` and `parts` of StoredArtifact."""

    def __init__(self, artifact: Mapping[str, Any], group: MemoryGroup) -> None:
        super().__init__(artifact)
        self._stored = group._stored

    def part(self, name: str, index: int) -> Mapping[str, np.ndarray]:
        return self._stored[name][index]

    def parts(self, name: str) -> list[int]:
        return sorted(self._stored.get(name, ()))


def members(artifact: Any) -> list[dict[str, Any]]:
    """All members of duplicate sets by key, from the parts of `duplicates.find` or `duplicates.semantic`."""
    kinds = ("keeper", "exact", "near", "semantic")
    rows = []
    for index in artifact.parts("members"):
        part = artifact.part("members", index)
        for place, kind in enumerate(part["kind"].tolist()):
            row = {name: part[name][place : place + 1].tobytes().hex() for name in ("key", "keeper")}
            similar = {"similarity": float(part["similarity"][place])} if "similarity" in part else {}
            rows.append({**row, "kind": kinds[kind], **similar})
    return sorted(rows, key=lambda row: row["key"])
