"""Hosts and URLs that are never asked, from files with a line each; `#` begins a comment line.

A host denies its sub-domains too. URLs are compared without their scheme, fragment and default port, and with equal
percent-encoding.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from curate.acquire.fetch.codes import Failure
from curate.acquire.fetch.target import DEFAULT_PORT, Target, parse

_ENCODED = re.compile("%[0-9A-Fa-f]{2}")
_UNRESERVED = re.compile("[A-Za-z0-9._~-]")


class Denied:
    def __init__(self, hosts: Iterable[str] = (), urls: Iterable[str] = ()) -> None:
        """Raises ValueError at the first line that is not a host, or not a URL."""
        self._hosts = frozenset(_each(hosts, _host, "denied hosts"))
        self._urls = frozenset(_each(urls, _url, "denied URLs"))

    @classmethod
    def from_files(cls, hosts: str | None, urls: str | None) -> Denied:
        """Raises ValueError, which names file and line, and OSError."""
        denied = cls()
        denied._hosts = frozenset(_each(_lines(hosts), _host, hosts))
        denied._urls = frozenset(_each(_lines(urls), _url, urls))
        return denied

    def check(self, target: Target) -> None:
        """Raises Failure: denied_host, denied_url."""
        if self._hosts and self._denies_host(target):
            raise Failure("denied_host", target.host)
        if self._urls and _comparable(target) in self._urls:
            raise Failure("denied_url")

    def _denies_host(self, target: Target) -> bool:
        name = target.host
        while name not in self._hosts:
            if target.literal or "." not in name:
                return False
            name = name.partition(".")[2]
        return True


def _lines(path: str | None) -> Sequence[str]:
    return Path(path).read_text(encoding="utf-8-sig").splitlines() if path else ()


def _each(lines: Iterable[str], read: Callable[[str], str], name: str | None) -> Iterator[str]:
    for number, line in enumerate(lines, 1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        try:
            yield read(text)
        except Failure as failure:
            reason = failure.detail or failure.code
            raise ValueError(f"{name}, line {number}: {text[:80]!r}: {reason}; correct or remove the line") from None


def _host(text: str) -> str:
    if any(character in text for character in "/?#"):
        raise Failure("bad_url", "not a host")
    name = text.removeprefix("*.").removeprefix(".")
    return parse(f"http://[{name}]/" if ":" in name and not name.startswith("[") else f"http://{name}/").host


def _url(text: str) -> str:
    return _comparable(parse(text))


def _comparable(target: Target) -> str:
    port = "" if target.port == DEFAULT_PORT[target.scheme] else f":{target.port}"
    return f"{target.host}{port}{_ENCODED.sub(_decoded, target.path)}"


def _decoded(match: re.Match[str]) -> str:
    character = chr(int(match[0][1:], 16))
    return character if _UNRESERVED.fullmatch(character) else match[0].upper()
