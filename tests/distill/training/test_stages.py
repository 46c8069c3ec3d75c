"""Training in stages, resuming, metrics, and the errors that end a run."""

from __future__ import annotations

import gc
import json
import re
import shutil
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console

from curate.core.errors import CurateError, RecipeError
from distill.context import StageContext
from distill.parallel import World
from distill.recipe import Recipe, apply_overrides, parse_recipe
from distill.samples.sources.mixture import open_mixtures
from distill.teachers import Teachers
from distill.training.checkpoint import Checkpoint, last_checkpoint, load_standardisers
from distill.training.run import TrainingRun
from distill.training.run_folder import RunFolder, with_dataset_urls
from distill.training.trainer import Trainer

ALONE = World(0, 1, torch.device("cpu"))


def trained(recipe: Recipe, folder: Path, console: Console | None = None) -> tuple[Trainer, list[dict[str, Any]]]:
    """Train without evaluation: the trainer after the last step, and the lines of metrics.jsonl."""
    run = RunFolder(folder)
    run.checkpoints.mkdir(parents=True, exist_ok=True)
    mixtures = open_mixtures(stage.data for stage in recipe.staged())
    trainer = TrainingRun(recipe, mixtures, run, "f", ALONE, console or Console(quiet=True)).train()
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


def test_stages_continue_with_the_weights_and_their_own_data_and_schedule(staged, tmp_path):
    console = Console(record=True, width=400, force_terminal=False)
    trainer, lines = trained(staged, tmp_path, console)
    assert [line["step"] for line in lines] == list(range(1, 8))
    assert [line["stage"] for line in lines] == [0] * 3 + [1] * 4
    assert [line["learning_rate"] for line in lines] == pytest.approx(
        [1e-2, 5e-3, 0.0, 1e-3, 1e-3 * 2 / 3, 1e-3 / 3, 0.0]
    )
    assert trainer.optimizer.param_groups[0]["betas"] == (0.5, 0.9)
    assert max(len(image.patches) for image in next(iter(trainer.loader)).images) <= 4
    output = console.export_text()
    assert "toy f: 2" in output
    assert re.search(r"; 7 steps in 2 stages, about \d+ image tokens, from the beginning", output)


@pytest.mark.long
def test_tokens_seen_are_a_running_total_across_stages_and_resumes(staged, tmp_path, monkeypatch):
    seen: list[int] = []

    def update(trainer, share, **more):
        seen.append(sum(len(image.patches) for image in share.images))
        return original(trainer, share, **more)

    original = Trainer.update
    monkeypatch.setattr(Trainer, "update", update)
    recipe = apply_overrides(staged, ["run.keep_checkpoints=9", "run.checkpoint_every=1"], "test")
    console = Console(record=True, width=200, force_terminal=True)
    _, lines = trained(recipe, tmp_path, console)
    assert [line["tokens_seen"] for line in lines] == np.cumsum(seen).tolist()
    assert f" {sum(seen)} seen  loss " in console.export_text()
    for step in (6, 7):
        shutil.rmtree(tmp_path / "checkpoints" / f"step-{step:08d}")
    _, again = trained(recipe, tmp_path)
    assert [line["tokens_seen"] for line in again] == [line["tokens_seen"] for line in lines]


def test_a_source_is_trained_on_images_of_its_natural_sizes_only(values, dataset):
    """One dataset as two sources: all images, and those of 47 px or less; held-out images stay held out."""
    source = values["data"]["sources"][0]
    values["data"]["sources"] = [source | {"weight": 1}, source | {"weight": 3, "natural_side": [None, 47]}]
    recipe = parse_recipe(values, "test")
    context = StageContext.of(recipe, open_mixtures([recipe.data])[0], ALONE)
    stream = context.stream()
    first, second = stream.rows[stream.rows < 60], stream.rows[stream.rows >= 60] - 60
    pixels = dataset.integers("width") * dataset.integers("height")
    assert 0 < len(second) < len(first)
    assert second.tolist() == [row for row in first if pixels[row] <= 47**2]


@pytest.mark.parametrize(
    ("optimizer", "precision", "kept"),
    [
        pytest.param("adamw", "float32", 2, marks=pytest.mark.long),
        pytest.param("lion", "bfloat16", 3, marks=pytest.mark.long),
        ("lamb", "float32", 4),
    ],
    ids=["before the boundary", "at the boundary", "after the boundary"],
)
def test_a_resumed_run_gives_the_same_bits(staged, tmp_path, optimizer, precision, kept):
    """With each optimiser and a moving average, in the stage of the checkpoint and in the next stage."""
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
    expected, actual = one.tensors(), two.tensors()
    assert expected.keys() == actual.keys()
    assert all(torch.equal(value, actual[name]) for name, value in expected.items())
    for name, value in one.final_student().state_dict().items():
        assert torch.equal(two.final_student().state_dict()[name], value)


@pytest.mark.parametrize("optimizer", ["adamw", pytest.param("lamb", marks=pytest.mark.long)])
def test_a_stage_with_other_heads_takes_over_what_stays(staged, tmp_path, optimizer):
    """From a classifier and a frozen backbone to a whole student with a new head: new weights begin as those of a new
    student, the others keep weights, optimiser and average, and a restart at any step gives the same bits."""
    values = apply_overrides(staged, [f"train.optimizer={optimizer}"], "test").model_dump(mode="json")
    values["run"] |= {"keep_checkpoints": 9, "checkpoint_every": 1}
    colours = {"objective": "tests.distill.objectives.toys:Colours"}
    values["stages"][0] |= {"objectives": [], "train": {"steps": 3, "rates": {"backbone": 0, "heads": 0.5}}}
    values["stages"][1] |= {"objectives": [colours], "teachers": {"descriptor": {"summary": {"weight": 0.5}}}}
    recipe = parse_recipe(values, "test")
    one, lines = trained(recipe, tmp_path / "one")
    first, then = (Checkpoint(tmp_path / "one/checkpoints" / f"step-0000000{step}", {}) for step in (3, 4))
    assert not any("backbone" in name for name in first.shapes() if name.startswith("optimizer"))
    new = {name for name in then.shapes() if name.startswith("optimizer.objectives.colours")}
    assert new and not any("objectives" in name for name in first.shapes())
    steps = {name: torch.zeros(then.shapes()[name][0]) for name in then.shapes() if name.endswith(".step")}
    then.load(steps)
    counts = {name.split(".")[1]: float(value) for name, value in steps.items()}
    assert counts == {"heads": 4, "backbone": 1, "objectives": 1}
    plain = one.context.new_student().backbone.state_dict()
    frozen = {f"student.backbone.{name}": torch.zeros_like(value) for name, value in plain.items()}
    first.load(frozen)
    assert all(torch.equal(frozen[f"student.backbone.{name}"], value) for name, value in plain.items())
    for kept in (2, 3, 5) if optimizer == "lamb" else ():
        two = tmp_path / str(kept)
        shutil.copytree(tmp_path / "one", two)
        for step in range(kept + 1, 8):
            shutil.rmtree(two / "checkpoints" / f"step-{step:08d}")
        again, repeated = trained(recipe, two)
        assert [line["loss"] for line in repeated] == [line["loss"] for line in lines]
        expected, actual = one.tensors(), again.tensors()
        assert expected.keys() == actual.keys()
        assert all(torch.equal(value, actual[name]) for name, value in expected.items())
    assert recipe.semantic() != staged.semantic()
    assert parse_recipe(recipe.model_dump(mode="json"), "test").semantic() == recipe.semantic()


def test_a_stage_may_drop_tokens_that_the_one_before_keeps(staged, tmp_path):
    values = staged.model_dump(mode="json")
    denoising = {"objective": "distill.objectives.denoising:Denoising"}
    values |= {"teachers": [], "objectives": [denoising]}
    values["stages"][1] |= {"student": {"keep": 0.5, "keep_layers": [1]}}
    trainer, lines = trained(parse_recipe(values, "test"), tmp_path / "run")
    assert trainer.student.backbone.reduction.keep == 0.5 and trainer.cost.reduction
    assert [line["stage"] for line in lines] == [0] * 3 + [1] * 4
    shutil.rmtree(tmp_path / "run" / "checkpoints" / "step-00000007")
    again, _ = trained(parse_recipe(values, "test"), tmp_path / "run")
    assert all(torch.equal(again.tensors()[name], value) for name, value in trainer.tensors().items())


def test_one_schedule_spans_the_stages_that_continue_it(staged, tmp_path):
    values = staged.model_dump(mode="json")
    values["train"] |= {"restart": False, "warmup_steps": 4, "learning_rate": 1.0, "final_learning_rate": 0.1}
    values["stages"] = [{"train": {"steps": 3}}, {"train": {"steps": 4}}, {"train": {"steps": 2, "restart": True,
                        "warmup_steps": 0, "learning_rate": 0.5}}]  # fmt: skip
    recipe = parse_recipe(values, "test")
    assert recipe.schedules() == [range(7), range(7), range(7, 9)]
    _, lines = trained(apply_overrides(recipe, ["train.optimizer=lion"], "test"), tmp_path)
    assert [line["learning_rate"] for line in lines] == pytest.approx([0.25, 0.5, 0.75, 1, 1, 0.55, 0.1, 0.5, 0.1])


def test_the_moving_average_is_evaluated_if_there_is_one(staged, tmp_path):
    trainer, _ = trained(staged, tmp_path)
    averaged, last = trainer.final_student().state_dict(), trainer.student.state_dict()
    assert any(not torch.equal(value, last[name]) for name, value in averaged.items())
    saved = last_checkpoint(RunFolder(tmp_path), "f")
    assert saved.averaged
    assert all(torch.equal(value, averaged[name]) for name, value in saved.weights().items())
    assert load_standardisers(RunFolder(tmp_path))[0].state().keys() == trainer.standardisers[0].state().keys()


@pytest.mark.parametrize(
    ("stage", "message"),
    [
        (
            {"train": {"optimizer": "lion"}},
            "stages.1.train.optimizer: 'lion', but 'adamw' in the first stage; set it once",
        ),
        ({"data": {"test_fraction": 0.5}}, "stages.1.data.test_fraction: 0.5, but 0.3 in the first stage; set it once"),
        ({"train": {"ema": 0.0}}, "stages.1.train.ema: on in one stage and off in another"),
        ({"student": {"width": 32}}, "stages.1.student.width: 32, but 16 in the first stage; a stage may change obj"),
        (
            {"teachers": {"descriptor": {"relations": {"kind": "rkd"}, "patches": {"weight": 0}}}},
            "stages.1.teachers.descriptor: its losses need registers, summary, those of the first stage patches, r",
        ),
        ({"teachers": {"descriptr": {}}}, "stages.1.teachers: unknown teacher 'descriptr'; choose from descriptor"),
        ({"teachers": {"descriptor": {"keep": "float16"}}}, "descriptor: a stage cannot change 'keep'; it may change"),
        (
            {"train": {"restart": False, "learning_rate": 1.0}},
            "stages.1.train.learning_rate: 1.0, but 0.01 in the stage before, whose schedule it continues",
        ),
        ({"train": {"steps": 2, "warmup_steps": 2}}, r"warmup_steps 2 must be less than steps 2"),
        ({"train": {"rates": {"backbon": 0}}}, r"^stages.1.train.rates: no weight .* 'backbon'; did you mean 'backb"),
        ({"train": {"rates": {"backbone": 0, "heads": 0}}}, r"^stages.1.train.rates: every weight .* is frozen"),
        (  # registers have a weight, but `descriptor` has none
            {"teachers": {"descriptor": {"summary": {"weight": 0}, "patches": {"weight": 1e-9}}}},
            r"^stages.1.teachers: no loss on features that they have has a weight above 0",
        ),
        ({"objectives": [], "contrastive": {}}, "contrastive requires student.text and the reverse"),
    ],
)
def test_settings_that_a_stage_cannot_change(staged, tmp_path, stage, message):
    values = staged.model_dump(mode="json") | {"stages": [{"train": {"steps": 2}}, stage]}
    with pytest.raises(RecipeError, match=message):
        trained(parse_recipe(values, "test"), tmp_path)
    assert not list(tmp_path.glob("**/metrics.jsonl"))  # before the first step


def test_a_runs_recipe_has_the_resolved_datasets_of_each_stage(staged, folder, monkeypatch):
    monkeypatch.chdir(folder.parent)
    values = staged.model_dump(mode="json")
    values["data"]["sources"][0]["dataset"] = values["stages"][1]["data"]["sources"][0]["dataset"] = "toy"
    recipe = parse_recipe(values, "test")
    found = with_dataset_urls(recipe, open_mixtures(stage.data for stage in recipe.staged()))
    assert found["data"]["sources"][0]["dataset"] == str(folder)
    assert found["stages"][1]["data"]["sources"][0]["dataset"] == str(folder)


def test_weights_that_are_not_finite_are_never_saved(recipe, tmp_path, monkeypatch):
    step = torch.optim.AdamW.step

    def broken(self, *args: Any) -> None:
        step(self, *args)
        steps.append(1)
        if len(steps) == 4:
            self.param_groups[0]["params"][0].data[0] = float("nan")

    steps: list[int] = []
    monkeypatch.setattr(torch.optim.AdamW, "step", broken)
    with pytest.raises(
        CurateError,
        match=r"^step 4: weights are not finite; the checkpoint of step 2 is unchanged, but the same",
    ):
        trained(apply_overrides(recipe, ["run.checkpoint_every=2"], "test"), tmp_path)
    assert RunFolder(tmp_path).steps() == [2]


def test_a_gradient_that_is_not_finite_ends_the_run_before_the_update(recipe, tmp_path, monkeypatch):
    monkeypatch.setattr(World, "gradient_norm", lambda *_: float("inf"))
    with pytest.raises(
        CurateError, match=r"^step 1: the gradient norm is inf; no checkpoint was written, but the same settings"
    ):
        trained(recipe, tmp_path)


def test_metrics_have_the_throughput_and_tensorboard_has_the_same_values(recipe, tmp_path):
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


@pytest.mark.parametrize("setting", ["run.activation_checkpointing=true", "run.micro_sequences=2"])
def test_settings_of_memory_do_not_change_the_losses(recipe, tmp_path, setting):
    recipe = apply_overrides(recipe, ["train.precision=float64"], "test")
    _, one = trained(recipe, tmp_path / "one")
    _, two = trained(apply_overrides(recipe, [setting], "test"), tmp_path / "two")
    assert [line["loss"] for line in two] == pytest.approx([line["loss"] for line in one], rel=1e-9)


def test_a_stage_reuses_the_teachers_models_and_releases_the_rest(staged, tmp_path, monkeypatch):
    references: list[dict[str, weakref.ref]] = []
    models: list[set[int]] = []
    start_stage, of = Trainer.start_stage, Teachers.of

    def started(self: Trainer, context: Any, *args: Any) -> None:
        stage, *_ = args
        start_stage(self, context, *args)
        objects = {"context": context, "reader": context.reader, "teachers": context.teachers, "loader": self.loader}
        references.append({name: weakref.ref(item) for name, item in objects.items()})
        models.append({id(encoder) for encoder in context.teachers.encoders.values()})
        if stage:
            gc.collect()
            assert [name for name, item in references[0].items() if item() is not None] == []

    loads: list[int] = []
    monkeypatch.setattr(Trainer, "start_stage", started)
    monkeypatch.setattr(Teachers, "of", lambda *args, **kwargs: loads.append(1) or of(*args, **kwargs))
    trained(staged, tmp_path)
    assert len(references) == 2
    assert len(loads) == 1
    assert models[0] == models[1]


def test_out_of_memory_is_one_line_with_the_remedy(recipe, tmp_path, monkeypatch):
    def full(*_: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(Trainer, "_optimize", full)
    with pytest.raises(CurateError, match=r"^step 1: cpu is out of memory with run.micro_sequences=0 .*set it lower"):
        trained(recipe, tmp_path)
