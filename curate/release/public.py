"""What may be published: no local path, no URL with credentials, none of a private host.

Host names are judged by their form, since what they resolve to depends on the network; an address by `core.addresses`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from ipaddress import ip_address
from typing import Any
from urllib.parse import unquote, urlsplit

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from curate.core.addresses import Networks, reason_denied

REASONS = {
    "scheme": "neither http nor https, such as file: or s3:",
    "credentials": "a user, a password, a signature or a key is in the URL",
    "private_address": "the host is an address or a name that only a private network has",
    "bad_url": "not a URL with a host",
    "local_path": "a path of a machine",
}
"""Why a value is null in a release, with the meaning."""
_PLAIN = r"(?i)^https?://(?:[a-z0-9_-]+\.)+[a-z][a-z0-9-]*(?::[0-9]+)?(?:[/?#]|$)"
_CONTROL = r"[\x00-\x1f\x7f]"
_ODD = rf"{_CONTROL}|[\\%@]"
"""May hide something in a URL with a plain host."""
_SECRET = (
    r"(?i:[?&;#](?:[a-z0-9_.-]*(?:token|signature|credentials?|secret|passw(?:or)?d|pwd|jwt|session_?id|access_?key(?:_?id)?"
    r"|(?:api|secret|private|account|subscription)[_.-]?key)|googleaccessid|sig|auth|authorization)="
    r"|[?&;#]key=[^&;#]{16})"
)
_USER = r"://[^/?#\s]*@"
_NAMES = r"(?:local|localhost|localdomain|internal|intranet|intra|private|corp|lan|home|home\.arpa|fritz\.box)"
_PRIVATE = rf"(?i:^https?://(?:[^/?#]*\.)?{_NAMES}(?::[0-9]+)?(?:[/?#]|$))"
_DOUBTFUL = f"{_ODD}|{_SECRET}|{_PRIVATE}"
"""One expression, because each one reads every URL again."""
_ROOTS = (
    "home|root|users|mnt|data|datasets|tmp|var|etc|opt|srv|usr|media|scratch|work|workspace|volumes|nfs|lustre|gpfs|fsx"
    "|efs|proc|dev|dbfs|storage|net|export"
)
_PATH = (
    r"(?i)^\s*(?:/|~[a-z0-9_.-]*/|~$|\.\.?[/\\]|[a-z]:[/\\])"
    rf"|(?:^|[^a-z0-9_/.~%\\-])(?:/(?:{_ROOTS})/+[^\s/]|~[a-z0-9_.-]*/[a-z0-9_.]|\.\.[/\\]|[a-z]:[/\\]+[a-z0-9_.]"
    r"|\\{2,}[a-z0-9_.-]+\\|\$\{?(?:HOME|PWD|TMPDIR|SCRATCH)\b|%(?:USERPROFILE|HOMEPATH|(?:LOCAL)?APPDATA|TEMP)%)"
)
"""Within a text, a path counts only if it begins like that of a machine: not so "and/or", "3/4", "/r/pics"."""
_URL = r"""(?i)[a-z][a-z0-9+.-]{0,30}://[^\s"'<>{}`]*|\bfile:\S*"""


def public_urls(urls: pa.Array, allowed: Networks = ()) -> tuple[pa.Array, Counter[str]]:
    """(URLs (n,) with null in place of those that must not be published, their number by reason). `allowed`: networks
    whose addresses may be."""
    plain = pc.and_not(pc.match_substring_regex(urls, _PLAIN), pc.match_substring_regex(urls, _DOUBTFUL))
    return _judged(urls, pc.invert(plain), lambda url: _reason(url, allowed))


def public_texts(texts: pa.Array, allowed: Networks = ()) -> tuple[pa.Array, Counter[str]]:
    """The same for short texts of a source, such as its name, which may be paths or URLs, or have some in them."""
    return _judged(texts, pc.match_substring_regex(texts, f"{_PATH}|{_URL}"), lambda text: _reason_of(text, allowed))


def public_nested(column: pa.Array, allowed: Networks = ()) -> tuple[pa.Array, Counter[str]]:
    """The same for the texts in lists and structs."""
    values, found = column.to_pylist(), list[str]()
    _mapped(values, found.append)
    texts, reasons = public_texts(pa.array(found, pa.string()), allowed)
    clean = iter(texts.to_pylist())
    return pa.array(_mapped(values, lambda _: next(clean)), column.type) if reasons else column, reasons


def _mapped(value: Any, change: Callable[[str], Any]) -> Any:
    if isinstance(value, dict):
        return {name: _mapped(item, change) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)([_mapped(item, change) for item in value])
    return change(value) if isinstance(value, str) else value


def _judged(column: pa.Array, suspect: pa.Array, judge: Callable[[str], str | None]) -> tuple[pa.Array, Counter[str]]:
    places = np.flatnonzero(pc.fill_null(suspect, False).to_numpy(zero_copy_only=False))
    reasons = [judge(text) for text in column.take(pa.array(places)).to_pylist()]
    gone = places[[reason is not None for reason in reasons]]
    if not len(gone):
        return column, Counter()
    mask = np.zeros(len(column), dtype=bool)
    mask[gone] = True
    kept = pc.if_else(pa.array(mask), pa.scalar(None, column.type), column)
    return kept, Counter(reason for reason in reasons if reason)


def _reason_of(text: str, allowed: Networks) -> str | None:
    if re.search(_PATH, re.sub(_URL, " ", text)):
        return "local_path"
    found = [url.rstrip(".,;:!?)" + ("" if "[" in url else "]")) for url in re.findall(_URL, text)]
    return next((reason for url in found if (reason := _reason(url, allowed))), None)


def _reason(url: str, allowed: Networks) -> str | None:
    """Why a URL must not be published; None if it may."""
    url = url.strip(" ")
    try:
        parts = urlsplit(url.replace("\\", "/"))
        host = (parts.hostname or "").encode("idna").decode().rstrip(".")  # as a resolver reads it
    except ValueError:
        return "bad_url"
    if parts.scheme not in ("http", "https"):
        return "scheme"
    if not re.fullmatch(r"[a-z0-9._:-]+", host) or re.search(_CONTROL, url):
        return "bad_url"
    if any(re.search(f"{_SECRET}|{_USER}", form) for form in {url, unquote(url), unquote(unquote(url))}):
        return "credentials"
    try:
        ip_address(host)
    except ValueError:  # 127.1, 0x7f000001 and 2130706433 are addresses to some
        numeric = re.fullmatch(r"(?:0x[0-9a-f]*|[0-9]+)", host.rpartition(".")[2])
        private = "." not in host or numeric or re.search(rf"(?i)(?:^|\.){_NAMES}$", host)
        return "private_address" if private else None
    return "private_address" if reason_denied(host, allowed) else None
