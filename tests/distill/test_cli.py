import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from rich.console import Console

from distill import commands
from distill.cli import main
from distill.recipe import load_recipe

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "nothing"], "distill: nothing: no such recipe file"),
        (
            ["train", "quickstart", "--set", "data.sources.0.dataset=/nowhere"],
            "distill: data.sources: '/nowhere' is no folder",
        ),
        (["train", "quickstart", "--set", "train.stps=3"], "train.stps: unknown; did you mean 'steps'?"),
        (["eval", "/nowhere"], "distill: /nowhere is no run folder (no recipe.yaml); `distill train` prints"),
    ],
)
def test_mistakes_are_one_line(monkeypatch, capsys, arguments, message):
    monkeypatch.setattr(sys, "argv", ["distill", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 1
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1


def test_a_teacher_that_is_none_is_one_line(monkeypatch, capsys, values, tmp_path):
    values["teachers"][0]["encoder"] = "vitb"
    (tmp_path / "r.yaml").write_text(yaml.safe_dump(values))
    monkeypatch.setattr(sys, "argv", ["distill", "train", str(tmp_path / "r.yaml")])
    with pytest.raises(SystemExit):
        main()
    assert "encoder: 'vitb' is not 'library:model'" in capsys.readouterr().err


def test_a_finished_run_answers_without_loading_torch(values, tmp_path):
    path = tmp_path / "r.yaml"
    path.write_text(yaml.safe_dump(values))
    run = commands.train(load_recipe(str(path)), Console(quiet=True))
    script = (
        "import sys; from rich.console import Console; from distill import commands; from distill.recipe import *;"
        f"run = commands.train(load_recipe({str(path)!r}), Console());"
        "commands.evaluate(str(run.path), [], Console());"
        "assert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    assert str(run.path) in done.stdout
    assert "held-out pictures" in done.stdout
    for row in ("chance", "student, random weights", "student, trained", "teacher descriptor"):
        assert row in done.stdout


def test_help_names_both_commands(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["distill", "--help"])
    with pytest.raises(SystemExit):
        main()
    said = capsys.readouterr().out
    assert "train" in said
    assert "eval" in said
