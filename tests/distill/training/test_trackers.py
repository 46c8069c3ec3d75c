"""Trackers that are missing, cannot start, or fail later. tests/interop/trackers.py has the real libraries."""

from __future__ import annotations

import sys
import types
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from curate.core.errors import CurateError, InputError
from distill.recipe import Recipe, apply_overrides
from tests.distill.training.test_stages import trained


def test_a_library_that_is_not_installed_is_one_line_before_anything_is_computed(
    recipe: Recipe, tmp_path: Path
) -> None:
    for name, package in (("wandb", "wandb"), ("mlflow", "mlflow-skinny"), ("trackio", "trackio")):
        with pytest.raises(
            InputError, match=f"^run.trackers: {name} is not installed; pip install {package}, or remove"
        ):
            trained(apply_overrides(recipe, [f"run.trackers=[{name}]"], "test"), tmp_path / name)
        assert not list((tmp_path / name / "checkpoints").iterdir())
    with pytest.raises(CurateError, match="trackers"):
        apply_overrides(recipe, ["run.trackers=[tensorbord]"], "test")


def standing_in(monkeypatch: pytest.MonkeyPatch, init: Any) -> None:
    """A trackio whose `init` is given."""
    module = types.ModuleType("trackio")
    module.__spec__ = types.SimpleNamespace(name="trackio")  # type: ignore[assignment]
    module.init = init  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "trackio", module)


def test_a_library_that_cannot_start_is_one_line(
    recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def init(**_: Any) -> None:
        raise PermissionError("log in\nfirst")

    standing_in(monkeypatch, init)
    with pytest.raises(
        InputError, match=r"run.trackers: trackio cannot start \(PermissionError: log in first\); fix this"
    ):
        trained(apply_overrides(recipe, ["run.trackers=[trackio]"], "test"), tmp_path)


def test_a_server_that_goes_away_ends_no_training(
    recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logged: list[int] = []

    class Fails:
        def log(self, values: dict[str, float], step: int) -> None:
            logged.append(step)
            if step == 2:
                raise ConnectionError("gone")

        def finish(self) -> None:
            raise AssertionError("it has failed before")

    standing_in(monkeypatch, lambda **_: Fails())
    said = StringIO()
    _, lines = trained(apply_overrides(recipe, ["run.trackers=[trackio]"], "test"), tmp_path, Console(file=said))
    assert [line["step"] for line in lines] == [1, 2, 3, 4] and logged == [1, 2]
    assert said.getvalue().count("trackio failed and gets no more metrics (ConnectionError: gone)") == 1
