"""What builds of global steps share: an output's place, what goes after its commit, small reads in threads."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

import pyarrow as pa

from curate.codec.images import probe
from curate.core.contracts import Pack, Select
from curate.core.errors import Undecodable
from curate.core.hashing import digest_bytes
from curate.core.recipe.pipeline import Node
from curate.core.store.storage import Storage
from curate.engine.context import Built, Context

T = TypeVar("T")
U = TypeVar("U")

READERS = 16
"""Small objects that one task reads at a time: an object store answers in tens of milliseconds."""
UNIT_SHARDS = 64
"""Shards of one task at most, however few rows they have."""
WORK = {"artifacts": ("work",), "selections": ("work",), "datasets": ("work", "parts")}
"""Folders of a noun that hold what one step of its build leaves for the next."""


def prepare(ctx: Context, node: Node) -> Built:
    """Fingerprint and place of a global step's output."""
    stage = node.stage
    fingerprint = ctx.fingerprint(node)
    if isinstance(stage, Select):
        return Built(fingerprint, f"selections/{stage.op}/{fingerprint}")
    if isinstance(stage, Pack):
        return Built(fingerprint, f"datasets/{stage.name}/{fingerprint}")
    return Built(fingerprint, f"artifacts/{stage.op}/{fingerprint}")


def tidy(ctx: Context, built: Built) -> None:
    """Remove what lies between the steps of a committed global stage; a kill after the commit leaves it behind."""
    for folder in WORK.get(built.base.split("/")[0], ()):
        ctx.storage.remove(f"{built.base}/{folder}")


def dump(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True).encode()


def read_ledger(schema: pa.Schema) -> dict[str, Any]:
    """What a task wrote into a table's footer."""
    return json.loads(schema.metadata[b"ledger"])  # type: ignore[no-any-return]


def stretches(rows: Sequence[int], most: int) -> Iterator[tuple[int, int]]:
    """Units (first, stop) of consecutive shards of so many rows, of `most` rows and UNIT_SHARDS shards, or of one."""
    first = held = 0
    for number, count in enumerate(rows):
        if number > first and (held + count > most or number - first == UNIT_SHARDS):
            yield first, number
            first, held = number, 0
        held += count
    if first < len(rows):
        yield first, len(rows)


def fetched(read: Callable[[U], T], paths: Iterable[U], readers: int = READERS) -> Iterator[T]:
    """What `read` makes of many small objects, in order, with so many `readers` at work."""
    with ThreadPoolExecutor(readers) as pool:
        waiting: deque[Future[T]] = deque()
        for path in paths:
            waiting.append(pool.submit(read, path))
            if len(waiting) == 2 * readers:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


@dataclass(frozen=True)
class DigestTask:
    storage: Storage
    path: str


def digest_file(task: DigestTask) -> str:
    """Digest of a file's bytes, read a piece at a time."""
    with task.storage.open(task.path) as file:
        return digest_bytes(iter(lambda: file.read(1 << 24), b""))


# --- what imports and derived pools share -----------------------------------------------------------------------------


def probed(data: bytes | None) -> dict[str, Any]:
    """What an image's headers say, as columns of a pool."""
    try:
        found = probe(data) if data else None
    except Undecodable:
        found = None  # `image.inspect` rejects it, with the reason
    return {name: getattr(found, name, None) for name in ("width", "height", "format")}


def content_id(table: pa.Table) -> str:
    """Of a shard: the digest of its table's rows."""
    return digest_bytes(json.dumps(row, sort_keys=True).encode() for row in table.to_pylist())
