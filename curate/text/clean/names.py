"""Cleaning rules for names that do not describe an image (addresses, users, files, camera codes) and for hashtags.

All run in linear time: the look-behinds bound the number of places where a pattern starts within a run of characters
that it has already read.
"""

from __future__ import annotations

import re

_URL = re.compile(r"\b(?:(?:https?|ftp)://|www\.(?=\w))[^\s<>\"|]++", re.I)
_URL_TAIL = ".,;:!?'»”’)]}"
_DOMAINS = (
    "com|net|org|edu|gov|mil|info|biz|io|app|dev|shop|store|blog|site|online|xyz|tv|ly|gl|gd|co|uk|us|ca|au|nz|eu|de|fr"
    "|es|nl|be|ch|se|dk|fi|pl|cz|sk|hu|ro|gr|pt|br|mx|ar|ru|ua|jp|cn|kr|tw|hk|sg|ie|me|page"
)
_BARE_URL = re.compile(rf"(?<![\w@./-])(?:[a-z0-9][a-z0-9-]*+\.)++(?:{_DOMAINS})(?::[0-9]{{1,5}}+)?/[^\s<>\"|]*+", re.I)
_DOMAIN_PATH = re.compile(r"\.[A-Za-z]{2,6}(?::[0-9]{1,5})?/")
_EMAIL = re.compile(r"(?<![\w.+@-])[\w.+-]++@\w[\w-]*+(?:\.[\w-]++)+")
_EMAIL_LABEL = re.compile(r"\b(?:e-?mail|mail|mailto|contact)\s{0,3}:\s{0,3}(?=[\w.+-]++@\w[\w-]*+\.)", re.I)
_MENTION = re.compile(r"@(?<![\w@/#*]@)(?=[^\W\d])\w++(?:[.@]\w++)*+(?:['’]s\b)?")
_MENTION_LABEL = re.compile(r"\b(?:via|by|rt|cc|h/t) {0,3}(?=@[^\W\d])", re.I)
_HASHTAGS = re.compile(r"(?<![\w/&@$#＃])(?:[#＃]++(?:[^\W\d]|[0-9]++(?=[^\W\d_]{3}))\w*+)++(?![\w#＃])")
_HASHTAG = re.compile(r"[#＃]++(\w++)")
_COLOUR = re.compile(r"#(?=[a-f]*[0-9])[0-9a-f]{6}", re.I)
_JOIN = re.compile(
    r"(?<=[^\W\d_A-Z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])|(?<=[A-Za-z]{3})(?=[0-9])|(?<=[0-9])(?=[A-Z][a-z])|_+"
)
_FILE = re.compile(r"[\w.%+~/\\-]++")
EXTENSIONS = (
    "jpg|jpeg|jpe|jfif|png|gif|bmp|tif|tiff|webp|svg|eps|psd|heic|heif|cr2|nef|dng|mp4|mpg|mpeg|mov|avi|wmv|mkv|webm"
    "|flv|pdf|doc|docx|ppt|pptx|xls|xlsx|htm|html|php|asp|aspx"
)
_EXTENSION = re.compile(rf"\.(?:{EXTENSIONS})", re.I)
_PLAIN = re.compile(r"[^\W\d_]+(?:['’][^\W\d_]+)?|[^\W\d_]*[^\W\d_A-Z][_-]?[0-9]{1,3}")
_NUMBER = re.compile(r"[0-9]{1,4}")
_NO_WORD = re.compile(
    r"(?:image|img|pic|picture|photo|foto|untitled|unnamed|file|scan|download|thumb|thumbnail|index)[0-9]*", re.I
)
_DIGITS = re.compile("[0-9]{3}")
_NUMBERED = re.compile("[GCNFPTMLRY1_gcnfptmlry][ -]?[0-9]{3}|[Pp][A-Ca-c][0-9]{6}")
_CAMERA = re.compile(
    r"(?<![\w-])_?(?:(?:IMG|DSC|DSCN|DSCF|CIMG|IMGP|PICT|HPIM|IMAG|PXL)[ _-]?[0-9]{3}"
    r"|(?:SAM|GOPR|DJI|MVI|MOV|VID|KIF|WP|MG)_[0-9]{3}|(?:GOPR|SANY|SDC1)[0-9]{4}|P[1-9A-C][0-3][0-9]{5}"
    r"|100_[0-9]{4}|(?:19|20)[0-9]{6}_[0-9]{6})[0-9]*+(?:[_~-]\w*+)*+(?: \([0-9]{1,3}\))?(?![\w-])",
    re.I,
)
_EXTENSIONS = frozenset(EXTENSIONS.split("|"))


def remove_urls(text: str) -> str:
    """Keeps punctuation that ends a sentence rather than an address. Removes a domain without a scheme only if it has a
    path: `Booking.com` and `node.js` are names."""
    if "://" in text or "www." in text.lower():
        text = _URL.sub(_tail, text)
    return _BARE_URL.sub(_tail, text) if _DOMAIN_PATH.search(text) else text


def _tail(match: re.Match[str]) -> str:
    url = match.group()
    tail = url[len(url.rstrip(_URL_TAIL)) :]
    for opening, closing in ("()", "[]"):  # brackets that the address opened
        tail = tail.replace(closing, "", url.count(opening))
    return " " + tail


def remove_emails(text: str) -> str:
    return _EMAIL.sub(" ", _EMAIL_LABEL.sub("", text)) if "@" in text else text


def remove_mentions(text: str) -> str:
    """Removes `@name`, and `via` or `by` before it. Names begin with a letter: `@ 3pm`, `@3pm` and `me@ home` stay."""
    return _MENTION.sub(" ", _MENTION_LABEL.sub("", text)) if "@" in text else text


def unsign_hashtags(text: str) -> str:
    """`#word` -> `word`. `#1 dad`, `C#` and colours such as `#a0b1c2` stay."""
    return _HASHTAGS.sub(lambda match: _tags(match, _HASHTAG), text) if "#" in text or "＃" in text else text


def _tags(match: re.Match[str], tag: re.Pattern[str]) -> str:
    return match.group() if _COLOUR.fullmatch(match.group()) else " ".join(tag.findall(match.group()))


def split_hashtags(text: str) -> str:
    """`#MensHealthWeek` -> `Mens Health Week`, `#wood_brain` -> `wood brain`; the rule `hashtags` handles tags
    of one word. A tag with parts of one letter (`#iPhone`) or with Mc is a name and stays whole."""
    return _HASHTAGS.sub(_split, text) if "#" in text or "＃" in text else text


def _split(match: re.Match[str]) -> str:
    if not _JOIN.search(match.group()):
        return match.group()
    found = []
    for tag in _HASHTAG.findall(match.group()):
        parts = [part for part in _JOIN.sub(" ", tag).split(" ") if part]
        name = any(len(part) == 1 and part not in "AI0123456789" for part in parts) or parts[:1] in (["Mc"], ["Mac"])
        found.append(f"#{tag}" if name or len(parts) < 2 else " ".join(parts))
    return match.group() if all(part.startswith("#") for part in found) else " ".join(found)


def remove_file_names(text: str) -> str:
    """Removes file names. A plain word only loses its extension, because it ends a title with spaces (`Osa, the Snow
    Leopard.jpg`)."""
    return _FILE.sub(_file, text) if "." in text and _EXTENSION.search(text) else text


def _file(match: re.Match[str]) -> str:
    stem, dot, extension = match.group().rpartition(".")
    if not dot or extension.lower() not in _EXTENSIONS:
        return match.group()
    if not stem:  # `(1).jpg`, but `saved as .png`
        return "" if match.string[: match.start()].endswith(")") else match.group()
    if _NUMBER.fullmatch(stem):
        return stem if match.start() else ""
    return stem if _PLAIN.fullmatch(stem) and not _NO_WORD.fullmatch(stem) else " "


def remove_camera_codes(text: str) -> str:
    """Removes file names of cameras and phones without an extension: IMG_2034, DSC00012, P1010023."""
    return _CAMERA.sub(" ", text) if _DIGITS.search(text) and _NUMBERED.search(text) else text
