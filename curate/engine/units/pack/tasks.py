"""The tasks of a Pack: scatter copies by rank, sort a range of ranks, write an output shard, merge the index."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from curate.codec.members import member_columns, read_members
from curate.codec.tars import TarWriter
from curate.core.contracts import MEDIUM, OF_VIDEOS, Pack
from curate.core.errors import CurateError, Reject, StorageError, Undecodable
from curate.core.hashing import digest_bytes, ranks
from curate.core.items import element, per_item
from curate.core.nouns.pools import Shard, in_folder, is_virtual
from curate.core.nouns.selections import Lines, read_selected
from curate.core.reader import LostError, Reader
from curate.core.rows import IMAGE_COLUMNS, Rows
from curate.core.store.storage import Storage
from curate.engine.tasks import beat
from curate.engine.tasks.stages import set_up
from curate.engine.units import shuffle
from curate.engine.units.common import dump, fetched
from curate.engine.units.shuffle import Piece, ShuffleFile

OWN = ("_item", "_copy", "_rank", "_row", "_tar", "_tar_bytes")
"""Columns of the order that `write` does not receive. `_tar` of a virtual shard is the shard as JSON."""
Common = tuple[Storage, Pack, str, str]
"""First fields of every task."""
READ_VIDEOS = 8
"""Videos of a tar that are read ahead. Images, which are small, are read at once, in the order of their tars."""


@dataclass(frozen=True)
class PackTask:
    storage: Storage
    stage: Pack
    name: str
    """Name of the stage in its recipe."""
    base: str

    def work(self, path: str) -> str:
        return f"{self.base}/work/{path}"

    def part(self, index: int) -> str:
        """Lines of the index for one tar. Its first versions were in `parts`, without all columns."""
        return self.work(f"parts/{index:06d}.parquet")

    def tar(self, index: int) -> str:
        return f"{self.stage.name}-{index:06d}.tar"


# --- scatter ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PackScatterTask(PackTask):
    done: bool
    """An earlier run has published the output of this task."""
    stretch: str
    shards: tuple[Shard, ...]
    rows: Rows
    selection: str
    places: dict[str, Lines]
    """Shard -> its lines of the selection."""
    ranges: int
    """Number of ranges per group."""
    mixed: bool
    """Whether the pool may have other media than images."""


def pack_scatter(task: PackScatterTask) -> ShuffleFile:
    """Write the copies of a stretch of pool shards, with the columns that `write` needs, by range of rank."""
    path = task.work(f"ranks/{task.stretch}")
    if task.done:
        return shuffle.load(task.storage, path)
    note = {"rows": 0}

    def parts() -> Iterator[tuple[pa.Table, NDArray[np.int64]]]:
        for lines, facts, shard in fetched(partial(_read, task), task.shards):
            with beat.working(task.name):
                table, rank = _copies(task, lines, facts, shard)
                note["rows"] += lines.num_rows
                range_of = (rank >> np.uint64(44)).astype(np.int64) * task.ranges >> 20
                yield table, range_of + task.ranges * _groups(task.stage, table)

    return shuffle.write(task.storage, path, parts(), task.ranges * max(1, len(task.stage.groups())), note)


def _groups(stage: Pack, table: pa.Table) -> NDArray[np.int64]:
    found = map(stage.group_of, table.to_pylist()) if stage.groups() else [0] * table.num_rows
    return np.fromiter(found, np.int64, table.num_rows)


def _read(task: PackScatterTask, shard: Shard) -> tuple[pa.Table, pa.Table, Shard]:
    """The selection's lines of a shard with copies, and the columns of each line's row."""
    made = {name for ref in task.rows.columns for name in ref.names}
    extra = [name for name in task.stage.text_columns() if name in made]
    media = ("media", "duration_ms") if task.mixed else ()
    names = tuple(dict.fromkeys((*IMAGE_COLUMNS, *media, *task.stage.reads(), *extra)))
    columns = ["item", "copies", "row"]
    lines = read_selected(task.storage, task.selection, task.places.get(shard.id), columns)
    lines = lines.filter(pa.array((lines.column("copies").to_numpy() > 0) & _alive(task.rows, shard, lines)))
    return lines, task.rows.table(shard, names).take(lines.column("row")), shard


def _alive(rows: Rows, shard: Shard, lines: pa.Table) -> NDArray[np.bool_]:
    """False for lines whose row or item a stage downstream of the selection has rejected."""
    if rows.selection is not None:  # no stage in between
        return np.ones(lines.num_rows, dtype=bool)
    return rows.fate(shard).alive_items(lines.column("row").to_numpy(), lines.column("item").to_pylist())


def _copies(
    task: PackScatterTask, lines: pa.Table, facts: pa.Table, shard: Shard
) -> tuple[pa.Table, NDArray[np.uint64]]:
    """A row per copy of each line, and its rank."""
    copies = lines.column("copies").to_numpy()
    which = np.repeat(np.arange(lines.num_rows), copies)
    copy = np.arange(len(which)) - np.repeat(np.cumsum(copies) - copies, copies)
    table = facts.take(pa.array(which)).replace_schema_metadata(None)
    if task.mixed:
        table = table.append_column(MEDIUM, table.column("media"))
    items = lines.column("item").take(pa.array(which))
    salts = np.array([_item_salt(item) for item in items.to_pylist()], dtype=np.uint64)
    rank = ranks(task.stage.seed, table.column("key").to_pylist(), salts, copy)
    tar = pa.array([dump(shard.to_json()).decode() if is_virtual(shard) else shard.tar]).take(
        pa.array(np.zeros(len(which), np.int64))
    )
    size = np.full(len(which), shard.tar_bytes, np.int64)
    row = lines.column("row").take(pa.array(which)).cast(pa.int32())
    for name, values in zip(OWN, (items, pa.array(copy, pa.int32()), pa.array(rank), row, tar, size), strict=True):
        table = table.append_column(name, values if not isinstance(values, np.ndarray) else pa.array(values))
    return table, rank


def _item_salt(item: str) -> int:
    return int(item) if item.isdigit() and len(item) < 19 else int(digest_bytes([item.encode()])[:16], 16)


# --- order ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class OrderTask(PackTask):
    done: bool
    range: str
    pieces: tuple[Piece, ...]
    edges: tuple[int, ...]
    """First row of each output shard, and the end of the last, counted from the range's first row."""


def pack_order(task: OrderTask) -> ShuffleFile:
    """Sort one range of ranks, and write it by output shard."""
    path = task.work(f"order/{task.range}")
    if task.done:
        return shuffle.load(task.storage, path)
    with beat.working(task.name):
        rows = shuffle.read(task.storage, task.pieces)
        rows = rows.sort_by([(name, "ascending") for name in ("_rank", "key", "_item", "_copy")]).drop_columns("_rank")
        shard = np.searchsorted(task.edges, np.arange(rows.num_rows), side="right") - 1
        return shuffle.write(task.storage, path, [(rows, shard)], len(task.edges) - 1)


# --- output shards ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ShardTask(PackTask):
    index: int
    pieces: tuple[Piece, ...]


def pack_shard(task: ShardTask) -> int:
    """Write one output tar and its part of the index; returns its rows."""
    stage = set_up(task.base, task.stage, {}, task.storage)
    with beat.working(task.name) as work:
        work.rows, work.bytes = _write_shard(task, stage)
        return work.rows


def _write_shard(task: ShardTask, stage: Pack) -> tuple[int, int]:
    """Rows and bytes of the tar."""
    table = shuffle.read(task.storage, task.pieces)
    itemised = {field.name for field in table.schema if per_item(field)}
    rows = table.to_pylist()
    _check_texts(stage, rows, itemised)
    part: list[dict[str, Any]] = []
    of_video: list[Any] = []
    rejected: Counter[str] = Counter()
    tar_path = f"{task.base}/{task.tar(task.index)}"
    with task.storage.publish(tar_path) as path, open(path, "wb") as file, TarWriter(file) as tar:
        for row, data in _with_data(task.storage, rows):
            own = {name: row.pop(name, None) for name in OWN}
            fact = row | {"item": own["_item"], "copy": own["_copy"]}
            fact |= {name: element(fact[name], own["_item"]) for name in itemised}
            try:
                if isinstance(data, Reject):
                    raise data
                packed = stage.write(fact, data, tar.add)
            except LostError as lost:
                _present(_shard_of(own["_tar"]), lost)
                raise
            except Reject as reject:
                rejected[reject.reason] += fact["copy"] == 0
                continue
            name = f"{row['key']}-{fact['item']}-{fact['copy']}"
            line = {"shard": task.index, "row": len(part), "name": name}
            line |= {"key": row["key"], "item": fact["item"], "copy": fact["copy"]} | vars(packed)
            del line["carried"], line["of_video"]
            of_video.append(packed.of_video)
            part.append(line | packed.carried)
    index = _index_table(part, of_video).replace_schema_metadata({"rejected": dump(rejected)})
    for beside, content in stage.beside(task.tar(task.index), index).items():
        task.storage.publish_bytes(f"{task.base}/{beside}", content)
    task.storage.publish_table(task.part(task.index), index)
    return len(part), tar.offset


def _with_data(storage: Storage, rows: list[dict[str, Any]]) -> Iterator[tuple[dict[str, Any], Reader | Undecodable]]:
    """The rows, each with its member, or why there is none."""
    large = [row for row in rows if row.get(MEDIUM)]
    parts = [large[i : i + READ_VIDEOS] for i in range(0, len(large), READ_VIDEOS)]
    ahead = (data for some in parts for data in _members(storage, some))
    small = iter(_members(storage, [row for row in rows if not row.get(MEDIUM)]))
    for row in rows:
        yield row, next(ahead if row.get(MEDIUM) else small)


def _members(storage: Storage, rows: list[dict[str, Any]]) -> list[Reader | Undecodable]:
    """The member of each row. Ranges of a tar are merged, and several tars are read at a time."""
    wanted: dict[str, dict[str, dict[str, Any]]] = {}
    for row in sorted(rows, key=lambda row: row["_row"]):
        wanted.setdefault(row["_tar"], {})[row["key"]] = row

    def read(tar: str) -> list[Reader | Undecodable]:
        members = list(wanted[tar].values())
        shard = _shard_of(tar, members[0]["_tar_bytes"])
        columns = {name: [row[name] for row in members] for name in member_columns([shard])}
        return [_present(shard, data) for data in read_members(storage, shard, columns)]

    tars = sorted(wanted)
    found = {
        tar: dict(zip(wanted[tar], members, strict=True))
        for tar, members in zip(tars, fetched(read, tars), strict=True)
    }
    return [found[row["_tar"]][row["key"]] for row in rows]


def _shard_of(tar: str, size: int = 0) -> Shard:
    """What is known of a shard by its `_tar` and `_tar_bytes`."""
    return Shard(**json.loads(tar)) if tar.startswith("{") else Shard("", 0, tar, size, "")


def _present(shard: Shard, data: Reader | Reject) -> Reader | Undecodable:
    """Reader of a selected row, or why a span of its parent cannot be copied. A dataset without a row whose bytes are
    lost would depend on when it was built."""
    while is_virtual(shard):
        shard = shard.parent_shard()
    if isinstance(data, Reject) and not isinstance(data, Undecodable):
        what = "the file, or run the recipe again to import the folder as is"
        remedy = what if in_folder(shard) else "it, or import it again"
        raise StorageError(f"{shard.tar}: {data}; restore {remedy}")
    return data


def _check_texts(stage: Pack, rows: list[dict[str, Any]], itemised: set[str]) -> None:
    """Raises CurateError if items after the first would all get the same text."""
    text = next((name for name in stage.text_columns() if rows and name in rows[0]), None)
    if text is None or text in itemised:
        return
    for row in rows:
        if row["_item"] != "0":
            raise CurateError(
                f"{stage.op}.text: {text!r} has one text per row, but item {row['_item']} of {row['key']} is selected; "
                "give the list column that has the selected items, such as text: sentences"
            )


def _index_table(part: Sequence[dict[str, Any]], of_video: Sequence[Mapping[str, Any] | None]) -> pa.Table:
    """The fixed columns, those of videos if the pool may have some, and the columns that samples carry, unless every
    sample was rejected."""
    fixed = [
        ("shard", pa.int32()), ("row", pa.int32()), ("name", pa.string()), ("key", pa.string()), ("item", pa.string()),
        ("copy", pa.int32()), ("ext", pa.string()), ("offset", pa.int64()), ("size", pa.int64()),
        ("text_offset", pa.int64()), ("text_size", pa.int64()), ("width", pa.int32()), ("height", pa.int32()),
        ("json_offset", pa.int64()), ("json_size", pa.int64()),
    ]  # fmt: skip
    columns = {name: pa.array([line[name] for line in part], kind) for name, kind in fixed}
    carried = [name for name in (part[0] if part else ()) if name not in columns]
    if any(line is not None for line in of_video):
        found = [line or {} for line in of_video]
        columns |= {one.name: pa.array([line.get(one.name) for line in found], one.type) for one in OF_VIDEOS}
    return pa.table(columns | {name: pa.array([line[name] for line in part]) for name in carried})


# --- index ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class IndexTask(PackTask):
    first: int
    stop: int


def pack_index(task: IndexTask) -> list[int]:
    """Merge the index's lines of a stretch of output shards; returns the rows of each."""
    with beat.working(task.name):
        paths = [task.part(i) for i in range(task.first, task.stop)]
        parts = list(fetched(task.storage.read_table, paths))
        whole = pa.concat_tables([part.replace_schema_metadata(None) for part in parts], promote_options="permissive")
        rejected = sum((_rejected(part.schema) for part in parts), Counter[str]())
        whole = whole.replace_schema_metadata({"rejected": dump(rejected)})
        task.storage.publish_table(task.work(f"index/{task.first:06d}.parquet"), whole)
    return [part.num_rows for part in parts]


def _rejected(schema: pa.Schema) -> Counter[str]:
    return Counter(json.loads(schema.metadata[b"rejected"]))


@dataclass(frozen=True)
class FinishTask(PackTask):
    stretches: tuple[tuple[int, int], ...]
    counts: tuple[int, ...]
    """Rows of each output shard."""
    fingerprint: str


def pack_finish(task: FinishTask) -> dict[str, Any]:
    """Publish the index, with a row group per stretch of output shards, and the stage's further files."""
    paths = [task.work(f"index/{first:06d}.parquet") for first, _ in task.stretches]
    schemas = list(fetched(partial(_schema, task.storage), paths))
    rejected = sum((_rejected(schema) for schema in schemas), Counter[str]())
    schema = pa.unify_schemas([s.remove_metadata() for s in schemas], promote_options="permissive")
    with (
        task.storage.publish(f"{task.base}/index.parquet") as aside,
        pq.ParquetWriter(aside, schema, compression="zstd") as out,
    ):
        for table in _tables(task, paths):
            out.write_table(pa.concat_tables([schema.empty_table(), table], promote_options="permissive").cast(schema))
    counts = [(task.tar(i), rows) for i, rows in enumerate(task.counts)]
    for name, content in task.stage.finish(counts, task.fingerprint, partial(_tables, task, paths)).items():
        with task.storage.publish(f"{task.base}/{name}") as aside:
            aside.write_bytes(content) if isinstance(content, bytes) else content(aside)
    sizes = task.storage.list(task.base)
    missing = [tar for tar, _ in counts if tar not in sizes]
    if missing:
        raise StorageError(
            f"{task.storage.url_of(task.base)}: {missing[0]} is missing; remove the folder and run again"
        )
    return {"tars": {tar: sizes[tar] for tar, _ in counts}, "rows": sum(task.counts), "rejected": dict(rejected)}


def _tables(task: FinishTask, paths: Sequence[str]) -> Iterator[pa.Table]:
    for path in paths:
        with beat.working(task.name):
            table = task.storage.read_table(path)
        yield table


def _schema(storage: Storage, path: str) -> pa.Schema:
    with storage.open(path) as file:
        return pq.read_schema(file)
