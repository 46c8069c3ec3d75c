"""What a fit over a group in memory has made, as a Map is given it: its artifact, and what its parts stored."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from curate.core.group import MemoryGroup


class Stored(dict[str, Any]):
    """The artifact by name; `part` and `parts` as a StoredArtifact has them."""

    def __init__(self, artifact: Mapping[str, Any], group: MemoryGroup) -> None:
        super().__init__(artifact)
        self._stored = group._stored

    def part(self, name: str, index: int) -> Mapping[str, np.ndarray]:
        return self._stored[name][index]

    def parts(self, name: str) -> list[int]:
        return sorted(self._stored.get(name, ()))


def members(artifact: Any) -> list[dict[str, Any]]:
    """All members of duplicate sets, by key: what the parts of `duplicates.find` or `duplicates.semantic` say."""
    kinds = ("keeper", "exact", "near", "semantic")
    rows = []
    for index in artifact.parts("members"):
        part = artifact.part("members", index)
        for place, kind in enumerate(part["kind"].tolist()):
            row = {name: part[name][place : place + 1].tobytes().hex() for name in ("key", "keeper")}
            similar = {"similarity": float(part["similarity"][place])} if "similarity" in part else {}
            rows.append({**row, "kind": kinds[kind], **similar})
    return sorted(rows, key=lambda row: row["key"])
