"""The blind page: pairs of texts in an order that the page does not tell, and the key that does.

hash(seed, key) decides which text comes first. The page has a random-looking id for each pair; the key file maps ids to
samples and their first texts. `tally` reads the key and the verdicts that people download from the page.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from curate.core.hashing import digest, ranks
from curate.html.thumbnails import MISSING, Thumbnail

ORDER, NAME = 0x6F72646572, 0x6E616D65
"""Salts of the order of a pair's texts and of its id."""
Side = Literal["a", "b"]


@dataclass(frozen=True)
class BlindPair:
    id: str
    thumb: Thumbnail
    texts: tuple[str, str]


class Pair(BaseModel):
    """A line of the key."""

    model_config = ConfigDict(extra="forbid")

    key: str
    """The sample."""
    first: Side
    judge: Literal["a", "b", "tie", "inconsistent"] | None = None
    """The verdict of the model that judged it, if any."""


class Key(BaseModel):
    """What the blind page does not tell."""

    model_config = ConfigDict(extra="forbid")

    format: Literal[1] = 1
    page: str
    """Id of the page, which verdicts name."""
    a: str
    """Column of the texts."""
    b: str
    pairs: dict[str, Pair]


def blind(
    rows: Sequence[Mapping[str, Any]], a: str, b: str, judge: str | None, seed: int, thumbs: Mapping[str, Thumbnail]
) -> tuple[list[BlindPair], Key]:
    """The pairs of the page and its key."""
    keys = [row["key"] for row in rows]
    swapped = (ranks(seed, keys, ORDER) & 1).astype(bool).tolist()
    ids = [f"{rank:016x}" for rank in ranks(seed, keys, NAME).tolist()]
    pairs, lines = [], {}
    for row, name, second in zip(rows, ids, swapped, strict=True):
        texts = (row[b], row[a]) if second else (row[a], row[b])
        pairs.append(BlindPair(name, thumbs.get(row["key"], MISSING), texts))
        verdict = row.get(f"{judge}_verdict") if judge else None
        lines[name] = Pair(key=row["key"], first="b" if second else "a", judge=verdict)
    page = digest([a, b, seed, {name: [pair.key, pair.first] for name, pair in lines.items()}])[:16]
    return pairs, Key(page=page, a=a, b=b, pairs=lines)


def key_file(key: Key) -> bytes:
    return json.dumps(key.model_dump(), indent=1).encode()
