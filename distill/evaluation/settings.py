"""What a recipe's `evaluate` section comes down to, before anything is computed: is it right, and what identifies it.

Knows nothing of torch, and decodes no picture: a run asks before it trains.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from curate.core.errors import CurateError, RecipeError, Reject
from curate.core.hashing import digest, digest_bytes
from curate.encoders import identity, text_problems
from curate.encoders import problems as encoder_problems
from distill.evaluation.judged import ALPHA, HELD_OUT, mask_classes, open_sources, texts_of
from distill.evaluation.tasks.zero_shot import TEMPLATES, read_names, read_templates
from distill.recipe import EvaluateRecipe, Recipe
from distill.recipe.evaluate import JudgedRecipe
from distill.samples.sources.members import Members
from distill.samples.sources.mixture import Blend

JUDGES = 3
"""Rises when the same models and settings would give other figures."""
_LOOKED_AT = 64
"""Pictures of a set, evenly spread, in which what the settings name has to be found."""
_LABELLED = {"knn", "probe", "zero_shot"}


@dataclass
class Looked:
    """What a look at the settings has found, a line each."""

    wrong: list[str] = field(default_factory=list)
    """Would keep the evaluation from working."""
    doubtful: list[str] = field(default_factory=list)
    """Was in none of the pictures that were looked at; others may have it."""

    def add(self, line: str | None, *, certain: bool, place: str = "evaluate.") -> None:
        if line is None:
            return
        (self.wrong if certain else self.doubtful).append(
            f"{place}{line}; {'name one that the pictures have, or leave it out' if certain else 'others may have it'}"
        )


def check(recipe: Recipe, held_out: Blend | None = None) -> list[str]:
    """What is doubtful. Raises RecipeError for the first thing that is wrong."""
    found = look(recipe, held_out)
    for problem in found.wrong:
        raise RecipeError(problem)
    return found.doubtful


def look(recipe: Recipe, held_out: Blend | None = None) -> Looked:
    """Before anything is computed.

    held_out: the run's own pictures, which are judged as well; None for an exported model. What a set says of itself
    must be true of it; what the section says of all sets must be true of one.
    """
    settings = recipe.evaluate
    found = Looked([*_files(settings), *_text_encoders(recipe)])
    if held_out is None and not settings.datasets:
        found.wrong.append(
            "a model says nothing of pictures by itself; name some: --dataset FOLDER, or evaluate.datasets"
        )
    sets = {HELD_OUT: _Set(held_out)} if held_out is not None else {}
    for item in settings.datasets:
        try:
            sets[item.name] = _Set(open_sources(item))
            _own(item, settings, sets[item.name], found)
        except CurateError as error:
            said = str(error).removeprefix("data.sources: ").removeprefix("evaluate.")
            found.wrong.append(f"evaluate.datasets: {item.name}: {said}")
    if not found.wrong:
        try:
            _common(settings, sets, found)
        except CurateError as error:
            found.wrong.append(str(error))
    return found


class _Set:
    """Some pictures of a set, looked at for what goes with them."""

    def __init__(self, blend: Blend) -> None:
        self.blend = blend
        self.rows = np.unique(np.linspace(0, len(blend) - 1, _LOOKED_AT).astype(np.int64)).tolist()
        self.whole = len(self.rows) == len(blend)
        """All of them: what none of these has, no picture has."""
        self._members = Members(blend, share=0.0)

    def lacks_label(self, name: str) -> str | None:
        """Why there is no label of that name; None where some picture has one."""
        if self.blend.has(name) or any(self._texts([name])):
            return None
        return f"label: {name!r} is no column, and no member or JSON field of {self._some()}"

    def lacks_texts(self, names: Sequence[str]) -> str | None:
        if any(self._texts(names)):
            return None
        return f"texts: no member or JSON field {', '.join(names)} in {self._some()}"

    def lacks_masks(self, name: str) -> str | None:
        """Raises InputError for a mask that cannot be used."""
        if name == ALPHA:
            return None
        for row in self.rows:
            try:
                data = self._members.member(row, name)
                if data is not None:
                    mask_classes(data, name, row)
                    return None
            except Reject:
                continue
        return f"masks: no member {name!r} that is a picture in {self._some()}"

    def _texts(self, names: Sequence[str]) -> list[list[str]]:
        return texts_of(self.blend, self._members, names, self.rows)

    def _some(self) -> str:
        return f"{len(self.rows)} of the {len(self.blend)} pictures at {self.blend.url}"


def _own(item: JudgedRecipe, settings: EvaluateRecipe, found: _Set, looked: Looked) -> None:
    """What a set says of itself."""
    tasks, said = set(settings.tasks), []
    if item.label is not None and tasks & _LABELLED:
        said.append(found.lacks_label(item.label))
    if item.texts and "retrieval" in tasks:
        said.append(found.lacks_texts(item.texts))
    if item.masks is not None and "segmentation" in tasks:
        said.append(found.lacks_masks(item.masks))
    for line in said:
        looked.add(line, certain=found.whole, place=f"evaluate.datasets: {item.name}: ")


def _common(settings: EvaluateRecipe, sets: dict[str, _Set], looked: Looked) -> None:
    """What the section says of all sets."""
    tasks = set(settings.tasks)
    own = {item.name: item for item in settings.datasets}
    if settings.label != EvaluateRecipe.model_fields["label"].default and tasks & _LABELLED:
        asked = [one for name, one in sets.items() if name not in own or own[name].label is None]
        _nowhere(asked, lambda one: one.lacks_label(settings.label), looked)
    if settings.texts and "retrieval" in tasks:
        asked = [one for name, one in sets.items() if name not in own or not own[name].texts]
        _nowhere(asked, lambda one: one.lacks_texts(settings.texts), looked)
    masks = settings.masks
    if masks is not None and "segmentation" in tasks:
        asked = [one for name, one in sets.items() if name not in own or own[name].masks is None]
        _nowhere(asked, lambda one: one.lacks_masks(masks), looked)


def _nowhere(sets: Collection[_Set], lacks: Callable[[_Set], str | None], looked: Looked) -> None:
    """Where none of the sets that are asked has it, and one is asked."""
    why = None
    for one in sets:
        why = lacks(one)
        if why is None:
            return
    looked.add(why, certain=all(one.whole for one in sets))


def _files(settings: EvaluateRecipe) -> list[str]:
    """Text files that zero-shot reads."""
    said = []
    for read, path in _readers(settings):
        try:
            read(path)
        except CurateError as error:
            said.append(str(error))
    return said


def _readers(settings: EvaluateRecipe) -> list[tuple[Callable[[str], Any], str]]:
    if "zero_shot" not in settings.tasks:
        return []
    names = [settings.class_names, *(item.class_names for item in settings.datasets)]
    return [
        (read_templates, settings.prompts or str(TEMPLATES)),
        *((read_names, path) for path in dict.fromkeys(names) if path is not None),
    ]


def _text_encoders(recipe: Recipe) -> list[str]:
    known, said = [teacher.label for teacher in recipe.teachers], []
    for name, spec in recipe.evaluate.text_encoders.items():
        if name not in known:
            said.append(f"no teacher is called {name!r}; there are: {', '.join(known) or 'none'}")
        else:
            found = encoder_problems(spec) or text_problems(spec)
            said += [line.removeprefix("encoder: ") for line in found]
    return [f"evaluate.text_encoders: {line}" for line in said]


def evaluation_digest(recipe: Recipe, fingerprint: str, step: int) -> str:
    """Of all that an evaluation depends on: weights, settings, the content of files and datasets that they name.

    Raises CurateError, a line, for a file, dataset or encoder that is not there.
    """
    settings = recipe.evaluate
    for problem in _files(settings):
        raise RecipeError(problem)
    return digest(
        {
            "judges": JUDGES,
            "fingerprint": fingerprint,
            "step": step,
            "evaluate": settings.model_dump(mode="json"),
            "others": [open_sources(item).fingerprint for item in settings.datasets],
            "files": [digest_bytes([Path(path).read_bytes()]) for _, path in _readers(settings)],
            "text_encoders": {name: identity(spec) for name, spec in settings.text_encoders.items()},
        }
    )


def with_datasets(settings: EvaluateRecipe, places: Sequence[str]) -> list[dict[str, Any]]:
    """`datasets` with others beside, each called by the last part of its place; with a number where another is."""
    values = [item.model_dump(mode="json") for item in settings.datasets]
    taken = {HELD_OUT, *(item.name for item in settings.datasets)}
    for place in places:
        plain = re.sub(r"[^\w.-]+", "-", place.rstrip("/").rpartition("/")[2]).strip("-") or "dataset"
        numbers = (f"{plain}-{number}" for number in range(2, len(taken) + 3))
        name = next(name for name in (plain, *numbers) if name not in taken)
        taken.add(name)
        values.append({"name": name, "dataset": place})
    return values
