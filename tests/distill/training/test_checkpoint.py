"""Checkpoints are whole or not there, are what was written, and belong to the student that reads them."""

from __future__ import annotations

import errno
import json
import os
import shutil
from pathlib import Path

import pytest
import torch
from rich.console import Console
from torch import nn

from curate.core.errors import InputError, StorageError
from distill import commands
from distill.recipe import apply_overrides
from distill.teachers import Standard, Standards
from distill.training.checkpoint import (
    last_checkpoint,
    last_whole_checkpoint,
    load_standards,
    save_checkpoint,
    save_standards,
)
from distill.training.parallel import World
from distill.training.run_folder import RunFolder
from tests.distill.full_disk import files_of_at_most

ALONE = World(0, 1, torch.device("cpu"))


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    found = RunFolder(tmp_path / "run")
    found.checkpoints.mkdir(parents=True)
    return found


def saved(run: RunFolder, step: int, keep: int = 2, rows: int = 3) -> Path:
    values = {"fingerprint": "f", "step": step, "averaged": False}
    return save_checkpoint(run, values, {"student.weight": torch.full((rows, 2), float(step))}, ALONE, keep=keep)


def names(run: RunFolder) -> list[str]:
    return sorted(path.name for path in run.checkpoints.iterdir())


def test_only_the_last_checkpoints_are_kept(run):
    assert last_checkpoint(run, "f") is None
    (run.checkpoints / ".step-00000002.tmp").mkdir()  # of a process that was killed while it wrote
    (run.checkpoints / "step-1abc").mkdir()
    for step in range(1, 5):
        saved(run, step)
    assert run.steps() == [3, 4]
    assert names(run) == ["step-00000003", "step-00000004", "step-1abc"]
    found = last_checkpoint(run, "f")
    assert found.values["step"] == 4
    assert torch.equal(found.weights()["weight"], torch.full((3, 2), 4.0))


def test_the_same_step_again_is_never_without_a_checkpoint(run, monkeypatch):
    saved(run, 1, keep=1)
    saved(run, 1, keep=1, rows=5)
    assert names(run) == ["step-00000001"]
    assert last_checkpoint(run, "f").weights()["weight"].shape == (5, 2)
    monkeypatch.setattr(RunFolder, "tidy", lambda _: None)  # killed between taking one away and naming the other
    path = run.checkpoint(1)
    path.rename(path.with_name(f".{path.name}.old"))
    monkeypatch.undo()
    run.tidy()
    assert last_checkpoint(run, "f").weights()["weight"].shape == (5, 2)


def damage(path: Path, how: str) -> None:
    data, state = next(path.glob("*.distcp")), path / "state.json"
    if how == "cut":
        data.write_bytes(data.read_bytes()[:50])
    elif how == "gone":
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


@pytest.mark.parametrize("how", ["cut", "gone", "no state", "other types", "another step", "a flipped bit"])
def test_a_damaged_checkpoint_is_named_and_training_goes_on_from_the_one_before(run, how):
    saved(run, 1)
    damage(saved(run, 2), how)
    with pytest.raises(InputError, match=r"step-00000002 cannot be read \(.*\); remove it to go on before it") as told:
        last_checkpoint(run, "f")
    assert "\n" not in str(told.value)
    found, lines = last_whole_checkpoint(run, "f")
    assert found.values["step"] == 1
    [line] = lines
    assert line.endswith("); it is now called damaged-step-00000002, going on from step 1")
    assert names(run) == ["damaged-step-00000002", "step-00000001"]
    assert last_checkpoint(run, "f").weights()["weight"][0, 0] == 1
    damage(run.checkpoint(1), how)
    with pytest.raises(InputError, match=r"there is none before it that is whole: remove .*checkpoints to begin anew"):
        last_whole_checkpoint(run, "f")
    assert run.steps() == [1]


def test_what_was_damaged_is_removed_with_the_checkpoints_of_its_time(run):
    saved(run, 1)
    damage(saved(run, 2), "cut")
    last_whole_checkpoint(run, "f")
    saved(run, 2)
    assert names(run) == ["damaged-step-00000002", "step-00000001", "step-00000002"]
    saved(run, 3)
    saved(run, 4)
    assert names(run) == ["step-00000003", "step-00000004"]


def test_a_full_disk_leaves_nothing_half_written(run):
    saved(run, 1)
    with (
        files_of_at_most(2000),
        pytest.raises(
            StorageError,
            match=r"step-00000002 could not be written \(.*File too large.*goes on from the checkpoint of step 1",
        ),
    ):
        saved(run, 2, rows=1000)
    assert names(run) == ["step-00000001"]
    saved(run, 2, rows=1000)
    assert run.steps() == [1, 2]


def test_training_on_a_full_disk_ends_with_a_line_and_goes_on_when_there_is_room(recipe):
    sets = ["run.checkpoint_every=2", "evaluate.tasks=[]", "teachers.0.standardise=scale"]
    one = apply_overrides(recipe, sets, "test")
    run = RunFolder(Path(recipe.run.folder))
    with files_of_at_most(5_000), pytest.raises(StorageError, match=r"run: .*File too large; make room"):
        commands.train(one, Console(quiet=True))  # the teachers' statistics come first
    with files_of_at_most(60_000), pytest.raises(StorageError, match=r"step-00000002 could not be written .*make room"):
        commands.train(one, Console(quiet=True))
    assert names(run) == []
    run.metrics.write_bytes(b"\xff\n[3]\n3\nnull\n" + run.metrics.read_bytes())
    commands.train(one, Console(quiet=True))
    assert run.steps() == [2, 4]
    assert [json.loads(line)["step"] for line in run.metrics.read_text().splitlines()] == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("number", "mend"), [(errno.ENOSPC, "make room"), (errno.EDQUOT, "make room"), (errno.EACCES, "see to it")]
)
def test_a_systems_error_is_told_with_what_mends_it(recipe, monkeypatch, number, mend):
    def fails(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("distill.training.progress.Metrics.add", fails)
    with pytest.raises(
        StorageError, match=rf"run: .*{os.strerror(number)}; {mend}, and run again: it .* the beginning"
    ):
        commands.train(recipe, Console(quiet=True))


def test_a_checkpoint_of_another_student_is_told_by_name_and_shapes(run):
    saved(run, 1)
    found = last_checkpoint(run, "f")
    model = nn.Linear(2, 3, bias=False)
    found.fill(model)
    assert model.weight[0, 0] == 1
    for other, message in (
        (nn.Linear(4, 3, bias=False), r"weight is of shape \(3, 2\), and in the recipe's student of shape \(3, 4\)"),
        (nn.Linear(2, 3), r"bias is absent, and in the recipe's student of shape \(3,\)"),
    ):
        with pytest.raises(InputError, match=f"step-00000001 is of another model: {message}"):
            found.fill(other)


@pytest.mark.parametrize("content", [b"", b"nothing", "list", "other keys", "flipped"])
def test_damaged_statistics_of_teachers_are_named_with_the_remedy(run, content):
    path = run.path / "standards.pt"
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content == "flipped":
        mean = torch.arange(512.0)
        save_standards(run, [Standards(Standard(mean, torch.tensor(2.0)))])
        assert torch.equal(load_standards(run)[0].summary.mean, mean)
        whole, value = bytearray(path.read_bytes()), mean[300:304].numpy().tobytes()
        whole[whole.index(value)] ^= 1
        path.write_bytes(whole)
    else:
        torch.save([3] if content == "list" else [{"mean": torch.ones(3)}], path)
    with pytest.raises(InputError, match=r"standards.pt cannot be read \(\w+\); remove it: it is fitted anew"):
        load_standards(run)


def test_training_goes_back_before_damage_and_says_so(recipe, capsys):
    recipe = apply_overrides(recipe, ["evaluate.tasks=[]"], "test")
    run = commands.train(recipe, Console(quiet=True))
    weights = last_checkpoint(run, run.fingerprint()).weights()
    damage(run.checkpoint(4), "a flipped bit")
    shutil.copyfile(run.path / "metrics.jsonl", run.path / "before")
    (run.path / "finished.json").unlink()
    commands.train(recipe, Console(width=400))
    assert "step-00000004 cannot be read (__0_0.distcp is not as it was written)" in capsys.readouterr().out
    again = last_checkpoint(run, run.fingerprint()).weights()
    assert all(torch.equal(value, again[name]) for name, value in weights.items())
