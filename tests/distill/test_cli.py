import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from rich.console import Console

from distill.cli import main
from distill.commands.evaluate import evaluate
from distill.commands.train import train
from distill.recipe import load_recipe, parse_recipe

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "nothing"], "distill: nothing: no such recipe file"),
        (
            ["train", "quickstart", "--set", "data.sources.0.dataset=/nowhere"],
            "distill: data.sources: '/nowhere' does not exist",
        ),
        (["train", "quickstart", "--set", "train.stps=3"], "train.stps: unknown; did you mean 'steps'?"),
        (
            ["eval", "/nowhere"],
            "distill: /nowhere is not a run folder (no recipe.yaml); give a folder printed by `distill train`",
        ),
    ],
)
def test_mistakes_are_one_line(monkeypatch, capsys, arguments, message):
    monkeypatch.setattr(sys, "argv", ["distill", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 1
    line = capsys.readouterr().err
    assert message in line
    assert line.count("\n") == 1


def test_an_unknown_teacher_is_one_line(monkeypatch, capsys, values, tmp_path):
    values["teachers"][0]["encoder"] = "vitb"
    (tmp_path / "r.yaml").write_text(yaml.safe_dump(values))
    monkeypatch.setattr(sys, "argv", ["distill", "train", str(tmp_path / "r.yaml")])
    with pytest.raises(SystemExit):
        main()
    assert "encoder: 'vitb' is not 'library:model'" in capsys.readouterr().err


def test_a_finished_run_is_found_without_loading_torch(values, tmp_path):
    path = tmp_path / "r.yaml"
    path.write_text(yaml.safe_dump(values))
    run = train(load_recipe(str(path)), Console(quiet=True))
    script = (
        "import sys; from rich.console import Console; from distill.commands.evaluate import evaluate; "
        "from distill.commands.explain import explain, where;"
        "from distill.commands.train import train; from distill.recipe import load_recipe;"
        f"run = train(load_recipe({str(path)!r}), Console());"
        "evaluate(str(run.path), [], Console());"
        "key = explain(str(run.path), 1, None, Console())['samples'][0]['key'];"
        "where(str(run.path), [key], Console());"
        "assert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    assert str(run.path) in done.stdout
    assert "test images" in done.stdout
    for row in ("chance", "student, random weights", "student, trained", "teacher descriptor"):
        assert row in done.stdout


def test_an_evaluation_is_found_from_any_folder(values, tmp_path, monkeypatch):
    """A relative path of `--set` names the same file as its absolute form, and so does the stored recipe."""
    values["evaluate"] = {"tasks": ["fidelity"]}
    run = train(parse_recipe(values, "test"), Console(quiet=True))
    (tmp_path / "names.tsv").write_text("class-0\tbars\n")
    monkeypatch.chdir(tmp_path)
    first = evaluate(str(run.path), ["evaluate.class_names=names.tsv"], Console(quiet=True))
    monkeypatch.chdir("/")
    monkeypatch.setattr("distill.commands.evaluate._evaluate_checkpoint", lambda *_: pytest.fail("computed again"))
    again = evaluate(str(run.path), [f"evaluate.class_names={tmp_path}/names.tsv"], Console(quiet=True))
    assert again["digest"] == first["digest"]
    assert str(tmp_path / "names.tsv") in (run.path / "evaluation.json").read_text()


def test_help_names_all_commands(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["distill", "--help"])
    with pytest.raises(SystemExit):
        main()
    text = capsys.readouterr().out
    assert all(name in text for name in ("train", "teach", "eval", "export"))
