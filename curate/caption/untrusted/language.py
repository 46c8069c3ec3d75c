"""Whether two texts are clearly in different languages, by script and function words. No model: it only has to see that
an English prompt got a Spanish answer, not to name 176 languages as `text.language` does."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import yaml

from curate.caption.checks.words import words_of

FILE = Path(__file__).with_name("languages.yaml")
ROMAN = "roman"
SCRIPTS = {
    ROMAN: "A-Za-z\u00c0-\u024f\u1e00-\u1eff",
    "greek": "\u0370-\u03ff",
    "cyrillic": "\u0400-\u052f",
    "hebrew": "\u0590-\u05ff",
    "arabic": "\u0600-\u077f",
    "indic": "\u0900-\u0dff",
    "thai": "\u0e00-\u0eff",
    "hangul": "\u1100-\u11ff\uac00-\ud7af",
    "kana": "\u3040-\u30ff",
    "han": "\u3400-\u9fff",
}
_LETTERS = {name: re.compile(f"[{letters}]") for name, letters in SCRIPTS.items()}
LEAST_WORDS = 2
"""Function words by which a language is recognised."""
BARE_WORDS = 6
"""Words from which a text in Latin letters is in another language if it has no function word of the expected one."""


@cache
def _languages() -> dict[str, frozenset[str]]:
    found = yaml.safe_load(FILE.read_text(encoding="utf-8"))
    return {name: frozenset(words.split()) for name, words in found.items()}


@cache
def function_words() -> frozenset[str]:
    """Function words of all languages."""
    return frozenset[str]().union(*_languages().values())


def script_of(text: str) -> str:
    """The script of most letters; empty for a text without letters. Kana makes a text Japanese."""
    counts = {name: len(pattern.findall(text)) for name, pattern in _LETTERS.items()}
    if counts["kana"] >= 2:
        counts["kana"] += counts["han"]
    name, count = max(counts.items(), key=lambda pair: pair[1])
    return name if count else ""


def language_of(text: str) -> str:
    """A script, or for Latin letters the language of most function words, or `roman`."""
    script = script_of(text)
    if script != ROMAN:
        return script
    words = words_of(text)
    counts = {name: sum(word in known for word in words) for name, known in _languages().items()}
    best = max(counts, key=lambda name: counts[name])
    return best if counts[best] >= LEAST_WORDS else script


def differs(text: str, language: str) -> bool:
    """Whether a text is clearly not in the `language_of` another text."""
    found = language_of(text)
    if not found or not language or found == language:
        return False
    if language not in _languages():
        return found not in (ROMAN, "english") or (language == ROMAN and found not in _languages())
    if found == ROMAN:
        words = words_of(text)
        return len(words) >= BARE_WORDS and not any(word in _languages()[language] for word in words)
    if found not in _languages():
        return True
    words = words_of(text)
    own, other = (sum(word in _languages()[name] for word in words) for name in (language, found))
    return other > own


def is_backwards(text: str) -> bool:
    """Whether a text reads like English from the right, and not from the left."""
    english = _languages()["english"]
    left, right = (sum(len(word) > 1 and word in english for word in words_of(one)) for one in (text, text[::-1]))
    return right >= LEAST_WORDS and right > left
