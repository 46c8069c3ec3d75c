"""Cleaning rules for markup: quoting, HTML entities and tags, wrong encodings. Functions from text to text."""

from __future__ import annotations

import functools
import html
import html.entities
import re
from collections.abc import Callable

_BACKSLASHED = re.compile(r"(?<!\\)\\++(?=[\"'])")
_QUOTES = re.compile(r'"++')
_ENTITY = re.compile(
    r"&(?=[#A-Za-z])(?:amp;)*+(?:#(?=[0-9]{2}|[0-9];)([0-9]{1,7}+);?|#[xX]([0-9a-fA-F]{1,6}+);?|([A-Za-z][A-Za-z0-9]{1,31}+);"
    r"|(amp|lt|gt|quot|nbsp)(?![\w;=]))?+"
)
_COMMENT = re.compile(r"<!--.*?(?:-->|\Z)", re.S)
_INLINE_TAG = re.compile(
    r"</?(?:a|abbr|b|big|cite|em|font|i|mark|s|small|span|strong|sub|sup|tt|u)(?:\s[^<>]*+)?>", re.I
)
_TAG = re.compile(r"</?[a-zA-Z][a-zA-Z0-9]*+(?:\s[^<>]*+)?/?>")
_CUT_TAG = re.compile(r"<[a-zA-Z][a-zA-Z0-9]*+\s[^<>=]*+=[^<>]*+")


def unquote(text: str) -> str:
    """Removes CSV quoting (around the whole text, with inner quotation marks doubled) and backslashes before quotes."""
    while '""' in text and text[0] == text[-1] == '"' and len(text) > 2:
        inner = text[1:-1]
        if '""' not in inner or any(len(marks) % 2 for marks in _QUOTES.findall(inner)):
            break
        text = inner.replace('""', '"')
    return _BACKSLASHED.sub("", text) if "\\" in text else text


def unescape_entities(text: str) -> str:
    """Names need a semicolon, except for five that often lack it: `AT&T` and `mix&match` are not entities."""
    return _ENTITY.sub(_character, text) if "&" in text else text


def _character(match: re.Match[str]) -> str:
    decimal, hexadecimal, name, cut = match.groups()
    if decimal or hexadecimal:  # html decodes invalid numbers as browsers do
        return html.unescape(f"&#{int(decimal) if decimal else int(hexadecimal, 16)};")
    if name or cut:
        return html.entities.html5.get(f"{name or cut};", f"&{name};")
    return "&"


def fix_mojibake(text: str) -> str:
    """ftfy decodes text again, repeatedly if necessary, if that makes it more plausible."""
    return text if text.isascii() else _encoding_fixer()(text)


@functools.cache
def _encoding_fixer() -> Callable[[str], str]:
    import ftfy  # a third of a second, which `curate plan` does not need
    from ftfy.badness import is_bad

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
    stray = re.compile("[\x80-\x9f\ud800-\udfff]")  # ftfy also fixes these in plausible text

    def fix(text: str) -> str:
        return ftfy.fix_text(text, config) if is_bad(text) or stray.search(text) else text

    return fix


def strip_tags(text: str) -> str:
    """Block tags separate words and become spaces. `a < b`, `<3` and `<name@host>` are not tags."""
    if "<" not in text:
        return text
    text = _TAG.sub(" ", _INLINE_TAG.sub("", _COMMENT.sub(" ", text)))
    start, end = text.rfind("<"), len(text)
    while start >= 0 and _CUT_TAG.fullmatch(text, start, end):  # text truncated within a tag
        start, end = text.rfind("<", 0, start), start
    return text[:end]
