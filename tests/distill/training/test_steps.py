"""Steps planned again from what a run keeps, with stages, weights, modalities and limits."""

from __future__ import annotations

import json
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from curate.core.errors import InputError
from distill.recipe import parse_recipe
from distill.samples.batches.stream import training_stream
from distill.samples.sources.mixture import open_mixture
from distill.samples.sources.split import held_out_rows
from distill.training.run_folder import RunFolder
from distill.training.steps import PastSteps, record_stage
from tests.distill.conftest import recipe_values
from tests.distill.datasets import drawn_items, write_dataset

STEPS = 24


@pytest.fixture(scope="module")
def values(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Two stages; the second has three weighted sources of two modalities, of which two are one dataset."""
    place = tmp_path_factory.mktemp("steps")
    other = write_dataset(place / "other", drawn_items(90)[60:])
    values = recipe_values(str(folder), str(place / "run"))
    sources = [
        {"dataset": str(folder), "max_tokens": {4: 1.0, 16: 1.0}, "weight": 3, "natural_side": [None, 47]},
        {"dataset": str(other), "max_tokens": 9, "weight": 1},
        {"dataset": str(folder), "max_tokens": 16, "weight": 2, "modality": "drawing"},
    ]
    values["train"]["steps"] = STEPS
    values["stages"] = [
        {},
        {"data": values["data"] | {"sources": sources}, "train": {"sequences": {"image": 2, "drawing": 1}}},
    ]
    return values


def run_of(values: dict[str, Any], folder: Path, every: int, *, plan: bool) -> tuple[RunFolder, list[Any]]:
    """What training writes, with a line every `every` steps (0: none); and the rows and epochs of all steps."""
    run, recipe = RunFolder(folder), parse_recipe(values, "test")
    run.checkpoints.mkdir(parents=True)
    (folder / "recipe.yaml").write_text(yaml.safe_dump(recipe.model_dump(mode="json"), sort_keys=False))
    steps, lines = [], []
    for number, stage in enumerate(recipe.staged()):
        mixture = open_mixture(stage.data)
        read = ~held_out_rows(mixture, seed=stage.seed, fraction=stage.data.test_fraction)
        stream = training_stream(stage, mixture, read if mixture.eligible is None else read & mixture.eligible)
        if plan:
            record_stage(run, number, number * STEPS, 2, stream.counted())
        for step in islice(stream.steps(), STEPS):
            steps.append(
                [(rows.tolist(), epochs.tolist()) for rows, epochs in zip(step.sequences, step.epochs, strict=True)]
            )
            line = {"step": len(steps), "stage": number, "places": [asdict(place) for place in step.after.places]}
            if every and (len(steps) % every == 0 or len(steps) == 2 * STEPS):
                lines.append(json.dumps(line) + "\n")
    run.metrics.write_text("".join(lines))
    (run.checkpoint(2 * STEPS)).mkdir()
    return run, steps


@pytest.mark.parametrize(("every", "plan"), [(7, True), (1, True), (0, False)])
def test_each_step_is_planned_again_and_each_sample_found(values, tmp_path, every, plan):
    run, steps = run_of(values, tmp_path, every, plan=plan)
    past = PastSteps(run)
    assert past.done == 2 * STEPS
    saw: dict[str, list[tuple[int, int]]] = {}
    for number, step in enumerate(steps, 1):
        found = past.plan(number)
        pairs = zip(found.sequences, found.epochs, strict=True)
        assert [(rows.tolist(), epochs.tolist()) for rows, epochs in pairs] == step, number
        for rows, epochs in step:
            for row, epoch in zip(rows, epochs, strict=True):
                saw.setdefault(past.stage(past.stage_of(number)).mixture.key(row), []).append((number, epoch))
    assert max(epoch for seen in saw.values() for _, epoch in seen) > 1
    saw = dict(list(saw.items())[::4])
    found = past.seen(list(saw))
    assert {key: sorted((one.step, one.epoch) for one in seen) for key, seen in found.items()} == {
        key: sorted(seen) for key, seen in saw.items()
    }


def test_a_dataset_that_has_changed_is_named(values, tmp_path):
    run, _ = run_of(values, tmp_path, 7, plan=True)
    url = open_mixture(parse_recipe(values, "test").data).sources[0].url
    run.write("run.json", {"fingerprint": "f", "datasets": {url: "another"}})
    with pytest.raises(InputError, match=f"{url} has changed since .* was trained on it; restore it"):
        PastSteps(run).plan(3)


def test_limits_of_some_rows_are_those_of_all(values):
    mixture = open_mixture(parse_recipe(values, "test").staged()[1].data)
    assert not mixture.eligible.all()
    for rows in (np.arange(len(mixture)), np.array([70, 3, 149, 0, 61])):
        assert np.array_equal(mixture.within_limits(rows), mixture.eligible[rows])
