"""Recognises orders to a language model in a text of the web, by a lexicon of what such orders are made of.

An order combines meanings that a caption does not: to set instructions aside, to say something, how to answer, who the
reader is. Each rule of lexicon.yaml is such a combination within a few words. Most texts have no word of most classes,
so they are dismissed quickly.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise, product
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from ahocorasick_rs import BytesAhoCorasick

from curate.caption.checks.words import tokens_of
from curate.caption.untrusted.disguise import readings

FILE = Path(__file__).with_name("lexicon.yaml")
MARK_WEIGHT = 2.0
DISGUISE_WEIGHT = 1.5
"""Added if an order could only be read after decoding."""
CLEAR_SHARE = 0.4
"""Share of the highest weight of a piece of text from which a piece is part of the order."""
_APART = [".", ".", ".", "."]
"""Tokens between pieces, so that only wide rules match across them."""
LONGEST = 8000
"""Characters of a text that are read."""
_PIECES = re.compile(r"(?<=[.!?;])[\"'”’)\]]*\s+|(?<=[。！？])|\s[|–—-]+\s|\n+")
"""Where a text is split; more often than between sentences, so that an order and an alt text are apart."""


class Rule(NamedTuple):
    classes: tuple[str, ...]
    ordered: bool
    within: int
    weight: float


def _rule(given: Mapping[str, Any]) -> Rule:
    return Rule(tuple(given.get("then") or given["all"]), "then" in given, given["within"], given["weight"])


@dataclass(frozen=True)
class Orders:
    """What a text has of orders."""

    score: float
    text: str
    """The pieces of the text with orders, as read."""
    rest: str
    """The other pieces."""


NONE = Orders(0.0, "", "")


class _Lexicon:
    def __init__(self, found: Mapping[str, Any]) -> None:
        levels = (float(found[name]) for name in ("sure", "likely", "possible", "faint"))
        self.sure, self.likely, self.possible, self.faint = levels
        self.dense: dict[int, float] = found["dense"]
        self.light = frozenset(found["light"])
        self.tokens, self.marks = (list(map(re.compile, found[name])) for name in ("tokens", "marks"))
        self.rules = [_rule(rule) for rule in found["rules"]]
        classes: dict[bytes, list[str]] = defaultdict(list)
        for name, phrases in found["classes"].items():
            for phrase in phrases.split("|"):
                end = "" if phrase.strip().endswith("*") else " "
                words = " ".join(tokens_of(phrase.strip().removesuffix("*")))
                classes[f" {words}{end}".encode()].append(name)
        self.names = list(classes.values())
        self.usual = frozenset(phrase.decode().strip() for phrase in classes)
        self.usual |= frozenset(found["usual"].split())
        """Words that say nothing about what an order asks for: those of the classes, and those of any caption."""
        self.automaton = BytesAhoCorasick(list(classes))

    def found(self, tokens: list[str]) -> dict[str, list[int]]:
        """Class -> indices of the tokens at which its phrases begin, ascending."""
        blob = f" {' '.join(tokens)} ".encode()
        matches = self.automaton.find_matches_as_indexes(blob, overlapping=True)
        if not matches:
            return {}
        starts, place = [], 0
        for token in tokens:
            starts.append(place)
            place += len(token.encode()) + 1
        events: dict[str, set[int]] = defaultdict(set)
        for number, start, _ in matches:
            for name in self.names[number]:
                events[name].add(bisect_right(starts, start) - 1)
        for place in events.get("say", ()):
            if place == 0 or not tokens[place - 1].isalnum() or place - 1 in events.get("lead", ()):
                events["command"].add(place)
        return {name: sorted(places) for name, places in events.items()}


@cache
def lexicon() -> _Lexicon:
    return _Lexicon(yaml.safe_load(FILE.read_text(encoding="utf-8")))


def announces(words: Sequence[str]) -> bool:
    """Whether words end in what an answer is, as `reply with` or `the correct caption` do."""
    found = lexicon().found(list(words))
    places = {place for at in found.values() for place in at}
    return "command" in found or min(len(found), len(places)) >= 2


def _weight(*pieces: Mapping[str, list[int]]) -> float:
    """Weight of the number of classes that pieces of a text have, at as many places, or of a command."""
    heavy = [(name, n, place) for n, found in enumerate(pieces) for name, at in found.items() for place in at]
    heavy = [event for event in heavy if event[0] not in lexicon().light]
    many = min(len({name for name, _, _ in heavy}), len({event[1:] for event in heavy}))
    dense = max((weight for least, weight in lexicon().dense.items() if many >= least), default=0.0)
    return max(dense, lexicon().faint if any("command" in found for found in pieces) else 0.0)


def pieces_of(text: str) -> list[str]:
    return [piece for piece in _PIECES.split(text) if piece.strip()]


def orders_in(text: str) -> Orders:
    """What a text has of orders; also where they are encoded, spelled with spaces or otherwise disguised."""
    best = NONE
    for reading in readings(text[:LONGEST]):
        found = _orders(reading.text)
        if reading.disguised and found.score >= lexicon().possible:
            rest = "\n".join(pieces_of(text)) if reading.whole else found.rest
            found = Orders(found.score + DISGUISE_WEIGHT, found.text, rest)
        if found.score > best.score:
            best = found
    return best


def _orders(text: str) -> Orders:
    pieces = pieces_of(text)
    tokens, piece_of, weights, classes = [], [], dict[int, float](), []
    for number, piece in enumerate(pieces):
        found = [*tokens_of(piece), *_APART]
        tokens += found
        piece_of += [number] * len(found)
        classes.append(lexicon().found(found))
        weights[number] = _weight(classes[-1])
    score = max([*weights.values(), *(_weight(*pair) for pair in pairwise(classes))], default=0.0)
    matches = list(_matches(lexicon().found(tokens)))
    for weight, places in sorted(matches, key=lambda match: len({piece_of[place] for place in match[1]})):
        score += weight
        held = {piece_of[place] for place in places}
        weights |= {number: max(weight, weights[number]) for number in held if len(held) == 1 or weights[number]}
    for weight, marks in ((lexicon().sure, lexicon().tokens), (MARK_WEIGHT, lexicon().marks)):
        for mark in marks:
            hits = {number for number, piece in enumerate(pieces) if mark.search(piece)}
            if hits or mark.search(text):
                score += weight
                weights |= dict.fromkeys(hits, weight)
    if not score:
        return NONE
    least = CLEAR_SHARE * max(weights.values())
    held = {number for number, weight in weights.items() if weight >= least}
    if held and pieces[max(held)].rstrip().endswith((":", "：")):  # `Say the following:`
        held.add(max(held) + 1)
    ordered = [piece for number, piece in enumerate(pieces) if number in held]
    return Orders(score, "\n".join(ordered), "\n".join(piece for n, piece in enumerate(pieces) if n not in held))


def _matches(events: Mapping[str, list[int]]) -> Iterator[tuple[float, set[int]]]:
    """The weight of each rule that matches, with the tokens that it matched first."""
    for rule in lexicon().rules:
        if all(name in events for name in rule.classes):
            for first in events[rule.classes[0]]:
                least = first + 1 if rule.ordered else first - rule.within
                near = [_between(events[name], least, first + rule.within) for name in rule.classes[1:]]
                match = next((found for found in product(*near) if len({first, *found}) == len(rule.classes)), None)
                if match is not None:
                    yield rule.weight, {first, *match}
                    break


def _between(places: list[int], least: int, most: int) -> list[int]:
    return places[bisect_left(places, least) : bisect_right(places, most)]
