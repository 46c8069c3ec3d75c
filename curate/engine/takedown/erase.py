"""Removes bytes: members of pool tars become zeros, rows of tables nulls, and pages and log lines go.

Every step leaves the same files when it is repeated, so a killed takedown is resumed by running it again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from curate.core.hashing import key_words
from curate.core.nouns import facts
from curate.core.nouns.pools import Shard, in_place, is_virtual
from curate.core.nouns.takedowns import ERASED
from curate.core.store.storage import Storage
from curate.engine.takedown.bytes import Mark, has

_BLOCK = 8 << 20
_TEXTS = ("caption", "url", "meta")
"""Columns of a pool about a sample, apart from its identity."""
_VECTORS = "/rows/"
"""In the names of the files of an artifact that have a vector for each sample."""


def files_of(storage: Storage, found: dict[str, Any]) -> list[str]:
    """The files that `erase` changes or removes, apart from datasets."""
    shards = [Shard(**pool["shard"]) for pool in found["pools"]]
    tars = [shard.tar for shard in shards if not is_virtual(shard) and not in_place(shard)]
    tables = [shard.table for shard in shards] + [line["table"] for line in found["facts"]]
    files = [*tars, *tables, *_fetches(storage, found["keys"]), *_pages(storage, found["keys"])]
    files += _masks(storage, {shard.id for shard in shards})
    return sorted({*files, *_logs(storage, _names(found))})


def erase(storage: Storage, found: dict[str, Any]) -> None:
    marks = [Mark(**mark) for mark in found["marks"]]
    for path in storage.temporary(""):  # of killed processes
        if has(storage, path, marks):
            storage.remove(path)
    for pool in found["pools"]:
        shard = Shard(**pool["shard"])
        if not is_virtual(shard) and not in_place(shard):
            _zero(storage, shard.tar, [(row["offset"], row["size"]) for row in pool["rows"] if row["size"]])
        _null(storage, shard.table, [row["row"] for row in pool["rows"]], _TEXTS)
    for line in found["facts"]:
        if storage.exists(line["table"]):
            _erase_facts(storage, line["table"], line["rows"])
    for path in _masks(storage, {pool["shard"]["id"] for pool in found["pools"]}):
        storage.remove_file(path)
    for path in _fetches(storage, found["keys"]):
        table = storage.read_table(path)
        kept = table.filter(pc.invert(pc.is_in(table.column("key"), value_set=pa.array(found["keys"]))))
        storage.publish_table(path, kept)
    for path in _pages(storage, found["keys"]):  # the next run of its recipe rebuilds them
        folder = "/".join(path.split("/")[:3])
        storage.remove(f"{folder}/manifest.json")
        storage.remove(folder)
    names = _names(found)
    for path in _logs(storage, names):
        lines = storage.read(path).splitlines(keepends=True)
        storage.publish_bytes(path, b"".join(line for line in lines if not any(name in line for name in names)))


def _zero(storage: Storage, path: str, spans: Sequence[tuple[int, int]]) -> None:
    """Replace spans of a file by zeros."""
    with storage.open(path) as file, storage.publish(path) as aside, open(aside, "wb") as out:
        while block := file.read(_BLOCK):
            start, kept = out.tell(), bytearray(block)
            for offset, size in spans:
                low, high = max(offset - start, 0), min(offset + size - start, len(kept))
                if low < high:
                    kept[low:high] = bytes(high - low)
            out.write(kept)


def _null(storage: Storage, path: str, rows: Sequence[int], names: Collection[str]) -> None:
    """Set columns of some rows of a table to null."""
    table = storage.read_table(path)
    gone = pa.array(np.isin(np.arange(table.num_rows), rows))
    for place, field in enumerate(table.schema):
        if field.name in names:
            none = pa.nulls(table.num_rows, field.type)
            values = pc.if_else(gone, none, table.column(place).combine_chunks())
            table = table.set_column(place, field, values)
    storage.publish_table(path, table)


def _erase_facts(storage: Storage, path: str, rows: Sequence[int]) -> None:
    """The rows become unusable, without values. A segment of a log loses them: `rows` are then its own."""
    table = storage.read_table(path)
    if "_shard" in table.column_names:
        kept = table.filter(pa.array(~np.isin(np.arange(table.num_rows), rows)))
        storage.publish_table(path, kept) if kept.num_rows else storage.remove(path)
        return
    gone = np.isin(table.column(facts.ROW).to_numpy(), rows)
    fixed = {
        facts.STATUS_COLUMN: pa.array(np.where(gone, facts.UNUSABLE, table.column(facts.STATUS_COLUMN)), pa.int8()),
        facts.REASON: pc.if_else(pa.array(gone), ERASED, table.column(facts.REASON).combine_chunks()),
    }
    keep = (facts.ROW, facts.MARKED)
    for place, field in enumerate(table.schema):
        if field.name in fixed:
            table = table.set_column(place, field, fixed[field.name])
        elif field.name not in keep:
            places = pa.array(np.arange(table.num_rows), mask=gone)
            table = table.set_column(place, field, table.column(place).combine_chunks().take(places))
    storage.publish_table(path, table, **facts.options(table.schema))


def _masks(storage: Storage, shards: set[str]) -> list[str]:
    """Masks of these shards and, before them, manifests that list one: they count the rows as alive."""
    manifests, masks = list[str](), list[str]()
    for path in (f"masks/{file}" for file in sorted(storage.list("masks"))):
        folder, _, name = path.rpartition("/")
        if name == "shards.parquet":
            if not shards.isdisjoint(storage.read_table(path, columns=["id"]).column("id").to_pylist()):
                manifests += [f"{folder}/manifest.json", path]
        elif name.partition("-")[0] in shards:
            masks.append(path)
    return manifests + masks


def _fetches(storage: Storage, keys: Collection[str]) -> Iterator[str]:
    wanted = pa.array(sorted(keys), pa.string())
    for file in sorted(storage.list("fetches")):
        if file.endswith(".parquet"):
            held = storage.read_table(f"fetches/{file}", columns=["key"]).column("key")
            if pc.any(pc.is_in(held, value_set=wanted)).as_py():
                yield f"fetches/{file}"


def _pages(storage: Storage, keys: Collection[str]) -> list[str]:
    """Reports with thumbnails, which may not name the samples, or with one of the keys, and vectors of the samples."""
    names, words, found = [key.encode() for key in keys], key_words(sorted(keys)), []
    for file in sorted(storage.list("artifacts")):
        path = f"artifacts/{file}"
        if file.endswith(".html"):
            text = storage.read(path)
            held = b"data:image/" in text or any(name in text for name in names)
        else:  # a search index has the key's words beside each vector
            data = storage.read(path) if _VECTORS in file else b""
            held = any(word.tobytes() in data for word in words)
        if held:
            found.append(path)
    return found


def _names(found: dict[str, Any]) -> list[bytes]:
    """By which a log may call a sample."""
    urls = {row["url"] for pool in found["pools"] for row in pool["rows"] if row["url"]}
    return [name.encode() for name in sorted({*found["keys"], *found["sha256"], *urls})]


def _logs(storage: Storage, names: Sequence[bytes]) -> list[str]:
    files = [f"runs/{file}" for file in sorted(storage.list("runs")) if file.split("/")[1:2] == ["logs"]]
    return [path for path in files if any(name in (text := storage.read(path)) for name in names) and text]
