from __future__ import annotations

import json
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml

from curate.core.endpoints import read_endpoints
from curate.core.recipe.load import load
from curate.core.recipe.pipeline import Pipeline
from curate.engine.run import Result, run
from curate.engine.state import Options
from pipelines import recaption
from tests.conftest import ROOT
from tests.e2e.texts import over, write_images
from tests.pack.test_webdataset import samples

KEY = "open-sesame-0123456789"
RECIPE = ROOT / recaption.PIPELINE


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def setting(settings: list[str], name: str) -> str:
    return next(value for key, _, value in (one.partition("=") for one in settings) if key == name)


def test_an_endpoint_is_a_file_with_a_reference_to_its_key(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", KEY)
    path = setting(recaption.given_endpoint("http://host:8000/v1", "large", "env:MY_KEY"), "endpoints")
    assert KEY not in Path(path).read_text()
    [found] = read_endpoints(path).values()
    assert (found.base_urls, found.model) == (("http://host:8000/v1",), "large")
    assert load(RECIPE, [f"endpoints={path}"]).nodes["generate"].stage.asks() == {"given": found}  # type: ignore[attr-defined]


def test_without_an_endpoint_a_tiny_model_is_launched_and_its_texts_are_called_nonsense(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made: list[list[str]] = []
    monkeypatch.setattr(subprocess, "run", lambda command, **_: made.append(command))
    monkeypatch.setattr(recaption, "openclipart", lambda place: place / "images")
    ran: list[Any] = []
    monkeypatch.setattr(recaption, "run_pipeline", lambda *given: ran.append(given) or {"dataset": "D", "report": "R"})
    monkeypatch.setattr("sys.argv", ["recaption", "--set", "target=3"])
    recaption.main()
    said = capsys.readouterr().out
    assert said.count("nonsense") == 2
    assert "MODEL=NAME" in said
    [(recipe, settings, workspace, engine)] = ran
    assert (recipe, workspace, engine) == (recaption.PIPELINE, "workspace", "ray")
    [found] = read_endpoints(setting(settings, "endpoints")).values()
    assert found.launch is not None
    assert (found.launch.server, found.launch.gpus, found.model) == ("transformers", 0, made[0][-1])
    assert load(RECIPE, settings).nodes["sample"].stage.parameters()["target"] == 3


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--endpoint", "http://h/v1"], "ENDPOINT=http://h/v1: MODEL is missing"),
        (["--model", "m"], "ENDPOINT is missing; give the base URL"),
        (["--endpoint", "h:8000", "--model", "m"], "'h:8000' is not a base URL; expected http://HOST:PORT/v1"),
        (["--endpoint", "http://h/v1", "--model", "m", "--key", KEY], "KEY: expected a reference to the key"),
        (
            ["--endpoint", "http://h/v1", "--model", "m", "--images", "none"],
            "IMAGES=none: not a folder with images in it",
        ),
    ],
)
def test_what_cannot_be_run_is_one_line(
    here: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], expected: str
) -> None:
    monkeypatch.setattr("sys.argv", ["recaption", *words])
    with pytest.raises(SystemExit) as exit:
        recaption.main()
    said = str(exit.value)
    assert said.startswith("recaption: ") and expected in said and "\n" not in said
    assert KEY not in said
    assert not any(KEY in path.read_text() for path in here.rglob("*.yaml"))


def test_your_own_images_decide_the_number_of_clusters(tmp_path: Path) -> None:
    images = write_images(tmp_path / "images", 20)
    settings = recaption.images_of(images, 500)
    assert setting(settings, "levels") == "[4]"
    assert setting(settings, "target") == "10"
    (tmp_path / "endpoints.yaml").write_text(yaml.safe_dump({"one": {"base_urls": ["http://h/v1"], "model": "m"}}))
    nodes = load(RECIPE, [*settings, f"endpoints={tmp_path}/endpoints.yaml"]).nodes
    assert nodes["tree"].stage.parameters()["levels"] == [4]


def recipe(folder: Path, script: Any, **changes: Any) -> Pipeline:
    """The recipe over 48 images, of which 30 get a caption."""
    (folder / "endpoints.yaml").write_text(yaml.safe_dump({"one": {"base_urls": [script.base_url], "model": "m"}}))
    images = folder / "images" if (folder / "images").exists() else write_images(folder / "images", 48)
    settings = {"endpoints": folder / "endpoints.yaml", "target": 30, "levels": "[6]", "encoder": "descriptor"}
    settings |= {"dataset.carry": "{text_from: best_from}"} | changes
    return load(RECIPE, [*over(images), *(f"{name}={value}" for name, value in settings.items())])


def packed(result: Result) -> list[dict[str, Any]]:
    """The description of each sample, and its text."""
    found = [sample for tar in Path(result.outputs["dataset"]).glob("*.tar") for sample in samples(tar)]
    return [json.loads(sample["json"]) | {"txt": sample["txt"].decode()} for sample in found]


@pytest.mark.long
def test_the_dataset_has_original_and_synthetic_texts(tmp_path: Path, endpoint: Any) -> None:
    script = endpoint.script(style="captions", models=["m"], loops=0.2, refusals=0.2, empty=0.1)
    result = run(recipe(tmp_path, script), str(tmp_path / "workspace"))
    made = packed(result)
    assert len(made) == 30
    sources = Counter(one["text_from"] for one in made)
    assert sources["generated"] > 8
    assert sources["repaired"] > 3
    for one in made:
        kind = "original" if one["text_from"] == "text" else "synthetic"
        assert one["txt"] == one["texts"][kind] != ""
        assert ("synthetic" in one["texts"]) == (kind == "synthetic")
        assert "I'm sorry" not in one["txt"]
    assert (Path(result.outputs["report"]) / "index.html").stat().st_size > 10_000
    asked = script.stats()["requests"]
    assert asked > 30
    again = run(recipe(tmp_path, script, **{"dataset.name": "again"}), str(tmp_path / "workspace"))
    assert script.stats()["requests"] == asked
    assert sorted(map(str, packed(again))) == sorted(map(str, made))


@pytest.mark.long
def test_images_without_an_answer_keep_their_text(tmp_path: Path, endpoint: Any) -> None:
    script = endpoint.script(style="captions", models=["m"], max_image_bytes=2000)
    result = run(recipe(tmp_path, script), str(tmp_path / "workspace"), options=Options(failure_budget=1.0))
    made = packed(result)
    assert len(made) == 30
    sources = Counter(one["text_from"] for one in made)
    assert sources["text"] > 3 and sources["generated"] > 3
    without = [one for one in made if one["text_from"] == "text"]
    assert all(one["texts"] == {"original": one["txt"]} for one in without)
