"""Teachers' features of whole datasets on disk (`run.teacher_cache`), computed once by `distill teach`.

FOLDER/KEY/000012.arrow holds a teacher's features of the images in tar 12, in index order, without unreadable images.
KEY is the digest of everything that the features depend on: the dataset's content, the teacher, and for a teacher that
reads the student's patches also their size, their maximum number and how images are decoded. The files are Arrow,
memory-mapped and uncompressed: images are read in random order, and Parquet would decode a whole row group for each.
"""

from __future__ import annotations

import logging
import zlib
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from torch import Tensor

from curate.core.errors import InputError
from curate.core.hashing import digest
from curate.core.store.storage import Storage
from curate.encoders import identity
from distill.recipe import Recipe, TeacherRecipe
from distill.recipe.data import SourceRecipe
from distill.recipe.paths import local_folder
from distill.samples.sources.dataset import Dataset
from distill.samples.sources.mixture import Mixture
from distill.teachers.base import TeacherFeatures

VERSION = 2
"""Raise it when the files' format changes, or their content for the same recipe."""
_OPEN = 64
_LOG = logging.getLogger("distill")
_SCHEMA = pa.schema(
    [
        pa.field("row", pa.int64(), nullable=False),  # in the dataset's index
        pa.field("summary", pa.binary(), nullable=False),  # float32 (D,)
        pa.field("patches", pa.large_binary()),  # `keep` (rows, columns, P)
        pa.field("rows", pa.int32(), nullable=False),
        pa.field("columns", pa.int32(), nullable=False),
        pa.field("registers", pa.binary()),  # float32 (R, D)
        pa.field("count", pa.int32(), nullable=False),  # R
        pa.field("check", pa.uint32(), nullable=False),  # CRC-32 of summary, patches and registers
    ]
)


def shard_file(key: str, shard: int) -> str:
    return f"{key}/{shard:06d}.arrow"


def cache_key(dataset: Dataset, source: SourceRecipe, teacher: TeacherRecipe, recipe: Recipe) -> str | None:
    """Folder of a teacher's features of a dataset; None if the features differ between epochs."""
    native = teacher.pictures == "student"
    if recipe.data.augment is not None or (native and len(source.sizes) > 1):
        return None
    needed = recipe.needs.features[teacher.label]
    kinds = {
        "patches": teacher.keep if "patches" in needed else None,
        "registers": recipe.student.registers if "registers" in needed else 0,
    }
    whole = any(
        item.pictures == "own" for item in recipe.teachers
    )  # otherwise a large JPEG is decoded at a reduced size
    grid = {"patch": recipe.student.patch, "max_tokens": max(source.sizes), "whole": whole} if native else {}
    what = identity(teacher.encoder, precision=teacher.precision)
    frames = {} if source.frames is None else {"frames": source.frames}
    return digest({"version": VERSION, "dataset": dataset.fingerprint, "teacher": what, **kinds, **grid, **frames})


def is_cached(storage: Storage, name: str) -> bool:
    """Whether a shard is in the cache. Removes a corrupt file with a warning, because the caller recomputes it."""
    if not storage.exists(name):
        return False
    try:
        _mapped(Path(storage.path(name)))
    except InputError as error:
        _LOG.warning("%s; recomputing it", str(error).rpartition("; remove")[0])
        storage.remove(name)
        return False
    return True


class FeatureCache:
    """Cached features of one teacher by row of a dataset mixture. Many threads may call `has`, one thread `get`."""

    def __init__(self, folder: Path, mixture: Mixture, keys: Sequence[str | None]) -> None:
        """keys: one per source, see `cache_key`. Missing shards are like rows that are not cached."""
        self._paths: list[Path] = []
        self._file = np.full(len(mixture), -1, dtype=np.int32)
        self._place = np.zeros(len(mixture), dtype=np.int32)
        self._open: OrderedDict[int, pa.Table] = OrderedDict()
        for source, key in enumerate(keys):
            for shard in range(len(mixture.sources[source].tars) if key is not None else 0):
                path = folder / shard_file(str(key), shard)
                if path.is_file():
                    rows = _rows(path, len(mixture.sources[source])) + int(mixture.starts[source])
                    self._file[rows], self._place[rows] = len(self._paths), np.arange(len(rows))
                    self._paths.append(path)

    def __len__(self) -> int:
        return int((self._file >= 0).sum())

    def has(self, row: int) -> bool:
        return bool(self._file[row] >= 0)

    def get(self, row: int) -> TeacherFeatures | None:
        file = int(self._file[row])
        if file < 0:
            return None
        if file not in self._open:
            self._open[file] = _mapped(self._paths[file])
        self._open.move_to_end(file)
        while len(self._open) > _OPEN:
            self._open.popitem(last=False)
        try:
            return _features(self._open[file], int(self._place[row]))
        except (pa.ArrowException, ValueError, KeyError, TypeError, RuntimeError) as error:
            raise _corrupt(self._paths[file], error) from None


def open_caches(recipe: Recipe, mixture: Mixture) -> dict[str, FeatureCache]:
    """Caches of all teachers, by label; empty without run.teacher_cache."""
    if recipe.run.teacher_cache is None:
        return {}
    folder = local_folder(recipe.run.teacher_cache, "run.teacher_cache")
    sources = list(zip(mixture.sources, mixture.recipes, strict=True))
    found = {
        teacher.label: FeatureCache(folder, mixture, [cache_key(*source, teacher, recipe) for source in sources])
        for teacher in recipe.teachers
    }
    for label, cache in found.items():
        if len(cache) < len(mixture):
            message = "run.teacher_cache: %s has the features of %s for %s of %s images; the others are computed"
            _LOG.warning(message, folder, label, f"{len(cache):,}", f"{len(mixture):,}")
    return found


@dataclass
class ShardWriter:
    file: pa.RecordBatchFileWriter
    schema: pa.Schema

    def add(self, rows: Sequence[int], features: Sequence[TeacherFeatures]) -> None:
        """rows: in the dataset's index."""
        if rows:
            values = [_values(row, item) for row, item in zip(rows, features, strict=True)]
            self.file.write_batch(pa.RecordBatch.from_pylist(values, schema=self.schema))


@contextmanager
def writing_shard(storage: Storage, name: str, keep: str) -> Iterator[ShardWriter]:
    """Publishes the file when the block ends without an error. keep: dtype of patches, float32 or float16."""
    schema = _SCHEMA.with_metadata({"patches": keep})
    with storage.publish(name) as path, pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, schema) as file:
        yield ShardWriter(file, schema)


def features_bytes(features: TeacherFeatures, patches: float | None = None) -> float:
    """Size on disk. patches: average number per image if it depends on the student's grid."""
    own = sum(value.nbytes for value in features.tensors())
    if patches is None or features.patches is None:
        return own
    height, width, _ = features.patches.shape
    return own + features.patches.nbytes * (patches / (height * width) - 1)


def _values(row: int, features: TeacherFeatures) -> Mapping[str, Any]:
    rows, columns, _ = (0, 0, 0) if features.patches is None else features.patches.shape
    kinds = {
        "summary": _bytes(features.summary),
        "patches": None if features.patches is None else _bytes(features.patches),
        "registers": None if features.registers is None else _bytes(features.registers),
    }
    count = 0 if features.registers is None else len(features.registers)
    return {"row": row, **kinds, "rows": rows, "columns": columns, "count": count, "check": _check(*kinds.values())}


def _bytes(values: Tensor) -> bytes:
    return values.cpu().numpy().tobytes()


def _check(*kinds: Any) -> int:
    checksum = 0
    for kind in kinds:
        checksum = zlib.crc32(b"" if kind is None else kind, checksum)
    return checksum


def _mapped(path: Path) -> pa.Table:
    try:
        table = pa.ipc.open_file(pa.memory_map(str(path))).read_all()
        if not table.schema.equals(_SCHEMA):
            raise ValueError(f"columns {', '.join(table.column_names) or 'none'}")
        if (table.schema.metadata or {}).get(b"patches") not in (b"float32", b"float16"):
            raise ValueError("no dtype of patches in its metadata")
        table.validate(full=True)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise _corrupt(path, error) from None
    return table


def _rows(path: Path, samples: int) -> NDArray[np.int64]:
    rows = _mapped(path).column("row").to_numpy()
    if len(rows) and not 0 <= rows.min() <= rows.max() < samples:
        raise _corrupt(path, ValueError(f"it has rows beyond the {samples} samples of the dataset"))
    return rows


def _corrupt(path: Path, error: BaseException) -> InputError:
    why = " ".join(str(error).split())[:200]
    return InputError(f"cannot read {path} ({why}); remove it and run `distill teach` again")


def _features(table: pa.Table, place: int) -> TeacherFeatures:
    rows, columns, count = (table.column(name)[place].as_py() for name in ("rows", "columns", "count"))
    kinds = (table.column(name)[place].as_buffer() for name in ("summary", "patches", "registers"))
    if _check(*kinds) != table.column("check")[place].as_py():
        raise ValueError(f"row {place} is corrupt (checksum mismatch)")
    summary = _array(table, "summary", place, np.float32)
    patches = None
    if rows:
        patches = _array(table, "patches", place, np.dtype(table.schema.metadata[b"patches"].decode()))
        patches = patches.view(rows, columns, -1)
    registers = _array(table, "registers", place, np.float32).view(count, -1) if count else None
    return TeacherFeatures(summary, patches, registers)


def _array(table: pa.Table, name: str, place: int, dtype: Any) -> Tensor:
    return torch.from_numpy(np.frombuffer(table.column(name)[place].as_buffer(), dtype=dtype).copy())
