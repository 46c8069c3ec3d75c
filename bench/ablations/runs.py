"""An arm with a seed: curate, train, export, evaluate. A stored result is never recomputed.

HOME/results/NAME/ARM-SEED-FINGERPRINT.json has the settings, the CPU time and the mean scores; the .npz next to it has
the score of each test image. The fingerprint covers recipe, dataset, teachers, and the versions of `distill` and of the
evaluation. Training resumes from its checkpoint after an interruption, and the CPU time of all attempts counts.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.ablations.folders import HOME, RECIPES, CommandError, Curated, call
from curate.core.hashing import digest
from curate.encoders import identity
from distill.export import export
from distill.recipe import Recipe, load_recipe
from distill.samples.sources.dataset import open_dataset
from distill.training.run_folder import VERSION

JUDGES = 1
"""Raise it when the same student would get other scores."""
LIMIT_MINUTES = 6

Scores = dict[str, NDArray[np.float32]]
"""Scores of the test images (P,) by metric; NaN for images that do not count."""


@dataclass(frozen=True)
class Arm:
    name: str
    settings: tuple[str, ...]
    """Settings for `distill train --set`, in addition to the ablation's."""
    dataset: Callable[[int], Curated]
    """The dataset for a seed."""
    sources: tuple[str, ...] = ("data.sources.0",)
    """Where the recipe names the dataset."""
    teacher: str | None = None
    """An arm of the ablation that is run first."""
    taught: Callable[[Path], tuple[str, ...]] | None = None
    """More settings, given the model folder of `teacher` with the same seed."""


@dataclass(frozen=True)
class Ablation:
    name: str
    question: str
    recipe: str
    """A training recipe of `recipes/`."""
    arms: tuple[Arm, ...]
    pairs: tuple[tuple[str, str], ...]
    """(arm, baseline) to compare."""
    judge: Callable[[Path, Arm, int], Scores]
    """Scores of the model folder of an arm with a seed."""
    expected: Mapping[str, str]
    """The paper's result by arm: higher, lower, or a text."""
    source: str
    settings: tuple[str, ...] = ()

    def arm(self, name: str) -> Arm:
        return next(arm for arm in self.arms if arm.name == name)


@dataclass(frozen=True)
class Done:
    arm: str
    seed: int
    scores: Scores
    record: dict[str, Any]
    """Contents of the JSON file."""


def run(ablation: Ablation, arm: Arm, seed: int) -> Done:
    """The stored result, or a new one. Raises CommandError."""
    data = arm.dataset(seed)
    name = _name(ablation, arm, seed)
    recipe, arguments = _recipe(ablation, arm, seed, data.dataset, name)
    fingerprint = _fingerprint(recipe)
    place = HOME / "results" / ablation.name / f"{arm.name}-{seed}-{fingerprint[:12]}.json"
    if place.exists():
        return Done(arm.name, seed, dict(np.load(place.with_suffix(".npz"))), json.loads(place.read_text()))
    spent = _CpuTime(place.with_suffix(".spent"))
    folder = _folder(name, fingerprint)
    log = HOME / "logs" / f"{name}.log"
    spent.call("train", ["train", *arguments, "--set", f"run.folder={folder}"], log)
    began = time.process_time()
    scores = ablation.judge(export(folder, folder / "model"), arm, seed)
    spent.add("judge", time.process_time() - began)
    dataset = open_dataset(data.dataset)
    labels = Counter(dataset.strings("label")) if dataset.has("label") else {}
    record = {
        "ablation": ablation.name, "arm": arm.name, "seed": seed, "fingerprint": fingerprint, "settings": arguments[1:],
        "images": len(dataset), "labels": labels, "cpu_seconds": spent.seconds, "curate_cpu_seconds": data.cpu_seconds,
        "scores": {metric: float(np.nanmean(values)) for metric, values in scores.items()},
    }  # fmt: skip
    arrays: dict[str, Any] = dict(scores)
    np.savez_compressed(place.with_suffix(".npz"), **arrays)
    place.write_text(json.dumps(record, indent=1) + "\n")
    return Done(arm.name, seed, scores, record)


def model(ablation: Ablation, name: str, seed: int) -> Path:
    """The model folder of an arm, which is run first if need be."""
    arm = ablation.arm(name)
    run(ablation, arm, seed)
    name = _name(ablation, arm, seed)
    recipe, _ = _recipe(ablation, arm, seed, arm.dataset(seed).dataset, name)
    return _folder(name, _fingerprint(recipe)) / "model"


def _name(ablation: Ablation, arm: Arm, seed: int) -> str:
    return f"{ablation.name}-{arm.name}-{seed}".replace(" ", "-")


def _folder(name: str, fingerprint: str) -> Path:
    return HOME / "runs" / f"{name}-{fingerprint[:12]}"


class _CpuTime:
    """CPU seconds of a run by step; a file keeps them over interruptions."""

    def __init__(self, path: Path) -> None:
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self.seconds: dict[str, float] = json.loads(path.read_text()) if path.exists() else {}

    def add(self, step: str, seconds: float) -> None:
        self.seconds[step] = self.seconds.get(step, 0.0) + seconds
        self._path.write_text(json.dumps(self.seconds))

    def call(self, step: str, arguments: Sequence[str], log: Path) -> None:
        """Run a `distill` command. Raises CommandError."""
        try:
            self.add(step, call("distill.cli", arguments, log))
        except CommandError as error:
            self.add(step, error.cpu_seconds)
            raise


def _recipe(ablation: Ablation, arm: Arm, seed: int, dataset: str, name: str) -> tuple[Recipe, list[str]]:
    """The effective recipe, and its command-line arguments."""
    place = str(RECIPES / f"{ablation.recipe}.yaml")
    settings = [*ablation.settings, *arm.settings]
    if arm.teacher is not None and arm.taught is not None:
        settings += arm.taught(model(ablation, arm.teacher, seed))
    settings += [f"seed={seed}", f"name={name}", *(f"{source}.dataset={dataset}" for source in arm.sources)]
    return load_recipe(place, settings), [place, *(word for setting in settings for word in ("--set", setting))]


def _fingerprint(recipe: Recipe) -> str:
    teachers = [identity(teacher.encoder, precision=teacher.precision) for teacher in recipe.teachers]
    datasets = [open_dataset(source.dataset).fingerprint for source in recipe.data.sources]
    made_of = {"recipe": recipe.semantic(), "datasets": datasets, "teachers": teachers}
    return digest({**made_of, "distill": VERSION, "judges": JUDGES})
