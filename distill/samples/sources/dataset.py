"""Opens a packed dataset: `index.parquet` (a row per sample), `sizes.json` (tars), `manifest.json` (written last)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from curate.core.errors import InputError
from curate.core.hashing import digest, digest_bytes, keys_of_words
from curate.core.store.storage import Storage, open_storage
from distill.samples.sources.index import FRAMES, ITEM, KEY, SETS, VERSION, Index, IndexSource, load_index

REQUIRED = ("shard", "row", "key", "copy", "ext", "offset", "size", "width", "height")
_MAPPED = (*REQUIRED, ITEM, SETS, "text_offset", "text_size")
"""All other columns were carried in by the user, with any name and type."""
_CLIPS = "frame_offsets"
"""A column of datasets that may have clips. Without it, `frames` is a carried column."""
_BATCH, _BLOCK = 1 << 17, 8 << 20


def _has_value(part: pa.Array) -> NDArray[np.bool_]:
    valid = part.is_valid()
    if pa.types.is_string(part.type) or pa.types.is_large_string(part.type):
        valid = pc.and_(valid, pc.greater(pc.binary_length(part), 0)).fill_null(False)
    return valid.to_numpy(zero_copy_only=False)


class NoDatasetError(InputError):
    """The folder exists, but has no finished dataset."""


@dataclass(frozen=True)
class Dataset:
    """A finished dataset, local or on an object store."""

    storage: Storage
    """Rooted at the folder."""
    index: Index
    """Integer columns, in the order in which the samples were written."""
    columns: list[str]
    """All columns of the table."""
    read: Callable[[str], Iterator[pa.Array]]
    """Reads a column of the table, batch by batch; columns that are not integers are only read on request."""
    tars: list[str]
    """File names by shard."""

    @property
    def fingerprint(self) -> str:
        """Digest of the content, independent of its place."""
        return self.index.fingerprint

    @property
    def url(self) -> str:
        return self.storage.url

    def __len__(self) -> int:
        return len(self.index)

    def has(self, name: str) -> bool:
        return name in self.columns

    def integers(self, name: str) -> NDArray[Any]:
        """A column (n,) as integers, -1 for nulls."""
        if self.index.has(name):
            return self.index.numbers(name)
        return np.concatenate(
            [part.cast(pa.int64()).fill_null(-1).to_numpy(zero_copy_only=False) for part in self.read(name)]
        )

    def strings(self, name: str) -> list[str | None]:
        """A whole column as Python strings of about 100 bytes each; for few rows, use `values`."""
        if name == KEY:
            return list(keys_of_words(self.index.words))
        return [value for part in self.read(name) for value in part.cast(pa.string()).to_pylist()]

    def values(self, name: str, rows: NDArray[np.int64]) -> list[Any]:
        """Values of a column at the given rows, in one pass that ends at the last of them."""
        order = np.argsort(rows, kind="stable")
        ordered, found, done, start = rows[order], list[Any](), 0, 0
        for part in self.read(name) if len(rows) else ():
            stop = int(np.searchsorted(ordered, start + len(part)))
            found += part.take(pa.array(ordered[done:stop] - start)).to_pylist()
            done, start = stop, start + len(part)
            if done == len(rows):
                break
        if done < len(rows):
            raise InputError(f"{self.url}: the dataset shrank after it was opened; run again to use its current files")
        return [found[place] for place in np.argsort(order, kind="stable").tolist()]

    def has_value(self, name: str) -> NDArray[np.bool_]:
        """(n,): whether a row's value is neither null nor an empty string."""
        return np.concatenate([_has_value(part) for part in self.read(name)])


def open_dataset(url: str) -> Dataset:
    """Raises InputError if the folder is not a finished dataset, has no samples, or cannot be read."""
    storage = _locate(url)
    manifest, sizes = (_object(storage, name) for name in ("manifest.json", "sizes.json"))
    place = f"{storage.url}/index.parquet"
    with _readable(place), storage.open("index.parquet") as file:
        table = pq.ParquetFile(file)
        rows, names = table.metadata.num_rows, table.schema_arrow.names
    missing = [name for name in REQUIRED if name not in names]
    if missing:
        raise InputError(f"{place}: no column {', '.join(missing)}; write the dataset again with pack")
    if not rows:
        raise InputError(f"{url}: the dataset has no samples; see its funnel with `curate status`")
    chosen = [name for name in _MAPPED if name in names and name != "ext"]
    if {_CLIPS, FRAMES} <= set(names):
        chosen.append(FRAMES)
    index = load_index(
        IndexSource(
            place, storage.url, _stamp(storage, manifest), rows, chosen, lambda: _batches(storage, place, chosen),
            lambda _: _fingerprint(storage, place, manifest),
        )
    )  # fmt: skip
    tars, named = sorted(sizes), int(index.numbers("shard")[-1]) + 1
    if named > len(tars):
        raise InputError(
            f"{storage.url}/sizes.json: {len(tars)} tars, but {named} in the index; write the dataset again with pack"
        )

    def read(name: str) -> Iterator[pa.Array]:
        return (batch.column(0) for batch in _batches(storage, place, [name]))

    return Dataset(storage, index, names, read, tars)


def _locate(url: str) -> Storage:
    """The folder itself, or the only finished dataset in it: datasets/NAME/FINGERPRINT for datasets/NAME."""
    storage = open_storage(url)
    if storage.exists("manifest.json"):
        return storage
    if not storage.fs.isdir(storage.root):
        what = "is a file" if storage.exists("") else "does not exist"
        raise InputError(f"data.sources: {url!r} {what}; give a dataset folder that a pipeline wrote, or .tar files")
    below = sorted(path.rstrip("/").rsplit("/", 1)[-1] for path in storage.fs.ls(storage.root, detail=False))
    finished = [name for name in below if storage.exists(f"{name}/manifest.json")]
    if len(finished) != 1:
        found = ", ".join(finished) or "none"
        raise (InputError if finished else NoDatasetError)(
            f"data.sources: {url!r} has no manifest.json; give one of the finished datasets in it: {found}"
        )
    return open_storage(storage.url_of(finished[0]))


def _object(storage: Storage, name: str) -> dict[str, Any]:
    try:
        found = storage.read_json(name)
        if not isinstance(found, dict):
            raise ValueError(f"expected a JSON object, not {type(found).__name__}")
    except (OSError, ValueError) as error:
        raise InputError(f"{storage.url_of(name)}: cannot read it ({_why(error)}); {_REMEDY}") from error
    return found


@contextmanager
def _readable(place: str) -> Iterator[None]:
    try:
        yield
    except (pa.ArrowException, OSError, ValueError) as error:
        raise InputError(f"{place}: cannot read it ({_why(error)}); {_REMEDY}") from error


_REMEDY = "copy it again from the original, or write the dataset again with pack"


def _why(error: BaseException) -> str:
    return "it is missing" if isinstance(error, FileNotFoundError) else " ".join(str(error).split())[:200]


def _batches(storage: Storage, place: str, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
    with _readable(place), storage.open("index.parquet") as file:
        yield from pq.ParquetFile(file).iter_batches(batch_size=_BATCH, columns=list(names))


def _stamp(storage: Storage, manifest: dict[str, Any]) -> str:
    """Digest of the index file's place and time: the key of its arrays in the cache."""
    info = storage.fs.info(storage.path("index.parquet"))
    written = [str(info.get(name, "")) for name in ("size", "mtime", "ino", "ETag", "LastModified")]
    return digest({"version": VERSION, "place": storage.url, "written": written, "manifest": manifest})


def _fingerprint(storage: Storage, place: str, manifest: dict[str, Any]) -> str:
    with _readable(place), storage.open("index.parquet") as file:
        index = digest_bytes(_blocks(file))
    return digest({"fingerprint": manifest.get("fingerprint"), "index": index})


def _blocks(file: IO[bytes]) -> Iterator[bytes]:
    while block := file.read(_BLOCK):
        yield block
