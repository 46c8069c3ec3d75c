import json
import os
import re
import shutil
import signal
from collections.abc import Iterator
from itertools import count

import numpy as np
import pytest
import torch
from rich.console import Console

from curate.core.errors import PinnedError, RecipeError
from distill.commands.evaluate import evaluate
from distill.commands.train import prepared, train
from distill.context import StageContext
from distill.export import export
from distill.parallel import World, join_world
from distill.recipe import Recipe, apply_overrides, parse_recipe
from distill.samples.sources.dataset import open_dataset
from distill.samples.sources.mixture import open_mixture
from distill.training.checkpoint import last_checkpoint
from distill.training.run import TrainingRun
from distill.training.run_folder import RunFolder
from distill.training.trainer import Trainer

QUIET = Console(quiet=True)
ALONE = World(0, 1, torch.device("cpu"))


def losses(run: RunFolder) -> list[float]:
    return [json.loads(line)["loss"] for line in run.metrics.read_text().splitlines()]


def with_sets(recipe: Recipe, *overrides: str) -> Recipe:
    return apply_overrides(recipe, overrides, "test")


def assert_same_end(first: RunFolder, second: RunFolder) -> None:
    assert losses(first) == losses(second)
    fingerprint = first.read("run.json")["fingerprint"]
    one, two = last_checkpoint(first, fingerprint), last_checkpoint(second, fingerprint)
    assert one is not None and two is not None
    assert one.values["reader"] == two.values["reader"]
    weights = two.weights()
    assert all(torch.equal(value, weights[name]) for name, value in one.weights().items())


def test_resuming_from_a_checkpoint_gives_the_same_losses_to_the_last_bit(recipe, tmp_path):
    """As after a kill in step 4 or later: with the checkpoint of step 3, and metrics of later steps."""
    recipe = with_sets(recipe, "train.steps=9", "run.checkpoint_every=3", "run.keep_checkpoints=9")
    whole = train(recipe, QUIET)
    assert [json.loads(line)["epoch"] for line in whole.metrics.read_text().splitlines()][-1] >= 1
    broken = RunFolder(tmp_path / "broken")
    shutil.copytree(whole.path, broken.path)
    for step in (6, 9):
        shutil.rmtree(broken.checkpoints / f"step-{step:08d}")
    for name in ("finished.json", "evaluation.json"):
        (broken.path / name).unlink()
    with broken.metrics.open("a") as file:
        file.write('{"step": 1')
    train(with_sets(recipe, f"run.folder={broken.path}"), QUIET)
    assert_same_end(whole, broken)
    assert whole.read("evaluation.json")["sets"] == broken.read("evaluation.json")["sets"]


def test_sigterm_finishes_the_step_and_the_run_resumes(recipe, tmp_path, monkeypatch):
    recipe = with_sets(recipe, "train.steps=9", "run.checkpoint_every=100", "run.cache_bytes=0", "run.prefetch_steps=0")
    recipe = with_sets(recipe, "evaluate.tasks=[]")
    whole = train(recipe, QUIET)
    stopped = with_sets(recipe, f"run.folder={tmp_path}/stopped")
    run = RunFolder(tmp_path / "stopped")
    fingerprint, mixtures = whole.read("run.json")["fingerprint"], [open_mixture(recipe.data)]

    def stopping(self: StageContext, reads: Iterator[int]) -> StageContext:
        """A context whose process gets SIGTERM while it reads its 60th image."""
        read = self.reader._read

        def read_and_stop(row: int) -> bytes:
            if next(reads) == 60:  # at once, since several threads read
                os.kill(os.getpid(), signal.SIGTERM)
            return read(row)

        self.reader._read = read_and_stop
        return self

    of = StageContext.of
    monkeypatch.setattr(StageContext, "of", lambda *args, **kwargs: stopping(of(*args, **kwargs), count(1)))
    with join_world("cpu") as world, run.claimed(stopped, fingerprint, mixtures):
        before = signal.getsignal(signal.SIGTERM)
        with pytest.raises(SystemExit) as ended:
            TrainingRun(stopped, mixtures, run, fingerprint, world, QUIET).train()
    monkeypatch.undo()
    assert ended.value.code == 143
    assert signal.getsignal(signal.SIGTERM) is before
    assert 0 < run.last_step() < 9
    train(stopped, QUIET)
    assert_same_end(whole, run)


def test_a_finished_run_is_not_trained_again(recipe):
    run = train(recipe, QUIET)
    stamps = {path: path.stat().st_mtime_ns for path in run.path.rglob("*")}
    train(recipe, QUIET)
    result = evaluate(str(run.path), [], QUIET)
    assert {path: path.stat().st_mtime_ns for path in run.path.rglob("*")} == stamps
    models = result["sets"][0]["knn"]["models"]
    trained = {"student, trained", "student, trained, as descriptor"}
    assert set(models) == {"student, random weights", "teacher descriptor", *trained}


def test_another_evaluation_of_a_run(recipe):
    recipe = with_sets(recipe, "evaluate.tasks=[knn]")
    run = train(recipe, QUIET)
    first = evaluate(str(run.path), [], QUIET)
    other = evaluate(str(run.path), ["evaluate.k=1"], QUIET)
    assert other["settings"]["k"] == 1
    assert evaluate(str(run.path), [], QUIET) == first
    for change in ("seed=4", "train.steps=9"):
        with pytest.raises(
            RecipeError,
            match=rf"--set {change}: the student is trained already; set only evaluate\.\* and run\.\* here",
        ):
            evaluate(str(run.path), [change, "evaluate.k=1"], QUIET)


def test_the_error_for_another_fingerprint_has_both_values(recipe):
    run = train(recipe, QUIET)
    held = run.read("run.json")["fingerprint"]
    with pytest.raises(
        PinnedError, match=f"fingerprint {held}, this recipe has [0-9a-f]{{32}} .seed is 0 there and 1 here.; set"
    ):
        train(with_sets(recipe, "seed=1"), QUIET)
    with pytest.raises(PinnedError, match=f"has fingerprint {held}, this recipe has other; set"):
        last_checkpoint(run, "other")


def test_a_folder_may_be_named_by_fingerprint(recipe, tmp_path):
    named = [
        with_sets(recipe, f"run.folder={tmp_path}/{{name}}-{{fingerprint}}", f"seed={n}", "evaluate.tasks=[]")
        for n in (0, 1)
    ]
    first, second = (train(item, QUIET).path for item in named)
    assert first != second
    assert first.name.startswith("toy-")


def test_a_run_that_began_with_adams_betas_for_lion_keeps_them(values, tmp_path):
    values["train"] |= {"optimizer": "lion", "steps": 2}
    recipe = parse_recipe(values, "test")
    assert prepared(recipe, QUIET).train.betas == (0.9, 0.99)
    begun = train(with_sets(recipe, "train.betas=[0.9,0.999]", "evaluate.tasks=[]"), QUIET)
    assert prepared(recipe, QUIET).train.betas == (0.9, 0.999)
    assert train(recipe, QUIET).fingerprint() == begun.fingerprint()
    assert prepared(with_sets(recipe, "train.steps=3"), QUIET).train.betas == (0.9, 0.99)


def test_a_checkpoint_of_an_earlier_stage_is_evaluated_and_exported_as_its_student(values, tmp_path):
    values["stages"] = [{}, {"objectives": [{"objective": "tests.distill.objectives.toys:Colours"}]}]
    values["train"] |= {"steps": 2, "warmup_steps": 0}
    run = train(with_sets(parse_recipe(values, "test"), "evaluate.tasks=[knn]"), QUIET)
    shutil.rmtree(run.checkpoint(4))
    assert evaluate(str(run.path), [], QUIET)["sets"][0]["knn"]["models"]
    assert export(run.path, tmp_path / "model").is_dir()


def test_training_lowers_the_loss_and_never_sees_a_held_out_set(recipe):
    recipe = with_sets(
        recipe, "train.steps=60", "train.learning_rate=3e-3", "run.checkpoint_every=1000", "evaluate.tasks=[]"
    )
    values = losses(train(recipe, QUIET))
    assert np.mean(values[-8:]) < 0.8 * np.mean(values[:8])
    context = StageContext.of(recipe, open_dataset(recipe.data.sources[0].dataset), ALONE)
    assert not set(Trainer(context, "f").loader.stream.rows) & set(np.flatnonzero(context.test))


def test_a_run_without_test_images_does_not_fail(recipe, capsys):
    run = train(with_sets(recipe, "data.test_fraction=0"), QUIET)
    evaluate(str(run.path), [], Console(width=1000))
    assert re.search("not computed.*: no test images: none of .* is held out", capsys.readouterr().out)


@pytest.mark.long
def test_teachers_with_and_without_patches_side_by_side(recipe):
    """A random timm model has patches, the descriptor has none; both have heads, losses and kNN."""
    spec = "timm:vit_tiny_patch16_224?depth=1&embed_dim=24&num_heads=2&img_size=32&random=7"
    recipe = with_sets(recipe, f"teachers.0.encoder={spec}", "train.steps=12", "evaluate.tasks=[knn, fidelity]")
    values = recipe.model_dump(mode="json")
    values["teachers"].append({"encoder": "descriptor", "summary": {"loss": "cosine", "weight": 0.5}})
    run = train(parse_recipe(values, "test"), QUIET)
    lines = [json.loads(line) for line in run.metrics.read_text().splitlines()]
    for line in lines:
        parts = {name: value for name, value in line.items() if "/" in name}
        relations = [parts.pop(f"{name}/relations") for name in (spec, "descriptor")]  # logged, not trained on
        assert min(relations) > 0
        assert set(parts) == {f"{spec}/summary", f"{spec}/patches", "descriptor/summary"}
        assert line["loss"] == pytest.approx(sum(parts.values()) - 0.5 * parts["descriptor/summary"])
    assert lines[-1][f"{spec}/patches"] < lines[0][f"{spec}/patches"]
    models = evaluate(str(run.path), [], QUIET)["sets"][0]["knn"]["models"]
    assert {f"teacher {spec}", "teacher descriptor"} < set(models)
