"""What `evaluate` says is looked at before anything is computed, and an evaluation is known by all it depends on."""

import io
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from rich.console import Console

from curate.core.errors import RecipeError
from distill import commands
from distill.evaluation import settings
from distill.recipe import apply_overrides
from distill.samples.sources.mixture import open_blend
from tests.distill.datasets import drawn_items, write_dataset
from tests.distill.exports import save_distill


def problems(recipe, *overrides):
    changed = apply_overrides(recipe, [f"evaluate.{item}" for item in overrides], "test")
    return settings.look(changed, open_blend(changed.data)).wrong


def judged(folder, **values) -> str:
    return f"datasets={json.dumps([{'name': 'other', 'dataset': str(folder), **values}])}"


@pytest.fixture(scope="module")
def other(tmp_path_factory):
    """20 pictures whose JSON says what they are, with a text each."""
    items = drawn_items(20)
    for item in items:
        item.columns = {"duplicate_set": item.key}
    documents = [{"kind": f"kind {number % 3}"} for number in range(20)]
    folder = tmp_path_factory.mktemp("judged") / "other"
    return write_dataset(folder, items, texts=[b"a text"] * 20, documents=documents)


def test_nothing_is_wrong_with_what_is_there(recipe, other):
    assert problems(recipe) == []
    said = judged(other, label="json.kind", texts=["txt"], masks="alpha")
    assert problems(recipe, said, "label=key", "masks=alpha") == []
    assert problems(recipe, judged(other), "label=json.kind", "texts=[txt]") == []
    assert problems(recipe, "label=colour", "masks=seg.png", "prompts=/nowhere", "tasks=[maps]") == []


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (["prompts=/nowhere"], "evaluate.prompts: /nowhere cannot be read (FileNotFoundError); give a text file"),
        (["class_names=/nowhere"], "evaluate.class_names: /nowhere cannot be read"),
        (["label=colour"], "evaluate.label: 'colour' is no column, and no member or JSON field of 60 of the 60"),
        (["texts=[json.title]"], "evaluate.texts: no member or JSON field json.title in 60 of the 60 pictures"),
        (["masks=seg.png"], "evaluate.masks: no member 'seg.png' that is a picture in 60 of the 60 pictures"),
        (["text_encoders={clip: tiny}"], "text_encoders: no teacher is called 'clip'; there are: descriptor"),
        (["text_encoders={descriptor: descriptor}"], "text_encoders: 'descriptor' has no text tower"),
        ([judged("/nowhere")], "evaluate.datasets: other: '/nowhere' is no folder"),
        ([judged("OTHER", train="/nowhere")], "evaluate.datasets: other: '/nowhere' is no folder"),
        ([judged("OTHER", label="json.title")], "evaluate.datasets: other: label: 'json.title' is no column"),
        ([judged("OTHER", texts=["json.title"])], "evaluate.datasets: other: texts: no member or JSON field json.tit"),
        ([judged("OTHER", masks="seg.png")], "evaluate.datasets: other: masks: no member 'seg.png'"),
        ([judged("OTHER", class_names="/nowhere")], "evaluate.class_names: /nowhere cannot be read"),
    ],
)
def test_what_is_wrong_is_a_line(recipe, other, changes, said):
    [line] = problems(recipe, *(change.replace("OTHER", str(other)) for change in changes))
    assert said in line and "\n" not in line


def test_what_none_of_some_pictures_has_is_told_and_refused_by_none(recipe, other, monkeypatch):
    monkeypatch.setattr(settings, "_LOOKED_AT", 5)
    says = judged(other, label="json.title", texts=["json.title"], masks="seg.png")
    changed = apply_overrides(recipe, [f"evaluate.{says}", "evaluate.label=colour"], "test")
    lines = settings.check(changed, open_blend(changed.data))
    assert [line.split(": ")[2] for line in lines[1:3]] == ["texts", "masks"]
    assert lines[0].startswith("evaluate.datasets: other: label: 'json.title' is no column, and no member")
    assert lines[3].startswith("evaluate.label: 'colour' is no column, and no member or JSON field of 5 of the 60")
    assert all(line.endswith("; others may have it") for line in lines)


def test_a_mask_of_colours_is_seen_before(recipe, monkeypatch):
    stream = io.BytesIO()
    Image.fromarray(np.zeros((8, 8, 3), dtype=np.uint8)).save(stream, "PNG")
    monkeypatch.setattr("distill.samples.sources.members.Members.member", lambda self, row, name: stream.getvalue())
    [line] = problems(recipe, "masks=seg.png")
    assert line.startswith("evaluate.masks: the mask of row 0 is a picture of mode 'RGB'; give PNGs of mode L")


def test_nothing_is_trained_for_an_evaluation_that_cannot_be(recipe):
    with pytest.raises(RecipeError, match=r"evaluate\.prompts: /nowhere cannot be read"):
        commands.train(apply_overrides(recipe, ["evaluate.prompts=/nowhere"], "test"), Console(quiet=True))
    assert not Path(recipe.run.folder).exists()


def test_an_evaluation_is_known_by_the_content_of_what_it_names(recipe, other, tmp_path, monkeypatch):
    (tmp_path / "prompts.txt").write_text("a photo of a {}\n")
    (tmp_path / "names.txt").write_text("class-0\tbars\n")
    save_distill(tmp_path / "model")
    named = {"prompts": tmp_path / "prompts.txt", "class_names": tmp_path / "names.txt"}
    changes = [f"evaluate.{name}={path}" for name, path in named.items()]
    changes += [f"evaluate.text_encoders={{descriptor: 'distill:{tmp_path}/model'}}", f"evaluate.{judged(other)}"]
    asked = apply_overrides(recipe, changes, "test")
    seen = [settings.evaluation_digest(asked, "f" * 32, 4)]
    assert settings.evaluation_digest(asked, "f" * 32, 4) == seen[0]
    (tmp_path / "prompts.txt").write_text("a picture of a {}\n")
    seen.append(settings.evaluation_digest(asked, "f" * 32, 4))
    (tmp_path / "names.txt").write_text("class-0\tstripes\n")
    seen.append(settings.evaluation_digest(asked, "f" * 32, 4))
    save_distill(tmp_path / "model", seed=1)
    seen.append(settings.evaluation_digest(asked, "f" * 32, 4))
    monkeypatch.setattr(settings, "JUDGES", settings.JUDGES + 1)
    seen.append(settings.evaluation_digest(asked, "f" * 32, 4))
    seen.append(settings.evaluation_digest(asked, "f" * 32, 5))
    assert len(set(seen)) == len(seen)
    (tmp_path / "names.txt").unlink()
    with pytest.raises(RecipeError, match=r"evaluate\.class_names: .*names.txt cannot be read"):
        settings.evaluation_digest(asked, "f" * 32, 4)


def test_datasets_are_called_by_the_last_part_of_their_place(recipe):
    asked = apply_overrides(recipe, [f"evaluate.{judged('x')}"], "test").evaluate
    places = ["/a/test", "s3://b/test/", "c/other", "d/held-out", "{e,f}.tar"]
    found = settings.with_datasets(asked, places)
    names = ["other", "test", "test-2", "other-2", "held-out-2", "e-f-.tar"]
    assert [item["name"] for item in found] == names
    assert [item["dataset"] for item in found[1:]] == places
    assert len(settings.with_datasets(asked, [])) == 1
