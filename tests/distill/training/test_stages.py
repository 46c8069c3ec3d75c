"""Stages one after another, what is said of a run, and what ends it."""

from __future__ import annotations

import gc
import json
import shutil
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from curate.core.errors import CurateError, RecipeError
from distill.recipe import Recipe, apply_overrides, parse_recipe
from distill.samples.sources.mixture import open_blends
from distill.teachers import Teachers
from distill.training.checkpoint import last_checkpoint, load_standards
from distill.training.parallel import World
from distill.training.run_folder import RunFolder, placed
from distill.training.train import Training
from distill.training.trainer import Trainer

ALONE = World(0, 1, torch.device("cpu"))


def trained(recipe: Recipe, folder: Path, console: Console | None = None) -> tuple[Trainer, list[dict[str, Any]]]:
    """Without evaluation: the trainer after the last step, and the lines of metrics."""
    run = RunFolder(folder)
    run.checkpoints.mkdir(parents=True, exist_ok=True)
    blends = open_blends(stage.data for stage in recipe.staged())
    trainer = Training(recipe, blends, run, "f", ALONE, console or Console(quiet=True)).train()
    return trainer, [json.loads(line) for line in run.metrics.read_text().splitlines()]


@pytest.fixture
def staged(values) -> Recipe:
    values["train"] |= {"ema": 0.5, "learning_rate": 1e-2, "final_learning_rate": 0.0, "warmup_steps": 0}
    values["run"] |= {"checkpoint_every": 2}
    source = values["data"]["sources"][0]
    values["stages"] = [
        {"train": {"steps": 3}},
        {"data": {"sources": [source | {"max_tokens": {4: 1.0}}], "sequence_tokens": 40},
         "train": {"steps": 4, "learning_rate": 1e-3, "betas": [0.5, 0.9]}},
    ]  # fmt: skip
    return parse_recipe(values, "test")


def test_stages_go_on_with_the_weights_in_data_and_schedule_of_their_own(staged, tmp_path):
    console = Console(record=True, width=400, force_terminal=False)
    trainer, lines = trained(staged, tmp_path, console)
    assert [line["step"] for line in lines] == list(range(1, 8))
    assert [line["stage"] for line in lines] == [0] * 3 + [1] * 4
    assert [line["learning_rate"] for line in lines] == pytest.approx(
        [1e-2, 5e-3, 0.0, 1e-3, 1e-3 * 2 / 3, 1e-3 / 3, 0.0]
    )
    assert trainer.optimizer.param_groups[0]["betas"] == (0.5, 0.9)
    assert max(len(picture.patches) for picture in next(iter(trainer.loader)).pictures) <= 4
    said = console.export_text()
    assert "toy f: 2" in said
    assert "7 steps in 2 stages, from the beginning" in said


@pytest.mark.parametrize(
    ("optimizer", "precision", "kept"),
    [("adamw", "float32", 2), ("lion", "bfloat16", 3), ("lamb", "float32", 4)],
    ids=["before the boundary", "at the boundary", "behind the boundary"],
)
def test_a_run_goes_on_with_the_same_bits(staged, tmp_path, optimizer, precision, kept):
    """With each optimiser and a moving average, in the stage of the checkpoint and in the next one."""
    sets = ["run.keep_checkpoints=9", "run.checkpoint_every=1", f"train.optimizer={optimizer}"]
    sets.append(f"train.precision={precision}")
    recipe = apply_overrides(staged, sets, "test")
    one, lines = trained(recipe, tmp_path / "one")
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    for step in range(kept + 1, 8):
        shutil.rmtree(tmp_path / "two" / "checkpoints" / f"step-{step:08d}")
    two, again = trained(recipe, tmp_path / "two")
    assert two.step == 7
    assert [line["loss"] for line in again] == [line["loss"] for line in lines]
    held, found = one.tensors(), two.tensors()
    assert held.keys() == found.keys()
    assert all(torch.equal(value, found[place]) for place, value in held.items())
    for name, value in one.trained().state_dict().items():
        assert torch.equal(two.trained().state_dict()[name], value)


def test_what_is_evaluated_is_the_moving_average_where_there_is_one(staged, tmp_path):
    trainer, _ = trained(staged, tmp_path)
    averaged, last = trainer.trained().state_dict(), trainer.student.state_dict()
    assert any(not torch.equal(value, last[name]) for name, value in averaged.items())
    saved = last_checkpoint(RunFolder(tmp_path), "f")
    assert saved.averaged
    assert all(torch.equal(value, averaged[name]) for name, value in saved.weights().items())
    assert load_standards(RunFolder(tmp_path))[0].state().keys() == trainer.standards[0].state().keys()


@pytest.mark.parametrize(
    ("stage", "message"),
    [
        ({"train": {"optimizer": "lion"}}, "stages.1.train.optimizer: 'lion' after 'adamw'; give it once"),
        ({"data": {"test_fraction": 0.5}}, "stages.1.data.test_fraction: 0.5 after 0.3; give it once"),
        ({"train": {"ema": 0.0}}, "stages.1.train.ema: on in one stage and off in another"),
    ],
)
def test_what_a_stage_cannot_change(staged, tmp_path, stage, message):
    values = staged.model_dump(mode="json") | {"stages": [{}, stage]}
    with pytest.raises(RecipeError, match=message):
        trained(parse_recipe(values, "test"), tmp_path)


def test_a_run_s_recipe_names_where_each_stage_s_data_was_found(staged, folder, monkeypatch):
    monkeypatch.chdir(folder.parent)
    values = staged.model_dump(mode="json")
    values["data"]["sources"][0]["dataset"] = values["stages"][1]["data"]["sources"][0]["dataset"] = "toy"
    recipe = parse_recipe(values, "test")
    found = placed(recipe, open_blends(stage.data for stage in recipe.staged()))
    assert found["data"]["sources"][0]["dataset"] == str(folder)
    assert found["stages"][1]["data"]["sources"][0]["dataset"] == str(folder)


def test_weights_that_are_no_numbers_are_never_kept(recipe, tmp_path, monkeypatch):
    step = torch.optim.AdamW.step

    def broken(self, *given: Any) -> None:
        step(self, *given)
        if taken.append(1) or len(taken) == 4:
            self.param_groups[0]["params"][0].data[0] = float("nan")

    taken: list[Any] = []
    monkeypatch.setattr(torch.optim.AdamW, "step", broken)
    with pytest.raises(
        CurateError,
        match=r"^step 4: weights are no longer numbers; the checkpoint of step 2 stays as it is, but the same",
    ):
        trained(apply_overrides(recipe, ["run.checkpoint_every=2"], "test"), tmp_path)
    assert RunFolder(tmp_path).steps() == [2]


def test_a_gradient_that_is_no_number_ends_the_run_before_the_update(recipe, tmp_path, monkeypatch):
    monkeypatch.setattr(World, "gradient_norm", lambda *_: float("inf"))
    with pytest.raises(
        CurateError, match=r"^step 1: the gradient's norm is inf; no checkpoint was written, but the same settings"
    ):
        trained(recipe, tmp_path)


def test_metrics_say_how_fast_it_goes_and_tensorboard_shows_the_same(recipe, tmp_path):
    sets = ["run.tensorboard=true", "student.moe={experts: 4, active: 2, hidden: 8}", "train.steps=2"]
    _, lines = trained(apply_overrides(recipe, sets, "test"), tmp_path)
    for line in lines:
        assert line["tokens_per_second"] > line["images_per_second"] > 0
        assert 0 < line["peak_share"] < 1
        assert 0 <= line["wait_share"] <= 1
        assert 1 <= line["expert_load"] <= 4
        assert line["gradient_norm"] > 0
        assert line["loss"] == pytest.approx(line["descriptor/summary"])
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert [item.value for item in events.Scalars("loss")] == pytest.approx([line["loss"] for line in lines])


@pytest.mark.parametrize("how", ["run.activation_checkpointing=true", "run.micro_sequences=2"])
def test_how_it_is_computed_changes_nothing(recipe, tmp_path, how):
    recipe = apply_overrides(recipe, ["train.precision=float64"], "test")
    _, one = trained(recipe, tmp_path / "one")
    _, two = trained(apply_overrides(recipe, [how], "test"), tmp_path / "two")
    assert [line["loss"] for line in two] == pytest.approx([line["loss"] for line in one], rel=1e-9)


def test_a_stage_takes_over_the_teachers_models_and_lets_go_of_the_rest(staged, tmp_path, monkeypatch):
    held: list[dict[str, weakref.ref]] = []
    models: list[set[int]] = []
    enter, of = Trainer.enter, Teachers.of

    def entered(self: Trainer, bench: Any, stage: int) -> None:
        enter(self, bench, stage)
        things = {"bench": bench, "pictures": bench.pictures, "teachers": bench.teachers, "loader": self.loader}
        held.append({name: weakref.ref(item) for name, item in things.items()})
        models.append({id(encoder) for encoder in bench.teachers.encoders.values()})
        if stage:
            gc.collect()
            assert [name for name, item in held[0].items() if item() is not None] == []

    loads: list[int] = []
    monkeypatch.setattr(Trainer, "enter", entered)
    monkeypatch.setattr(Teachers, "of", lambda *given, **named: loads.append(1) or of(*given, **named))
    trained(staged, tmp_path)
    assert len(held) == 2
    assert len(loads) == 1
    assert models[0] == models[1]


def test_a_full_memory_is_an_error_with_the_remedy(recipe, tmp_path, monkeypatch):
    def full(*_: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(Trainer, "_update", full)
    with pytest.raises(
        CurateError, match=r"^step 1: the memory of cpu is full with run.micro_sequences=0 .*set it lower"
    ):
        trained(recipe, tmp_path)
