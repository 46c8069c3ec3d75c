"""Words of a text, for comparing texts: in linear time, for any script."""

from __future__ import annotations

import re
import unicodedata

from curate.kernels.normal import normal_form

LONGEST_WORD = 40
"""Characters; a longer run of letters counts as one word per character, so that loops in it are found."""
_WORD = re.compile(r"[^\W_]+(?:['’][^\W_]+)*+")
_TOKEN = re.compile(rf"{_WORD.pattern}|[^\s\w]|_")
_UNSPACED = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u3007\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff"
    "\uf900-\ufaff\U00020000-\U0003ffff]"
)
"""Characters of scripts that do not separate words: Thai, Lao, Burmese, Khmer, Han, Kana."""


class _Plain(dict[int, str | None]):
    """Code point -> replacement, for `str.translate`; filled on demand."""

    def __missing__(self, code: int) -> str | None:
        sign = chr(code)
        replacement: str | None = sign
        if unicodedata.category(sign) in ("Mn", "Mc", "Me", "Cf"):
            replacement = None
        elif _UNSPACED.match(sign):
            replacement = f" {sign} "
        self[code] = replacement
        return replacement


_PLAIN = _Plain()


def plain(text: str) -> str:
    """NFKC without marks and invisible characters; each character of a script without spaces stands alone."""
    return text if text.isascii() else normal_form("NFKC", text).translate(_PLAIN)


def is_blank(text: str) -> bool:
    """Whether a text shows nothing: it has only white space, control characters and invisible ones."""
    return not any(sign.isprintable() and not sign.isspace() for sign in text)


def words_of(text: str) -> list[str]:
    """Case-folded words: runs of letters and digits, with apostrophes within."""
    return _split(_WORD.findall(plain(text).casefold()))


def tokens_of(text: str) -> list[str]:
    """Case-folded words and signs."""
    return _split(_TOKEN.findall(plain(text).casefold()))


def _split(words: list[str]) -> list[str]:
    if not any(len(word) > LONGEST_WORD for word in words):
        return words
    return [part for word in words for part in (word if len(word) > LONGEST_WORD else [word])]
