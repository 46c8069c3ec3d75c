"""A run's folder: what may lie there, and what is said where it does not."""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.console import Console

from curate.core.errors import CurateError, InputError, PinnedError, RecipeError, RunExistsError, StorageError
from distill import commands
from distill.recipe import apply_overrides
from distill.samples.sources.mixture import open_blend
from distill.training.run_folder import RunFolder

QUIET = Console(quiet=True)


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


def test_what_differs_is_named(recipe, tmp_path):
    run, blends = RunFolder(tmp_path / "run"), [open_blend(recipe.data)]
    with run.claimed(recipe, "f", blends):
        pass
    for change, said in (
        ("train.steps=3", r"train.steps is 4, here 3"),
        ("teachers.0.keep=float16", "teachers.0.keep is"),
    ):
        other = apply_overrides(recipe, [change], "test")
        with pytest.raises(PinnedError, match=said), run.claimed(other, "g", blends):
            pass


@pytest.mark.parametrize(
    ("where", "kind", "message"),
    [
        ("s3://bucket/run", RecipeError, "run.folder: 's3://bucket/run' is no local folder; name one on a disk"),
        ("/proc/run", StorageError, r"run.folder: /proc/run cannot be written to \(.*\); name another folder"),
        ("{file}", StorageError, r"run.folder: .*file cannot be written to \(.*\); name another folder"),
        ("{file}/run", StorageError, r"run.folder: .*file/run cannot be written to \(.*\); name another folder"),
    ],
)
def test_places_where_no_run_can_lie(recipe, tmp_path, monkeypatch, where, kind, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    place = where.replace("{file}", str(tmp_path / "file"))
    with pytest.raises(kind, match=message):
        commands.train(apply_overrides(recipe, [f"run.folder={place}"], "test"), QUIET)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, folder: Path) -> tuple[RunFolder, dict]:
    from distill.recipe import parse_recipe
    from tests.distill.conftest import recipe_values

    values = recipe_values(str(folder), str(tmp_path_factory.mktemp("finished") / "run"))
    values["train"]["steps"], values["evaluate"]["tasks"] = 2, []
    return commands.train(parse_recipe(values, "test"), QUIET), values


@pytest.mark.parametrize("name", ["run.json", "finished.json", "evaluation.json"])
@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b"[1]", b"{}", b"null"])
@pytest.mark.long
def test_damaged_files_are_named_with_the_remedy(finished, name, content):
    run, _ = finished
    path, recipe = run.path / name, run.recipe()
    before = path.read_bytes()
    path.write_bytes(content)
    try:
        with pytest.raises(InputError, match=rf"{name} cannot be read \(.*\); remove it: it is written anew") as told:
            commands.train(recipe, QUIET) if name == "finished.json" else commands.evaluate(str(run.path), [], QUIET)
        assert "\n" not in str(told.value)
    finally:
        path.write_bytes(before)


def test_what_a_finished_run_needs_to_answer(finished):
    run, _ = finished
    fingerprint = run.fingerprint()
    assert run.finished(fingerprint)["step"] == 2
    assert run.finished("another") is None
    hidden = run.checkpoint(2).rename(run.path / "hidden")
    assert run.finished(fingerprint)["step"] == 2  # all checkpoints were removed, to make room
    run.checkpoint(1).mkdir()
    assert run.finished(fingerprint) is None  # the last one was, since it is damaged
    run.checkpoint(1).rmdir()
    hidden.rename(run.checkpoint(2))


@pytest.mark.parametrize("content", [b"\xff", b"a: [", b"- 3", b"name: 3"])
def test_a_damaged_recipe_of_a_run(tmp_path, content):
    (tmp_path / "recipe.yaml").write_bytes(content)
    with pytest.raises(RecipeError, match=r"recipe.yaml: ") as told:
        commands.evaluate(str(tmp_path), [], QUIET)
    assert "\n" not in str(told.value)


def test_a_folder_without_a_run(recipe, tmp_path):
    (tmp_path / "recipe.yaml").write_text("{}")
    with pytest.raises(CurateError, match=r"recipe.yaml: .*missing"):
        commands.evaluate(str(tmp_path), [], QUIET)
    run = commands.RunFolder(tmp_path)
    with pytest.raises(InputError, match=r"is no run folder \(no run.json\)"):
        run.fingerprint()
