from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from PIL import Image

from curate.core.recipe.load import load
from distill.evaluation.show import AFTER, BEFORE
from pipelines import quickstart
from tests.e2e import image_files
from tests.e2e.commands import curate


def test_a_missing_folder_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["quickstart", "--images", str(tmp_path / "none")])
    with pytest.raises(SystemExit, match=r"^quickstart: IMAGES=.*none: not a folder with images in it[^\n]*$"):
        quickstart.main()
    assert capsys.readouterr().out == ""


def test_the_verdict_names_both_sides_of_training_and_the_teacher() -> None:
    models = {BEFORE: {"accuracy": 0.1}, AFTER: {"accuracy": 0.25}, "teacher descriptor": {"accuracy": 0.3}}
    assert quickstart.verdict({"models": models}, "") == (
        "student 10.0 % before training, 25.0 % after (teacher descriptor 30.0 %)"
    )


def test_without_labels_the_verdict_gives_the_reason() -> None:
    said = quickstart.verdict({"models": {}, "why_none": "no column 'label'"}, "sort the images into a folder")
    assert said.startswith("none: no column 'label'; sort the images into a folder")


@pytest.mark.parametrize("files", [1, 50, 3000, 9000])
def test_sizes_fit_the_number_of_your_own_images(tmp_path: Path, files: int) -> None:
    for number in range(files):
        (tmp_path / f"{number}.png").touch()
        (tmp_path / f"{number}.txt").touch()
    settings = dict(setting.split("=", 1) for setting in quickstart.own_images(tmp_path))
    assert settings["images"] == str(tmp_path)
    assert settings["target"] == "null" and 0 < float(settings["share"]) < 1
    assert settings["report.label"] == "meta.label" and settings["pool.label"] == "-1"
    levels = json.loads(settings["levels"])
    assert len(levels) == 1 and levels[0] ** 2 <= files < (levels[0] + 1) ** 2


def test_images_have_the_label_of_their_metadata_or_else_their_folder(tmp_path: Path) -> None:
    (tmp_path / "dog").mkdir()
    for name in ("0.png", "dog/1.png"):
        Image.new("RGB", (8, 8)).save(tmp_path / name)
    (tmp_path / "metadata.csv").write_text("file_name,label\n0.png,cat\n")
    source = load(quickstart.PIPELINE, quickstart.own_images(tmp_path)).nodes["pool"].stage
    assert [sample.meta["label"] for portion in source.plan() for sample in source.read(portion)] == ["cat", "dog"]


@pytest.mark.parametrize(
    ("names", "levels", "target", "said"),
    [
        (["0.png"], 1, 1, ""),
        ([f"{number}.png" for number in range(5)], 2, 3, ""),
        ([f"cats/{number}.png" for number in range(24)], 5, 20, "one label for all 24 labelled images"),
        ([f"{'ab'[number % 2]}/{number % 3}/{number}.png" for number in range(24)], 5, 20, "labels' entropy"),
        ([f"{number}.png" for number in range(24)], 5, 20, "without labels, nothing is known about the balance"),
    ],
    ids=["one image", "few", "one class", "nested", "flat"],
)
def test_the_recipe_takes_any_folder(tmp_path: Path, names: list[str], levels: int, target: int, said: str) -> None:
    workspace = tmp_path / "workspace"
    for number, name in enumerate(names):
        (tmp_path / "images" / name).parent.mkdir(parents=True, exist_ok=True)
        image_files.blocks(number).save(tmp_path / "images" / name)
    settings = {"images": tmp_path / "images", "namespace": "mine", "levels": [levels], "target": target}
    words = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
    found = curate("run", quickstart.PIPELINE, "-w", workspace, "--quiet", *words)
    assert found.code == 0 and not found.err, found
    assert f" {target} " in found.words and said in found.words
    index = next(workspace.glob("datasets/quickstart/*/index.parquet"))
    labels = set(pq.read_table(index).column("label").to_pylist())
    assert labels <= {str(Path(name).parent).removeprefix(".") for name in names}


def test_labels_of_metadata_are_one_setting(tmp_path: Path) -> None:
    found = load(quickstart.PIPELINE, ["label=meta.label"])
    fields = {name: node.stage.meta_fields() for name, node in found.nodes.items() if node.stage.meta_fields()}
    assert {field for of in fields.values() for field in of if field.startswith("meta.")} == {"meta.label"}
