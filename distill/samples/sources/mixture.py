"""A mixture of datasets with the interface of one: the rows of all sources, source by source."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from curate.codec.listing import extension
from curate.codec.patterns import NoFilesError
from curate.core.errors import InputError
from curate.core.hashing import digest, keys_of_words
from curate.core.store.storage import Storage
from distill.recipe.data import DataRecipe, SourceRecipe
from distill.samples.sources.clips import check_clips
from distill.samples.sources.dataset import Dataset, NoDatasetError, open_dataset
from distill.samples.sources.index import FRAMES, KEY
from distill.samples.sources.webdataset import open_webdataset

_PLACE = "data.sources"
_BLOCK = 1 << 20


class Mixture:
    """Sources with their recipes. Shard numbers are unique over all sources.

    The columns of a single source are memory-mapped. With several sources, `take`, `number`, `words_of` and `sets_of`
    read only the given rows; `integers`, `strings` and `words` copy the whole column.
    """

    def __init__(self, sources: Sequence[Dataset], recipes: Sequence[SourceRecipe]) -> None:
        self.sources, self.recipes = list(sources), list(recipes)
        assert len(self.sources) == len(self.recipes) > 0
        self.starts = np.cumsum([0, *(len(item) for item in self.sources)])
        """(sources + 1,): first row of each source, then n."""
        self._bounds = self.starts.tolist()
        self._most = [recipe.frames or np.iinfo(np.int64).max for recipe in self.recipes]
        """Frames that a clip of each source is limited to."""
        self.shards = np.cumsum([0, *(len(item.tars) for item in self.sources)])
        """(sources + 1,): first shard of each source, then the number of shards."""

    def __len__(self) -> int:
        return int(self.starts[-1])

    @property
    def fingerprint(self) -> str:
        """Digest of the content; equal to the source's fingerprint if there is only one."""
        own = [item.fingerprint for item in self.sources]
        return own[0] if len(own) == 1 else digest({"blend": own})

    @property
    def urls(self) -> list[str]:
        return [item.url for item in self.sources]

    @property
    def url(self) -> str:
        """For messages."""
        return ", ".join(self.urls)

    # --- some rows ---

    def source_of(self, rows: ArrayLike) -> NDArray[np.int64]:
        """The source (…) of rows (…)."""
        return np.searchsorted(self.starts, rows, side="right") - 1

    def locate(self, row: int) -> tuple[int, int]:
        """(source, row in the source) of a row."""
        for number in range(len(self.sources) - 1):
            if row < self._bounds[number + 1]:
                return number, row - self._bounds[number]
        return len(self.sources) - 1, row - self._bounds[-2]

    def number(self, name: str, row: int) -> int:
        """An integer of one row; -1 if its source has no such column."""
        source, place = self.locate(row)
        own = self.sources[source]
        value = own.index.numbers(name).item(place) if own.index.has(name) else -1
        return value + int(self.shards[source]) if name == "shard" else value

    def take(self, name: str, rows: ArrayLike) -> NDArray[np.int64]:
        """Integers (n,) of rows (n,); -1 for nulls and for sources without the column."""
        rows = np.asarray(rows, dtype=np.int64)
        found = np.full(rows.shape, -1, dtype=np.int64)
        for source, mine, places in self._by_source(rows):
            own = self.sources[source]
            if own.has(name):
                found[mine] = own.integers(name)[places] + (self.shards[source] if name == "shard" else 0)
        return found

    def stored_frames(self, rows: ArrayLike) -> NDArray[np.int64]:
        """Frames (n,) that the tars have of rows (n,); 1 for images."""
        return self.frames_of_videos(rows).clip(min=1)

    def frames_of_videos(self, rows: ArrayLike) -> NDArray[np.int64]:
        """Frames (n,) that the tars have of rows (n,); 0 for an mp4 without frames, -1 for images."""
        rows = np.asarray(rows, dtype=np.int64)
        found = np.full(rows.shape, -1, dtype=np.int64)
        for source, mine, places in self._by_source(rows):
            if self.sources[source].index.has(FRAMES):
                found[mine] = self.sources[source].index.numbers(FRAMES)[places]
        return found

    def frames(self, rows: ArrayLike) -> NDArray[np.int64]:
        """Frames (n,) that are read of rows (n,); 1 for images."""
        stored = self.stored_frames(rows)
        return np.minimum(stored, np.array(self._most)[self.source_of(rows)]) if (stored > 1).any() else stored

    def frames_of(self, row: int) -> tuple[int, int]:
        """(frames that the tar has, frames that are read) of one row."""
        stored = max(1, self.number(FRAMES, row))
        return stored, min(stored, self._most[self.locate(row)[0]])

    def words_of(self, rows: ArrayLike) -> NDArray[np.uint64]:
        """Keys (n, 2) of rows (n,), as 64-bit words."""
        return self._pairs(rows, [item.index.words for item in self.sources])

    def sets_of(self, rows: ArrayLike) -> NDArray[np.uint64]:
        """Hashes (n, 2) of the duplicate sets of rows (n,), as 64-bit words."""
        return self._pairs(rows, [item.index.sets for item in self.sources])

    def key(self, row: int) -> str:
        return keys_of_words(self.words_of([row]))[0]

    def value(self, name: str, row: int) -> Any:
        return self.key(row) if name == KEY else self.values(name, [row])[0]

    def values(self, name: str, rows: ArrayLike) -> list[Any]:
        """Values of a column at rows (n,); None for sources without the column."""
        rows = np.asarray(rows, dtype=np.int64)
        found: list[Any] = [None] * len(rows)
        for source, mine, places in self._by_source(rows):
            if self.sources[source].has(name):
                for at, value in zip(mine.tolist(), self.sources[source].values(name, places), strict=True):
                    found[at] = value
        return found

    def has_value(self, name: str) -> NDArray[np.bool_]:
        """(n,): whether a row's value of a column is neither null nor an empty string."""
        return _joined([item.has_value(name) if item.has(name) else np.zeros(len(item), bool) for item in self.sources])

    def _by_source(self, rows: NDArray[np.int64]) -> Iterator[tuple[int, NDArray[np.int64], NDArray[np.int64]]]:
        """Split rows (n,) by source: (source, indices into `rows`, rows of the source)."""
        if len(self.sources) == 1:
            yield 0, np.arange(len(rows)), rows
            return
        source = self.source_of(rows)
        for number in np.unique(source).tolist():
            mine = np.flatnonzero(source == number)
            yield number, mine, rows[mine] - self._bounds[number]

    def _pairs(self, rows: ArrayLike, arrays: Sequence[NDArray[np.uint64]]) -> NDArray[np.uint64]:
        rows = np.asarray(rows, dtype=np.int64)
        if len(arrays) == 1:
            return arrays[0][rows]
        found = np.empty((len(rows), 2), dtype=np.uint64)
        for source, mine, places in self._by_source(rows):
            found[mine] = arrays[source][places]
        return found

    @cached_property
    def chosen(self) -> NDArray[np.bool_] | None:
        """(n,): whether a sample is of the kind, image or clip, that its source is limited to; None without a limit."""
        if all(recipe.only is None for recipe in self.recipes):
            return None
        return self._of_kind(np.arange(len(self)))

    def _of_kind(self, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
        kinds = np.array(["" if recipe.only is None else recipe.only for recipe in self.recipes])[self.source_of(rows)]
        return (kinds == "") | (kinds == np.where(self.frames_of_videos(rows) >= 0, "clips", "images"))

    def within_limits(self, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
        """`eligible` of rows (n,), without reading the others."""
        found = np.ones(len(rows), dtype=bool)
        if any(recipe.only is not None for recipe in self.recipes):
            found &= self._of_kind(rows)
        for number, mine, places in self._by_source(rows):
            if self.recipes[number].natural_side is not None:
                found[mine] &= self._in_range(number, self._sides(number, places))
        return found

    @cached_property
    def eligible(self) -> NDArray[np.bool_] | None:
        """(n,): whether a sample is `chosen`, and has a natural size that its source is trained on; None if no source
        has a limit.

        Raises InputError for a source without such an image.
        """
        if all(recipe.natural_side is None for recipe in self.recipes):
            return self.chosen
        sizes = np.concatenate([self._eligible(number) for number in range(len(self.sources))])
        return sizes if self.chosen is None else sizes & self.chosen

    def _eligible(self, number: int) -> NDArray[np.bool_]:
        own, limits = self.sources[number], self.recipes[number].natural_side
        if limits is None:
            return np.ones(len(own), dtype=bool)
        low, high = limits[0] or 1, limits[1] or np.inf
        found, smallest, largest = np.zeros(len(own), dtype=bool), np.inf, 0.0
        for start in range(0, len(own), _BLOCK):
            part = slice(start, start + _BLOCK)
            side = self._sides(number, part)
            found[part] = self._in_range(number, side)
            smallest, largest = min(smallest, side.min()), max(largest, side.max())
        if not found.any():
            raise InputError(
                f"{_PLACE}.{number}.natural_side: none of the {len(own)} images of {own.url} has a natural size of "
                f"{low} px or more{f' and {high} px or less' if limits[1] else ''}; their sizes are {smallest:.0f} to "
                f"{largest:.0f} px (0: unknown); change the range or remove the source"
            )
        return found

    def _sides(self, number: int, places: Any) -> NDArray[np.float64]:
        """Natural sizes (n,) of images of a source, by its rows (n,) or a slice of them; 0 if unknown."""
        widths, heights = (self.sources[number].index.numbers(name)[places] for name in ("width", "height"))
        return np.sqrt(np.maximum(widths, 0) * np.maximum(heights, 0).astype(np.float64))

    def _in_range(self, number: int, sides: NDArray[np.float64]) -> NDArray[np.bool_]:
        low, high = self.recipes[number].natural_side or (None, None)
        return (sides >= (low or 1)) & (sides <= (high or np.inf))

    def shard_samples(self, shard: int) -> int:
        source = int(np.searchsorted(self.shards, shard, side="right")) - 1
        shards = self.sources[source].index.numbers("shard")
        first = shard - int(self.shards[source])
        start, stop = np.searchsorted(shards, np.array([first, first + 1], dtype=shards.dtype))
        return int(stop - start)

    # --- whole columns ---

    @cached_property
    def source(self) -> NDArray[np.int16]:
        """(n,): the source of each row."""
        return np.repeat(np.arange(len(self.sources), dtype=np.int16), np.diff(self.starts))

    @property
    def words(self) -> NDArray[np.uint64]:
        """Keys (n, 2) as 64-bit words."""
        return _joined([item.index.words for item in self.sources])

    def has(self, name: str) -> bool:
        """Whether any source has the column; rows of other sources are -1 or None."""
        return any(item.has(name) for item in self.sources)

    def integers(self, name: str) -> NDArray[Any]:
        """A column (n,); -1 for nulls and for sources without the column."""
        parts = [item.integers(name) if item.has(name) else np.full(len(item), -1) for item in self.sources]
        if name == "shard" and len(parts) > 1:
            parts = [part + first for part, first in zip(parts, self.shards[:-1], strict=True)]
        return _joined(parts)

    def strings(self, name: str) -> list[str | None]:
        parts = [item.strings(name) if item.has(name) else [None] * len(item) for item in self.sources]
        return [value for part in parts for value in part]

    def tar(self, shard: int) -> tuple[Storage, str]:
        """(storage, file name) of a shard."""
        source = int(np.searchsorted(self.shards, shard, side="right")) - 1
        return self.sources[source].storage, self.sources[source].tars[shard - int(self.shards[source])]


def _joined(parts: Sequence[NDArray[Any]]) -> NDArray[Any]:
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def open_mixture(data: DataRecipe) -> Mixture:
    """Raises InputError for the first source that cannot be read."""
    return open_mixtures([data])[0]


def open_again(data: DataRecipe) -> Mixture:
    """The mixture of a run that was checked when it started; reads no row."""
    opened = {source.dataset: open_source(source.dataset) for source in data.sources}
    return Mixture([opened[source.dataset] for source in data.sources], data.sources)


def open_mixtures(stages: Iterable[DataRecipe]) -> list[Mixture]:
    """The mixture of each stage. A dataset in several stages is opened once. Raises InputError as `open_mixture`."""
    opened: dict[str, Dataset] = {}
    mixtures = []
    for data in stages:
        for source in data.sources:
            if source.dataset not in opened:
                opened[source.dataset] = open_source(source.dataset)
        mixtures.append(Mixture([opened[source.dataset] for source in data.sources], data.sources))
    for mixture in mixtures:
        check_clips(mixture)
        _ = mixture.eligible  # an error before anything is computed
    return mixtures


def open_source(url: str) -> Dataset:
    """A packed dataset, or any WebDataset: a folder of tars without a manifest, a tar, a glob or a brace pattern."""
    if extension(url) == "tar" or "{" in url:
        return open_webdataset(url, _PLACE)
    try:
        return open_dataset(url)
    except NoDatasetError:
        try:
            return open_webdataset(url, _PLACE)
        except NoFilesError as error:
            raise InputError(f"{error}; a packed dataset has a manifest.json") from None


def as_mixture(dataset: Dataset | Mixture, recipes: Sequence[SourceRecipe] = ()) -> Mixture:
    """A mixture unchanged, or a mixture of one dataset; recipes: its recipe, if it has one."""
    if isinstance(dataset, Mixture):
        return dataset
    return Mixture([dataset], list(recipes[:1]) or [SourceRecipe(dataset=dataset.url)])
