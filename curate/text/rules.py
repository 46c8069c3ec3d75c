"""The rules by which a caption is cleaned: a table of small functions from text to text, applied in its order.

To add a rule, write a function and put it into RULES where it belongs: what unpacks comes before what removes, what
tidies comes last. A rule must leave clean text alone. The table is run until nothing changes any more (removing one
thing may lay bare another: `&amp;lt;b&amp;gt;`), which makes cleaning idempotent; fifty rounds are the end even for
text that was made to need more.
"""

from __future__ import annotations

import functools
import html
import re
import unicodedata
from collections.abc import Callable, Iterable
from typing import NamedTuple

_COMMENT = re.compile(r"<!--.*?(-->|\Z)", re.S)
_INLINE_TAG = re.compile(r"</?(?:a|abbr|b|big|em|font|i|mark|s|small|span|strong|sub|sup|tt|u)(\s[^<>]*+)?>", re.I)
_TAG = re.compile(r"</?[a-zA-Z][a-zA-Z0-9]*+(\s[^<>]*+)?/?>")
_CUT_TAG = re.compile(r"<[a-zA-Z][a-zA-Z0-9]*+\s[^<>]*=[^<>]*\Z")
_URL = re.compile(r"\b(?:(?:https?|ftp)://|www\.(?=\w))[^\s<>\"|]+", re.I)
_URL_TAIL = re.compile(r"[.,;:!?'»”’)\]}]+\Z")
_EMAIL = re.compile(r"(?:\b(?:e-?mail|mail|mailto|contact)\s*:\s*)?(?<![\w.+-])[\w.+-]++@\w[\w-]*+(?:\.[\w-]++)+", re.I)
_HIDDEN = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1b\x7f-\x84\x86-\x9f\u00ad\u200b\u200e\u200f\u202a-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb"
    "\ud800-\udfff]"
)
_EMPTY = re.compile(r"\(\s*+\)|\[\s*+\]|\{\s*+\}|<\s*+>|«\s*+»|“\s*+”|(?<=\s)[.,;](?=\s|\Z)")
_WORD = re.compile(r"\S+")
_SEPARATORS = frozenset("|•·,;:/<>*~–—-")
_NESTED_AMPERSAND = re.compile(r"&(?:amp;){2,}")


class Rule(NamedTuple):
    name: str
    apply: Callable[[str], str]
    meaning: str


def unescape_entities(text: str) -> str:
    return html.unescape(_NESTED_AMPERSAND.sub("&amp;", text)) if "&" in text else text


def fix_mojibake(text: str) -> str:
    return text if text.isascii() else _encoding_fixer()(text)


@functools.cache
def _encoding_fixer() -> Callable[[str], str]:
    import ftfy  # a third of a second, which `curate plan` need not spend

    config = ftfy.TextFixerConfig(
        unescape_html=False,
        remove_terminal_escapes=False,
        fix_latin_ligatures=False,
        fix_character_width=False,
        uncurl_quotes=False,
        fix_line_breaks=False,
        remove_control_chars=False,
        normalization=None,
        explain=False,
    )
    return functools.partial(ftfy.fix_text, config=config)


def strip_tags(text: str) -> str:
    """Tags of blocks stand between words and become spaces. `a < b`, `<3` and `<name@host>` are no tags."""
    if "<" not in text:
        return text
    return _CUT_TAG.sub(" ", _TAG.sub(" ", _INLINE_TAG.sub("", _COMMENT.sub(" ", text))))


def remove_urls(text: str) -> str:
    """Punctuation that ends a sentence rather than an address stays."""
    return _URL.sub(lambda match: " " + _tail(match.group()), text)


def _tail(url: str) -> str:
    found = _URL_TAIL.search(url)
    return found.group() if found else ""


def remove_emails(text: str) -> str:
    return _EMAIL.sub(" ", text) if "@" in text else text


def remove_hidden(text: str) -> str:
    """Control characters, marks of direction, zero-width spaces, soft hyphens; joiners of scripts and emoji stay."""
    return _HIDDEN.sub("", text)


def normalise_unicode(text: str) -> str:
    return unicodedata.normalize("NFC", text)


def tidy_leftovers(text: str) -> str:
    """What other rules leave behind: empty brackets, a full stop by itself, separators with nothing beyond them."""
    text = _EMPTY.sub(" ", text)
    words = list(_WORD.finditer(text))
    told = [index for index, word in enumerate(words) if not _SEPARATORS.issuperset(word.group())]
    if len(told) == len(words):
        return text
    if not told:
        return ""
    start = words[told[0]].start() if told[0] > 0 else 0
    return text[start : words[told[-1]].end()] if told[-1] < len(words) - 1 else text[start:]


def collapse_spaces(text: str) -> str:
    return " ".join(text.split())


RULES = (
    Rule("entities", unescape_entities, "HTML entities become the characters they stand for"),
    Rule("mojibake", fix_mojibake, "text decoded with the wrong encoding is decoded again (ftfy)"),
    Rule("tags", strip_tags, "HTML tags and comments are removed"),
    Rule("urls", remove_urls, "web addresses are removed"),
    Rule("emails", remove_emails, "e-mail addresses are removed"),
    Rule("hidden", remove_hidden, "control and invisible characters are removed"),
    Rule("unicode", normalise_unicode, "Unicode is put into normal form C"),
    Rule("leftovers", tidy_leftovers, "empty brackets and separators at the ends are removed"),
    Rule("spaces", collapse_spaces, "white space and line breaks become single spaces"),
)
NAMES = tuple(rule.name for rule in RULES)
_MOST_ROUNDS = 50


def clean(text: str, names: Iterable[str] = NAMES) -> tuple[str, set[str]]:
    """Text under the rules of those names, and the names of the rules that changed it."""
    chosen = [rule for rule in RULES if rule.name in set(names)]
    hits: set[str] = set()
    for _ in range(_MOST_ROUNDS):
        before = text
        for rule in chosen:
            after = rule.apply(text)
            if after != text:
                hits.add(rule.name)
                text = after
        if text == before:
            break
    return text, hits
