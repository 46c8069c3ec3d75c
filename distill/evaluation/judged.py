"""Pictures that models are judged on: which are learnt from, which are asked about, and what is known of them.

What is asked about is never learnt from, nor is a near-duplicate of it: the line runs between duplicate sets. Each key
counts once, however many copies the dataset has. Where only some are taken, they are those of lowest hash(seed, key).
"""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from PIL import Image

from curate.codec.images import probe
from curate.codec.pixels import upright
from curate.core.errors import InputError, Reject
from curate.core.hashing import ranks_of_words
from distill.recipe import DataRecipe, EvaluateRecipe, SourceRecipe
from distill.recipe.evaluate import JudgedRecipe
from distill.samples.batches.draws import Draws
from distill.samples.sources.members import Members
from distill.samples.sources.mixture import Blend, open_blend
from distill.samples.sources.split import held_out_rows
from distill.samples.texts import Texts

_SALT = 0xE7A1
_CHUNK = 1 << 22
_OWN = ("label", "class_names", "texts", "masks")
"""Settings that a set may have of its own."""
HELD_OUT = "held-out"
ALPHA = "alpha"
Plane = TypeVar("Plane", Image.Image, Image.Image | None)


@dataclass(frozen=True)
class Questions:
    """Rows of the index to learn from and to ask about, with labels (0..classes-1)."""

    train: NDArray[np.int64]
    test: NDArray[np.int64]
    """Asked by neighbours and probes: their classes have enough training pictures."""
    labels: dict[int, int]
    """By row, also of those that were left out."""
    classes: list[str]
    left_out: NDArray[np.int64]
    left_out_classes: int


@dataclass
class Judged:
    """One set of pictures, with the part of the settings that is its own."""

    name: str
    blend: Blend
    test: NDArray[np.bool_]
    """(n,): the rows that are asked about."""
    settings: EvaluateRecipe
    seed: int = 0
    workers: int = 2
    learnt: NDArray[np.bool_] | None = None
    """(n,): the rows that may be learnt from; None for all that are not asked about."""

    def __post_init__(self) -> None:
        self.members = Members(self.blend)
        self._taken: dict[bool, tuple[int, NDArray[np.int64]]] = {}

    def rows(self, *, test: bool, most: int) -> NDArray[np.int64]:
        """Rows of one side, in the order in which they are taken."""
        asked, found = self._taken.get(test, (0, None))
        if found is None or most > asked:
            found = self._lowest(np.ones(len(self.test), dtype=bool), test=test, most=most)
            self._taken[test] = most, found
        return found[:most]

    def _lowest(self, chosen: NDArray[np.bool_], *, test: bool, most: int) -> NDArray[np.int64]:
        """Of the chosen rows (n,) of a side."""
        side = self.test == test if self.learnt is None or test else self.learnt
        return lowest(self.blend.words_of, chosen & side, seed=self.seed, most=most)

    def questions(self) -> Questions | str:
        """What neighbours, probes and zero-shot are asked, or in words why there is nothing to ask."""
        settings, label = self.settings, self.settings.label
        learnt, questioned = self._labelled(settings.max_train_images, settings.max_test_images)
        known = learnt | questioned
        if not known and not self.blend.has(label):
            return (
                f"no column, member or JSON field {label!r}; carry a column into the dataset, or set evaluate.label "
                f"to a column, a member ('cls') or a field ('json.name')"
            )
        if not questioned:
            return f"no picture that is asked about has a {label!r}"
        train, asked = (np.array(list(side), dtype=np.int64) for side in (learnt, questioned))
        classes = sorted({known[row] for row in [*train, *asked]})
        if len(classes) < 2:
            return f"all pictures have the same {label!r}, {classes[0]!r}; there is nothing to tell apart"
        number = {name: place for place, name in enumerate(classes)}
        counts = Counter(known[row] for row in train)
        kept = np.array([counts[known[row]] >= settings.min_train_images for row in asked], dtype=bool)
        return Questions(
            train=np.sort(train),
            test=np.sort(asked[kept]),
            labels={int(row): number[known[row]] for row in [*train, *asked]},
            classes=classes,
            left_out=np.sort(asked[~kept]),
            left_out_classes=len({known[row] for row in asked[~kept]}),
        )

    def _labelled(self, train: int, test: int) -> tuple[dict[int, str], dict[int, str]]:
        """Labels by row, of so many rows of each side: the first that have one; of labels in the tars, of those among
        the first rows. A column is read twice, for who has one and for what it is, whatever is asked for."""
        label = self.settings.label
        if not self.blend.has(label):
            rows = self.rows(test=False, most=train), self.rows(test=True, most=test)
            names = [own[0] if own else "" for own in self.texts([label], np.concatenate(rows).tolist())]
        else:
            said = self.blend.said(label)
            rows = self._lowest(said, test=False, most=train), self._lowest(said, test=True, most=test)
            names = [_word(label, value) for value in self.blend.values(label, np.concatenate(rows))]
        cut = len(rows[0])
        learnt, asked = zip(rows[0].tolist(), names[:cut], strict=True), zip(rows[1].tolist(), names[cut:], strict=True)
        return {row: name for row, name in learnt if name}, {row: name for row, name in asked if name}

    def texts(self, names: Sequence[str], rows: Sequence[int]) -> list[list[str]]:
        """All texts of each row: members of these names, or JSON fields. What cannot be read is not there."""
        return texts_of(self.blend, self.members, names, rows, self.workers)

    def text_names(self) -> list[str]:
        """Where texts come from: as the settings say, else as the set's sources do."""
        own = [name for recipe in self.blend.recipes for name in recipe.texts]
        return self.settings.texts or list(dict.fromkeys(own))

    def mask(self, row: int, width: int, height: int) -> NDArray[np.int64] | None:
        """Class of each pixel (height, width), -1 for none, of a picture that was made so large; None without a mask.

        Raises Reject for a picture or mask that cannot be read.
        """
        name = self.settings.masks
        assert name is not None
        data = self.members.read(row) if name == ALPHA else self.members.member(row, name)
        if data is None:
            return None
        orientation = 1
        if name == ALPHA:
            found = probe(data)
            if not found.alpha:
                return None
            orientation = found.orientation
        plane = _opened(data, name, row, _alpha) if name == ALPHA else mask_classes(data, name, row)
        if plane is None:
            return None
        plane = upright(plane, orientation).resize((width, height), Image.Resampling.NEAREST)
        values = np.asarray(plane).astype(np.int64)
        if name == ALPHA:
            return (values >= 128).astype(np.int64)
        return np.where(values == 255, -1, values)


def _word(label: str, value: Any) -> str:
    """A label as arrow writes it. Raises InputError for a column that holds no words or numbers."""
    try:
        return pa.scalar(value).cast(pa.string()).as_py() or ""
    except (pa.ArrowException, UnicodeDecodeError) as error:
        raise InputError(
            f"evaluate.label: column {label!r} holds {type(value).__name__}s; name one of words or numbers"
        ) from error


def lowest(
    words_of: Callable[[NDArray[np.int64]], NDArray[np.uint64]],
    chosen: NDArray[np.bool_],
    *,
    seed: int,
    most: int,
    chunk: int = _CHUNK,
) -> NDArray[np.int64]:
    """Of the chosen rows (n,), the `most` of lowest hash(seed, key), the lowest first; of equal keys the first row.

    words_of: keys (m, 2) of rows (m,). Needs memory for a chunk of rows and for those that it finds.
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


def _alpha(image: Image.Image) -> Image.Image | None:
    """None for a picture that is opaque (or empty) everywhere: it does not say what its figure is."""
    alpha = image.convert("RGBA").getchannel("A")
    low, high = alpha.getextrema()
    return alpha if low < 128 <= high else None


def mask_classes(data: bytes, name: str, row: int) -> Image.Image:
    """A mask as a plane of classes. Raises Reject for one that cannot be read, InputError for one of colours."""
    return _opened(data, name, row, lambda image: _classes(image, row))


def _opened(data: bytes, name: str, row: int, read: Callable[[Image.Image], Plane]) -> Plane:
    try:
        with Image.open(io.BytesIO(data)) as image:
            return read(image)
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise Reject("mask_unreadable", f"{name} of row {row}: {error}") from error


def _classes(image: Image.Image, row: int) -> Image.Image:
    if image.mode not in ("L", "P", "1"):
        raise InputError(
            f"evaluate.masks: the mask of row {row} is a picture of mode {image.mode!r}; "
            f"give PNGs of mode L or P, whose values are classes (255: none)"
        )
    image.load()
    return image if image.mode != "1" else image.convert("L").point(lambda value: value // 255)


def texts_of(
    blend: Blend, members: Members, names: Sequence[str], rows: Sequence[int], workers: int = 2
) -> list[list[str]]:
    """All texts of each row: members of these names, or JSON fields. What cannot be read is not there."""
    recipes = [item.model_copy(update={"texts": dict.fromkeys(names, 1.0)}) for item in blend.recipes]
    reader = Texts(Blend(blend.sources, recipes), members, Draws(blend, 0))
    with ThreadPoolExecutor(workers) as pool:
        return list(pool.map(reader.every, map(int, rows)))


def open_sources(recipe: JudgedRecipe, max_tokens: int = 1) -> Blend:
    """Another dataset, or two of which the second is learnt from. Raises InputError as `open_blend` does."""
    places = [recipe.dataset] if recipe.train is None else [recipe.dataset, recipe.train]
    sources = [SourceRecipe(dataset=place, max_tokens=max_tokens) for place in places]
    return open_blend(DataRecipe(sources=sources, sequence_tokens=max_tokens))


def open_judged(recipe: JudgedRecipe, settings: EvaluateRecipe, *, max_tokens: int, seed: int, workers: int) -> Judged:
    """With the settings that are the set's own in place of the section's."""
    blend, learnt = open_sources(recipe, max_tokens), None
    if recipe.train is None:
        test = held_out_rows(blend, seed=seed, fraction=recipe.test_fraction)
    else:
        test = blend.source == 0
        learnt, asked = ~test, blend.words_of(np.flatnonzero(test))[:, 0]
        learnt[learnt] = ~np.isin(blend.words_of(np.flatnonzero(learnt))[:, 0], asked)
    own = {name: getattr(recipe, name) or getattr(settings, name) for name in _OWN}
    return Judged(recipe.name, blend, test, settings.model_copy(update=own), seed, workers, learnt)
