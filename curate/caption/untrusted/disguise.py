"""What a text may also say: hidden characters, spelled words, leetspeak, look-alike letters, encodings undone.

Each reading is a guess. A wrong one is gibberish, in which no orders are found.
"""

from __future__ import annotations

import base64
import binascii
import codecs
import html
import re
from collections.abc import Callable, Iterator
from typing import NamedTuple
from urllib.parse import unquote

from curate.kernels.normal import normal_form

_HIDDEN = re.compile("[\x00-\x08\x0e-\x1f\x7f-\x84\x86-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180e"
    "\u200b-\u200f\u202a-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0]")  # fmt: skip
_TAGS = {0xE0000 + code: code for code in range(0x20, 0x7F)}
"""Invisible copies of ASCII (Unicode's tag characters)."""
_SPELLED = re.compile(r"(?<!\w)\w(?: {1,4}\w(?!\w)){5,}+")
_JOINED = re.compile(r"(?<![\w.*·_|/-])(?:\w(?:[.*·_|/-]\w)++(?!\w) *+){3,}+")
_LEET = str.maketrans("013457@$!|8", "oieastasiib")
_MIXED = re.compile(r"(?<!\w)(?=[\w@$!|]*[a-zA-Z])(?=[\w@$!|]*[013457@$!|8])[\w@$!|]{2,}")
_LOOK_ALIKE = str.maketrans(
    "АВЕКМНОРСТХаеорсухіјѕԁһԛԝΑΒΕΖΗΙΚΜΝΟΡΤΥΧοαειν", "ABEKMHOPCTXaeopcyxijsdhqwABEZHIKMNOPTYXoaeiv"
)
_FOREIGN = re.compile("[\u0370-\u052f]")
_BASE64 = re.compile(r"(?<![\w+/=-])[A-Za-z0-9+/_-]{16,}={0,2}(?![\w+/=-])")
_HEX = re.compile(r"(?i)(?<!\w)(?:(?:\\x|0x|%)?[0-9a-f]{2}[ ,:]?){12,}(?!\w)")
_BINARY = re.compile(r"(?<!\d)[01]{8}(?:[ ,]?[01]{8}){7,}(?!\d)")
_READABLE = re.compile(
    r"\b(?:the|all|and|your|you|with|this|that|only|any|ignore|forget|disregard|instructions?|prompt|say|write|print"
    r"|output|reply|respond|answer|previous|above|instead|caption|image)\b",
    re.I,
)


class Reading(NamedTuple):
    text: str
    disguised: bool
    whole: bool = False
    """Whether all of the text is changed, also what was not disguised."""


def readings(text: str) -> Iterator[Reading]:
    """Readings of the text; the first is the text in NFKC without invisible characters."""
    shown = text.translate(_TAGS) if "\U000e0020" <= max(text, default="") <= "\U000e007f" else text
    if not shown.isascii():
        shown = normal_form("NFKC", _HIDDEN.sub("", shown))
    elif _HIDDEN.search(shown):
        shown = _HIDDEN.sub("", shown)
    yield Reading(shown, False)
    for undo in (_decoded, _latin, _unspelled, _unleet):
        found = undo(shown)
        if found and found != shown:
            yield Reading(found, True)
    for undo in (_rot13, _backwards):
        found = undo(shown)
        if found:
            yield Reading(found, True, whole=True)


def _decoded(text: str) -> str:
    """Entities, percent-encoding, base64, hexadecimal and binary codes decoded."""
    if "&" in text:
        text = html.unescape(text)
    if "%" in text:
        text = unquote(text)
    for pattern, decode in _CODES:
        text = pattern.sub(lambda match, decode=decode: _plausible(match.group(), decode), text)  # type: ignore[misc]
    return text


def _base64(code: str) -> bytes:
    return base64.b64decode(code.translate(str.maketrans("-_", "+/")).rstrip("=") + "=" * (-len(code.rstrip("=")) % 4))


def _hex(code: str) -> bytes:
    return bytes.fromhex(re.sub(r"(?i)\\x|0x|[%,: ]", "", code))


def _binary(code: str) -> bytes:
    bits = re.sub("[ ,]", "", code)
    return bytes(int(bits[start : start + 8], 2) for start in range(0, len(bits), 8))


_CODES = ((_BINARY, _binary), (_HEX, _hex), (_BASE64, _base64))


def _plausible(code: str, decode: Callable[[str], bytes]) -> str:
    """The decoded text, or the code if it is not text."""
    try:
        found = decode(code).decode()
    except (ValueError, binascii.Error):
        return code
    letters = sum(sign.isalpha() or sign.isspace() for sign in found)
    return f" {found} " if letters >= 0.7 * len(found) > 0 else code


def _latin(text: str) -> str:
    """With Latin letters in place of those of other alphabets that look like them; empty if there are none."""
    if not _FOREIGN.search(text) or not re.search("[A-Za-z]", text):
        return ""
    return text.translate(_LOOK_ALIKE)


def _unspelled(text: str) -> str:
    """`i g n o r e   a l l` and `i.g.n.o.r.e a.l.l` -> `ignore all`."""
    text = _SPELLED.sub(lambda run: " ".join(re.sub(r"\s", "", word) for word in re.split(" {2,}", run[0])), text)
    return _JOINED.sub(lambda run: re.sub(r"[.*·_|/-]", "", run[0]), text)


def _unleet(text: str) -> str:
    if len(_MIXED.findall(text)) < 2:
        return ""
    return _MIXED.sub(lambda word: word[0].translate(_LEET), text)


def _rot13(text: str) -> str:
    return _if_readable(codecs.encode(text, "rot13"))


def _backwards(text: str) -> str:
    """Read from the right, or each word so."""
    return _if_readable(text[::-1]) or _if_readable(" ".join(word[::-1] for word in text.split()))


def _if_readable(text: str) -> str:
    return text if len({word.lower() for word in _READABLE.findall(text)}) >= 2 else ""
