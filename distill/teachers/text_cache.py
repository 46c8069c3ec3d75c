"""Vectors of whole datasets' texts by a teacher's text tower, on disk beside its features of images: `distill teach`
computes them once.

FOLDER/KEY/000012.arrow has a row for each sample of tar 12 with all its texts among those that the recipe names. A
single sentence of a text is not among them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from curate.core.hashing import digest
from curate.encoders import identity
from distill.recipe import Recipe, TeacherRecipe
from distill.recipe.data import SourceRecipe
from distill.recipe.paths import local_folder
from distill.samples.sources.dataset import Dataset
from distill.samples.sources.mixture import Mixture
from distill.teachers.shard_files import ShardFiles, check, checksum

TextCache = ShardFiles[dict[str, Tensor]]
"""Vectors (E,) of a sample's texts, by row."""
VERSION = 1
"""Raise it when the files' format changes, or their content for the same recipe."""
SCHEMA = pa.schema(
    [
        pa.field("row", pa.int64(), nullable=False),  # in the dataset's index
        pa.field("texts", pa.list_(pa.string()), nullable=False),
        pa.field("vectors", pa.binary(), nullable=False),  # float32 (T, E)
        pa.field("check", pa.uint32(), nullable=False),  # CRC-32 of the texts and vectors
    ]
)


def text_key(dataset: Dataset, source: SourceRecipe, teacher: TeacherRecipe, recipe: Recipe) -> str | None:
    """Folder of a teacher's vectors of a dataset's texts; None if the recipe does not need them."""
    if teacher.label not in recipe.needs.teacher_texts:
        return None
    what = identity(teacher.encoder, precision=teacher.precision)
    return digest({"texts": VERSION, "dataset": dataset.fingerprint, "teacher": what, "names": sorted(source.texts)})


def batch_of(rows: Sequence[int], texts: Sequence[Sequence[str]], vectors_NE: Tensor) -> pa.RecordBatch:
    """rows: in the dataset's index; vectors: of all the texts, in order."""
    each = vectors_NE.cpu().numpy().astype(np.float32)
    parts = [part.tobytes() for part in np.split(each, np.cumsum([len(own) for own in texts])[:-1])]
    values = zip(rows, texts, parts, strict=True)
    return pa.RecordBatch.from_pylist(
        [
            {"row": row, "texts": list(own), "vectors": part, "check": checksum(*map(str.encode, own), part)}
            for row, own, part in values
        ],
        schema=SCHEMA,
    )


def open_text_caches(recipe: Recipe, mixture: Mixture) -> dict[str, TextCache]:
    """Caches of the teachers whose text towers read texts, by label; empty without run.teacher_cache."""
    if recipe.run.teacher_cache is None:
        return {}
    folder, found = local_folder(recipe.run.teacher_cache, "run.teacher_cache"), dict[str, TextCache]()
    for teacher in (item for item in recipe.teachers if item.label in recipe.needs.teacher_texts):
        sources = zip(mixture.sources, mixture.recipes, strict=True)
        keys = [text_key(*source, teacher, recipe) for source in sources]
        found[teacher.label] = ShardFiles(folder, mixture, keys, SCHEMA, _vectors)
    return found


def _vectors(table: pa.Table, place: int) -> dict[str, Tensor]:
    """Vectors (E,) of a sample's texts. Raises ValueError for a corrupt row."""
    texts, data = table.column("texts")[place].as_py(), table.column("vectors")[place].as_py()
    check(table, place, *map(str.encode, texts), data)
    if not texts:
        return {}
    vectors_TE = torch.from_numpy(np.frombuffer(data, np.float32).copy()).view(len(texts), -1)
    return dict(zip(texts, vectors_TE, strict=True))
