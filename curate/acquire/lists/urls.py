"""URLs of a list: which of them can be fetched at all, and which are the same.

A normalised URL is only compared; the URL that the list has is fetched. It is what the fetch requests (lower-case
scheme and host, the host as DNS knows it, no default port, no fragment, `/` for an empty path, ASCII), with unreserved
characters unescaped (RFC 3986, section 6.2.2.2). The query keeps its order.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from curate.acquire.fetch.codes import CODES, Failure
from curate.acquire.fetch.target import LONGEST_URL, parse

KEPT_CHARACTERS = 2000
"""A URL longer than LONGEST_URL is cut to these, its length and its digest."""

REASONS = {
    "no_url": "the URL is null or empty; the row is dropped",
    **{code: CODES[code][1] for code in ("bad_url", "scheme", "credentials", "url_too_long")},
}
"""Reasons that URLs give, with their meaning."""

_OTHER_ESCAPE = (
    "%(?:[0189a-fA-F][0-9a-fA-F]|2[0-9a-cA-CfF]|3[a-fA-F]|[46]0|5[b-eB-E]|7[b-dfB-DF])"  # of no unreserved character
)
_NAME = r"(?:[a-z0-9_-]+\.)*[a-z_-][a-z0-9_-]*"
_NORMAL = rf'^https?://{_NAME}/(?:[!"$&-~]|{_OTHER_ESCAPE})*$'
"""URLs that are normalised already, as most are (RE2)."""
_UNRESERVED_ESCAPE = re.compile("%(2[dDeE]|3[0-9]|[46][1-9a-fA-F]|5[0-9aAfF]|7[0-9aAeE])")


@dataclass(frozen=True)
class Urls:
    """URLs of some rows (n,)."""

    kept: pa.StringArray
    """As in the list, except those that are too long."""
    reject: pa.StringArray
    """Null: it can be fetched."""
    odd: NDArray[np.int64]
    """(m,) rows whose URL is not normalised."""
    normalised: pa.StringArray
    """(m,) what to compare instead of it."""


def normalise(urls: pa.StringArray) -> Urls:
    """URLs without nulls -> what they are. Those that are not normal are examined one by one."""
    normal = pc.match_substring_regex(urls, _NORMAL)
    short = pc.less_equal(pc.binary_length(urls), LONGEST_URL)
    odd = pc.invert(pc.and_(normal, short))
    places = np.flatnonzero(odd.to_numpy(zero_copy_only=False))
    texts = urls.take(pa.array(places)).to_pylist()
    examined = [examine(text) for text in texts]
    kept = [shortened(text) for text in texts]
    rejects = [reject for _, reject in examined]
    return Urls(
        urls if kept == texts else pc.replace_with_mask(urls, odd, pa.array(kept, pa.string())),
        pc.replace_with_mask(pa.nulls(len(urls), pa.string()), odd, pa.array(rejects, pa.string())),
        places,
        pa.array([shortened(text) for text, _ in examined], pa.string()),
    )


def shortened(text: str) -> str:
    """A text longer than LONGEST_URL without its end, but with its length and digest."""
    if len(text) <= LONGEST_URL:
        return text
    digest = hashlib.sha256(text.encode()).hexdigest()
    return f"{text[:KEPT_CHARACTERS]} ({len(text)} characters, sha256 {digest})"


def examine(url: str) -> tuple[str, str | None]:
    """(normalised URL, reason why it cannot be fetched or None). A URL with a reason is unchanged."""
    try:
        target = parse(url)
    except Failure as failure:
        return url, failure.code
    path = _UNRESERVED_ESCAPE.sub(lambda found: chr(int(found[1], 16)), target.path)
    return f"{target.scheme}://{target.authority}{path}", None
