"""Cleaning rules for characters: hidden ones, emojis, ornaments, repeated punctuation, leftovers, white space."""

from __future__ import annotations

import re

from curate.kernels.normal import normal_form

HIDDEN = (
    "\x00-\x08\x0b\x0c\x0e-\x1b\x7f-\x84\x86-\x9f\u00ad\u200b\u200e\u200f\u202a-\u202e\u2060-\u2069\ufeff\ufff9-\ufffd"
)
_PICTURES = (
    "\U0001f000-\U0001f1ff\U0001f200-\U0001f251\U0001f300-\U0001fbef\U000e0020-\U000e007f"
    "\u231a\u231b\u2328\u23cf\u23e9-\u23f3\u23f8-\u23fa\u2614\u2615\u2648-\u2653\u267f\u2693\u26a1\u26aa\u26ab\u26bd"
    "\u26be\u26c4\u26c5\u26ce\u26d4\u26ea\u26f2\u26f3\u26f5\u26fa\u26fd\u2705\u270a\u270b\u2728\u274c\u274e\u2753-\u2755"
    "\u2757\u2795-\u2797\u27b0\u27bf\u2b1b\u2b1c\u2b50\u2b55"
)
"""Characters that Unicode shows as emojis by default (Emoji_Presentation)."""
EMOJIS = f"{_PICTURES}\ufe0e\ufe0f\u20e3"
SYMBOLS = (
    "®™©℠℗\ue000-\uf8ff\U000f0000-\U0010ffff\u2500-\u25ff\u2600-\u263f\u2641\u2643-\u266c\u2670-\u27bf"
    "\u2b12-\u2b2f\u2b4d-\u2b54\u2b56-\u2bff"
)
"""Trade marks, private use, boxes, blocks, shapes, ornaments; without ♀ ♂ ♭ ♮ ♯ and arrows, which have a meaning."""
_HIDDEN = re.compile(f"[{HIDDEN}\ud800-\udfff]++")
_ANY_EMOJI = re.compile(f"[{EMOJIS}]")
_EMOJI = re.compile(
    f"(?:[{_PICTURES}]|[^\\s\\w#*]\ufe0f)[{_PICTURES}\ufe0e\ufe0f\u20e3\u200d\u2600-\u27bf]*+|[\ufe0e\ufe0f\u20e3]++"
)
_SYMBOL = re.compile(f"[{SYMBOLS}]++")
SEPARATORS = frozenset("|•·,;:/<>*~–—-")
_MARKS = "\ufe0e\ufe0f\u20e3"
_OPENS = frozenset("([{“‘«\"'#")
_TWICE = re.compile("[!?,;.…！？。、，_=~–—-]{2}")
_REPEATED = re.compile(
    r"([!?])[!?]++|([,;…！？。、，])\2++|(?<!\.)(\.{3})\.++|(?<=[^\W\d])\.\.(?![\w./\\])|([-_=~–—])\4{2,}+"
)
_EMPTY = re.compile(r"\(\s*+\)|\[\s*+\]|\{\s*+\}|<\s*+>|«\s*+»|“\s*+”")
_BETWEEN = re.compile(r"(?<=[\w)\]\"'’”%]) ++([.,;])(?= ++\w)")
_ALONE = re.compile(r"(?<= )[.,;](?= |\Z)")
_AT_START = re.compile(r"(?:\s*+[|•·,;:/<>*~–—-]++(?!\S))++\s*+")
_ENDED = frozenset(")]}\"'’”!?.,;:%")


def gap(match: re.Match[str]) -> str:
    """Replacement for removed characters: a space between words, nothing next to a space, a bracket or an end."""
    before, after = match.string[max(0, match.start() - 1) : match.start()], match.string[match.end() : match.end() + 1]
    between = (before.isalnum() or before in _ENDED) and (after.isalnum() or after in _OPENS)
    return " " if between and before and after else ""


def remove_hidden(text: str) -> str:
    """Removes control characters, marks of direction, zero-width spaces, soft hyphens and replacement characters. The
    joiners of scripts and emojis stay."""
    if text.isprintable() and "\ufffd" not in text and "\ufffc" not in text:
        return text
    return _HIDDEN.sub("", text)


def normalise_unicode(text: str) -> str:
    return normal_form("NFC", text)


def remove_emojis(text: str) -> str:
    """Removes emojis with their skin colours, joiners and variation marks. The digit of a keycap stays, and so do `<3`
    and emoticons such as `:)`, which look like punctuation."""
    return text if text.isascii() or not _ANY_EMOJI.search(text) else _EMOJI.sub(_no_emoji, text)


def _no_emoji(match: re.Match[str]) -> str:
    return "" if match.group()[0] in _MARKS else gap(match)


def remove_symbols(text: str) -> str:
    return text if text.isascii() else _SYMBOL.sub(gap, text)


def collapse_punctuation(text: str) -> str:
    """`!!!!` -> `!`, `?!?!` -> `?!`. Four or more full stops become three, two after a word become one; three or more
    dashes or underscores become one. Quotation marks, `--`, `::` and `1..10` stay."""
    return _REPEATED.sub(_once, text) if _TWICE.search(text) else text


def _once(match: re.Match[str]) -> str:
    run = match.group()
    if match.lastindex == 1:
        return "".join(dict.fromkeys(run))
    return {None: ".", 3: "..."}.get(match.lastindex, run[0])


def tidy_leftovers(text: str) -> str:
    """Removes what other rules leave: empty brackets, separators at the ends, a final comma or colon, and isolated
    commas and full stops (between words, they move to the word before)."""
    text = _EMPTY.sub(" ", text)
    if " ," in text or " ." in text or " ;" in text:
        text = _ALONE.sub("", _BETWEEN.sub(r"\1", text))
    bare = text.strip()
    if bare and bare[-1] in ",;:":
        rest = bare.rstrip(",;: ")
        bare = text = rest if rest and (rest[-1].isalnum() or rest[-1] in _ENDED) else text
    if bare and (bare[0] in SEPARATORS or bare[-1] in SEPARATORS):
        for _ in "ab":  # the start, then the end of the reversed text
            found = _AT_START.match(text)
            text = (text[found.end() :] if found else text)[::-1]
    return text


def collapse_spaces(text: str) -> str:
    # of white space, only the space is printable
    if text.isprintable() and "  " not in text and text[:1] != " " != text[-1:]:
        return text
    return " ".join(text.split())
