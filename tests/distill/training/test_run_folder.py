"""The run's folder: its lock, its files, and the errors when they are corrupt or belong to another run."""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.console import Console

from curate.core.errors import CurateError, InputError, PinnedError, RecipeError, RunExistsError, StorageError
from distill.commands.evaluate import evaluate
from distill.commands.train import train
from distill.recipe import apply_overrides
from distill.samples.sources.mixture import open_mixture
from distill.training.run_folder import RunFolder

QUIET = Console(quiet=True)


def test_one_process_at_a_time(recipe, tmp_path):
    run, mixtures = RunFolder(tmp_path / "run"), [open_mixture(recipe.data)]
    with (
        run.claimed(recipe, "f", mixtures),
        pytest.raises(RunExistsError, match="another process"),
        run.claimed(recipe, "f", mixtures),
    ):
        pass
    with run.claimed(recipe, "f", mixtures):
        pass


def test_the_error_names_the_changed_setting(recipe, tmp_path):
    run, mixtures = RunFolder(tmp_path / "run"), [open_mixture(recipe.data)]
    with run.claimed(recipe, "f", mixtures):
        pass
    for change, message in (
        ("train.steps=3", r"train.steps is 4 there and 3 here"),
        ("teachers.0.keep=float16", "teachers.0.keep is"),
    ):
        other = apply_overrides(recipe, [change], "test")
        with pytest.raises(PinnedError, match=message), run.claimed(other, "g", mixtures):
            pass


@pytest.mark.parametrize(
    ("where", "kind", "message"),
    [
        ("s3://bucket/run", RecipeError, "run.folder: 's3://bucket/run' is not a local folder; give one on a disk"),
        ("/proc/run", StorageError, r"run.folder: cannot write to /proc/run \(.*\); name another folder"),
        ("{file}", StorageError, r"run.folder: cannot write to .*file \(.*\); name another folder"),
        ("{file}/run", StorageError, r"run.folder: cannot write to .*file/run \(.*\); name another folder"),
    ],
)
def test_folders_that_cannot_hold_a_run(recipe, tmp_path, monkeypatch, where, kind, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    place = where.replace("{file}", str(tmp_path / "file"))
    with pytest.raises(kind, match=message):
        train(apply_overrides(recipe, [f"run.folder={place}"], "test"), QUIET)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, folder: Path) -> tuple[RunFolder, dict]:
    from distill.recipe import parse_recipe
    from tests.distill.conftest import recipe_values

    values = recipe_values(str(folder), str(tmp_path_factory.mktemp("finished") / "run"))
    values["train"]["steps"], values["evaluate"]["tasks"] = 2, []
    return train(parse_recipe(values, "test"), QUIET), values


@pytest.mark.parametrize("name", ["run.json", "finished.json", "evaluation.json"])
@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b"[1]", b"{}", b"null"])
@pytest.mark.long
def test_corrupt_files_are_named_with_the_remedy(finished, name, content):
    run, _ = finished
    path, recipe = run.path / name, run.recipe()
    before = path.read_bytes()
    path.write_bytes(content)
    try:
        with pytest.raises(InputError, match=rf"cannot read .*{name} \(.*\); remove it to rebuild") as error:
            train(recipe, QUIET) if name == "finished.json" else evaluate(str(run.path), [], QUIET)
        assert "\n" not in str(error.value)
    finally:
        path.write_bytes(before)


def test_when_a_run_counts_as_finished(finished):
    run, _ = finished
    fingerprint = run.fingerprint()
    assert run.finished(fingerprint)["step"] == 2
    assert run.finished("another") is None
    hidden = run.checkpoint(2).rename(run.path / "hidden")
    assert run.finished(fingerprint)["step"] == 2  # all checkpoints were removed to free disk space
    run.checkpoint(1).mkdir()
    assert run.finished(fingerprint) is None  # only the last one was removed, because it was corrupt
    run.checkpoint(1).rmdir()
    hidden.rename(run.checkpoint(2))


@pytest.mark.parametrize("content", [b"\xff", b"a: [", b"- 3", b"name: 3"])
def test_a_corrupt_recipe_of_a_run(tmp_path, content):
    (tmp_path / "recipe.yaml").write_bytes(content)
    with pytest.raises(RecipeError, match=r"recipe\.yaml") as error:
        evaluate(str(tmp_path), [], QUIET)
    assert "\n" not in str(error.value)


def test_a_folder_without_a_run(recipe, tmp_path):
    (tmp_path / "recipe.yaml").write_text("{}")
    with pytest.raises(CurateError, match=r"recipe.yaml: .*missing"):
        evaluate(str(tmp_path), [], QUIET)
    run = RunFolder(tmp_path)
    with pytest.raises(InputError, match=r"is not a run folder \(no run.json\)"):
        run.fingerprint()
