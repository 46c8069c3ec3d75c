"""Unusable samples, losses that are not finite, and missing devices."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch
from rich.console import Console

from curate.core.errors import BudgetError, CurateError, InputError, PreflightError
from distill.commands.replay import not_finite, replay
from distill.commands.train import train
from distill.parallel import World, join_world
from distill.recipe import Recipe, apply_overrides, parse_recipe
from distill.training.checkpoint import open_checkpoint, save_checkpoint
from distill.training.run_folder import RunFolder
from distill.training.trainer import NotFiniteError
from tests.distill.conftest import recipe_values
from tests.distill.datasets import drawn_items, write_dataset
from tests.distill.ranks import trainer_of

QUIET = Console(quiet=True)


def with_sets(recipe: Recipe, *overrides: str) -> Recipe:
    return apply_overrides(recipe, ["evaluate.tasks=[]", *overrides], "test")


@pytest.fixture
def faulty(tmp_path) -> Recipe:
    """A recipe for a dataset with a third of the images truncated and one tar missing."""
    items = drawn_items(60)
    for item in items[::3]:
        item.data = item.data[:70]
    folder = write_dataset(tmp_path / "faulty", items)
    (folder / "toy-000001.tar").unlink()
    return parse_recipe(recipe_values(str(folder), str(tmp_path / "run")), "test")


@pytest.mark.parametrize("steps", [40, 2])
def test_too_many_bad_samples_end_the_run_however_short_it_is(faulty, steps):
    with pytest.raises(
        BudgetError, match=r"samples could not be used \((truncated|shard_missing) \d+, .* \d+; such as"
    ):
        train(with_sets(faulty, f"train.steps={steps}"), QUIET)


def test_bad_samples_are_checked_at_the_end_of_an_epoch(faulty, monkeypatch):
    """Also in an epoch with fewer samples than the check within an epoch needs."""
    monkeypatch.setattr("distill.training.trainer._BUDGET_AFTER", 10**9)
    run = faulty.run.folder
    for _ in range(2):  # the second resumes from the epoch's last step
        with pytest.raises(BudgetError, match="samples could not be used"):
            train(with_sets(faulty, "train.steps=40", "run.checkpoint_every=1"), QUIET)
    lines = [json.loads(line) for line in (Path(run) / "metrics.jsonl").read_text().splitlines()]
    assert 0 < len(lines) < 20
    assert {line["epoch"] for line in lines} == {0}


def test_allowed_bad_samples_are_counted_and_printed_at_the_end(faulty, capsys):
    run = train(with_sets(faulty, "data.max_bad_fraction=1", "train.steps=8"), Console(width=300))
    lines = [json.loads(line) for line in run.metrics.read_text().splitlines()]
    skipped, images = (sum(line[name] for line in lines) for name in ("skipped", "images"))
    assert skipped > 0
    assert all(0 < line["fill"] <= 1 for line in lines)
    output = capsys.readouterr().out
    assert f"skipped {skipped} of {skipped + images} samples: " in output
    assert "truncated" in output and "shard_missing" in output


@pytest.mark.parametrize("limit", [0.05, 1.0])
def test_a_run_without_a_readable_image_is_an_error(recipe, folder, tmp_path, limit):
    trained = train(with_sets(recipe, "train.steps=2"), QUIET)  # writes standards.pt
    moved = with_sets(recipe, f"data.max_bad_fraction={limit}", "run.folder=" + str(tmp_path / "gone"))
    gone = write_dataset(tmp_path / "gone-tars", drawn_items(60))
    for tar in gone.glob("*.tar"):
        tar.unlink()
    (tmp_path / "gone").mkdir()
    (trained.path / "standards.pt").rename(tmp_path / "gone" / "standards.pt")
    with pytest.raises(BudgetError, match=r"of \d+ samples could (not )?be used \(shard_missing \d+; such as .*fix"):
        train(with_sets(moved, f"data.sources.0.dataset={gone}"), QUIET)


def test_a_step_without_a_readable_image_is_skipped(tmp_path):
    folder = write_dataset(tmp_path / "d", drawn_items(60), shard_rows=30)
    (folder / "toy-000001.tar").unlink()
    values = recipe_values(str(folder), str(tmp_path / "run"))
    values["data"] |= {"lanes": 1, "window_shards": 1, "max_bad_fraction": 1.0}
    values["train"] |= {"sequences": 1, "steps": 20}
    run = train(with_sets(parse_recipe(values, "test")), QUIET)
    lines = [json.loads(line) for line in run.metrics.read_text().splitlines()]
    assert len(lines) == 20
    assert None in [line.get("loss") for line in lines]
    assert any(line.get("loss") for line in lines)


def test_a_loss_that_is_not_finite_ends_the_run_with_a_remedy(recipe):
    wild = ["train.learning_rate=1e9", "train.warmup_steps=0", "train.optimizer=lion", "train.weight_decay=1e6"]
    with pytest.raises(
        CurateError,
        match=r"^step \d: .* is -?(nan|inf); (the checkpoint of step \d is unchanged|no checkpoint was written), but "
        r"the same settings would fail again: start a new run .* a train.learning_rate below 1e\+09, more .*"
        r"clip_norm=1. `distill replay .*` shows where it begins$",
    ):
        train(with_sets(recipe, *wild), QUIET)


def test_a_step_that_is_not_finite_runs_again(values, capsys):
    """One sample's loss becomes infinite in a forward pass; the other lines follow from it."""
    values["objectives"] = [{"objective": "tests.distill.objectives.toys:Cracked"}]
    recipe = with_sets(parse_recipe(values, "test"), "train.steps=9", "run.checkpoint_every=3")
    with pytest.raises(CurateError, match=r"^step (\d): cracked is (inf|nan)") as caught:
        train(recipe, QUIET)
    step, run = int(str(caught.value)[5]), Path(recipe.run.folder)
    assert RunFolder(run).captured() == [step]
    lines = replay(str(run), None, Console(width=400))
    assert replay(str(run), step, QUIET) == lines
    assert re.fullmatch(r"cracked is not finite for 1 of \d+ samples, the first [0-9a-f]{32}", lines[0])
    assert re.fullmatch(r"backward: the gradient of \S+ is the first that is not finite", lines[1])
    assert lines[0] in capsys.readouterr().out
    with pytest.raises(InputError, match=rf"no step 99 that was not finite; it has {step}$"):
        replay(str(run), 99, QUIET)


def test_a_replay_names_the_module_that_is_not_finite_first(values, tmp_path):
    """Experts, which are weights of their module and not modules."""
    values["student"]["moe"] = {"experts": 2, "active": 1, "hidden": 8}
    trainer = trainer_of(values, World(0, 1, torch.device("cpu")))
    with torch.no_grad():
        trainer.student.backbone.blocks[1].mlp.gate_up.mul_(1e25)
    share = next(iter(trainer.loader))
    with pytest.raises(NotFiniteError):
        trainer.update(share)
    run = RunFolder(tmp_path)
    save_checkpoint(run, *trainer.captured(), trainer.context.world)
    lines = not_finite(trainer, share, open_checkpoint(run.captured_path(1), "fingerprint"))
    assert "forward: the output of backbone.blocks.1.mlp is the first that is not finite" in lines


@pytest.mark.parametrize(
    ("device", "message"),
    [
        ("tpu", "run.device: expected auto, cpu, cuda or cuda:0 …, not 'tpu'"),
        ("mps", "run.device: expected auto, cpu, cuda or cuda:0 …, not 'mps'"),
        ("cuda:9999", "run.device: 'cuda:9999'"),
    ],
)
def test_missing_devices(device, message):
    with pytest.raises(PreflightError, match=message), join_world(device):
        pass
