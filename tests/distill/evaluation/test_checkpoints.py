"""The student of each checkpoint of a run, as curves: low resolution through a stage of higher ones (AMoE, Fig. 2)."""

import io

import pytest
from rich.console import Console

from curate.core.errors import RecipeError
from distill.commands.evaluate import evaluate
from distill.commands.train import train
from distill.evaluation.show import AFTER
from distill.recipe import parse_recipe
from tests.distill.conftest import recipe_values
from tests.distill.datasets import drawn_items, write_dataset

QUIET = Console(quiet=True)


def test_each_checkpoint_has_its_accuracies_at_a_low_resolution(values, monkeypatch):
    larger = [values["data"]["sources"][0] | {"max_tokens": 16}]
    values["train"] |= {"steps": 2, "learning_rate": 0.01}
    values["stages"] = [{}, {"data": {"sources": larger}}]
    values["run"] |= {"checkpoint_every": 1, "keep_checkpoints": 9}
    values["evaluate"] = {"k": 3, "tasks": ["knn"], "sizes": [16]}
    run = train(parse_recipe(values, "test"), QUIET)
    console = Console(record=True, width=200, file=io.StringIO())
    found = evaluate(str(run.path), [], console, checkpoints=True)["steps"]
    assert list(found) == ["1", "2", "3", "4"]
    rows = {AFTER, f"{AFTER}, as descriptor"}
    for held in found.values():
        (one,) = held["sets"]
        assert one["name"] == "held-out, 16 px" and set(one["knn"]["models"]) == rows
    (whole,) = evaluate(str(run.path), [], QUIET)["sets"]
    assert found["4"]["sets"][0]["knn"]["models"] == {name: whole["knn"]["models"][name] for name in rows}
    text = console.export_text()
    assert "held-out, 16 px: k nearest neighbours, accuracy" in text and "as descriptor" in text

    monkeypatch.setattr("distill.commands.evaluate._opened", lambda *_: pytest.fail("computed again"))
    assert evaluate(str(run.path), [], QUIET, checkpoints=True)["steps"] == found


def test_each_checkpoint_has_the_heads_of_its_stage(tmp_path):
    folder = write_dataset(tmp_path / "d", drawn_items(20), texts=[f"bars {row % 4}".encode() for row in range(20)])
    values = recipe_values(str(folder), str(tmp_path / "run"))
    values["data"]["sources"][0]["texts"] = {"txt": 1.0}
    values["student"]["text"] = {"vocabulary": 300, "width": 16, "heads": 2, "depth": 1, "context": 8}
    values["train"]["steps"] = 2
    mae = {"objective": "distill.objectives.mae:Mae", "decoder": {"depth": 1, "width": 16, "heads": 2}}
    values |= {"teachers": [], "contrastive": {}, "evaluate": {"tasks": ["knn", "retrieval"], "k": 3}}
    values["stages"] = [{"student": {"text": None}, "contrastive": None, "objectives": [mae]}, {}]
    run = train(parse_recipe(values, "test"), QUIET)
    console = Console(record=True, width=200, file=io.StringIO())
    found = evaluate(str(run.path), [], console, checkpoints=True)["steps"]
    assert [bool(held["sets"][0]["retrieval"]["models"]) for held in found.values()] == [False, True]
    assert ["2", "–"] in [line.split() for line in console.export_text().splitlines()]


def test_checkpoints_of_a_model_are_one_line(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(RecipeError, match=r"--checkpoints: .* is a model, or --to is given; it applies to a run"):
        evaluate(str(tmp_path), [], QUIET, checkpoints=True)
