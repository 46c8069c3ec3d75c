"""Objectives from outside of the package: in the gradients, in checkpoints and not in exports."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from rich.console import Console

import distill
from curate.core.errors import RecipeError
from distill.commands.evaluate import evaluate
from distill.commands.train import train
from distill.context import StageContext
from distill.export import export
from distill.objectives.outputs import Outputs
from distill.objectives.terms import relational, terms_of
from distill.parallel import World
from distill.recipe import apply_overrides, parse_recipe
from distill.samples.sources.mixture import open_mixture
from distill.training.checkpoint import last_checkpoint
from tests.distill.ranks import take_steps

ALONE = World(0, 1, torch.device("cpu"))
COLOURS = "tests.distill.objectives.toys:Colours"
ARKD, CONTRASTIVE = "distill.objectives.arkd:Arkd", "distill.objectives.contrastive:Contrastive"


@pytest.fixture
def plugged(values: dict[str, Any]) -> dict[str, Any]:
    """A recipe with an objective from outside."""
    values["objectives"] = [{"objective": COLOURS, "weight": 2.0}]
    return values


ENTRIES = [
    {"objective": COLOURS},
    {"objective": "distill.objectives.mae:Mae", "decoder": {"depth": 1, "width": 8, "heads": 1}},
    {"objective": "distill.objectives.masking:Masking", "share": 0.5},
    {"objective": "distill.objectives.denoising:Denoising"},
    {"objective": "distill.objectives.slip:Slip", "hidden": 8, "embed": 4},
]
"""Objectives of the package, and one from outside."""


@pytest.fixture
def augmented(values: dict[str, Any]) -> dict[str, Any]:
    values["data"]["augment"] = {"crop": [0.5, 1.0], "flip": True}
    return values


@pytest.mark.parametrize("entry", ENTRIES)
def test_micro_batches_equal_the_whole_batch(augmented, tmp_path, entry):
    values = augmented
    values["objectives"] = [entry]
    values["train"] |= {"precision": "float64", "epsilon": 1e-6}
    whole = take_steps(values, ALONE)
    parts = take_steps(values | {"run": values["run"] | {"micro_sequences": 1}}, ALONE)
    for one, two in zip(whole["steps"], parts["steps"], strict=True):
        assert two["sums"] == pytest.approx(one["sums"], rel=1e-10)
        for name, grad in one["grads"].items():
            assert torch.allclose(two["grads"][name], grad, rtol=1e-9, atol=1e-13), name
    own = [name for name in whole["steps"][0]["grads"] if name.startswith("objectives.")]
    assert own and all(any(step["grads"][name].any() for step in whole["steps"]) for name in own)


@pytest.mark.parametrize("entry", ENTRIES)
def test_a_batch_without_images_has_the_same_terms(augmented, entry):
    values = augmented
    recipe = parse_recipe(values | {"objectives": [entry]}, "test")
    context = StageContext.of(recipe, open_mixture(recipe.data), ALONE)
    student, spaces = context.new_student(), context.spaces(context.fit_standardisers())
    images = [context.reader.get(row, 0) for row in range(5)]
    some, none, one = (
        terms_of(recipe.objectives, Outputs.of(student, context.micro_batch(batch), spaces))
        for batch in (images, [], images[:1])
    )
    assert list(none.parts) == list(some.parts) and not any(none.parts.values())
    shapes = {label: [side.shape[1:] for side in sides] for label, sides in some.vectors.items()}
    assert {label: [side.shape[1:] for side in sides] for label, sides in none.vectors.items()} == shapes
    related = [item for item in recipe.objectives if item.relates]
    total, _ = relational(related, one.vectors, student) if related else (some.additive, {})
    assert total.isfinite() and total.requires_grad


def test_its_heads_are_drawn_by_seed_trained_and_not_exported(plugged, tmp_path):
    recipe = apply_overrides(parse_recipe(plugged, "test"), ["train.steps=6", "evaluate.tasks=[knn]"], "test")
    run = train(recipe, Console(quiet=True))
    lines = [json.loads(line) for line in run.metrics.read_text().splitlines()]
    for line in lines:
        terms = line["colours/patches"] + line["colours"]
        assert line["loss"] == pytest.approx(line["descriptor/summary"] + 2 * terms, rel=1e-6)
    assert lines[-1]["colours/patches"] < lines[0]["colours/patches"]
    saved = last_checkpoint(run, run.fingerprint())
    assert saved is not None
    own = {name: value for name, value in saved.weights().items() if name.startswith("objectives.")}
    assert set(own) == {f"objectives.colours.{name}" for name in (
        "patches.0.weight", "patches.0.bias", "patches.2.weight", "patches.2.bias", "images.weight", "images.bias"
    )}  # fmt: skip
    context = StageContext.of(run.recipe(), open_mixture(recipe.data), ALONE)
    first, again = context.new_student().state_dict(), context.new_student().state_dict()
    assert all(torch.equal(first[name], again[name]) and not torch.equal(first[name], own[name]) for name in own)
    plain = StageContext.of(parse_recipe(plugged | {"objectives": []}, "test"), context.dataset, ALONE).new_student()
    assert all(torch.equal(first[name], value) for name, value in plain.state_dict().items())
    assert evaluate(str(run.path), [], Console(quiet=True))["sets"]
    model = distill.load(export(run.path, tmp_path / "model"))
    assert not model.student.objectives


def test_the_fingerprint_has_its_class_version_and_values(plugged, values, monkeypatch):
    recipe = parse_recipe(plugged, "test")
    assert "objectives" not in parse_recipe(values | {"objectives": []}, "test").semantic()
    own = recipe.semantic()["objectives"]
    assert own == [{"objective": COLOURS, "version": 1, "weight": 2.0, "hidden": 8}]
    assert parse_recipe(recipe.model_dump(mode="json"), "test") == recipe
    monkeypatch.setattr(type(recipe.objectives[0]), "version", 2)
    assert recipe.semantic()["objectives"] != own


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"objective": "colours"}, "objectives.0: objective: 'colours' is not a class; expected package.module:Class"),
        ({"weight": 1}, "objectives.0: objective: None is not a class"),
        ("colours", "objectives.0: 'colours': input should be a valid dictionary"),
        ({"objective": "nowhere:Colours"}, r"cannot import 'nowhere:Colours' \(No module named 'nowhere'\); check the"),
        ({"objective": "pathlib:Path"}, "is not an Objective; give a class derived from distill.objectives.Objective"),
        ({"objective": COLOURS, "hiden": 3}, "objectives.0.hiden: unknown; did you mean 'hidden'"),
        ({"objective": COLOURS, "weight": -1}, "objectives.0.weight: -1: input should be greater than or equal to 0"),
        ({"objective": ARKD}, "objectives.0.teacher: missing; set it in the recipe"),
        (
            {"objective": ARKD, "teacher": "descriptor"},
            "objectives.0: two objectives are called 'descriptor/relat",
        ),
        ({"objective": ARKD, "teacher": "tiny"}, "objectives.0: unknown teacher 'tiny'; choose from descriptor"),
        ({"objective": CONTRASTIVE}, "contrastive requires student.text and the reverse"),
    ],
)
def test_mistakes_are_one_line(values, entry, message):
    with pytest.raises(RecipeError, match=message) as caught:
        parse_recipe(values | {"objectives": [entry]}, "r")
    assert "\n" not in str(caught.value)
