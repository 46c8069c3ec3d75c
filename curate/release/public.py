"""What may be published: no local path, no URL with credentials, none of a private host.

Host names are judged by their form, since what they resolve to depends on the network; an address by `core.addresses`.
"""

from __future__ import annotations

import re
from collections import Counter
from ipaddress import ip_address
from urllib.parse import urlsplit

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
_SECRET = (
    r"(?i)[?&;](?:x-amz-(?:signature|credential|security-token)|x-goog-(?:signature|credential)|awsaccesskeyid"
    r"|googleaccessid|signature|sig|access_token|auth_token|api_?key|password|passwd|secret)="
)
_PRIVATE = r"(?i)^https?://[^/?#]*\.(?:local|localhost|localdomain|internal|intranet|private|corp|lan|home|home\.arpa)\.?(?::[0-9]+)?(?:[/?#]|$)"
_PATH = r"^(?:/|~|\.\.?/|[A-Za-z]:[\\/]|\\\\)"


def public_urls(urls: pa.Array, allowed: Networks = ()) -> tuple[pa.Array, Counter[str]]:
    """(URLs (n,) with null in place of those that must not be published, their number by reason). `allowed`: networks
    whose addresses may be."""
    known = pc.is_valid(urls)
    plain = pc.and_not(
        pc.match_substring_regex(urls, _PLAIN),
        pc.or_(pc.match_substring_regex(urls, _SECRET), pc.match_substring_regex(urls, _PRIVATE)),
    )
    odd = np.flatnonzero(pc.and_not(known, pc.fill_null(plain, False)).to_numpy(zero_copy_only=False))
    reasons = [_reason(url, allowed) for url in urls.take(pa.array(odd)).to_pylist()]
    return _without(urls, odd, reasons)


def public_texts(texts: pa.Array, allowed: Networks = ()) -> tuple[pa.Array, Counter[str]]:
    """The same for short texts of a source, such as its name, which may be paths or URLs."""
    suspect = pc.or_(pc.match_substring(texts, "://"), pc.match_substring_regex(texts, f"{_PATH}|^file:"))
    odd = np.flatnonzero(pc.fill_null(suspect, False).to_numpy(zero_copy_only=False))
    found = texts.take(pa.array(odd)).to_pylist()
    reasons = ["local_path" if re.match(_PATH, text) else _reason(text, allowed) for text in found]
    return _without(texts, odd, reasons)


def _without(column: pa.Array, places: np.ndarray, reasons: list[str | None]) -> tuple[pa.Array, Counter[str]]:
    gone = places[[reason is not None for reason in reasons]]
    if not len(gone):
        return column, Counter()
    mask = np.zeros(len(column), dtype=bool)
    mask[gone] = True
    kept = pc.if_else(pa.array(mask), pa.scalar(None, column.type), column)
    return kept, Counter(reason for reason in reasons if reason)


def _reason(url: str, allowed: Networks) -> str | None:
    """Why a URL must not be published; None if it may."""
    try:
        parts = urlsplit(url.strip())
        host = (parts.hostname or "").rstrip(".")
    except ValueError:
        return "bad_url"
    if parts.scheme not in ("http", "https"):
        return "scheme"
    if not host or any(c.isspace() for c in parts.netloc):
        return "bad_url"
    if "@" in parts.netloc or re.search(_SECRET, url):
        return "credentials"
    try:
        ip_address(host)
    except ValueError:  # 127.1, 0x7f000001 and 2130706433 are addresses to some
        numeric = re.fullmatch(r"(?:0x[0-9a-f]*|[0-9]+)", host.rpartition(".")[2])
        return "private_address" if "." not in host or numeric or re.match(_PRIVATE, url) else None
    return "private_address" if reason_denied(host, allowed) else None
