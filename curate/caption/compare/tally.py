"""Verdicts of people over the pairs of a blind page, with the order of the texts undone by the page's key."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from curate.caption.compare.blind import Key
from curate.caption.compare.statistics import Interval, Wins, wilson
from curate.core.errors import InputError

KEY = "key.json"
REMEDY = "give files that were downloaded from the page"


class Verdicts(BaseModel):
    """What the page's button downloads."""

    model_config = ConfigDict(extra="forbid")

    format: Literal[1]
    page: str
    name: str = ""
    """Who judged."""
    verdicts: dict[str, Literal["0", "1", "2"]]
    """Pair -> the better text by its place, or 0 for neither."""


@dataclass(frozen=True)
class Tally:
    """Verdicts of each person and of all together."""

    a: str
    b: str
    pairs: int
    """Pairs of the page."""
    people: list[tuple[str, Wins]]
    together: Wins
    """Each pair counts once: the side that more people chose, otherwise a tie."""
    agreement: Interval | None
    """Share of the pairs of verdicts by two people on one pair of texts that agree. None with one person."""
    with_judge: Interval | None
    """Share of the pairs with a winner, by people and by the judge, on which they agree. None without a judge."""
    judged_by_model: Wins = field(default_factory=lambda: Wins(0, 0, 0))
    """Verdicts of the model on the same pairs."""


def read_key(data: bytes, place: str) -> Key:
    """Raises InputError."""
    try:
        return Key.model_validate_json(data)
    except ValidationError:
        raise InputError(f"{place}: not the key of a blind page; give the folder that caption.compare wrote") from None


def read_verdicts(data: bytes, place: str, key: Key) -> Verdicts:
    """Verdicts over the pairs of a key. Raises InputError."""
    try:
        found = Verdicts.model_validate(json.loads(data))
    except (ValueError, RecursionError):
        raise InputError(f"{place}: not a file of verdicts; {REMEDY}") from None
    if found.page != key.page:
        raise InputError(f"{place}: verdicts on page {found.page}, but this folder has page {key.page}; {REMEDY}")
    unknown = next((name for name in found.verdicts if name not in key.pairs), None)
    if unknown is not None:
        raise InputError(f"{place}: the page has no pair {unknown}; {REMEDY}")
    return found


def tally(key: Key, files: Sequence[tuple[str, Verdicts]]) -> Tally:
    """`files`: (name of the file, its verdicts), one per person."""
    sides = [(found.name or place, _sides(key, found)) for place, found in files]
    votes: dict[str, Counter[str]] = {}
    for _, own in sides:
        for pair, side in own.items():
            votes.setdefault(pair, Counter())[side] += 1
    together = {pair: _majority(found) for pair, found in votes.items()}
    model = {pair: line.judge for pair in together if (line := key.pairs[pair]).judge is not None}
    decided = [pair for pair, side in together.items() if side in ("a", "b") and model.get(pair) in ("a", "b")]
    return Tally(
        a=key.a,
        b=key.b,
        pairs=len(key.pairs),
        people=[(name, _wins(Counter(own.values()))) for name, own in sides],
        together=_wins(Counter(together.values())),
        agreement=_agreement(list(votes.values())),
        with_judge=wilson(sum(together[pair] == model[pair] for pair in decided), len(decided)),
        judged_by_model=_wins(Counter(side for side in model.values() if side is not None)),
    )


def _sides(key: Key, found: Verdicts) -> dict[str, str]:
    """Pair -> a, b or tie."""
    sides = {}
    for pair, choice in found.verdicts.items():
        first = key.pairs[pair].first
        second = "b" if first == "a" else "a"
        sides[pair] = {"1": first, "2": second, "0": "tie"}[choice]
    return sides


def _majority(votes: Counter[str]) -> str:
    if votes["a"] == votes["b"]:
        return "tie"
    best = "a" if votes["a"] > votes["b"] else "b"
    return best if votes[best] > votes["tie"] else "tie"


def _wins(found: Counter[str]) -> Wins:
    return Wins(found["a"], found["b"], found["tie"], found["inconsistent"])


def _agreement(votes: Sequence[Counter[str]]) -> Interval | None:
    """Over all pairs of people who judged the same pair of texts."""
    same = sum(count * (count - 1) // 2 for found in votes for count in found.values())
    return wilson(same, sum(found.total() * (found.total() - 1) // 2 for found in votes))
