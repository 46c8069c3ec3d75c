"""Where a URL leads: scheme, host, port and path. A URL that is not fetched raises Failure.

The host is the name as DNS knows it: lower case, IDNA, without a final dot. A literal address must be in
its standard form: `127.1`, `0x7f.1` and `2130706433` are 127.0.0.1 to some libraries and names to others.
"""

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address
from unicodedata import normalize
from urllib.parse import quote, urljoin

from curate.acquire.fetch.codes import Failure

LONGEST_URL = 8000
LONGEST_HOST = 255
"""RFC 1035, 2.3.4. Longer ones are kept from `_host`, whose answers are kept in memory."""
DEFAULT_PORT = {"http": 80, "https": 443}

_PARTS = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(?://([^/?#]*)([^#]*))?")
_LEGAL = re.compile(r"[!-~]*")
_ILLEGAL = re.compile(r"[^!-~]+")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_HOST = re.compile(r"(?=.{1,253}\Z)[a-z0-9_-]{1,63}(\.[a-z0-9_-]{1,63})*")
_DOT = re.compile("[.\u3002\uff0e\uff61]")
"""RFC 3490, 3.1."""
_NUMBER = re.compile(r"([0-9]+|0x[0-9a-f]*)\Z")


@dataclass(frozen=True, slots=True)
class Target:
    scheme: str
    host: str
    """A name, or a literal address without brackets."""
    port: int
    path: str
    """Path and query in ASCII: what a request line has."""
    literal: bool

    @property
    def authority(self) -> str:
        """Host and port, as in a URL or the Host header. The default port is omitted."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == DEFAULT_PORT[self.scheme] else f"{host}:{self.port}"

    @property
    def url(self) -> str:
        return f"{self.scheme}://{self.authority}{self.path}"


def parse(url: str) -> Target:
    """Raises Failure: url_too_long, bad_url, scheme, credentials."""
    url = url.strip()
    if len(url) > LONGEST_URL:
        raise Failure("url_too_long", f"{len(url)} characters; at most {LONGEST_URL} are fetched")
    parts = _PARTS.match(url)
    if parts is None:
        raise Failure("bad_url", f"{url[:80]!r} has no scheme")
    scheme = parts[1].lower()
    if scheme not in DEFAULT_PORT:
        raise Failure("scheme", scheme)
    authority, path = parts[2], parts[3]
    if not authority:
        raise Failure("bad_url", f"{url[:80]!r} has no host")
    if "@" in authority:
        raise Failure("credentials")
    host, port = _host_and_port(authority)
    if len(host) > LONGEST_HOST:
        raise Failure("bad_url", f"a host of {len(host)} characters")
    name, literal = _host(host)
    if not path.startswith("/"):
        path = "/" + path
    if not _LEGAL.fullmatch(path):
        path = _quoted(path)
    return Target(scheme, name, port or DEFAULT_PORT[scheme], path, literal)


def follow(base: Target, location: str) -> Target:
    """The target of a Location header, which http.client decodes as Latin-1."""
    with contextlib.suppress(UnicodeError):
        location = location.encode("latin-1").decode()
    try:
        return parse(urljoin(base.url, location.strip()))
    except ValueError as error:
        raise Failure("bad_url", f"redirect to {location[:80]!r}: {error}") from None


def _host_and_port(authority: str) -> tuple[str, int | None]:
    host, colon, port = authority.rpartition(":")
    if not colon or port.endswith("]"):
        return authority, None
    if not port:
        return host, None
    if not (port.isascii() and port.isdigit() and len(port) <= 5 and 0 < int(port) < 2**16):
        raise Failure("bad_url", f"{port[:20]!r} is not a port")
    return host, int(port)


@lru_cache(maxsize=2**16)
def _host(text: str) -> tuple[str, bool]:
    """(name or address, whether it is an address)."""
    try:
        if text.startswith("[") and text.endswith("]") and "%" not in text:
            return str(IPv6Address(text[1:-1])), True
        name = text.lower() if text.isascii() else ".".join(map(_label, _DOT.split(text))).lower()
        name = name.removesuffix(".")
        if not _HOST.fullmatch(name):
            raise Failure("bad_url", f"{text[:80]!r} is not a host")
        if _NUMBER.match(name.rpartition(".")[2]):
            return str(IPv4Address(name)), True
    except ValueError as error:  # UnicodeError is one
        raise Failure("bad_url", f"{text[:80]!r} is not a host: {error}") from None
    return name, False


def _label(text: str) -> str:
    """A label as DNS knows it. Python's IDNA is that of 2003, which replaces ß by ss and a final sigma by a plain
    sigma: that is a different name from the one that browsers request (RFC 5894, 7.2)."""
    lower = normalize("NFKC", "".join(map(str.lower, text)))  # str.lower makes a last sigma final
    if "ß" in lower or "\u03c2" in lower:
        return f"xn--{lower.encode('punycode').decode()}"
    return text.encode("idna").decode()


def _quoted(path: str) -> str:
    """`path` in ASCII; what is legal, and `%`, stays."""
    if _CONTROL.search(path):
        raise Failure("bad_url", "the URL contains control characters")
    try:
        return _ILLEGAL.sub(lambda found: quote(found[0], safe=""), path)
    except UnicodeEncodeError:
        raise Failure("bad_url", "the URL contains lone surrogates") from None
