"""Classification by words alone: a class is the mean direction of its names in many sentences (Radford et al. 2021,
Sec. 3.1.4, prompt ensembling)."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from curate.core.errors import InputError
from distill.evaluation.tasks.knn import unit
from distill.evaluation.tasks.scores import check_finite

Floats = NDArray[np.floating[Any]]
TextEncoder = Callable[[list[str]], Floats]
"""Texts -> vectors (T, D)."""
TEMPLATES = Path(__file__).with_name("prompts.txt")
_BATCH = 512


def class_vectors(
    encode_text: TextEncoder, names: Sequence[Sequence[str]], templates: Sequence[str]
) -> NDArray[np.float32]:
    """(C, D) of unit length: of each class, the mean of the unit vectors of all its names in all templates.

    names: of each class, one or more; templates: sentences with `{}` where the name goes. A sentence is encoded once.
    """
    sentences = [[template.replace("{}", name) for name in own for template in templates] for own in names]
    place = {text: number for number, text in enumerate(dict.fromkeys(text for own in sentences for text in own))}
    texts = list(place)
    vectors = unit(np.concatenate([encode_text(texts[at : at + _BATCH]) for at in range(0, len(texts), _BATCH)]))
    check_finite("texts of the classes", vectors)
    return unit(np.stack([vectors[[place[text] for text in own]].mean(0) for own in sentences]))


def class_scores(pictures_ND: Floats, classes_CD: Floats) -> NDArray[np.float32]:
    """Cosines (N, C)."""
    return unit(pictures_ND) @ unit(classes_CD).T


def read_templates(path: Path | str = TEMPLATES) -> list[str]:
    """A line each, with one `{}`; blank lines and lines that begin with # say nothing."""
    lines = _lines(path, "evaluate.prompts")
    bad = next((line for line in lines if line.count("{}") != 1), None)
    if bad is not None or not lines:
        what = f"{bad!r} has not exactly one {{}}" if bad else "no template in it"
        raise InputError(f"evaluate.prompts: {path}: {what}; write a sentence a line, as in: a photo of a {{}}.")
    return lines


def read_names(path: Path | str) -> dict[str, list[str]]:
    """Names by label: lines `label<TAB>name, another name`. Raises InputError for anything else."""
    names: dict[str, list[str]] = {}
    for line in _lines(path, "evaluate.class_names"):
        label, tab, rest = line.partition("\t")
        if not tab or not rest.strip():
            raise InputError(
                f"evaluate.class_names: {path}: {line!r} is not 'label<TAB>name, another name'; put a tab between them"
            )
        names[label.strip()] = [name.strip() for name in rest.split(",") if name.strip()]
    return names


def names_of(labels: Sequence[str], given: Mapping[str, Sequence[str]] | None = None) -> list[list[str]]:
    """What to call each label: the names given, else its own words (`bell_pepper` -> bell pepper, `animals/birds` ->
    animals birds, `tench, Tinca tinca` -> two names)."""
    given = given or {}
    return [list(given.get(label) or _words(label)) for label in labels]


def _words(label: str) -> list[str]:
    names = [" ".join(re.sub(r"[_/\\-]+", " ", part).split()) for part in label.split(",")]
    return [name for name in names if name] or [label]


def _lines(path: Path | str, what: str) -> list[str]:
    try:
        text = Path(path).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{what}: {path} cannot be read ({type(error).__name__}); give a text file") from error
    return [line.rstrip() for line in text.splitlines() if line.strip() and not line.startswith("#")]
