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
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from curate.codec.images import probe
from curate.codec.pixels import upright
from curate.core.errors import InputError, Reject
from curate.core.hashing import ranks
from distill.data.blend import Blend, open_blend
from distill.data.draws import Draws
from distill.data.members import Members
from distill.data.split import held_out
from distill.data.texts import Texts
from distill.recipe import DataRecipe, EvaluateRecipe, SourceRecipe
from distill.recipe.evaluate import JudgedRecipe

_SALT = 0xE7A1
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

    def __post_init__(self) -> None:
        self.members = Members(self.blend)
        keys = np.asarray(self.blend.strings("key"), dtype=object)
        first = np.zeros(len(keys), dtype=bool)
        first[np.unique(keys, return_index=True)[1]] = True
        rows = np.flatnonzero(first)
        self._order = rows[np.argsort(ranks(self.seed, keys[rows], _SALT), kind="stable")]

    def rows(self, *, test: bool, most: int) -> NDArray[np.int64]:
        """Rows of one side, in the order in which they are taken."""
        return self._order[self.test[self._order] == test][:most]

    def questions(self) -> Questions | str:
        """What neighbours, probes and zero-shot are asked, or in words why there is nothing to ask."""
        settings, label = self.settings, self.settings.label
        known = self._labels()
        if isinstance(known, str):
            return known
        train, asked = (
            np.array([row for row in self._order if self.test[row] == side and known[row]], dtype=np.int64)[:most]
            for side, most in ((False, settings.max_train_images), (True, settings.max_test_images))
        )
        if not len(asked):
            return f"no picture that is asked about has a {label!r}"
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

    def _labels(self) -> dict[int, str] | str:
        """By row; "" where it has none. Out of the index, or out of the tars for the rows that may be taken."""
        label, settings = self.settings.label, self.settings
        if self.blend.has(label):
            return {row: value or "" for row, value in enumerate(self.blend.strings(label))}
        rows = [*self.rows(test=False, most=settings.max_train_images),
                *self.rows(test=True, most=settings.max_test_images)]  # fmt: skip
        found = dict(zip(rows, (own[0] if own else "" for own in self.texts([label], rows)), strict=True))
        if not any(found.values()):
            return (
                f"no column, member or JSON field {label!r}; carry a column into the dataset, or set evaluate.label "
                f"to a column, a member ('cls') or a field ('json.name')"
            )
        return {row: found.get(row, "") for row in range(len(self.blend))}

    def texts(self, names: Sequence[str], rows: Sequence[int]) -> list[list[str]]:
        """All texts of each row: members of these names, or JSON fields. What cannot be read is not there."""
        return texts_of(self.blend, self.members, names, rows, self.workers)

    def text_names(self) -> list[str]:
        """Where texts come from: as the settings say, else as the sources do."""
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

    def own(row: int) -> list[str]:
        try:
            return [text for _, texts in reader.candidates(int(row)) for text in texts]
        except Reject:
            return []

    with ThreadPoolExecutor(workers) as pool:
        return list(pool.map(own, rows))


def open_sources(recipe: JudgedRecipe, max_tokens: int = 1) -> Blend:
    """Another dataset, or two of which the second is learnt from. Raises InputError as `open_blend` does."""
    places = [recipe.dataset] if recipe.train is None else [recipe.dataset, recipe.train]
    sources = [SourceRecipe(dataset=place, max_tokens=max_tokens) for place in places]
    return open_blend(DataRecipe(sources=sources, sequence_tokens=max_tokens))


def open_judged(recipe: JudgedRecipe, settings: EvaluateRecipe, *, max_tokens: int, seed: int, workers: int) -> Judged:
    """With the settings that are the set's own in place of the section's."""
    blend = open_sources(recipe, max_tokens)
    if recipe.train is None:
        sets = blend.strings("duplicate_set") if blend.has("duplicate_set") else None
        keys = [str(key) for key in blend.strings("key")]
        test = held_out(keys, sets, seed=seed, fraction=recipe.test_fraction)
    else:
        test = blend.source == 0
    own = {name: getattr(recipe, name) or getattr(settings, name) for name in _OWN}
    return Judged(recipe.name, blend, test, settings.model_copy(update=own), seed, workers)
