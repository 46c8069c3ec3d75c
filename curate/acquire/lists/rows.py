"""Rows of a list, as `acquire.list` yields them: what is fetched, what is kept beside it, and the hashes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from curate.acquire import fields, records
from curate.acquire.lists import urls
from curate.acquire.lists.columns import DIGITS, added, caption_of, digest_of, dump, strings
from curate.acquire.lists.hashes import hashed, joined
from curate.acquire.records import UNCLOSED_QUOTE
from curate.core.contracts.collect import GROUP, ROW

SHOWN_CHARACTERS = 200
"""Characters of a broken line that are kept."""

REASONS = {
    **urls.REASONS,
    "caption_not_utf8": fields.REASONS["caption_not_utf8"],
    "bad_line": "the line cannot be read; its place stands for the URL, and meta has its text",
    **records.REASONS,
}
"""Every reason that a list gives, with its meaning."""


@dataclass(frozen=True)
class Rows:
    """Columns of some rows of a file; None: the file has no such column."""

    url: pa.Array
    caption: pa.Array | None
    digests: dict[str, pa.Array]
    """`sha256` and `md5`, as far as there are."""
    meta: pa.StringArray


@dataclass(frozen=True)
class BrokenLine:
    place: str
    """File and line."""
    text: str
    why: str
    """The reason UNCLOSED_QUOTE, or what else is wrong."""


def finished(rows: Rows) -> pa.Table:
    """The columns of the list. A value that is not a digest becomes null and is kept in `meta`."""
    raw, url_bad = strings(rows.url)
    raw = pc.fill_null(raw, "")
    empty = pc.equal(pc.utf8_trim_whitespace(raw), "")
    found = urls.normalise(raw)
    absent = pa.nulls(len(raw), pa.string())
    caption, caption_bad = (absent, None) if rows.caption is None else caption_of(rows.caption)
    meta = rows.meta
    digests: dict[str, pa.StringArray] = {}
    for role in DIGITS:
        given = rows.digests.get(role)
        text = absent if given is None else strings(given)[0]
        digests[role], wrong = (absent, None) if given is None else digest_of(text, role)
        meta = meta if wrong is None else added(meta, wrong, role, text)
    reject = found.reject
    if caption_bad is not None:
        reject = pc.if_else(pc.and_(caption_bad, pc.is_null(reject)), "caption_not_utf8", reject)
    if url_bad is not None:
        reject = pc.if_else(url_bad, "bad_url", reject)
    if pc.any(empty).as_py():
        reject = pc.if_else(empty, "no_url", reject)
    by_url = hashed(found.kept, 2)
    by_url[:, found.odd] = hashed(found.normalised, 2)
    return _table(found.kept, caption, digests, meta, reject, by_url, empty)


def broken(lines: Sequence[BrokenLine]) -> pa.Table:
    """A rejected row per line."""
    places = pa.array([line.place for line in lines], pa.string())
    texts = [dump({"line": line.text[:SHOWN_CHARACTERS], "error": line.why}) for line in lines]
    absent = pa.nulls(len(lines), pa.string())
    reasons = [line.why if line.why == UNCLOSED_QUOTE else "bad_line" for line in lines]
    reject = pa.array(reasons, pa.string())
    return _table(
        places, absent, dict.fromkeys(DIGITS, absent), pa.array(texts, pa.string()), reject, hashed(places, 2)
    )


def _table(
    url: pa.StringArray,
    caption: pa.StringArray,
    digests: dict[str, pa.StringArray],
    meta: pa.StringArray,
    reject: pa.StringArray,
    by_url: NDArray[np.uint64],
    dropped: pa.BooleanArray | None = None,
) -> pa.Table:
    """`by_url`: two hashes (2, n) of what is compared of the URLs."""
    group = pa.array(by_url[0])
    if dropped is not None and pc.any(dropped).as_py():
        group = pc.if_else(dropped, None, group)
    row = pa.array(joined(by_url[1], hashed(caption)[0]))
    columns = {"url": url, "caption": caption, **digests, "meta": meta, "reject": reject}
    return pa.table(columns | {GROUP: group, ROW: row})
