"""Checks a recipe's `evaluate` section before anything is computed, and identifies an evaluation by a digest.

Does not import torch and decodes no image, because a run checks this before it trains.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from curate.core.errors import CurateError, RecipeError, Reject
from curate.core.hashing import digest
from curate.encoders import identity, text_problems
from curate.encoders import problems as encoder_problems
from distill.evaluation.datasets import HELD_OUT, open_sources, texts_of
from distill.evaluation.masks import ALPHA, mask_classes
from distill.evaluation.tasks.prompts import TEMPLATES, read_names, read_templates
from distill.recipe import EvaluateRecipe, Recipe
from distill.recipe.evaluate import EvaluationDataset
from distill.samples.sources.members import MemberReader
from distill.samples.sources.mixture import Mixture

VERSION = 5
"""Increase it if the same models and settings give other figures."""
_SAMPLED = 64
"""Images per dataset, evenly spaced, that are searched for the labels, texts and masks that the settings name."""
_LABELLED = {"knn", "probe", "zero_shot"}


@dataclass
class Problems:
    """Problems of the settings, one line each."""

    errors: list[str] = field(default_factory=list)
    """The evaluation cannot work."""
    warnings: list[str] = field(default_factory=list)
    """None of the sampled images has what a setting names, but other images may have it."""

    def add(self, line: str | None, *, certain: bool, place: str = "evaluate.") -> None:
        if line is None:
            return
        remedy = "name one that the images have, or leave it out" if certain else "other images may have it"
        (self.errors if certain else self.warnings).append(f"{place}{line}; {remedy}")


def check(recipe: Recipe, held_out: Mixture | None = None) -> list[str]:
    """Returns warnings. Raises RecipeError for the first error."""
    problems = find_problems(recipe, held_out)
    for error in problems.errors:
        raise RecipeError(error)
    return problems.warnings


def find_problems(recipe: Recipe, held_out: Mixture | None = None) -> Problems:
    """Checks the section without computing anything.

    held_out: the run's own images, which are evaluated as well; None for an exported model. A dataset's own settings
    must fit that dataset; the settings of the section must fit at least one dataset.
    """
    settings = recipe.evaluate
    problems = Problems([*_files(settings), *_text_encoders(recipe), *_layers(recipe), *_sizes(recipe)])
    if held_out is None and not settings.datasets:
        problems.errors.append(
            "no images to evaluate an exported model on; give --dataset FOLDER, or set evaluate.datasets"
        )
    sets = {HELD_OUT: _Sample(held_out)} if held_out is not None else {}
    for item in settings.datasets:
        try:
            sets[item.name] = _Sample(open_sources(item))
            _check_own(item, settings, sets[item.name], problems)
        except CurateError as error:
            text = str(error).removeprefix("data.sources: ").removeprefix("evaluate.")
            problems.errors.append(f"evaluate.datasets: {item.name}: {text}")
    if not problems.errors:
        try:
            _check_common(settings, sets, problems)
        except CurateError as error:
            problems.errors.append(str(error))
    return problems


class _Sample:
    """Some images of a dataset, to be searched for labels, texts and masks."""

    def __init__(self, mixture: Mixture) -> None:
        self.mixture = mixture
        self.rows = np.unique(np.linspace(0, len(mixture) - 1, _SAMPLED).astype(np.int64)).tolist()
        self.whole = len(self.rows) == len(mixture)
        """Whether the sample has all images of the dataset."""
        self._members = MemberReader(mixture, share=0.0)

    def lacks_label(self, name: str) -> str | None:
        """Why no label of that name was found; None if an image has one."""
        if self.mixture.has(name) or any(self._texts([name])):
            return None
        return f"label: no column {name!r}, and no such member or JSON field in {self._some()}"

    def lacks_texts(self, names: Sequence[str]) -> str | None:
        if any(self._texts(names)):
            return None
        return f"texts: no member or JSON field {', '.join(names)} in {self._some()}"

    def lacks_masks(self, name: str) -> str | None:
        """Raises InputError for an unusable mask."""
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
        return f"masks: no member {name!r} that is an image in {self._some()}"

    def _texts(self, names: Sequence[str]) -> list[list[str]]:
        return texts_of(self.mixture, self._members, names, self.rows)

    def _some(self) -> str:
        return f"{len(self.rows)} of the {len(self.mixture)} images at {self.mixture.url}"


def _check_own(item: EvaluationDataset, settings: EvaluateRecipe, sample: _Sample, problems: Problems) -> None:
    """Check a dataset's own settings."""
    tasks, lines = set(settings.tasks), []
    if item.label is not None and tasks & _LABELLED:
        lines.append(sample.lacks_label(item.label))
    if item.texts and "retrieval" in tasks:
        lines.append(sample.lacks_texts(item.texts))
    if item.masks is not None and "segmentation" in tasks:
        lines.append(sample.lacks_masks(item.masks))
    for line in lines:
        problems.add(line, certain=sample.whole, place=f"evaluate.datasets: {item.name}: ")


def _check_common(settings: EvaluateRecipe, sets: dict[str, _Sample], problems: Problems) -> None:
    """Check the settings that apply to all datasets without their own."""
    tasks = set(settings.tasks)
    own = {item.name: item for item in settings.datasets}
    if settings.label != EvaluateRecipe.model_fields["label"].default and tasks & _LABELLED:
        affected = [one for name, one in sets.items() if name not in own or own[name].label is None]
        _check_any(affected, lambda one: one.lacks_label(settings.label), problems)
    if settings.texts and "retrieval" in tasks:
        affected = [one for name, one in sets.items() if name not in own or not own[name].texts]
        _check_any(affected, lambda one: one.lacks_texts(settings.texts), problems)
    masks = settings.masks
    if masks is not None and "segmentation" in tasks:
        affected = [one for name, one in sets.items() if name not in own or own[name].masks is None]
        _check_any(affected, lambda one: one.lacks_masks(masks), problems)


def _check_any(sets: Collection[_Sample], lacks: Callable[[_Sample], str | None], problems: Problems) -> None:
    """Add a problem if none of the datasets (at least one) has what a setting names."""
    why = None
    for one in sets:
        why = lacks(one)
        if why is None:
            return
    problems.add(why, certain=all(one.whole for one in sets))


def _files(settings: EvaluateRecipe) -> list[str]:
    """Errors of the text files that zero-shot reads."""
    errors = []
    for read, path in _readers(settings):
        try:
            read(path)
        except CurateError as error:
            errors.append(str(error))
    return errors


def _readers(settings: EvaluateRecipe) -> list[tuple[Callable[[str], Any], str]]:
    if "zero_shot" not in settings.tasks:
        return []
    names = [settings.class_names, *(item.class_names for item in settings.datasets)]
    return [
        (read_templates, settings.prompts or str(TEMPLATES)),
        *((read_names, path) for path in dict.fromkeys(names) if path is not None),
    ]


def _layers(recipe: Recipe) -> list[str]:
    depth, layers = recipe.student.depth, recipe.evaluate.cka_student_layers
    beyond = next((layer for layer in layers if layer > depth), None)
    if beyond is None:
        return []
    return [f"evaluate.cka_student_layers: {beyond}; the student has {depth} layers; choose from 1..{depth}"]


def _sizes(recipe: Recipe) -> list[str]:
    patch, lines = recipe.student.patch, []
    for side in recipe.evaluate.sizes:
        if side % patch:
            nearest = [str(one) for one in (side // patch * patch, (side // patch + 1) * patch) if one]
            lines.append(
                f"evaluate.sizes: {side} px; expected a multiple of the student's patches of {patch} px; take "
                f"{' or '.join(nearest)}"
            )
    return lines


def _text_encoders(recipe: Recipe) -> list[str]:
    known, lines = [teacher.label for teacher in recipe.teachers], []
    for name, spec in recipe.evaluate.text_encoders.items():
        if name not in known:
            remedy = f"choose from {', '.join(known)}" if known else "the recipe has no teachers; remove the entry"
            lines.append(f"unknown teacher {name!r}; {remedy}")
        else:
            found = encoder_problems(spec) or text_problems(spec)
            lines += [line.removeprefix("encoder: ") for line in found]
    return [f"evaluate.text_encoders: {line}" for line in lines]


def evaluation_digest(recipe: Recipe, fingerprint: str, step: int) -> str:
    """Digest of everything that an evaluation depends on: weights, settings, content of the named files and datasets.

    Raises CurateError (one line) for a missing file, dataset or encoder.
    """
    settings = recipe.evaluate
    for problem in _files(settings):
        raise RecipeError(problem)
    return digest(
        {
            "judges": VERSION,
            "fingerprint": fingerprint,
            "step": step,
            "evaluate": settings.model_dump(mode="json", exclude={"every", "every_images"}),
            "others": [open_sources(item).fingerprint for item in settings.datasets],
            "files": [read(path) for read, path in _readers(settings)],
            "text_encoders": {name: identity(spec) for name, spec in settings.text_encoders.items()},
        }
    )


def with_datasets(settings: EvaluateRecipe, places: Sequence[str]) -> list[dict[str, Any]]:
    """`datasets` and further places, named after the last part of their path, with a number if that name is taken."""
    values = [item.model_dump(mode="json") for item in settings.datasets]
    taken = {HELD_OUT, *(item.name for item in settings.datasets)}
    for place in places:
        plain = re.sub(r"[^\w.-]+", "-", place.rstrip("/").rpartition("/")[2]).strip("-") or "dataset"
        numbers = (f"{plain}-{number}" for number in range(2, len(taken) + 3))
        name = next(name for name in (plain, *numbers) if name not in taken)
        taken.add(name)
        values.append({"name": name, "dataset": place})
    return values
