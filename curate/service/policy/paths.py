"""Whether a path or URL is below a registered root: by its components, and for local paths after following links.

A value may begin with the name of a root: `photos/2024` with the root photos -> /data/photos is /data/photos/2024.
"""

from __future__ import annotations

import fnmatch
import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

LONGEST = 4096
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_BRACES = re.compile(r"\{-?\d{1,12}\.\.-?\d{1,12}(\.\.\d{1,12})?\}|\{[\w-]+(,[\w-]+)*\}", re.ASCII)
"""The patterns {000..127} and {train,test}, which cannot yield `..` or a slash."""
_ENCODED = re.compile(r"%(2e|2f|5c|25|0[0-9a-f]|1[0-9a-f])", re.IGNORECASE)
_WILD = "*?[{"
MOST_STARS = 3
"""In one component: the time to match a name of n characters grows with n to the power of their number."""
MOST_FILES = 1_000_000
"""That the braces of a recipe's paths may stand for; the driver lists them in memory."""


class OutsideError(ValueError):
    """Why a value is not below a root; the end of a sentence that begins with the value."""


@dataclass(frozen=True)
class ParsedPath:
    """A path or URL in parts. `host` is the scheme with the bucket or host, "" for a local path."""

    host: str
    parts: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.host}/{'/'.join(self.parts)}"

    def below(self, root: ParsedPath) -> bool:
        return self.host == root.host and self.parts[: len(root.parts)] == root.parts


def parse(text: str) -> ParsedPath:
    """Raises OutsideError if the text is not an absolute path or a URL in plain form."""
    if len(text) > LONGEST:
        raise OutsideError(f"is longer than {LONGEST} characters")
    if any(ord(sign) < 32 or ord(sign) == 127 for sign in text) or not text.isprintable():
        raise OutsideError("has control characters")
    if "\\" in text or "::" in text:
        raise OutsideError("has a backslash or `::`, which are not allowed in paths")
    scheme = _SCHEME.match(text)
    if scheme is None or scheme[1].lower() == "file":
        path = text[scheme.end() :] if scheme else text
        if not path.startswith("/"):
            raise OutsideError("is neither absolute nor begins with the name of a root")
        return ParsedPath("", _plain(path, [part for part in path.split("/") if part not in ("", ".")]))
    host, _, path = text[scheme.end() :].partition("/")
    if not host or _ENCODED.search(text):
        raise OutsideError("has no host, or percent-encoded signs that a server could read as `/` or `..`")
    parts = path.removesuffix("/").split("/") if path.strip("/") else []
    if "" in parts or "." in parts:
        raise OutsideError("has an empty or `.` component")
    web = scheme[1].lower() in ("http", "https")
    return ParsedPath(f"{scheme[1].lower()}://{host.lower() if web else host}", _plain(path, parts))


def _plain(path: str, parts: list[str]) -> tuple[str, ...]:
    if ".." in parts:
        raise OutsideError("has a `..` component")
    rest = _BRACES.sub("", path)
    if "{" in rest or "}" in rest:
        raise OutsideError("has braces other than {000..127} and {a,b}")
    if path.count("**") > 1 or any(part.count("*") > MOST_STARS for part in parts):
        raise OutsideError(f"has more than {MOST_STARS} * between two slashes, or several **")
    if files(path) > MOST_FILES:
        raise OutsideError(f"stands for more than {MOST_FILES:,} files")
    return tuple(parts)


def files(path: str) -> int:
    """How many paths its braces stand for."""
    return math.prod(_choices(found[0][1:-1]) for found in _BRACES.finditer(path))


def _choices(inner: str) -> int:
    """How many texts a pair of braces stands for: 000..127, 0..100..5 or a,b."""
    if ".." not in inner:
        return inner.count(",") + 1
    first, last, step = (*inner.split(".."), "1")[:3]
    return abs(int(last) - int(first)) // max(1, int(step)) + 1


def admitted(text: str, roots: Mapping[str, str]) -> str:
    """The path or URL to read, with the name of a root replaced. Raises OutsideError if it is not below a root."""
    name, slash, rest = text.partition("/")
    if name in roots:
        text = f"{roots[name].rstrip('/')}{slash}{rest}" if rest else roots[name]
    place = parse(text)
    below = [root for root in _parsed(roots.values()) if place.below(root)]
    if not below:
        raise OutsideError("is not below a registered root")
    if place.host:
        return text
    real = [os.path.realpath(str(root)) for root in below]
    for path in _real(place):
        if not any(path == root or path.startswith(f"{root.rstrip('/')}/") for root in real):
            raise OutsideError("leads out of its root by a symbolic link")
    return str(place)


def _parsed(roots: Iterable[str]) -> Iterator[ParsedPath]:
    for root in roots:
        try:
            yield parse(root)
        except OutsideError:  # a root that was registered in another form admits nothing
            continue


def _real(place: ParsedPath) -> Iterator[str]:
    """Where a local path leads: without wildcards one path; otherwise also every link that a wildcard matches."""
    fixed = next((i for i, part in enumerate(place.parts) if any(sign in part for sign in _WILD)), None)
    if fixed is None:
        yield os.path.realpath(str(place))
        return
    base = "/" + "/".join(place.parts[:fixed])
    yield os.path.realpath(base)
    yield from _matched(base, list(place.parts[fixed:]))


def _matched(folder: str, parts: list[str]) -> Iterator[str]:
    """Targets of the links below a folder that patterns match, component by component."""
    part, rest = parts[0], parts[1:]
    deep = part == "**"
    form = re.compile(fnmatch.translate(_BRACES.sub("*", part)))
    try:
        with os.scandir(folder) as entries:
            found = [entry for entry in entries if deep or form.match(entry.name)]
    except OSError:
        return
    for entry in found:
        if entry.is_symlink():
            yield os.path.realpath(entry.path)
        if (rest or deep) and entry.is_dir(follow_symlinks=not deep):
            yield from _matched(entry.path, parts if deep else rest)
    if deep and rest:
        yield from _matched(folder, rest)
