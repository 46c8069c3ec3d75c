"""Addresses of servers: what people write, and the URL that it means."""

from __future__ import annotations

import ipaddress
from urllib.parse import SplitResult, urlsplit

from curate.core.errors import CurateError


def server_url(text: str) -> str:
    """`http(s)://HOST[:PORT]` of what people write: with or without scheme and final slash. Without a scheme it is
    https, except on this machine. Raises CurateError."""
    scheme, mark, rest = text.strip().rpartition("://")
    rest = rest.rstrip("/")
    parts = _split(f"{scheme if mark else 'any'}://{rest}")
    scheme = scheme if mark else "http" if _is_loopback(parts.hostname or "") else "https"
    extra = parts.path or parts.query or parts.fragment or parts.username or parts.password
    if scheme not in ("http", "https") or not parts.hostname or extra or any(c.isspace() for c in rest):
        raise _wrong(text)
    return f"{scheme}://{parts.netloc.lower()}"


def is_loopback(url: str) -> bool:
    return _is_loopback(_split(url).hostname or "")


def _split(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        parts.port  # noqa: B018 - raises if it is not a number
    except ValueError:
        raise _wrong(url.removeprefix("any://")) from None
    return parts


def _wrong(text: str) -> CurateError:
    shown = text.rpartition("@")[2]  # a password in it is not shown
    return CurateError(f"server {shown!r}: expected http(s)://HOST[:PORT], HOST[:PORT] or a name from `curate login`")


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
