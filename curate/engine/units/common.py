"""Shared by the builds of global steps: places of outputs, cleaning up after a commit, small reads in threads."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from typing import Any, TypeVar

import pyarrow as pa

from curate.codec import media
from curate.codec.media import Medium
from curate.core.contracts import Collect, Derive, Filter, Map, Source
from curate.core.errors import Undecodable
from curate.core.hashing import digest_bytes
from curate.core.nouns.pools import MEDIA_COLUMNS
from curate.core.reader import Reader
from curate.core.recipe.pipeline import Node
from curate.engine.context import Context
from curate.engine.state import Built

T = TypeVar("T")
U = TypeVar("U")

READERS = 16
"""Small objects that a task reads at once: an object store answers in tens of milliseconds."""
UNIT_SHARDS = 64
"""Most shards of a task."""
WORK = {"artifacts": ("work",), "selections": ("work",), "datasets": ("work", "parts")}
"""Kind of output -> its folders for intermediate files of a build."""


def made_of_rows(ctx: Context, nodes: Iterable[Node]) -> list[str]:
    """Fingerprints of the outputs among these that depend on all rows."""
    others = (Collect, Source, Derive, Map, Filter)
    return sorted(ctx.outputs.built[node.name].fingerprint for node in nodes if not isinstance(node.stage, others))


def tidy(ctx: Context, built: Built) -> None:
    """Remove the intermediate files of a committed global stage; a kill after the commit leaves them."""
    for folder in WORK.get(built.base.split("/")[0], ()):
        ctx.storage.remove(f"{built.base}/{folder}")


def dump(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True).encode()


def stretches(rows: Sequence[int], most: int) -> Iterator[tuple[int, int]]:
    """Rows of each shard -> units (first, stop) of consecutive shards, with up to `most` rows and UNIT_SHARDS shards; a
    larger shard is a unit."""
    first = held = 0
    for number, count in enumerate(rows):
        if number > first and (held + count > most or number - first == UNIT_SHARDS):
            yield first, number
            first, held = number, 0
        held += count
    if first < len(rows):
        yield first, len(rows)


def fetched(read: Callable[[U], T], paths: Iterable[U], readers: int = READERS) -> Iterator[T]:
    """Results of `read` for many small objects, in order, from `readers` threads."""
    with ThreadPoolExecutor(readers) as pool:
        waiting: deque[Future[T]] = deque()
        for path in paths:
            waiting.append(pool.submit(copy_context().run, read, path))
            if len(waiting) == 2 * readers:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


# --- shards of sources and derived pools ------------------------------------------------------------------------------


def probed(data: bytes | Reader | None, kinds: Sequence[str]) -> dict[str, Any]:
    """Columns of a pool of these media that are read from a sample's header; those of MEDIA_COLUMNS are null for an
    image, so that its pool has the shards that it had before there were other media."""
    medium = media.sniffed(data or b"", kinds)
    try:
        found = medium.probe(data) if data else None
    except Undecodable:
        found = None  # `image.inspect` rejects it, with the reason
    return columns_of(found, medium)


def columns_of(found: Any, medium: Medium) -> dict[str, Any]:
    """Columns of a pool that are read from a header; `found` has some of them as attributes."""
    columns = {name: getattr(found, name, None) for name in ("width", "height", "format")}
    if medium is media.DEFAULT:
        return columns | dict.fromkeys(MEDIA_COLUMNS)
    return columns | {name: getattr(found, name, None) for name in MEDIA_COLUMNS} | {"media": medium.name}


def content_id(table: pa.Table) -> str:
    """A shard's id: digest of its table's rows. A column that older pools lack enters where it has a value."""
    optional = {"status", *MEDIA_COLUMNS}
    rows = (
        {name: value for name, value in row.items() if value is not None or name not in optional}
        for row in table.to_pylist()
    )
    return digest_bytes(json.dumps(row, sort_keys=True).encode() for row in rows)
