"""Checkpoints are complete or absent, are checked for corruption, and are loaded only into the same student."""

from __future__ import annotations

import errno
import json
import os
import shutil
import threading
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from torch import nn

from curate.core.errors import InputError, StorageError
from distill.commands.train import train
from distill.parallel import World
from distill.recipe import apply_overrides
from distill.teachers import Standardiser, TargetStandardiser
from distill.training import checkpoint_writer
from distill.training.checkpoint import (
    Checkpoint,
    last_checkpoint,
    last_valid_checkpoint,
    load_standardisers,
    open_checkpoint,
    save_checkpoint,
    save_standardisers,
)
from distill.training.run_folder import RunFolder
from distill.training.trainer import Trainer
from tests.distill.full_disk import files_of_at_most
from tests.distill.ranks import trainer_of

ALONE = World(0, 1, torch.device("cpu"))


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    folder = RunFolder(tmp_path / "run")
    folder.checkpoints.mkdir(parents=True)
    return folder


def saved(run: RunFolder, step: int, keep: int = 2, rows: int = 3) -> Path:
    values = {"fingerprint": "f", "step": step, "averaged": False}
    return save_checkpoint(run, values, {"student.weight": torch.full((rows, 2), float(step))}, ALONE, keep=keep)


def names(run: RunFolder) -> list[str]:
    return sorted(path.name for path in run.checkpoints.iterdir())


def test_only_the_last_checkpoints_are_kept(run):
    assert last_checkpoint(run, "f") is None
    (run.checkpoints / ".step-00000002.tmp").mkdir()  # left by a process that was killed while it wrote
    (run.checkpoints / "step-1abc").mkdir()
    for step in range(1, 5):
        saved(run, step)
    assert run.steps() == [3, 4]
    assert names(run) == ["step-00000003", "step-00000004", "step-1abc"]
    found = last_checkpoint(run, "f")
    assert found.values["step"] == 4
    assert torch.equal(found.weights()["weight"], torch.full((3, 2), 4.0))


def test_repeating_a_step_never_loses_its_checkpoint(run, monkeypatch):
    saved(run, 1, keep=1)
    saved(run, 1, keep=1, rows=5)
    assert names(run) == ["step-00000001"]
    assert last_checkpoint(run, "f").weights()["weight"].shape == (5, 2)
    monkeypatch.setattr(RunFolder, "clean_up", lambda _: None)  # killed between the two renames
    path = run.checkpoint(1)
    path.rename(path.with_name(f".{path.name}.old"))
    monkeypatch.undo()
    run.clean_up()
    assert last_checkpoint(run, "f").weights()["weight"].shape == (5, 2)


def corrupt(path: Path, how: str) -> None:
    data, state = next(path.glob("*.distcp")), path / "state.json"
    if how == "truncated":
        data.write_bytes(data.read_bytes()[:50])
    elif how == "missing":
        data.unlink()
    elif how == "no state":
        state.write_text('{"fingerprint": "f"')
    elif how == "other types":
        state.write_text('{"digest": 3, "files": 4}')
    elif how == "another step":
        state.write_text(json.dumps(json.loads(state.read_text()) | {"step": 7}))
    else:
        flipped = bytearray(data.read_bytes())
        flipped[-7] ^= 1
        data.write_bytes(flipped)


@pytest.mark.parametrize("how", ["truncated", "missing", "no state", "other types", "another step", "a flipped bit"])
def test_a_corrupt_checkpoint_is_renamed_and_training_resumes_from_the_one_before(run, how):
    saved(run, 1)
    corrupt(saved(run, 2), how)
    with pytest.raises(
        InputError, match=r"cannot read .*step-00000002 \(.*\); remove it to resume from the checkpoint before"
    ) as error:
        last_checkpoint(run, "f")
    assert "\n" not in str(error.value)
    found, lines = last_valid_checkpoint(run, "f")
    assert found.values["step"] == 1
    [line] = lines
    assert line.endswith("); renamed it damaged-step-00000002, resuming from step 1")
    assert names(run) == ["damaged-step-00000002", "step-00000001"]
    assert last_checkpoint(run, "f").weights()["weight"][0, 0] == 1
    corrupt(run.checkpoint(1), how)
    with pytest.raises(
        InputError, match=r"no valid checkpoint before it: remove .*checkpoints to train from the start"
    ):
        last_valid_checkpoint(run, "f")
    assert run.steps() == [1]


def test_a_corrupt_checkpoint_is_removed_once_only_later_ones_are_left(run):
    saved(run, 1)
    corrupt(saved(run, 2), "truncated")
    last_valid_checkpoint(run, "f")
    saved(run, 2)
    assert names(run) == ["damaged-step-00000002", "step-00000001", "step-00000002"]
    saved(run, 3)
    saved(run, 4)
    assert names(run) == ["step-00000003", "step-00000004"]


def test_a_full_disk_leaves_no_partial_checkpoint(run):
    saved(run, 1)
    with (
        files_of_at_most(2000),
        pytest.raises(
            StorageError,
            match=r"cannot write .*step-00000002 \(.*File too large.*resume from the checkpoint of step 1",
        ),
    ):
        saved(run, 2, rows=1000)
    assert names(run) == ["step-00000001"]
    saved(run, 2, rows=1000)
    assert run.steps() == [1, 2]


def test_a_checkpoint_is_written_while_the_next_step_is_taken(recipe, monkeypatch):
    """It has the weights of the step that it belongs to."""
    later, weights = threading.Event(), dict[int, Any]()
    save, update = checkpoint_writer.save_checkpoint, Trainer.update

    def slow(run: RunFolder, values: dict[str, Any], *args: Any) -> Path:
        assert values["step"] > 2 or later.wait(60)
        return save(run, values, *args)

    def noted(self: Trainer, *args: Any, **more: Any) -> Any:
        sums = update(self, *args, **more)
        weights[self.step] = {name: value.clone() for name, value in self.student.state_dict().items()}
        if self.step == 3:
            assert RunFolder(Path(recipe.run.folder)).steps() == []
            later.set()
        return sums

    monkeypatch.setattr(checkpoint_writer, "save_checkpoint", slow)
    monkeypatch.setattr(Trainer, "update", noted)
    run = train(apply_overrides(recipe, ["evaluate.tasks=[]"], "test"), Console(quiet=True))
    assert run.steps() == [2, 4]
    for step in run.steps():
        saved = Checkpoint(run.checkpoint(step), {"averaged": False}).weights()
        assert all(torch.equal(value, weights[step][name]) for name, value in saved.items())


def test_training_on_a_full_disk_ends_with_one_line_and_resumes_when_there_is_space(recipe):
    sets = ["run.checkpoint_every=2", "evaluate.tasks=[]", "teachers.0.standardise=scale"]
    one = apply_overrides(recipe, sets, "test")
    run = RunFolder(Path(recipe.run.folder))
    with files_of_at_most(5_000), pytest.raises(StorageError, match=r"run: .*File too large; free disk"):
        train(one, Console(quiet=True))  # fails while it writes standards.pt
    with files_of_at_most(60_000), pytest.raises(StorageError, match=r"cannot write .*step-00000002 .*free disk"):
        train(one, Console(quiet=True))
    assert names(run) == []
    run.metrics.write_bytes(b"\xff\n[3]\n3\nnull\n" + run.metrics.read_bytes())
    train(one, Console(quiet=True))
    assert run.steps() == [2, 4]
    assert [json.loads(line)["step"] for line in run.metrics.read_text().splitlines()] == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("number", "fix"),
    [(errno.ENOSPC, "free disk space"), (errno.EDQUOT, "free disk space"), (errno.EACCES, "fix the cause")],
)
def test_an_oserror_is_one_line_with_its_remedy(recipe, monkeypatch, number, fix):
    def fails(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("distill.training.progress.Metrics.add", fails)
    with pytest.raises(
        StorageError, match=rf"run: .*{os.strerror(number)}; {fix}, and run again to resume from the beginning"
    ):
        train(recipe, Console(quiet=True))


def test_the_error_for_another_students_checkpoint_names_the_weight_and_both_shapes(run):
    saved(run, 1)
    found = last_checkpoint(run, "f")
    model = nn.Linear(2, 3, bias=False)
    found.fill(model)
    assert model.weight[0, 0] == 1
    for other, message in (
        (
            nn.Linear(4, 3, bias=False),
            r"weight has shape \(3, 2\) there and has shape \(3, 4\) in the recipe's student",
        ),
        (nn.Linear(2, 3), r"bias is missing there and has shape \(3,\) in the recipe's student"),
    ):
        with pytest.raises(InputError, match=f"step-00000001 is a checkpoint of another model: {message}"):
            found.fill(other)


def test_a_checkpoint_of_lamb_from_before_gives_the_same_bits(values, tmp_path):
    """It counted updates by group."""
    values["train"] |= {"optimizer": "lamb", "steps": 4}
    trainer = trainer_of(values, ALONE)
    shares = list(islice(trainer.loader, 4))
    for share in shares[:2]:
        trainer.update(share)
    held = {name: value for name, value in trainer.tensors().items() if not name.endswith(".step")}
    run, counts = RunFolder(tmp_path), {f"group.{number}.step": torch.tensor(2.0) for number in range(2)}
    run.checkpoints.mkdir()
    save_checkpoint(run, trainer.values(), held | counts, ALONE, 2)
    resumed = trainer_of(values, ALONE)
    resumed.load(open_checkpoint(run.checkpoint(2), "fingerprint"))
    for share in shares[2:]:
        trainer.update(share)
        resumed.update(share)
    expected = trainer.student.state_dict()
    assert all(torch.equal(value, expected[name]) for name, value in resumed.student.state_dict().items())


@pytest.mark.parametrize("content", [b"", b"nothing", "list", "other keys", "flipped"])
def test_a_corrupt_standards_pt_is_named_with_the_remedy(run, content):
    path = run.path / "standards.pt"
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content == "flipped":
        mean = torch.arange(512.0)
        save_standardisers(run, [TargetStandardiser(Standardiser(mean, torch.tensor(2.0)))])
        assert torch.equal(load_standardisers(run)[0].summary.mean, mean)
        whole, value = bytearray(path.read_bytes()), mean[300:304].numpy().tobytes()
        whole[whole.index(value)] ^= 1
        path.write_bytes(whole)
    else:
        torch.save([3] if content == "list" else [{"mean": torch.ones(3)}], path)
    with pytest.raises(InputError, match=r"cannot read .*standards.pt \(\w+\); remove it to refit"):
        load_standardisers(run)


def test_training_resumes_before_a_corrupt_checkpoint_with_a_warning(recipe, capsys):
    recipe = apply_overrides(recipe, ["evaluate.tasks=[]"], "test")
    run = train(recipe, Console(quiet=True))
    weights = last_checkpoint(run, run.fingerprint()).weights()
    corrupt(run.checkpoint(4), "a flipped bit")
    shutil.copyfile(run.path / "metrics.jsonl", run.path / "before")
    (run.path / "finished.json").unlink()
    train(recipe, Console(width=400))
    assert "step-00000004 (__0_0.distcp is corrupt (checksum mismatch))" in capsys.readouterr().out
    again = last_checkpoint(run, run.fingerprint()).weights()
    assert all(torch.equal(value, again[name]) for name, value in weights.items())
