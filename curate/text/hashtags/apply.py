"""`text.hashtags`: each row's tags as canonical tags, by a map of the pool's tags."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import pyarrow as pa
from pydantic import PrivateAttr

from curate.core.contracts import Artifact, Batch, Map
from curate.core.items import places_of
from curate.text.hashtags.map import KIND
from curate.text.hashtags.segment import folded

_TAGS = pa.list_(pa.string())


def written(canonical: str, kind: str) -> str:
    """A canonical tag as an item of a row and as an entry."""
    return f"to {canonical}" if kind == "action" else canonical


class Hashtags(Map):
    """Pair each row with its canonical tags (Xray-Visual, URU): `hashtags`, distinct, nouns before actions.

    Each tag is an item, so that selections draw pairs of an image and a tag. An action is written `to dance`, because
    the noun `dance` is another tag. A row without a canonical tag has no pair.

    Counters: tags mapped, unmapped, and unknown (not in the map, for rows added after it).
    """

    op: ClassVar[str] = "text.hashtags"
    version: ClassVar[int] = 2
    ports: ClassVar[dict[str, str]] = {"map": KIND}
    batch_rows: ClassVar[int] = 4096

    _canonical: dict[str, tuple[str, str] | None] = PrivateAttr()
    """Tag -> kind, canonical tag as it is written; None for unmapped ones."""

    def setup(self, artifacts: Mapping[str, Artifact]) -> None:
        columns = (artifacts["map"]["map"].column(name).to_pylist() for name in ("tag", "kind", "canonical"))
        self._canonical = {
            tag: None if canonical is None else (kind, written(canonical, kind))
            for tag, kind, canonical in zip(*columns, strict=True)
        }

    def reads(self) -> tuple[str, ...]:
        return ("tags",)

    def schema(self) -> pa.Schema:
        of = {"of": "canonical tags of the row, actions with `to`"}
        return pa.schema([pa.field("hashtags", _TAGS, metadata=places_of("hashtags") | of)])

    def process(self, batch: Batch) -> dict[str, Any]:
        return {"hashtags": pa.array([self._of_row(tags or [], batch) for tags in batch.column("tags")], _TAGS)}

    def _of_row(self, tags: list[str], batch: Batch) -> list[str] | None:
        found = set()
        for key in {folded(tag) for tag in tags} - {""}:
            canonical = self._canonical.get(key)
            if canonical is not None:
                found.add(canonical)
            counted = "mapped" if canonical is not None else "unmapped" if key in self._canonical else "unknown"
            batch.counters[f"tags_{counted}"] += 1
        return [tag for _, tag in sorted(found, key=lambda pair: (pair[0] == "action", pair[1]))] or None
