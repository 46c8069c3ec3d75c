"""Classification by labels in columns: its classes, its training, and mistakes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from curate.core.errors import InputError, RecipeError
from distill.commands.train import train
from distill.parallel import World
from distill.recipe import parse_recipe
from distill.samples.classes import ClassIndex
from distill.training.run_folder import RunFolder
from tests.distill.conftest import recipe_values
from tests.distill.datasets import drawn_items, write_dataset

LABELS = "distill.objectives.labels:Labels"
ALONE = World(0, 1, torch.device("cpu"))


@pytest.fixture(scope="module")
def tagged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """60 images; each has one label, and tags: its class, a shared one, and a rare one; a sixth have no tags."""
    items = drawn_items(60)
    documents: list[dict[str, Any]] = []
    for number, item in enumerate(items):
        label = item.columns["label"]
        tags = [label, "shared", *(["rare"] if number in (7, 8) else [])] if number % 6 else []
        documents.append({"label": label, "tags": tags, "meta": {"number": number % 3, "share": 0.5}, "void": None})
    return write_dataset(tmp_path_factory.mktemp("labels") / "tagged", items, documents=documents)


def labelled(folder: Path, run: Path, **own: Any) -> dict[str, Any]:
    values = recipe_values(str(folder), str(run))
    entry = {"objective": LABELS, "column": "label", "classes": 4, **own}
    return values | {"teachers": [], "objectives": [entry], "evaluate": {"tasks": []}}


def trained(values: dict[str, Any]) -> tuple[RunFolder, list[dict[str, Any]]]:
    run = train(parse_recipe(values, "test"), Console(quiet=True))
    return run, [json.loads(line) for line in run.metrics.read_text().splitlines()]


def test_a_student_learns_the_labels_and_the_run_keeps_its_classes(tagged, tmp_path):
    values = labelled(tagged, tmp_path / "run")
    values["train"] |= {"steps": 25, "learning_rate": 1e-2}
    run, lines = trained(values)
    names = run.read("classes.json")["classes"]["labels/label"]
    assert sorted(names) == [f"class-{number}" for number in range(4)]
    assert lines[0]["labels/label/accuracy"] < 0.6 < lines[-1]["labels/label/accuracy"]
    assert lines[-1]["loss"] == lines[-1]["labels/label"] < lines[0]["labels/label"]


@pytest.mark.parametrize("loss", ["softmax", "sigmoid"])
def test_several_labels_of_an_image_by_a_list_of_classes(tagged, tmp_path, loss):
    (tmp_path / "names.txt").write_text("shared\nclass-2\nclass-0\n\nclass-1\nclass-3\n")
    own = {"column": "tags", "classes": str(tmp_path / "names.txt"), "outside": "ignore", "loss": loss}
    run, lines = trained(labelled(tagged, tmp_path / "run", **own))
    names = ["shared", "class-2", "class-0", "class-1", "class-3"]
    assert run.read("classes.json")["classes"] == {"labels/tags": names}
    assert run.recipe().objectives[0].classes == names  # its content, so that the file may go
    assert all(line["labels/tags"] > 0 for line in lines)


def test_classes_are_the_most_frequent_labels_then_by_name(tagged, tmp_path):
    own = {"column": "tags", "classes": 3, "outside": "ignore"}
    run, _ = trained(labelled(tagged, tmp_path / "run", **own))
    names = run.read("classes.json")["classes"]["labels/tags"]
    assert names[0] == "shared" and len(names) == 3 and all(name.startswith("class-") for name in names[1:])


@pytest.mark.parametrize(
    ("own", "message"),
    [
        ({"column": "tgs"}, "no column 'tgs' in 10 samples of .*; did you mean 'tags'"),
        ({"column": "hue"}, "no column 'hue' in 10 samples of .*; they have key, label, meta, tags"),
        ({"column": "meta.number", "classes": 5}, "classes 5, but the training images have 3 different labels; set c"),
        ({"column": "tags", "classes": 4}, r"classes 4, but the .* labels; set classes: \d or set outside: ignore"),
        ({"column": "meta.share", "classes": 2}, "have no label that is among the classes; expected words or integers"),
        ({"classes": ["a", "b"]}, "no label that is among the classes; they have labels such as 'class-\\d', 'class-"),
        ({"column": "void"}, "no column 'void' in 10 samples of .*; they have key, label, meta, tags"),
        ({"classes": ["class-0", "class-1"]}, "'class-[23]' is not one of the 2 classes in classes.json; set outside"),
    ],
)
def test_mistakes_in_the_data_are_one_line(tagged, tmp_path, own, message):
    with pytest.raises(InputError, match=message) as caught:
        trained(labelled(tagged, tmp_path / "run", **own))
    assert "\n" not in str(caught.value)


def test_mistakes_of_a_later_stage_are_found_before_the_first_step(tagged, tmp_path):
    values = labelled(tagged, tmp_path / "run")
    values["stages"] = [{}, {"objectives": [values["objectives"][0] | {"column": "tags"}]}]
    with pytest.raises(InputError, match="classes 4, but the training images have"):
        trained(values)
    assert not RunFolder(tmp_path / "run").metrics.exists()
    values["stages"] = [{}, {"student": {"width": 48}}]
    with pytest.raises(RecipeError, match=r"stages\.1\.student\.width: 48"):
        trained(values | {"run": values["run"] | {"folder": str(tmp_path / "other")}})
    assert not (tmp_path / "other" / "run.json").exists()


@pytest.mark.parametrize(
    ("own", "message"),
    [
        ({"classes": "no/file.txt"}, "objectives.0.classes: cannot read 'no/file.txt'"),
        ({"classes": ["a", "b", "a"]}, "objectives.0.classes: 'a' twice; expected different names"),
        ({"loss": "sigmoid", "smoothing": 0.1}, "smoothing 0.1 requires loss: softmax"),
        ({"weight": 0}, "no training objective: every loss of every teacher has weight 0"),
    ],
)
def test_mistakes_in_the_recipe_are_one_line(tagged, tmp_path, own, message):
    with pytest.raises(RecipeError, match=message):
        parse_recipe(labelled(tagged, tmp_path / "run", **own), "test")


def test_two_columns_cannot_share_a_head(tagged, tmp_path):
    values = labelled(tagged, tmp_path / "run", column="a.b")
    values["objectives"].append(values["objectives"][0] | {"column": "a-b"})
    with pytest.raises(RecipeError, match=r"objectives\.0: two objectives are called 'labels/a\.b'"):
        parse_recipe(values, "test")


def test_values_of_columns_as_labels():
    index = ClassIndex(["a", "7", "b c"], "x", ignore=True)
    values = ["a", 7, [" b c ", "a", "a"], None, "", "z", True, [1.5, {"a": 1}]]
    assert [index.numbers(value) for value in values] == [[0], [1], [0, 2], [], [], [], [], []]
