"""Writes datasets of ours and trains the stages of Xray on them, unattended. `make xray` runs this.

URU gives hashtags, ViSE sentences. The last stage needs two texts of each image; in the paper, a model has written one
of them. Without an endpoint that serves such a model they are the titles and keywords that people gave to the clip art:
a tiny random model would write nonsense. Existing datasets are reused and an interrupted training resumes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console

from curate.html.numbers import score
from distill.evaluation.show import BEFORE
from distill.recipe import Recipe, load_recipe
from distill.training.progress import read_lines
from distill.training.run_folder import RunFolder
from pipelines import recaption
from pipelines.commands import one_line, parser_of, run_pipeline
from pipelines.corpus import settings as corpus
from pipelines.quickstart import PIPELINE as QUICKSTART
from pipelines.quickstart import train_on

TRAINING = "distill/recipes/xray-tiny.yaml"
DATASETS = ("uru", "uru", "vise", "texts")
"""The dataset that each stage of the recipe reads."""
JUDGED = "texts"
"""The dataset on whose held-out images all stages are evaluated."""
KEYWORDS = "json.meta.keywords"


def datasets(endpoint: list[str], workspace: str, engine: str) -> dict[str, str]:
    """The places of the datasets. endpoint: settings to ask for captions; none: the texts that the images have."""
    images = corpus(None)
    if endpoint:
        texts = recaption.PIPELINE, [*endpoint, *recaption.images_of(None, recaption.TARGET)]
    else:  # held out by key, as in the other datasets, so that no stage has seen the held-out images
        texts = QUICKSTART, [*images, "dataset.carry={label: meta.category}"]
    made = {"uru": ("pipelines/uru.yaml", images), "vise": ("pipelines/vise.yaml", images), "texts": texts}
    return {name: run_pipeline(recipe, given, workspace, engine)["dataset"] for name, (recipe, given) in made.items()}


def training(places: Mapping[str, str], synthetic: bool) -> list[str]:
    """Settings of the recipe. synthetic: whether the last dataset has captions by a model."""
    settings = []
    for number, (stage, name) in enumerate(zip(load_recipe(TRAINING).stages, DATASETS, strict=True)):
        data = f"stages.{number}.data" if stage.data else "data"
        settings += [f"{data}.sources.0.dataset={places[name]}"]
    settings += [f"evaluate.datasets=[{{name: {JUDGED}, dataset: '{places[JUDGED]}'}}]"]
    if synthetic:
        last = f"stages.{len(DATASETS) - 1}.data.sources.0"
        settings += [f"{last}.texts={{synthetic: 1, {KEYWORDS}: 1}}", f"{last}.text_pair=[synthetic, {KEYWORDS}]"]
    return settings


def table(recipe: Recipe, lines: Sequence[Mapping[str, Any]], before: float | None) -> str:
    """A line per stage: losses, dataset, steps, minutes of training, and the accuracies at the stage's end.

    lines: of metrics.jsonl; before: the kNN accuracy of the untrained student.
    """
    rows = [("after", "dataset", "steps", "minutes", "kNN", "zero-shot"), ("nothing", "", "", "", score(before), "")]
    for number, (stage, dataset) in enumerate(zip(recipe.staged(), DATASETS, strict=True)):
        own = [line for line in lines if line["stage"] == number]
        seconds = sum(line["images"] / line["images_per_second"] for line in own if line["images_per_second"])
        found = [own[-1].get(f"validation/{JUDGED}/{task}") if own else None for task in ("knn", "zero_shot")]
        losses = ", ".join(item.label for item in stage.every_objective)
        rows.append((losses, dataset, str(stage.train.steps), f"{seconds / 60:.1f}", *map(score, found)))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) if place < 2 else cell.rjust(width) for place, (cell, width) in enumerate(cells))
        for cells in (list(zip(row, widths, strict=True)) for row in rows)
    )


def report(run: RunFolder, synthetic: bool) -> str:
    """What came out."""
    knn = next(one["knn"] for one in run.read("evaluation.json", "sets")["sets"] if one["name"] == JUDGED)
    before = knn["models"].get(BEFORE, {}).get("accuracy")
    whose = "a model's captions and people's keywords" if synthetic else "titles and keywords, both by people"
    return "\n".join(
        [
            table(run.recipe(), read_lines(run), before),
            f"Accuracies of the category, on {knn.get('test_images', 0)} images that no stage has seen. "
            f"texts: {whose}.",
            f"student  {run.path}",
        ]
    )


def main() -> None:
    arguments = parser_of(__doc__, "--set", "--endpoint", "--model", "--key").parse_args()
    with one_line("xray"):
        endpoint = recaption.given_endpoint(arguments.endpoint, arguments.model, arguments.key)
        load_recipe(TRAINING, arguments.set)  # a wrong setting ends here, not after the datasets
        places = datasets(endpoint, arguments.workspace, arguments.engine)
        settings = [*training(places, bool(endpoint)), *arguments.set]
        run = train_on(TRAINING, settings, arguments.workspace, Console())
        print(f"\n{report(run, bool(endpoint))}")


if __name__ == "__main__":
    main()
