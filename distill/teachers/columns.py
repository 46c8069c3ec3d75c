"""What teachers say of whole datasets, kept on disk: a file per shard, computed once by `distill teach`.

FOLDER/KEY/000012.arrow holds the answers on the pictures of tar 12, in the order of the index; pictures that could not
be read are absent. KEY is the digest of all that decides them: the dataset's content, the teacher, and for a teacher
that looks at the student's patches their size, the limit of their number, and how pictures are decoded. Files are
Arrow's, mapped and not compressed: pictures are read in random order, and Parquet would decode a group of them.
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
from distill.recipe.places import local_folder
from distill.samples.sources.dataset import Dataset
from distill.samples.sources.mixture import Blend
from distill.teachers.base import Answer

VERSION = 2
"""Rises when the files' layout does, or what they hold of the same recipe."""
_OPEN = 64
_LOG = logging.getLogger("distill")
_SCHEMA = pa.schema(
    [
        pa.field("row", pa.int64(), nullable=False),  # of the dataset's index
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


def columns_key(dataset: Dataset, source: SourceRecipe, teacher: TeacherRecipe, recipe: Recipe) -> str | None:
    """Where a teacher's answers on a dataset lie; None where they are not the same at every visit."""
    native = teacher.pictures == "student"
    if recipe.data.augment is not None or (native and len(source.sizes) > 1):
        return None
    kinds = {
        "patches": teacher.keep if teacher.patches.weight > 0 or teacher.pooler else None,
        "registers": recipe.student.registers if teacher.registers.weight > 0 else 0,
    }
    whole = any(item.pictures == "own" for item in recipe.teachers)  # else a large JPEG is decoded smaller
    grid = {"patch": recipe.student.patch, "max_tokens": max(source.sizes), "whole": whole} if native else {}
    what = identity(teacher.encoder, precision=teacher.precision)
    return digest({"version": VERSION, "dataset": dataset.fingerprint, "teacher": what, **kinds, **grid})


def is_kept(storage: Storage, name: str) -> bool:
    """Whether a shard's answers are there. A file that cannot be read is said, and removed, since it was asked for."""
    if not storage.exists(name):
        return False
    try:
        _mapped(Path(storage.path(name)))
    except InputError as error:
        _LOG.warning("%s; it is made again", str(error).rpartition("; remove")[0])
        storage.remove(name)
        return False
    return True


class Columns:
    """Answers of one teacher by row of a blend. `has` may be called by many threads, `get` by one."""

    def __init__(self, folder: Path, blend: Blend, keys: Sequence[str | None]) -> None:
        """keys: of each source. Shards that are not there are as if nobody had asked."""
        self._paths: list[Path] = []
        self._file = np.full(len(blend), -1, dtype=np.int32)
        self._place = np.zeros(len(blend), dtype=np.int32)
        self._open: OrderedDict[int, pa.Table] = OrderedDict()
        for source, key in enumerate(keys):
            for shard in range(len(blend.sources[source].tars) if key is not None else 0):
                path = folder / shard_file(str(key), shard)
                if path.is_file():
                    rows = _rows(path, len(blend.sources[source])) + int(blend.starts[source])
                    self._file[rows], self._place[rows] = len(self._paths), np.arange(len(rows))
                    self._paths.append(path)

    def __len__(self) -> int:
        return int((self._file >= 0).sum())

    def has(self, row: int) -> bool:
        return bool(self._file[row] >= 0)

    def get(self, row: int) -> Answer | None:
        file = int(self._file[row])
        if file < 0:
            return None
        if file not in self._open:
            self._open[file] = _mapped(self._paths[file])
        self._open.move_to_end(file)
        while len(self._open) > _OPEN:
            self._open.popitem(last=False)
        try:
            return _answer(self._open[file], int(self._place[row]))
        except (pa.ArrowException, ValueError, KeyError, TypeError, RuntimeError) as error:
            raise _damaged(self._paths[file], error) from None


def open_columns(recipe: Recipe, blend: Blend) -> dict[str, Columns]:
    """Of all teachers, by label; empty without run.teacher_cache."""
    if recipe.run.teacher_cache is None:
        return {}
    folder = local_folder(recipe.run.teacher_cache, "run.teacher_cache")
    sources = list(zip(blend.sources, blend.recipes, strict=True))
    found = {
        teacher.label: Columns(folder, blend, [columns_key(*source, teacher, recipe) for source in sources])
        for teacher in recipe.teachers
    }
    for label, columns in found.items():
        if len(columns) < len(blend):
            what = "run.teacher_cache: %s holds what %s says of %s of %s pictures; the rest is computed"
            _LOG.warning(what, folder, label, f"{len(columns):,}", f"{len(blend):,}")
    return found


@dataclass
class ShardWriter:
    file: Any
    """Arrow's."""
    schema: pa.Schema

    def add(self, rows: Sequence[int], answers: Sequence[Answer]) -> None:
        """rows: of the dataset's index."""
        if rows:
            values = [_values(row, answer) for row, answer in zip(rows, answers, strict=True)]
            self.file.write_batch(pa.RecordBatch.from_pylist(values, schema=self.schema))


@contextmanager
def writing_shard(storage: Storage, name: str, keep: str) -> Iterator[ShardWriter]:
    """The file appears, complete, when the block ends well. keep: how patches are held, float32 or float16."""
    schema = _SCHEMA.with_metadata({"patches": keep})
    with storage.publish(name) as aside, pa.OSFile(str(aside), "wb") as sink, pa.ipc.new_file(sink, schema) as file:
        yield ShardWriter(file, schema)


def answer_bytes(answer: Answer, patches: float | None = None) -> float:
    """On disk; patches: so many on average, where the student's grid decides."""
    own = sum(kind.nbytes for kind in answer.kinds())
    if patches is None or answer.patches is None:
        return own
    height, width, _ = answer.patches.shape
    return own + answer.patches.nbytes * (patches / (height * width) - 1)


def _values(row: int, answer: Answer) -> Mapping[str, Any]:
    rows, columns, _ = (0, 0, 0) if answer.patches is None else answer.patches.shape
    kinds = {
        "summary": _bytes(answer.summary),
        "patches": None if answer.patches is None else _bytes(answer.patches),
        "registers": None if answer.registers is None else _bytes(answer.registers),
    }
    count = 0 if answer.registers is None else len(answer.registers)
    return {"row": row, **kinds, "rows": rows, "columns": columns, "count": count, "check": _check(*kinds.values())}


def _bytes(values: Tensor) -> bytes:
    return values.cpu().numpy().tobytes()


def _check(*kinds: Any) -> int:
    found = 0
    for kind in kinds:
        found = zlib.crc32(b"" if kind is None else kind, found)
    return found


def _mapped(path: Path) -> pa.Table:
    try:
        table = pa.ipc.open_file(pa.memory_map(str(path))).read_all()
        if not table.schema.equals(_SCHEMA):
            raise ValueError(f"columns {', '.join(table.column_names) or 'none'}")
        if (table.schema.metadata or {}).get(b"patches") not in (b"float32", b"float16"):
            raise ValueError("it does not say how patches are held")
        table.validate(full=True)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise _damaged(path, error) from None
    return table


def _rows(path: Path, samples: int) -> NDArray[np.int64]:
    rows = _mapped(path).column("row").to_numpy()
    if len(rows) and not 0 <= rows.min() <= rows.max() < samples:
        raise _damaged(path, ValueError(f"it names samples outside of the {samples} that there are"))
    return rows


def _damaged(path: Path, error: BaseException) -> InputError:
    why = " ".join(str(error).split())[:200]
    return InputError(f"{path}: cannot be read ({why}); remove it and run `distill teach` again")


def _answer(table: pa.Table, place: int) -> Answer:
    rows, columns, count = (table.column(name)[place].as_py() for name in ("rows", "columns", "count"))
    kinds = (table.column(name)[place].as_buffer() for name in ("summary", "patches", "registers"))
    if _check(*kinds) != table.column("check")[place].as_py():
        raise ValueError(f"answer {place} of it has changed since it was written")
    summary = _array(table, "summary", place, np.float32)
    patches = None
    if rows:
        patches = _array(table, "patches", place, np.dtype(table.schema.metadata[b"patches"].decode()))
        patches = patches.view(rows, columns, -1)
    registers = _array(table, "registers", place, np.float32).view(count, -1) if count else None
    return Answer(summary, patches, registers)


def _array(table: pa.Table, name: str, place: int, dtype: Any) -> Tensor:
    return torch.from_numpy(np.frombuffer(table.column(name)[place].as_buffer(), dtype=dtype).copy())
