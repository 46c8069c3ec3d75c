"""Teachers' features of whole datasets on disk (`run.teacher_cache`), computed once by `distill teach`.

A file (`shard_files`) has a teacher's features of the images in a tar, without unreadable images. Its folder is the
digest of everything that the features depend on: the dataset's content, the teacher, and for a teacher that reads the
student's patches also their size, their maximum number and how images are decoded.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from curate.core.hashing import digest
from curate.core.store.storage import Storage
from curate.encoders import identity
from distill.recipe import Recipe, TeacherRecipe
from distill.recipe.data import SourceRecipe
from distill.recipe.paths import local_folder
from distill.samples.sources.dataset import Dataset
from distill.samples.sources.mixture import Mixture
from distill.teachers.base import TeacherFeatures
from distill.teachers.shard_files import ShardFiles, check, checksum, writing

VERSION = 2
"""Raise it when the files' format changes, or their content for the same recipe."""
_LOG = logging.getLogger("distill")
FeatureCache = ShardFiles[TeacherFeatures]
SCHEMA = pa.schema(
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


def open_caches(recipe: Recipe, mixture: Mixture) -> dict[str, FeatureCache]:
    """Caches of all teachers, by label; empty without run.teacher_cache."""
    if recipe.run.teacher_cache is None:
        return {}
    folder = local_folder(recipe.run.teacher_cache, "run.teacher_cache")
    sources = list(zip(mixture.sources, mixture.recipes, strict=True))
    found = dict[str, FeatureCache]()
    for teacher in recipe.teachers:
        keys = [cache_key(*source, teacher, recipe) for source in sources]
        found[teacher.label] = ShardFiles(folder, mixture, keys, SCHEMA, _features)
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
    schema = SCHEMA.with_metadata({"patches": keep})
    with writing(storage, name, schema) as file:
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
    return {"row": row, **kinds, "rows": rows, "columns": columns, "count": count, "check": checksum(*kinds.values())}


def _bytes(values: Tensor) -> bytes:
    return values.cpu().numpy().tobytes()


def _features(table: pa.Table, place: int) -> TeacherFeatures:
    rows, columns, count = (table.column(name)[place].as_py() for name in ("rows", "columns", "count"))
    kinds = (table.column(name)[place].as_buffer() for name in ("summary", "patches", "registers"))
    check(table, place, *kinds)
    summary = _array(table, "summary", place, np.float32)
    patches = None
    if rows:
        patches = _array(table, "patches", place, np.dtype(table.schema.metadata[b"patches"].decode()))
        patches = patches.view(rows, columns, -1)
    registers = _array(table, "registers", place, np.float32).view(count, -1) if count else None
    return TeacherFeatures(summary, patches, registers)


def _array(table: pa.Table, name: str, place: int, dtype: Any) -> Tensor:
    return torch.from_numpy(np.frombuffer(table.column(name)[place].as_buffer(), dtype=dtype).copy())
