"""Phrases by which a model talks to its user instead of giving the text: apologies ("I'm sorry, but I cannot") and chat
("Sure, here is a caption:"). The phrases are in phrases.yaml."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

import yaml

from curate.kernels.normal import normal_form

FILE = Path(__file__).with_name("phrases.yaml")
_LEADING = re.compile(r"[\s\"'“”‘’«»*_#>`-]*+")
_PART = re.compile(r"<(\w+)>")
_PLAIN = str.maketrans("’ʼ‘`´", "'''''", "*")


class Phrases(NamedTuple):
    """Patterns of one kind of phrase."""

    start: re.Pattern[str]
    anywhere: re.Pattern[str]

    def found(self, text: str) -> bool:
        """Whether a text in normal form has a phrase."""
        if self.start.match(text, _LEADING.match(text).end()):  # type: ignore[union-attr]  # it also matches nothing
            return True
        return self.anywhere.search(text) is not None


@cache
def _kinds() -> dict[str, Phrases]:
    found = yaml.safe_load(FILE.read_text(encoding="utf-8"))
    parts = found.pop("parts")

    def any_of(patterns: list[str], before: str) -> re.Pattern[str]:
        whole = f"{before}(?:{'|'.join(patterns)})"
        while (filled := _PART.sub(lambda part: parts[part[1]], whole)) != whole:
            whole = filled
        return re.compile(whole, re.I)

    return {
        kind: Phrases(any_of(given["start"], ""), any_of(given["anywhere"], r"(?<!\w)"))
        for kind, given in found.items()
    }


def normalised(text: str) -> str:
    """The text in the form that the patterns expect."""
    return " ".join(normal_form("NFKC", text).translate(_PLAIN).split())


def declines(text: str) -> bool:
    """Whether the text says that the model does not answer."""
    return _kinds()["declines"].found(normalised(text))


def chats(text: str) -> bool:
    """Whether the text addresses a user, or announces an answer."""
    return _kinds()["chat"].found(normalised(text))
