"""The recipes of the package: all can be planned without data, and the tiny ones train on a few drawn images."""

import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from curate.core.errors import RecipeError
from distill.commands.plan import plan
from distill.commands.train import train
from distill.recipe import Recipe, load_recipe, parse_recipe
from distill.recipe.load import RECIPES
from tests.distill.datasets import write_clip_art

DATASET = "workspace/datasets/quickstart"


@pytest.mark.parametrize("name", sorted(path.stem for path in RECIPES.glob("*.yaml")))
def test_recipes_can_be_planned_without_data(name):
    recipe = load_recipe(name)
    stages = plan(recipe, Console(quiet=True))
    assert sum(stage.steps for stage in stages) == recipe.steps
    assert all(stage.total > 0 for stage in stages)


def test_a_plan_rejects_what_a_stage_may_not_change():
    with pytest.raises(RecipeError, match=r"stages\.1\.student\.width: 128, but 96 in the first stage"):
        plan(load_recipe("pe-tiny", ["stages.1.student.width=128"]), Console(quiet=True))


def planned(name: str) -> list[tuple[int, float]]:
    """(steps, images of a step) of each stage."""
    return [(one.steps, one.sequences * one.images) for one in plan(load_recipe(name), Console(quiet=True))]


def test_perception_encoder_has_the_batches_and_samples_of_the_paper():
    """Section 2.4 and the tables of appendix B.1.1."""
    *images, cooldown, videos = planned("pe")
    assert sum(steps for steps, _ in images) == 443_000 and {batch for _, batch in images} == {131_072}
    assert cooldown[0] * cooldown[1] == pytest.approx(50e6, rel=0.01)
    assert videos == (5371, 4096)
    distilled, videos = planned("pe-small")
    assert distilled == (269_000, 16_384) and videos == (5371, 4096)
    assert distilled[0] * distilled[1] == pytest.approx(4.4e9, rel=0.01)


def test_xray_has_the_resolutions_of_section_4_3():
    sides = [14 * stage.data.max_tokens**0.5 for stage in load_recipe("xray").staged()]
    assert sides == [224, 224, 98, 154, 224, 336, 448]


@pytest.mark.long
def test_pe_tiny_trains(tmp_path):
    """`xray-tiny` is trained by tests/pipelines/test_xray.py."""
    run = train(shortened("pe-tiny", write_clip_art(tmp_path / "clip-art"), tmp_path), Console(quiet=True))
    lines = [json.loads(line) for line in run.metrics.read_text().splitlines()]
    assert [line["step"] for line in lines] == list(range(1, len(lines) + 1))
    for stage, recipe in enumerate(load_recipe("pe-tiny").staged()):
        labels = {item.label for item in recipe.every_objective}
        assert labels <= lines[stage].keys(), labels - lines[stage].keys()


def shortened(name: str, dataset: Path, folder: Path) -> Recipe:
    """The recipe with a step in each stage, on another dataset."""
    text = json.dumps(load_recipe(name).model_dump(mode="json"))
    values: dict[str, Any] = json.loads(text.replace(DATASET, str(dataset)))
    values["run"] |= {"folder": str(folder / "run"), "device": "cpu", "log_every": 1, "tensorboard": False}
    values["evaluate"] |= {"tasks": []}
    for stage in (values, *values["stages"]):
        stage["train"] |= {"steps": 1, "warmup_steps": 0}
        stage["data"] |= {"sequence_images": 8}
    values["train"] |= {"sequences": 2}
    return parse_recipe(values, name)
