"""Files of what a teacher has computed of whole datasets (`run.teacher_cache`), one per tar, read in random order.

FOLDER/KEY/000012.arrow has rows of samples in tar 12, in index order, with their numbers in the index as `row`. The
files are Arrow, memory-mapped and uncompressed: Parquet would decode a whole row group for each row.
"""

from __future__ import annotations

import logging
import zlib
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from curate.core.errors import InputError
from curate.core.store.storage import Storage
from distill.samples.sources.mixture import Mixture

_OPEN = 64
_LOG = logging.getLogger("distill")
T = TypeVar("T")


def shard_file(key: str, shard: int) -> str:
    return f"{key}/{shard:06d}.arrow"


def is_cached(storage: Storage, name: str, schema: pa.Schema) -> bool:
    """Whether a shard is in the cache. Removes a corrupt file with a warning, because the caller recomputes it."""
    if not storage.exists(name):
        return False
    try:
        _mapped(Path(storage.path(name)), schema)
    except InputError as error:
        _LOG.warning("%s; recomputing it", str(error).rpartition("; remove")[0])
        storage.remove(name)
        return False
    return True


@contextmanager
def writing(storage: Storage, name: str, schema: pa.Schema) -> Iterator[pa.RecordBatchFileWriter]:
    """Publishes the file when the block ends without an error."""
    with storage.publish(name) as path, pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, schema) as file:
        yield file


class ShardFiles(Generic[T]):
    """Cached values by row of a dataset mixture. Many threads may call `has`, one thread `get`."""

    def __init__(
        self,
        folder: Path,
        mixture: Mixture,
        keys: Sequence[str | None],
        schema: pa.Schema,
        read: Callable[[pa.Table, int], T],
    ) -> None:
        """keys: the folder of each source, None without one; missing files are like rows that are not cached. read:
        table, place in it -> value."""
        self._schema, self._read = schema, read
        self._paths: list[Path] = []
        self._file = np.full(len(mixture), -1, dtype=np.int32)
        self._place = np.zeros(len(mixture), dtype=np.int32)
        self._open: OrderedDict[int, pa.Table] = OrderedDict()
        for source, key in enumerate(keys):
            for shard in range(len(mixture.sources[source].tars) if key is not None else 0):
                path = folder / shard_file(str(key), shard)
                if path.is_file():
                    rows = self._rows(path, len(mixture.sources[source])) + int(mixture.starts[source])
                    self._file[rows], self._place[rows] = len(self._paths), np.arange(len(rows))
                    self._paths.append(path)

    def __len__(self) -> int:
        return int((self._file >= 0).sum())

    def has(self, row: int) -> bool:
        return bool(self._file[row] >= 0)

    def get(self, row: int) -> T | None:
        file = int(self._file[row])
        if file < 0:
            return None
        if file not in self._open:
            self._open[file] = _mapped(self._paths[file], self._schema)
        self._open.move_to_end(file)
        while len(self._open) > _OPEN:
            self._open.popitem(last=False)
        try:
            return self._read(self._open[file], int(self._place[row]))
        except (pa.ArrowException, ValueError, KeyError, TypeError, RuntimeError) as error:
            raise _corrupt(self._paths[file], error) from None

    def _rows(self, path: Path, samples: int) -> NDArray[np.int64]:
        rows = _mapped(path, self._schema).column("row").to_numpy()
        if len(rows) and not 0 <= rows.min() <= rows.max() < samples:
            raise _corrupt(path, ValueError(f"it has rows beyond the {samples} samples of the dataset"))
        return rows


def checksum(*parts: Any) -> int:
    """CRC-32 of buffers; None is nothing."""
    found = 0
    for part in parts:
        found = zlib.crc32(b"" if part is None else part, found)
    return found


def check(table: pa.Table, place: int, *parts: Any) -> None:
    """Raises ValueError unless the row's `check` is the checksum of these parts."""
    if checksum(*parts) != table.column("check")[place].as_py():
        raise ValueError(f"row {place} is corrupt (checksum mismatch)")


def _mapped(path: Path, schema: pa.Schema) -> pa.Table:
    try:
        table = pa.ipc.open_file(pa.memory_map(str(path))).read_all()
        if not table.schema.equals(schema):
            raise ValueError(f"columns {', '.join(table.column_names) or 'none'}")
        table.validate(full=True)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise _corrupt(path, error) from None
    return table


def _corrupt(path: Path, error: BaseException) -> InputError:
    why = " ".join(str(error).split())[:200]
    return InputError(f"cannot read {path} ({why}); remove it and run `distill teach` again")
