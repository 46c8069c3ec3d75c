"""Which text goes with a picture: one of those that its recipe names and the sample has, drawn by weight.

A text is a member of the tar (`txt`) or a field of the sample's JSON (`json.title`; `json.meta.title` goes deeper). A
field may hold a list of texts, of which one is drawn. What is absent, empty or unreadable is not drawn.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from curate.core.errors import Reject
from distill.samples.batches.draws import TEXT, Draws, choose
from distill.samples.sources.members import Members
from distill.samples.sources.mixture import Blend

Candidates = tuple[tuple[float, tuple[str, ...]], ...]
"""Per choice that a sample has: its weight and its texts."""

_FAR_WORKERS = 16
"""Where each text is a request, or two, to an object store."""
_LOG = logging.getLogger("distill")
_LOW = np.uint64(0xFFFFFFFF)


class Texts:
    """Safe to call from many threads."""

    def __init__(self, blend: Blend, members: Members, draws: Draws) -> None:
        self._choices = [tuple(recipe.texts.items()) for recipe in blend.recipes]
        self._blend, self._members, self._draws = blend, members, draws
        self._told = False

    def wanted(self, row: int) -> bool:
        return bool(self._choices[self._blend.place(row)[0]])

    def candidates(self, row: int) -> Candidates:
        """All texts of a sample. Raises Reject where its tar is missing or cut."""
        document: Any = None
        found = []
        for name, weight in self._choices[self._blend.place(row)[0]]:
            member, _, field = name.partition(".")
            if member != "json":
                texts = _texts(_decoded(self._members.member(row, name)))
            else:
                document = _parsed(self._members.member(row, "json")) if document is None else document
                texts = _texts(_field(document, field))
            if texts:
                found.append((weight, texts))
        return tuple(found)

    def every(self, row: int) -> list[str]:
        """All texts of a sample; none where they cannot be read, of which the log tells once."""
        try:
            return [text for _, texts in self.candidates(row) for text in texts]
        except Reject:
            return []
        except OSError as error:
            if not self._told:
                self._told = True
                _LOG.warning("texts of row %d: cannot be read (%s); it counts as without, and so do others", row, error)
            return []

    def of(self, rows: NDArray[np.int64], *, workers: int) -> list[str]:
        """All texts of some samples, in no order that matters; what cannot be read has none."""
        far = not all(source.storage.local for source in self._blend.sources)
        with self._members.passing(rows), ThreadPoolExecutor(_FAR_WORKERS if far else workers) as pool:
            return [text for found in pool.map(self.every, rows.tolist()) for text in found]

    def draw(self, row: int, epoch: int, candidates: Candidates) -> str | None:
        """One of a sample's candidates, by hash(seed, key, copy, epoch); None when it has none."""
        return drawn(candidates, self._draws.ranks(TEXT, row, epoch)[0])


def drawn(candidates: Candidates, rank: np.uint64) -> str | None:
    """The text that a uniform 64-bit number means: its upper half says which choice, its lower half which text."""
    if not candidates:
        return None
    upper, lower = (np.array([half << np.uint64(32)]) for half in (rank >> np.uint64(32), rank & _LOW))
    texts = candidates[int(choose(upper, [weight for weight, _ in candidates])[0])][1]
    return texts[int(choose(lower, [1.0] * len(texts))[0])]


def _decoded(data: bytes | None) -> str | None:
    return None if data is None else data.decode("utf-8", "replace")


def _parsed(data: bytes | None) -> Any:
    try:
        return {} if data is None else json.loads(data)
    except (ValueError, RecursionError):
        return {}


def _field(document: Any, path: str) -> Any:
    for part in path.split("."):
        document = document.get(part) if isinstance(document, dict) else None
    return document


def _texts(value: Any) -> tuple[str, ...]:
    items: Sequence[Any] = value if isinstance(value, list) else [value]
    return tuple(item.strip() for item in items if isinstance(item, str) and item.strip())
