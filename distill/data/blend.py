"""Several datasets behind the interface of one: rows of all sources, one source after another."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from curate.core.hashing import digest, key_words
from curate.core.storage import Storage
from distill.data.dataset import Dataset, NoDataset, open_dataset
from distill.data.webdataset import find_tars, open_webdataset
from distill.recipe.data import DataRecipe, SourceRecipe


class Blend:
    """Sources with what the recipe says of each; a row's shard is unique over all of them."""

    def __init__(self, sources: Sequence[Dataset], recipes: Sequence[SourceRecipe]) -> None:
        self.sources, self.recipes = list(sources), list(recipes)
        assert len(self.sources) == len(self.recipes) > 0
        self.source = np.repeat(np.arange(len(self.sources)), [len(item) for item in self.sources])
        """(n,): the source of each row."""
        self.starts = np.cumsum([0, *(len(item) for item in self.sources)])
        """(sources + 1,): first row of each source, then n."""
        self._shards = np.cumsum([0, *(len(item.tars) for item in self.sources)])

    def __len__(self) -> int:
        return int(self.starts[-1])

    @cached_property
    def words(self) -> NDArray[np.uint64]:
        """Keys (n, 2) as words of 64 bits."""
        return key_words([str(key) for key in self.strings("key")])

    @property
    def fingerprint(self) -> str:
        """Of the content; a blend of one source has that source's."""
        own = [item.fingerprint for item in self.sources]
        return own[0] if len(own) == 1 else digest({"blend": own})

    @property
    def urls(self) -> list[str]:
        return [item.url for item in self.sources]

    @property
    def url(self) -> str:
        """For people."""
        return ", ".join(self.urls)

    def has(self, name: str) -> bool:
        """Whether any source has the column; rows of the others are -1 or None."""
        return any(item.has(name) for item in self.sources)

    def integers(self, name: str) -> NDArray[np.int64]:
        """A column (n,); nulls and what a source does not have are -1."""
        parts = [
            item.integers(name) if item.has(name) else np.full(len(item), -1, dtype=np.int64) for item in self.sources
        ]
        if name == "shard":
            parts = [part + first for part, first in zip(parts, self._shards[:-1], strict=True)]
        return np.concatenate(parts)

    def strings(self, name: str, rows: NDArray[np.int64] | None = None) -> list[str | None]:
        """A column (n,), or its values at some rows, in their order."""
        if rows is not None:
            return self._strings_at(name, rows)
        parts = [item.strings(name) if item.has(name) else [None] * len(item) for item in self.sources]
        return [value for part in parts for value in part]

    def _strings_at(self, name: str, rows: NDArray[np.int64]) -> list[str | None]:
        found: list[str | None] = [None] * len(rows)
        for number, source in enumerate(self.sources):
            places = np.flatnonzero(self.source[rows] == number)
            if len(places) and source.has(name):
                for place, value in zip(places, source.strings(name, rows[places] - self.starts[number]), strict=True):
                    found[place] = value
        return found

    def value(self, name: str, row: int) -> Any:
        """One value of a column that the row's source has."""
        source = int(self.source[row])
        return self.sources[source].index.column(name)[row - int(self.starts[source])].as_py()

    def tar(self, shard: int) -> tuple[Storage, str]:
        """Where a shard lies: storage and name."""
        source = int(np.searchsorted(self._shards, shard, side="right")) - 1
        return self.sources[source].storage, self.sources[source].tars[shard - int(self._shards[source])]


def open_blend(data: DataRecipe) -> Blend:
    """Raises InputError as `open_source` does, for the first source that cannot be read."""
    return Blend([open_source(source.dataset) for source in data.sources], data.sources)


def open_source(url: str) -> Dataset:
    """A dataset of ours, or any WebDataset: a folder of tars without a manifest, or a pattern of tars."""
    if url.endswith(".tar") or "{" in url:
        return open_webdataset(*find_tars(url))
    try:
        return open_dataset(url)
    except NoDataset:
        storage, tars = find_tars(url)
        if not tars:
            raise
        return open_webdataset(storage, tars)


def as_blend(dataset: Dataset | Blend, recipes: Sequence[SourceRecipe] = ()) -> Blend:
    """A blend as it is; a dataset as one of a single source, which `recipes` may describe."""
    if isinstance(dataset, Blend):
        return dataset
    return Blend([dataset], list(recipes[:1]) or [SourceRecipe(dataset=dataset.url)])
