"""Evaluation sets: training and test images, and their labels, texts and masks.

Test images and their near-duplicates are never used for training: the split assigns whole duplicate sets. Each key
counts once, however many copies the dataset has. A limit on images takes those of lowest hash(seed, key).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from curate.core.errors import InputError
from curate.core.hashing import ranks_of_words
from distill.evaluation.masks import read_mask
from distill.recipe import DataRecipe, EvaluateRecipe, SourceRecipe
from distill.recipe.evaluate import EvaluationDataset, Fit
from distill.samples.batches.draws import Draws
from distill.samples.images.square import Square
from distill.samples.sources.members import MemberReader
from distill.samples.sources.mixture import Mixture, open_mixture
from distill.samples.sources.split import held_out_rows
from distill.samples.texts import Texts

_SALT = 0xE7A1
_CHUNK = 1 << 22
_OWN = ("label", "class_names", "texts", "masks")
"""Settings that each dataset can override."""
HELD_OUT = "held-out"


@dataclass(frozen=True)
class LabelSplit:
    """Rows of labelled training and test images, with their labels (0..classes-1)."""

    train: NDArray[np.int64]
    test: NDArray[np.int64]
    """Test rows for kNN and probes: their classes have enough training images."""
    labels: dict[int, int]
    """Label by row, including the rows left out."""
    classes: list[str]
    left_out: NDArray[np.int64]
    """Test rows whose classes have too few training images."""
    left_out_classes: int


@dataclass
class EvaluationSet:
    """One dataset, with the settings that apply to it."""

    name: str
    mixture: Mixture
    test: NDArray[np.bool_]
    """Mask (n,) of the test rows."""
    settings: EvaluateRecipe
    seed: int = 0
    workers: int = 2
    train: NDArray[np.bool_] | None = None
    """Mask (n,) of the training rows; None: all rows that are not test rows."""
    side: int | None = None
    """Resolution: the side in pixels of a square with as many pixels as an image; None: the limits of the sources."""

    fit: Fit = "native"
    """How images are brought to that resolution."""

    def __post_init__(self) -> None:
        self.members = MemberReader(self.mixture)
        self._split: LabelSplit | str | None = None
        self._taken: dict[bool, tuple[int, NDArray[np.int64]]] = {}

    def at_sizes(self) -> list[EvaluationSet]:
        """This set at each of evaluate.sizes, brought to it in each of evaluate.fits, or at the limits of its
        sources."""
        sides: list[int | None] = [*self.settings.sizes] or [None]
        return [replace(self, side=side, fit=fit) for side, fit in product(sides, self.settings.fits)]

    @property
    def title(self) -> str:
        """Its name, with the resolution."""
        size = "" if self.side is None else f", {self.side} px"
        return f"{self.name}{size}{'' if self.square is None else f', {self.fit}'}"

    @property
    def square(self) -> Square | None:
        """How images become squares; None if they keep their aspect ratio."""
        return None if self.fit == "native" else self.fit

    def rows(self, *, test: bool, most: int) -> NDArray[np.int64]:
        """Up to `most` test or training rows, lowest hash first."""
        limit, found = self._taken.get(test, (0, None))
        if found is None or most > limit:
            found = self._lowest(np.ones(len(self.test), dtype=bool), test=test, most=most)
            self._taken[test] = most, found
        return found[:most]

    def _lowest(self, chosen: NDArray[np.bool_], *, test: bool, most: int) -> NDArray[np.int64]:
        """Up to `most` test or training rows among the chosen rows (n,)."""
        side = self.test == test if self.train is None or test else self.train
        return lowest(self.mixture.words_of, chosen & side, seed=self.seed, most=most)

    def label_split(self) -> LabelSplit | str:
        """Labelled rows for kNN, probes and zero-shot, or the reason why there are none; read once."""
        if self._split is None:
            self._split = self._read_split()
        return self._split

    def _read_split(self) -> LabelSplit | str:
        settings, label = self.settings, self.settings.label
        train_labels, test_labels = self._labelled(settings.max_train_images, settings.max_test_images)
        known = train_labels | test_labels
        if not known and not self.mixture.has(label):
            return (
                f"no column, member or JSON field {label!r}; carry a column into the dataset, or set evaluate.label "
                f"to a column, a member ('cls') or a field ('json.name')"
            )
        if not test_labels:
            return f"no test image has a {label!r}"
        train, test = (np.array(list(side), dtype=np.int64) for side in (train_labels, test_labels))
        classes = sorted({known[row] for row in [*train, *test]})
        if len(classes) < 2:
            return f"all images have the same {label!r}, {classes[0]!r}; classification needs 2"
        number = {name: place for place, name in enumerate(classes)}
        counts = Counter(known[row] for row in train)
        kept = np.array([counts[known[row]] >= settings.min_train_images for row in test], dtype=bool)
        return LabelSplit(
            train=np.sort(train),
            test=np.sort(test[kept]),
            labels={int(row): number[known[row]] for row in [*train, *test]},
            classes=classes,
            left_out=np.sort(test[~kept]),
            left_out_classes=len({known[row] for row in test[~kept]}),
        )

    def _labelled(self, train: int, test: int) -> tuple[dict[int, str], dict[int, str]]:
        """Labels by row of up to `train` training and `test` test rows.

        Takes the first rows with a label if labels are in a column, which is read twice: to find the rows that have a
        label, and for their labels. If labels are in the tars, takes the rows with a label among the first rows.
        """
        label = self.settings.label
        if not self.mixture.has(label):
            rows = self.rows(test=False, most=train), self.rows(test=True, most=test)
            names = [own[0] if own else "" for own in self.texts([label], np.concatenate(rows).tolist())]
        else:
            labelled = self.mixture.has_value(label)
            rows = self._lowest(labelled, test=False, most=train), self._lowest(labelled, test=True, most=test)
            names = [_word(label, value) for value in self.mixture.values(label, np.concatenate(rows))]
        cut = len(rows[0])
        sides = zip(rows[0].tolist(), names[:cut], strict=True), zip(rows[1].tolist(), names[cut:], strict=True)
        first, second = ({row: name for row, name in side if name} for side in sides)
        return first, second

    def texts(self, names: Sequence[str], rows: Sequence[int]) -> list[list[str]]:
        """All texts of each row, from members or JSON fields of these names; unreadable texts count as missing."""
        return texts_of(self.mixture, self.members, names, rows, self.workers)

    def text_names(self) -> list[str]:
        """Members or JSON fields that hold texts: those of the settings, or else of the dataset's sources."""
        own = [name for recipe in self.mixture.recipes for name in recipe.texts]
        return self.settings.texts or list(dict.fromkeys(own))

    def mask(self, row: int, width: int, height: int) -> NDArray[np.int64] | None:
        """Class of each pixel (height, width), -1 for none, of an image of this size; None without a mask.

        Raises Reject if the image or the mask cannot be read.
        """
        assert self.settings.masks is not None
        return read_mask(self.members, row, self.settings.masks, width, height, self.square)


def _word(label: str, value: Any) -> str:
    """A label as text. Raises InputError if the column holds neither strings nor numbers."""
    try:
        return pa.scalar(value).cast(pa.string()).as_py() or ""
    except (pa.ArrowException, UnicodeDecodeError) as error:
        raise InputError(
            f"evaluate.label: column {label!r} holds {type(value).__name__}s; name a column of strings or numbers"
        ) from error


def lowest(
    words_of: Callable[[NDArray[np.int64]], NDArray[np.uint64]],
    chosen: NDArray[np.bool_],
    *,
    seed: int,
    most: int,
    chunk: int = _CHUNK,
) -> NDArray[np.int64]:
    """Up to `most` of the chosen rows (n,), those of lowest hash(seed, key), lowest first; the first row of each key.

    words_of: keys (m, 2) of rows (m,). Memory is one chunk of rows plus the result.
    """
    rows = np.zeros(0, dtype=np.int64)
    rank = np.zeros(0, dtype=np.uint64)
    for start in range(0, len(chosen), chunk):
        more = start + np.flatnonzero(chosen[start : start + chunk])
        found = ranks_of_words(seed, words_of(more), _SALT)
        if len(rows) == most:
            more, found = more[found < rank[-1]], found[found < rank[-1]]
        rows, rank = np.concatenate([rows, more]), np.concatenate([rank, found])
        order = np.lexsort((rows, rank))
        rows, rank = rows[order], rank[order]
        new = np.ones(len(rows), dtype=bool)
        words = words_of(rows)
        new[1:] = (rank[1:] != rank[:-1]) | (words[1:] != words[:-1]).any(1)
        rows, rank = rows[new][:most], rank[new][:most]
    return rows


def texts_of(
    mixture: Mixture, members: MemberReader, names: Sequence[str], rows: Sequence[int], workers: int = 2
) -> list[list[str]]:
    """All texts of each row, from members or JSON fields of these names; unreadable texts count as missing."""
    recipes = [item.model_copy(update={"texts": dict.fromkeys(names, 1.0)}) for item in mixture.recipes]
    reader = Texts(Mixture(mixture.sources, recipes), members, Draws(mixture, 0))
    with ThreadPoolExecutor(workers) as pool:
        return list(pool.map(reader.all_texts, map(int, rows)))


def open_sources(recipe: EvaluationDataset, max_tokens: int = 1) -> Mixture:
    """The dataset, and its training dataset if it names one. Raises InputError as `open_mixture` does."""
    places = [recipe.dataset] if recipe.train is None else [recipe.dataset, recipe.train]
    sources = [SourceRecipe(dataset=place, max_tokens=max_tokens, modality="any") for place in places]
    return open_mixture(DataRecipe(sources=sources, sequence_tokens=max_tokens))


def open_set(
    recipe: EvaluationDataset, settings: EvaluateRecipe, *, max_tokens: int, seed: int, workers: int
) -> EvaluationSet:
    """The dataset's own settings take precedence over those of the section."""
    mixture, train = open_sources(recipe, max_tokens), None
    if recipe.train is None:
        test = held_out_rows(mixture, seed=seed, fraction=recipe.test_fraction)
    else:
        test = mixture.source == 0
        train, test_keys = ~test, mixture.words_of(np.flatnonzero(test))[:, 0]
        train[train] = ~np.isin(mixture.words_of(np.flatnonzero(train))[:, 0], test_keys)
    own = {name: getattr(recipe, name) or getattr(settings, name) for name in _OWN}
    return EvaluationSet(recipe.name, mixture, test, settings.model_copy(update=own), seed, workers, train)
