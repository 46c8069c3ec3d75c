"""Validation during training: its figures, that training does not notice, and that it can be stopped."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from distill.commands.train import train
from distill.evaluation.extraction import FeatureExtractor
from distill.evaluation.show import AFTER
from distill.recipe import Recipe, parse_recipe
from distill.training.progress import losses_of, read_lines
from distill.training.run_folder import RunFolder

QUIET = Console(quiet=True)
KNN = "validation/held-out/knn"


@pytest.fixture
def validated(values: dict[str, Any]) -> Recipe:
    values["train"] |= {"steps": 6, "ema": 0.5}
    values["evaluate"] |= {"tasks": ["knn", "zero_shot"], "every": 2, "every_images": 12}
    return parse_recipe(values, "test")


@pytest.mark.long
def test_losses_with_and_without_validation_are_the_same_bits(validated, tmp_path):
    plain = validated.model_dump(mode="json")
    plain["evaluate"]["every"], plain["run"]["folder"] = 0, str(tmp_path / "plain")
    one, two = (train(recipe, QUIET) for recipe in (validated, parse_recipe(plain, "test")))
    assert one.fingerprint() == two.fingerprint()
    lines = read_lines(one)
    assert [losses_of(line) for line in lines] == [losses_of(line) for line in read_lines(two)]
    assert [line["step"] for line in lines if KNN in line] == [2, 4, 6]
    assert all(0 <= line[KNN] <= 1 for line in lines if KNN in line)
    page = (one.path / "evaluation.html").read_text()
    assert "During training" in page and "held-out/knn" in page
    assert "During training" not in (two.path / "evaluation.html").read_text()


def test_sigterm_ends_a_validation_and_the_run_resumes(validated, monkeypatch):
    """The signal comes with the first batch; the next is not read."""
    extract, batches = FeatureExtractor.extract, []

    def slow(self: FeatureExtractor, batch: Any) -> Any:
        batches.append(batch)
        os.kill(os.getpid(), signal.SIGTERM)
        return extract(self, batch)

    monkeypatch.setattr(FeatureExtractor, "extract", slow)
    run = RunFolder(Path(validated.run.folder))
    with pytest.raises(SystemExit, match="143"):
        train(validated, QUIET)
    assert run.last_step() == 2 and len(batches) == 1
    monkeypatch.undo()
    train(validated, QUIET)
    assert [line["step"] for line in read_lines(run) if KNN in line] == [4, 6]


def test_accuracies_at_a_low_resolution_through_a_stage_of_a_higher_one(values):
    """What the higher resolution forgets (AMoE, Fig. 2)."""
    larger = [values["data"]["sources"][0] | {"max_tokens": 16}]
    values["train"] |= {"steps": 2, "learning_rate": 0.01}
    values["stages"] = [{}, {"data": {"sources": larger}}]
    values["evaluate"] = {"k": 3, "tasks": ["knn"], "sizes": [16, 32], "every": 1}
    run = train(parse_recipe(values, "test"), QUIET)
    lines = read_lines(run)
    assert [line["step"] for line in lines if "validation/held-out, 16 px/knn" in line] == [1, 2, 3, 4]
    sets = run.read("evaluation.json", "sets")["sets"]
    after = {one["name"]: one["knn"]["models"][AFTER]["accuracy"] for one in sets}
    assert {name: lines[-1][f"validation/{name}/knn"] for name in after} == after
    assert set(after) == {"held-out, 16 px", "held-out, 32 px"}


def test_nothing_to_compute_is_printed_once(values, capsys):
    values["evaluate"] |= {"tasks": ["zero_shot"], "every": 1}
    train(parse_recipe(values, "test"), Console(width=400))
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("evaluate.every")]
    assert len(lines) == 1 and re.match("evaluate.every: nothing to compute: no model here encodes texts", lines[0])
