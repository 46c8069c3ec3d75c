"""`make xray`: datasets, the stages of `xray-tiny` on them, and the table."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from curate.core.recipe.load import load
from distill.evaluation.show import AFTER
from distill.recipe import load_recipe
from pipelines import xray
from tests.distill.datasets import write_clip_art

SMALL = [
    "data.sequence_images=8", "train.sequences=2", "train.steps=2", "train.warmup_steps=0", "stages.0.train.steps=2",
    "stages.1.train.steps=2", "stages.3.train.steps=2", "evaluate.every=2", "evaluate.min_train_images=1",
    "stages.1.objectives.0.classes=20", "run.device=cpu", "run.tensorboard=false",
]  # fmt: skip


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[tuple[str, list[str]]]]:
    """Run the script with datasets of a few drawn images; returns the recipes that it ran, with their settings."""
    clip_art = write_clip_art(tmp_path / "clip-art")
    ran: list[tuple[str, list[str]]] = []

    def run_pipeline(recipe: str, settings: list[str], workspace: str, engine: str) -> dict[str, str]:
        ran.append((recipe, settings))
        return {"dataset": str(clip_art)}

    def run(*words: str) -> list[tuple[str, list[str]]]:
        ran.clear()
        monkeypatch.setattr("sys.argv", ["xray", "--workspace", str(tmp_path / "workspace"), *words])
        xray.main()
        return ran

    monkeypatch.setattr(xray, "run_pipeline", run_pipeline)
    monkeypatch.setattr(xray, "corpus", lambda images: ["images=clip-art"])
    monkeypatch.setattr("pipelines.recaption.openclipart", lambda cache: cache / "images")
    monkeypatch.setattr("pipelines.recaption.CACHE", tmp_path)
    return run


def rows(output: str) -> list[list[str]]:
    """Cells of the last table."""
    lines = output.rpartition("\nafter ")[2].splitlines()[1:6]
    return [[cell.strip() for cell in line.split("  ") if cell.strip()] for line in lines]


@pytest.mark.long
def test_from_datasets_to_a_table(
    make: Callable[..., list[tuple[str, list[str]]]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [word for value in SMALL for word in ("--set", value)]
    pipelines = make(*words)
    assert [Path(recipe).stem for recipe, _ in pipelines] == ["uru", "vise", "quickstart"]
    carried = [load(recipe, settings).nodes["dataset"].stage.parameters()["carry"] for recipe, settings in pipelines]
    assert all("duplicate_set" not in columns for columns in carried), "the datasets hold out different images"
    first = rows(capsys.readouterr().out)
    losses = [", ".join(item.label for item in stage.every_objective) for stage in load_recipe(xray.TRAINING).staged()]
    assert [row[:3] for row in first[1:]] == [
        [losses[0], "uru", "2"],
        [losses[1], "uru", "2"],
        [losses[2], "vise", "2"],
        [losses[3], "texts", "2"],
    ]
    assert [row[-1] == "–" for row in first[1:]] == [True, True, False, False], "only the text tower's have zero-shot"
    [path] = (tmp_path / "workspace/students").glob("*/evaluation.json")
    judged = next(one for one in json.loads(path.read_text())["sets"] if one["name"] == xray.JUDGED)
    assert first[-1][4] == f"{100 * judged['knn']['models'][AFTER]['accuracy']:.1f} %"
    make(*words)
    assert rows(capsys.readouterr().out) == first


@pytest.mark.long
def test_with_an_endpoint_captions_replace_titles(make: Callable[..., list[tuple[str, list[str]]]]) -> None:
    places = {name: name for name in xray.DATASETS}
    pairs = []
    for synthetic in (False, True):
        stages = load_recipe(xray.TRAINING, xray.training(places, synthetic)).staged()
        assert tuple(stage.data.sources[0].dataset for stage in stages) == xray.DATASETS
        pairs.append(stages[-1].data.sources[0].text_pair)
    assert pairs == [("json.meta.title", "json.meta.keywords"), ("synthetic", "json.meta.keywords")]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--model", "m"], "ENDPOINT is missing; give the base URL"),
        (["--endpoint", "http://h/v1"], "ENDPOINT=http://h/v1: MODEL is missing"),
        (["--set", "train.stepz=3"], "train.stepz: unknown; did you mean 'steps'?"),
    ],
)
def test_what_cannot_be_run_is_one_line_before_anything_runs(
    make: Callable[..., list[tuple[str, list[str]]]],
    words: list[str],
    expected: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as exit:
        make(*words)
    said = str(exit.value)
    assert said.startswith("xray: ") and expected in said and "\n" not in said
    assert capsys.readouterr().out == ""
