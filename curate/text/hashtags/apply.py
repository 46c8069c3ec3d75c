"""`text.hashtags`: each row's tags as canonical nouns and actions, by a map of the pool's tags."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import pyarrow as pa
from pydantic import PrivateAttr

from curate.core.contracts import Artifact, Batch, Map
from curate.core.items import places_of
from curate.text.hashtags.map import KIND
from curate.text.hashtags.segment import folded

_LISTS = pa.list_(pa.list_(pa.string()))


class Hashtags(Map):
    """Give each row its canonical tags, sorted and distinct: nouns in one column, actions in another.

    Selections balance them like the concepts of a text. Both columns have one item in every row, even without tags.

    Counters: tags mapped, unmapped, and unknown (not in the map, for rows added after it).
    """

    op: ClassVar[str] = "text.hashtags"
    ports: ClassVar[dict[str, str]] = {"map": KIND}
    batch_rows: ClassVar[int] = 4096

    _canonical: dict[str, tuple[str, str | None]] = PrivateAttr()
    """Tag -> kind, canonical tag."""

    def setup(self, artifacts: Mapping[str, Artifact]) -> None:
        columns = (artifacts["map"]["map"].column(name).to_pylist() for name in ("tag", "kind", "canonical"))
        self._canonical = {tag: (kind, canonical) for tag, kind, canonical in zip(*columns, strict=True)}

    def reads(self) -> tuple[str, ...]:
        return ("tags",)

    def schema(self) -> pa.Schema:
        meanings = {
            "hashtag_nouns": "canonical tags that name things",
            "hashtag_actions": "canonical tags of what is done",
        }
        places = places_of("hashtag_nouns")
        return pa.schema([pa.field(name, _LISTS, metadata=places | {"of": of}) for name, of in meanings.items()])

    def process(self, batch: Batch) -> dict[str, Any]:
        rows = [self._of_row(tags or [], batch) for tags in batch.column("tags")]
        return {
            name: pa.array([[sorted(row[kind])] for row in rows], _LISTS)
            for name, kind in (("hashtag_nouns", "noun"), ("hashtag_actions", "action"))
        }

    def _of_row(self, tags: list[str], batch: Batch) -> dict[str, set[str]]:
        found: dict[str, set[str]] = {"noun": set(), "action": set()}
        for key in {folded(tag) for tag in tags} - {""}:
            kind, canonical = self._canonical.get(key, ("unknown", None))
            if canonical is not None and kind in found:
                found[kind].add(canonical)
                batch.counters["tags_mapped"] += 1
            else:
                batch.counters["tags_unknown" if kind == "unknown" else "tags_unmapped"] += 1
        return found
