"""Curates a folder of images, trains a student on the dataset and evaluates it. `make quickstart` runs this.

Every step is a command that you can run yourself; the script prints each one first. Existing outputs are found by their
fingerprint and reused, so a second call takes seconds.
"""

from __future__ import annotations

import shlex
from math import isqrt
from pathlib import Path
from typing import Any

from rich.console import Console

from curate.api import Workspace
from curate.codec.formats import RASTER_EXTENSIONS
from curate.kernels.wordnet.database import problems as wordnet_problems
from curate.report.verdict.compare import ENTROPY, KNN
from distill.commands.evaluate import PAGE, evaluate
from distill.commands.train import train
from distill.evaluation.show import AFTER, BEFORE
from distill.recipe import load_recipe
from distill.training.run_folder import RunFolder
from pipelines.commands import count_files, one_line, parser_of, run_pipeline, set_options
from pipelines.openclipart import openclipart

PIPELINE = "pipelines/quickstart.yaml"
TRAINING = "distill/recipes/quickstart.yaml"
PHOTOS = "lite1"
"""The encoder of your own images, and their student's teacher."""
SHARE = 0.5
"""Fraction of your own images to sample after deduplication."""


def quickstart(images: Path | None, workspace: str, engine: str, console: Console) -> None:
    taught = []
    if images is None:
        settings = [f"images={openclipart(Path('.cache/openclipart'))}"]
    else:
        settings = own_images(images)
        taught.append(f"teachers.0.encoder={PHOTOS}")
    outputs = run_pipeline(PIPELINE, settings, workspace, engine)
    if images is not None and (worse := worse_than_random(Workspace(workspace).run(None).balance())):
        print(f"\nbalance  worse than random in {' and '.join(worse)}: taking a random sample instead", flush=True)
        outputs = run_pipeline(PIPELINE, [*settings, "sampling=random"], workspace, engine)
    teach(outputs, workspace, taught, console, "sort the images into a folder per class")


def teach(
    outputs: dict[str, str],
    workspace: str,
    settings: list[str],
    console: Console,
    labels: str,
    training: str = TRAINING,
) -> None:
    """Train a student on the dataset of a pipeline and evaluate it; print what came out.

    settings: overrides of the recipe `training`; labels: what to do to have labels.
    """
    run = train_on(training, [f"data.sources.0.dataset={outputs['dataset']}", *settings], workspace, console)
    print(f"\n$ distill eval {run.path}", flush=True)
    evaluated = evaluate(str(run.path), [], console)

    print()
    print(f"dataset  {outputs['dataset']}")
    print(f"report   {outputs['report']}/index.html")
    for found in Workspace(workspace).run(None).balance():
        print("balance ", "\nwarning  ".join([found["verdict"], *found["warnings"]]))
    print(f"student  {run.path}")
    print(f"judged   {run.path}/{PAGE}")
    print(f"kNN      {verdict(evaluated['sets'][0]['knn'], labels)}")


def train_on(training: str, settings: list[str], workspace: str, console: Console) -> RunFolder:
    """Train the student of a recipe in the folder `students` of the workspace; returns its run."""
    place = workspace if "://" not in workspace else ".cache"  # checkpoints are written to a local disk
    settings = [f"run.folder={place}/students/{{name}}-{{fingerprint}}", *settings]
    print(f"\n$ distill train {shlex.join([training, *set_options(settings)])}", flush=True)
    return train(load_recipe(training, settings), console)


def own_images(images: Path) -> list[str]:
    """Settings for your own folder: the folder that holds an image is its label, unless its metadata has one, and sizes
    follow from the number of images. What they show is named where WordNet is, or can be fetched."""
    missing = wordnet_problems()
    if missing:
        print(f"quickstart: what images show is not named: {missing[0]}", flush=True)
    return [
        f"images={images.absolute()}",
        "namespace=images",
        f"encoder={PHOTOS}",
        f"named={str(not missing).lower()}",
        levels(count_files(images, RASTER_EXTENSIONS, "IMAGES", "images")),
        "target=null",
        f"share={SHARE}",
        "pool.label=-1",
        "sets.prefer=[caption]",
        "profile.source=null",
        *(() if missing else ("profile.caption=concept",)),
        "dataset.carry={label: meta.label, duplicate_set: duplicate_set}",
        "report.label=meta.label",
    ]


def levels(images: int) -> str:
    """The setting that follows from the number of images."""
    return f"levels=[{max(1, isqrt(images))}]"


def worse_than_random(reports: list[dict[str, Any]]) -> list[str]:
    """Figures of labels in which a selection is worse than random, if it is better in none."""
    states = {name: state for found in reports for name, *_, state in found["lines"] if name in (ENTROPY, KNN)}
    return [] if "better" in states.values() else [name for name, state in states.items() if state == "worse"]


def verdict(knn: dict[str, Any], labels: str) -> str:
    """One line about the accuracy before and after training; `labels` says what to do to have labels."""
    if not knn["models"]:
        return f"none: {knn['why_none']}; {labels} to have labels"
    accuracy = {name: f"{100 * model['accuracy']:.1f} %" for name, model in knn["models"].items()}
    teachers = ", ".join(f"{name} {accuracy[name]}" for name in accuracy if name not in (BEFORE, AFTER))
    return f"student {accuracy[BEFORE]} before training, {accuracy[AFTER]} after ({teachers})"


def main() -> None:
    arguments = parser_of(__doc__, "--images").parse_args()
    with one_line("quickstart"):
        quickstart(arguments.images, arguments.workspace, arguments.engine, Console())


if __name__ == "__main__":
    main()
