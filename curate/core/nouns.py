"""Pools, columns, artifacts, selections and datasets as they lie in a workspace.

A noun commits when its `manifest.json` is created; the manifest points to `shards.parquet`, which lists the noun's
files. Readers use manifests only, so files of an unfinished build are never seen.

    pools/<namespace>/shards/<shard>.tar + .parquet      shards, by content id
    pools/<namespace>/portions/<portion>.json            which shard a portion of a source became
    pools/<namespace>/keys/<shards>/<range>.parquet      in which shard and row a key lies
    pools/<namespace>/versions/<pool>/                   a pool: manifest + shards.parquet
    pools/<namespace>/derived/<fingerprint>/<shard>/     children of a pool shard: numbered tars and tables
    facts/<op>/<stage>/<fingerprint>/<shard>/000001.parquet   facts about a shard's rows: numbered tables
    facts/<op>/<stage>/<fingerprint>/versions/<digest>/  which tables a run has read: manifest + shards.parquet
    facts/<op>/<stage>/index/                            costly stages: where the answer to an input lies
    facts/<op>/<stage>/log/<fingerprint>/                answers of units under way: segments by worker
    masks/<chain>/<shard>-<tables>.parquet               who is alive at the points of a pass, and why others are not
    masks/<chain>/versions/<digest>/                     the mask of one pool version: manifest + shards.parquet
    artifacts/<op>/<fingerprint>/                        tables, arrays and JSON files, manifest
    artifacts/<op>/<fingerprint>/<name>/<part>.npz       what the steps of a Fit stored under a name
    artifacts/<op>/partials/<fingerprint>/<shard>-<content>.parquet   a Reduce's states
    selections/<op>/<fingerprint>/                       lines by shard, quotas, manifest + shards.parquet
    datasets/<name>/<fingerprint>/                       tars, indexes, manifest
"""

from __future__ import annotations

import errno
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple, Self

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from curate.core.contracts import Artifact
from curate.core.errors import AlreadyExistsError, CorruptError, PinnedError, StorageError
from curate.core.hashing import digest_bytes
from curate.core.ledger import Entry
from curate.core.store.arrays import read_arrays
from curate.core.store.spill import Spill
from curate.core.store.storage import Storage, open_storage

POOL_SCHEMA = pa.schema(
    [
        pa.field("key", pa.string(), nullable=False),
        pa.field("source_id", pa.string()),
        pa.field("name", pa.string()),
        pa.field("offset", pa.int64(), metadata={"unit": "bytes"}),
        pa.field("size", pa.int64(), metadata={"unit": "bytes"}),
        pa.field("ext", pa.string()),
        pa.field("caption", pa.string()),
        pa.field("url", pa.string()),
        pa.field("width", pa.int32(), metadata={"unit": "pixels"}),
        pa.field("height", pa.int32(), metadata={"unit": "pixels"}),
        pa.field("format", pa.string()),
        pa.field("sha256", pa.string()),
        pa.field("meta", pa.string(), metadata={"content": "JSON object of the source's other fields"}),
        pa.field("parent", pa.string(), metadata={"of": "key of the sample that this one was made out of"}),
        pa.field(
            "root", pa.string(), metadata={"of": "key of the first sample on the way: the parent's root, or parent"}
        ),
        pa.field("span", pa.string(), metadata={"content": "JSON object: which part of the parent it is"}),
        pa.field("parent_row", pa.int32(), metadata={"of": "row of the parent in its shard"}),
        pa.field("reject", pa.string()),
    ]
)


FORMAT_OF_POOL = 2
"""Rises when a column of pools comes to mean something else: facts computed from it are then others."""


@dataclass(frozen=True)
class Shard:
    """One immutable shard: a table, and the tar its members lie in (absolute URL when the tar stays in place)."""

    id: str
    rows: int
    tar: str
    tar_bytes: int
    table: str
    parent: str = ""
    """JSON of the parents' shard, for a shard of a derived pool."""

    def parent_shard(self) -> Shard:
        return Shard(**json.loads(self.parent))

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def in_place(shard: Shard) -> bool:
    """Whether the tar lies outside of the workspace, where it was imported from."""
    return "://" in shard.tar or shard.tar.startswith("/")


@dataclass
class Manifest:
    """What a noun says of itself."""

    noun: str
    op: str
    version: int
    fingerprint: str
    parameters: dict[str, Any] = field(default_factory=dict)
    identity: dict[str, Any] = field(default_factory=dict)
    inputs: dict[str, Any] = field(default_factory=dict)
    ledger: dict[str, Any] = field(default_factory=dict)
    rows: int = 0
    bytes: int = 0
    seconds: float = 0.0
    """Wall seconds of the build; times, like dates, are never part of a fingerprint."""
    built_rows: int = 0
    """Rows computed in that time (the rest was there already)."""
    content: str = ""
    """Digest of what an artifact holds: what stages that read it depend on."""
    extra: dict[str, Any] = field(default_factory=dict)

    @property
    def entry(self) -> Entry:
        return Entry.from_json(self.ledger) if self.ledger else Entry()

    @classmethod
    def load(cls, storage: Storage, base: str) -> Self | None:
        try:
            return cls(**storage.read_json(f"{base}/manifest.json"))
        except FileNotFoundError:
            return None
        except (ValueError, TypeError) as error:
            path, text = storage.url_of(f"{base}/manifest.json"), f"{type(error).__name__}: {error}"
            raise StorageError(f"{path}: no manifest can be read there ({text}); remove it and run again") from error

    def commit(self, storage: Storage, base: str, shards: Sequence[Mapping[str, Any]] | pa.Table = ()) -> Manifest:
        """Publish `shards.parquet`, create the manifest. Who comes second finds the first one's and uses that."""
        theirs = Manifest.load(storage, base)
        if theirs is None:
            if len(shards):
                table = shards if isinstance(shards, pa.Table) else pa.Table.from_pylist([dict(s) for s in shards])
                storage.publish_table(f"{base}/shards.parquet", table)
            try:
                storage.create_json(f"{base}/manifest.json", asdict(self))
                return self
            except AlreadyExistsError:
                theirs = Manifest.load(storage, base)
        if theirs is None or theirs.fingerprint != self.fingerprint:
            found = theirs.fingerprint if theirs else "nothing"
            raise PinnedError(f"{base}: holds {found}, not {self.fingerprint}; choose another name")
        return theirs


def pool_base(namespace: str, fingerprint: str) -> str:
    return f"pools/{namespace}/versions/{fingerprint}"


STATES = "states.parquet"
"""File of an artifact that a Reduce has made: the names of the states that it is made of."""
FILES = "files"
"""In the manifest of an artifact: its files, so that nobody has to list them."""
GONE = (None, errno.ENOENT, errno.ENOTDIR, errno.EISDIR)
"""Of an OSError: the file is not there, or Parquet's reader found no sense in it (it gives no number)."""


@contextmanager
def reading(storage: Storage, path: str, what: str, remedy: str) -> Iterator[None]:
    """What goes wrong in reading a file, as one line: CorruptError where it is damaged or gone, StorageError where the
    file system would not give it (that is tried again)."""
    try:
        yield
    except (OSError, pa.ArrowException, ValueError, KeyError) as error:
        text = "no such file" if isinstance(error, FileNotFoundError) else " ".join(str(error).split())[:200]
        if isinstance(error, OSError) and error.errno not in GONE:
            raise StorageError(
                f"{storage.url_of(path)}: this {what} cannot be read ({text}); mend that and run the same command again"
            ) from error
        raise CorruptError(f"{storage.url_of(path)}: this {what} is corrupt or missing ({text}); {remedy}") from error


def read_lines(storage: Storage, base: str, columns: list[str] | None = None, file: str = "shards.parquet") -> pa.Table:
    """The lines of a noun's manifest, one for each shard."""
    with reading(storage, f"{base}/{file}", "list of shards", f"remove the folder {base} and run the recipe again"):
        return storage.read_table(f"{base}/{file}", columns=columns)


def read_pool(storage: Storage, path: str, columns: list[str] | None = None) -> pa.Table:
    """The table of a pool's shard, or some columns of it."""
    parts = path.split("/")
    remedy = f"restore it, or remove the folder {'/'.join(parts[:-1])} and run the recipe again"
    if parts[2:3] == ["shards"]:
        records = " and ".join(f"{'/'.join(parts[:2])}/{name}" for name in ("portions", "repeats"))
        remedy = f"restore it, or remove it and the folders {records} and run the recipe again"
    with reading(storage, path, "table of a pool", remedy):
        return storage.read_table(path, columns=columns)


FORMAT_OF_SELECTION = 2
"""Part of a selection's fingerprint. 1 had files by bucket."""
SELECTION_SCHEMA = pa.schema(
    [
        pa.field("key", pa.string()),
        pa.field("item", pa.string()),
        pa.field("copies", pa.int32()),
        pa.field("shard", pa.string()),
        pa.field("row", pa.int64()),
        pa.field("unit", pa.int64(), metadata={"of": "what the quota was given to"}),
        pa.field("reject", pa.string()),
    ]
)
"""Lines of a selection; `expected` follows where chance decides."""


class Lines(NamedTuple):
    """Where the lines about one shard of the pool lie in a selection: rows start .. start + rows - 1 of a row group of
    one of its files; how many copies they give in all."""

    file: str
    group: int
    start: int
    rows: int
    copies: int


@lru_cache(maxsize=8)
def selection_places(url: str, base: str) -> dict[str, Lines]:
    """Shard -> its lines of a committed selection, in the order of the pool."""
    table = read_lines(open_storage(url), base, ["id", *Lines._fields])
    columns = [table.column(name).to_pylist() for name in table.column_names]
    return {shard: Lines(*place) for shard, *place in zip(*columns, strict=True)}


def read_selected(storage: Storage, base: str, place: Lines | None, columns: list[str] | None = None) -> pa.Table:
    """Lines of a selection about one shard, in the order of rows, then items."""
    if place is None or not place.rows:
        table = SELECTION_SCHEMA.empty_table()
        return table if columns is None else table.select([name for name in columns if name in table.column_names])
    path = f"{base}/{place.file}"
    with _reading_selection(storage, base, path):
        return _row_group(storage.url, path, place.group, None if columns is None else tuple(columns)).slice(
            place.start, place.rows
        )


@lru_cache(maxsize=4)
def _row_group(url: str, path: str, group: int, columns: tuple[str, ...] | None) -> pa.Table:
    """Small shards share a group, and tasks go through them in order."""
    storage = open_storage(url)
    with storage.open(path) as file, pq.ParquetFile(file, metadata=_footer(url, path), pre_buffer=True) as parquet:
        there = set(parquet.schema_arrow.names)
        return parquet.read_row_group(group, columns and [name for name in columns if name in there])


@lru_cache(maxsize=16)
def _footer(url: str, path: str) -> pq.FileMetaData:
    with open_storage(url).open(path) as file:
        return pq.read_metadata(file)


def _reading_selection(storage: Storage, base: str, path: str) -> AbstractContextManager[None]:
    return reading(storage, path, "table of a selection", f"remove the folder {base} and run the recipe again")


def read_selection(
    storage: Storage, base: str, file: str, columns: list[str] | None = None, **options: Any
) -> pa.Table:
    """A table of a selection, such as `quotas.parquet`; `options` are those of `Storage.read_table`."""
    with _reading_selection(storage, base, f"{base}/{file}"):
        return storage.read_table(f"{base}/{file}", columns=columns, **options)


def read_index(storage: Storage, base: str, columns: list[str] | None = None, **options: Any) -> pa.Table:
    """What a committed dataset holds."""
    path, remedy = f"{base}/index.parquet", f"remove the folder {base} and run the recipe again"
    with reading(storage, path, "index of a dataset", remedy):
        return storage.read_table(path, columns=columns, **options)


def read_shards(storage: Storage, base: str) -> list[Shard]:
    return shards_of(read_lines(storage, base))


def shards_of(lines: pa.Table) -> list[Shard]:
    """Shards out of a table with their fields as columns, whatever other columns it has."""
    names = [name for name in Shard.__dataclass_fields__ if name in lines.column_names]
    columns = [lines.column(name).to_pylist() for name in names]
    return [Shard(**dict(zip(names, values, strict=True))) for values in zip(*columns, strict=True)]


def lines_of(shards: Sequence[Shard]) -> pa.Table:
    """The inverse of `shards_of`."""
    return pa.table({name: [getattr(shard, name) for shard in shards] for name in Shard.__dataclass_fields__})


def save_artifact(storage: Storage, base: str, artifact: Artifact) -> tuple[int, dict[str, str]]:
    """Publish each part under its name; returns bytes, and a digest of each file. Arrays become .npy, tables .parquet,
    others JSON or bytes."""
    size, digests = 0, {}
    for name, value in artifact.items():
        if isinstance(value, pa.Table):
            sink = io.BytesIO()
            pq.write_table(value, sink, compression="zstd")
            file, data = f"{name}.parquet", sink.getvalue()
        elif isinstance(value, np.ndarray):
            sink = io.BytesIO()
            np.save(sink, value, allow_pickle=False)
            file, data = f"{name}.npy", sink.getvalue()
        elif isinstance(value, bytes):
            file, data = name, value
        else:
            file, data = f"{name}.json", json.dumps(value, sort_keys=True, indent=1).encode()
        storage.publish_bytes(f"{base}/{file}", data)
        size += len(data)
        digests[file] = digest_bytes([data])
    return size, digests


class StoredArtifact(Mapping[str, Any]):
    """The parts of a committed artifact by name, as its stage returned them; each read when first asked for. What the
    steps of a Fit stored under a name is there as `<name>/<part, six digits>`: a dict of arrays."""

    def __init__(self, storage: Storage, base: str) -> None:
        self._storage, self._base = storage, base
        manifest = Manifest.load(storage, base)
        files = None if manifest is None else manifest.extra.get(FILES)
        if files is None:  # under way, or of an older version
            there = [file for file in sorted(storage.list(base)) if file not in ("manifest.json", STATES)]
            files = [file for file in there if not file.startswith("work/")]
        self._files = {_part_name(file): file for file in files}
        self._parts: dict[str, Any] = {}

    def part(self, name: str, index: int) -> dict[str, np.ndarray]:
        """What part `index` stored under `name`, mapped: from a local disk, or from a spill that it is fetched to once.
        KeyError where it stored nothing."""
        key = f"{name}/{index:06d}"
        if self._storage.local:
            return self._read(self._files[key])
        if key not in self._parts:
            fetched = self._read(self._files[key])
            with Spill() as spill:
                spill.append(fetched)
                self._parts[key] = spill.mapped()
        return self._parts[key]

    def parts(self, name: str) -> list[int]:
        """The parts that stored something under `name`, in order."""
        return [int(key.rpartition("/")[2]) for key in self._files if key.rpartition("/")[0] == name]

    def __getitem__(self, name: str) -> Any:
        if name not in self._parts:
            self._parts[name] = self._read(self._files[name])
        return self._parts[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)

    def _read(self, file: str) -> Any:
        path = f"{self._base}/{file}"
        if file.endswith(".parquet"):
            return self._storage.read_table(path)
        if file.endswith(".npz"):
            return read_arrays(self._storage, path)
        if file.endswith(".npy"):
            if self._storage.local:
                return np.load(self._storage.path(path), mmap_mode="r", allow_pickle=False)
            return np.load(io.BytesIO(self._storage.read(path)), allow_pickle=False)
        if file.endswith(".json"):
            return self._storage.read_json(path)
        return self._storage.read(path)


def _part_name(file: str) -> str:
    stem, _, kind = file.rpartition(".")
    return stem if kind in ("parquet", "npy", "npz", "json") else file
