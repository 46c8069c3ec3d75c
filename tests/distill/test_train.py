import json
import os
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console

from curate.core.errors import BudgetError, CurateError, InputError, PinnedError, RunExistsError
from distill import commands
from distill.checkpoint import last_checkpoint, save_checkpoint
from distill.data.blend import open_blend
from distill.data.dataset import open_dataset
from distill.folder import RunFolder
from distill.parallel import World, join_world
from distill.recipe import Recipe, apply_overrides, parse_recipe
from distill.train import Training
from distill.trainer import Trainer
from distill.workbench import Workbench
from tests.distill.conftest import recipe_values
from tests.distill.datasets import drawn_items, write_dataset

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


def test_going_on_from_a_checkpoint_gives_the_same_losses_to_the_last_bit(recipe, tmp_path):
    """As after a kill in step 4 or later: the checkpoint of step 3, and metrics that had gone further."""
    recipe = with_sets(recipe, "train.steps=9", "run.checkpoint_every=3", "run.keep_checkpoints=9")
    whole = commands.train(recipe, QUIET)
    assert [json.loads(line)["epoch"] for line in whole.metrics.read_text().splitlines()][-1] >= 1
    broken = RunFolder(tmp_path / "broken")
    shutil.copytree(whole.path, broken.path)
    for step in (6, 9):
        shutil.rmtree(broken.checkpoints / f"step-{step:08d}")
    for name in ("finished.json", "evaluation.json"):
        (broken.path / name).unlink()
    with broken.metrics.open("a") as file:
        file.write('{"step": 1')
    commands.train(with_sets(recipe, f"run.folder={broken.path}"), QUIET)
    assert_same_end(whole, broken)
    assert whole.read("evaluation.json")["sets"] == broken.read("evaluation.json")["sets"]


def test_asked_to_stop_it_finishes_the_step_and_can_go_on(recipe, tmp_path, monkeypatch):
    recipe = with_sets(recipe, "train.steps=9", "run.checkpoint_every=100", "run.cache_bytes=0", "run.prefetch_steps=0")
    whole = commands.train(recipe, QUIET)
    stopped = with_sets(recipe, f"run.folder={tmp_path}/stopped")
    run = RunFolder(tmp_path / "stopped")
    fingerprint, blends = whole.read("run.json")["fingerprint"], [open_blend(recipe.data)]

    def asked_after(self: Workbench, reads: list[int]) -> Workbench:
        """A bench whose process is asked to stop while it reads its 60th picture."""
        read = self.pictures._read

        def read_and_ask(row: int) -> bytes:
            reads.append(row)
            if len(reads) == 60:
                os.kill(os.getpid(), signal.SIGTERM)
            return read(row)

        self.pictures._read = read_and_ask
        return self

    of = Workbench.of
    monkeypatch.setattr(Workbench, "of", lambda *given: asked_after(of(*given), []))
    with join_world("cpu") as world, run.claimed(stopped, fingerprint, blends):
        before = signal.getsignal(signal.SIGTERM)
        with pytest.raises(SystemExit) as ended:
            Training(stopped, blends, run, fingerprint, world, QUIET).train()
    monkeypatch.undo()
    assert ended.value.code == 143
    assert signal.getsignal(signal.SIGTERM) is before
    assert 0 < run.last_step() < 9
    commands.train(stopped, QUIET)
    assert_same_end(whole, run)


def test_a_finished_run_is_not_trained_again(recipe):
    run = commands.train(recipe, QUIET)
    stamps = {path: path.stat().st_mtime_ns for path in run.path.rglob("*")}
    commands.train(recipe, QUIET)
    result = commands.evaluate(str(run.path), [], QUIET)
    assert {path: path.stat().st_mtime_ns for path in run.path.rglob("*")} == stamps
    models = result["sets"][0]["knn"]["models"]
    assert set(models) == {"student, random weights", "student, trained", "teacher descriptor"}


def test_another_evaluation_of_a_run(recipe):
    run = commands.train(recipe, QUIET)
    first = commands.evaluate(str(run.path), [], QUIET)
    other = commands.evaluate(str(run.path), ["evaluate.k=1"], QUIET)
    assert other["settings"]["k"] == 1
    assert commands.evaluate(str(run.path), [], QUIET) == first
    with pytest.raises(PinnedError, match=r"change only evaluate\.\* and run\.\*"):
        commands.evaluate(str(run.path), ["seed=4", "evaluate.k=1"], QUIET)


def test_a_run_of_another_fingerprint_is_refused_with_both_values(recipe):
    run = commands.train(recipe, QUIET)
    held = run.read("run.json")["fingerprint"]
    with pytest.raises(PinnedError, match=f"holds a run of fingerprint {held}, this recipe's is [0-9a-f]{{32}}; set"):
        commands.train(with_sets(recipe, "seed=1"), QUIET)
    with pytest.raises(PinnedError, match=f"is of fingerprint {held}, this recipe's is other; set"):
        last_checkpoint(run, "other")


def test_a_folder_may_be_named_by_fingerprint(recipe, tmp_path):
    named = [with_sets(recipe, f"run.folder={tmp_path}/{{name}}-{{fingerprint}}", f"seed={n}") for n in (0, 1)]
    first, second = (commands.train(item, QUIET).path for item in named)
    assert first != second
    assert first.name.startswith("toy-")


def test_one_process_at_a_time(recipe, tmp_path):
    run, blends = RunFolder(tmp_path / "run"), [open_blend(recipe.data)]
    with (
        run.claimed(recipe, "f", blends),
        pytest.raises(RunExistsError, match="another process"),
        run.claimed(recipe, "f", blends),
    ):
        pass
    with run.claimed(recipe, "f", blends):
        pass


def test_only_the_last_checkpoints_are_kept(tmp_path):
    run = RunFolder(tmp_path)
    run.checkpoints.mkdir()
    assert last_checkpoint(run, "f") is None
    (run.checkpoints / ".step-00000002.tmp").mkdir()  # of a process that was killed while it wrote
    for step in range(1, 5):
        saved(run, step)
    assert run.steps() == [3, 4]
    assert sorted(path.name for path in run.checkpoints.iterdir()) == ["step-00000003", "step-00000004"]
    found = last_checkpoint(run, "f")
    assert found.values["step"] == 4
    assert torch.equal(found.weights()["weight"], torch.full((3, 2), 4.0))


def saved(run: RunFolder, step: int) -> Path:
    values = {"fingerprint": "f", "step": step, "averaged": False}
    return save_checkpoint(run, values, {"student.weight": torch.full((3, 2), float(step))}, ALONE, keep=2)


@pytest.mark.parametrize("how", ["cut", "gone", "no state", "other bytes"])
def test_a_damaged_checkpoint_is_named_with_the_remedy(tmp_path, how):
    run = RunFolder(tmp_path)
    run.checkpoints.mkdir()
    saved(run, 1)
    path = saved(run, 2)
    data = next(path.glob("*.distcp"))
    if how == "cut":
        data.write_bytes(data.read_bytes()[:50])
    elif how == "gone":
        data.unlink()
    elif how == "no state":
        (path / "state.json").write_text('{"fingerprint": "f"')
    else:
        data.write_bytes(bytes(data.stat().st_size))
    with pytest.raises(
        InputError, match=r"step-00000002 cannot be read \(.*\); remove it to go on before it"
    ) as caught:
        last_checkpoint(run, "f").weights()
    assert "\n" not in str(caught.value)
    shutil.rmtree(path)
    assert last_checkpoint(run, "f").weights()["weight"][0, 0] == 1


@pytest.fixture
def damaged(tmp_path) -> Path:
    """A third of the pictures are cut, and one tar is gone."""
    items = drawn_items(60)
    for item in items[::3]:
        item.data = item.data[:70]
    folder = write_dataset(tmp_path / "damaged", items)
    (folder / "toy-000001.tar").unlink()
    return folder


def test_bad_samples_are_counted_and_too_many_end_the_run(damaged, tmp_path):
    recipe = parse_recipe(recipe_values(str(damaged), str(tmp_path / "run")), "test")
    many = with_sets(recipe, "train.steps=40")
    with pytest.raises(
        BudgetError, match=r"samples could not be used \((truncated|shard_missing) \d+, .* \d+; such as"
    ):
        commands.train(many, QUIET)
    with_room = with_sets(recipe, "data.max_bad_fraction=1", f"run.folder={tmp_path}/room", "train.steps=8")
    run = commands.train(with_room, QUIET)
    lines = [json.loads(line) for line in run.metrics.read_text().splitlines()]
    assert sum(line["skipped"] for line in lines) > 0
    assert all(0 < line["fill"] <= 1 for line in lines)


def test_a_step_without_a_readable_picture_is_survived(tmp_path):
    folder = write_dataset(tmp_path / "d", drawn_items(60), shard_rows=30)
    (folder / "toy-000001.tar").unlink()
    values = recipe_values(str(folder), str(tmp_path / "run"))
    values["data"] |= {"lanes": 1, "window_shards": 1, "max_bad_fraction": 1.0}
    values["train"] |= {"sequences": 1, "steps": 20}
    run = commands.train(parse_recipe(values, "test"), QUIET)
    lines = [json.loads(line) for line in run.metrics.read_text().splitlines()]
    assert len(lines) == 20
    assert None in [line.get("loss") for line in lines]
    assert any(line.get("loss") for line in lines)


def test_a_loss_that_is_no_number_ends_the_run_with_a_remedy(recipe):
    with pytest.raises(CurateError, match=r"step \d: descriptor/summary is (nan|inf); lower train.learning_rate"):
        commands.train(with_sets(recipe, "train.learning_rate=1e30", "train.warmup_steps=0"), QUIET)


def test_training_lowers_the_loss_and_never_sees_a_held_out_set(recipe):
    recipe = with_sets(recipe, "train.steps=60", "train.learning_rate=3e-3", "run.checkpoint_every=1000")
    seen = losses(commands.train(recipe, QUIET))
    assert np.mean(seen[-8:]) < 0.8 * np.mean(seen[:8])
    bench = Workbench.of(recipe, open_dataset(recipe.data.sources[0].dataset), ALONE)
    assert not set(Trainer(bench, "f").loader.stream.rows) & set(np.flatnonzero(bench.test))


def test_nothing_to_evaluate_is_no_reason_to_fail(recipe, capsys):
    run = commands.train(with_sets(recipe, "data.test_fraction=0"), QUIET)
    commands.evaluate(str(run.path), [], Console())
    assert "not computed: no picture is asked about: none is held out" in capsys.readouterr().out


def test_teachers_with_and_without_patches_side_by_side(recipe):
    """A random timm model gives patches, the descriptor does not; both have their heads, losses and kNN."""
    spec = "timm:vit_tiny_patch16_224?depth=1&embed_dim=24&num_heads=2&img_size=32&random=7"
    recipe = with_sets(recipe, f"teachers.0.encoder={spec}", "train.steps=12")
    values = recipe.model_dump(mode="json")
    values["teachers"].append({"encoder": "descriptor", "summary": {"loss": "cosine", "weight": 0.5}})
    run = commands.train(parse_recipe(values, "test"), QUIET)
    lines = [json.loads(line) for line in run.metrics.read_text().splitlines()]
    for line in lines:
        parts = {name: value for name, value in line.items() if "/" in name}
        assert set(parts) == {f"{spec}/summary", f"{spec}/patches", "descriptor/summary"}
        assert line["loss"] == pytest.approx(sum(parts.values()) - 0.5 * parts["descriptor/summary"])
    assert lines[-1][f"{spec}/patches"] < lines[0][f"{spec}/patches"]
    models = commands.evaluate(str(run.path), [], QUIET)["sets"][0]["knn"]["models"]
    assert {f"teacher {spec}", "teacher descriptor"} < set(models)
