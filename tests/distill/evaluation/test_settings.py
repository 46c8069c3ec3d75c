"""Checks of the `evaluate` section, and the digest of everything that an evaluation depends on."""

import io
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from rich.console import Console

from curate.core.errors import RecipeError
from distill.commands.train import train
from distill.evaluation import settings
from distill.recipe import apply_overrides
from distill.samples.sources.mixture import open_mixture
from tests.distill.datasets import drawn_items, write_dataset
from tests.distill.exports import save_distill


def problems(recipe, *overrides):
    changed = apply_overrides(recipe, [f"evaluate.{item}" for item in overrides], "test")
    return settings.find_problems(changed, open_mixture(changed.data)).errors


def test_without_teachers_there_are_none_to_choose_from(recipe):
    evaluate = recipe.evaluate.model_copy(update={"text_encoders": {"clip": "tiny"}})
    recipe = recipe.model_copy(update={"teachers": [], "evaluate": evaluate})
    [line] = settings.find_problems(recipe, open_mixture(recipe.data)).errors
    assert line == ("evaluate.text_encoders: unknown teacher 'clip'; the recipe has no teachers; remove the entry")


def datasets(folder, **values) -> str:
    return f"datasets={json.dumps([{'name': 'other', 'dataset': str(folder), **values}])}"


@pytest.fixture(scope="module")
def other(tmp_path_factory):
    """20 images with a class in their JSON and a text each."""
    items = drawn_items(20)
    for item in items:
        item.columns = {"duplicate_set": item.key}
    documents = [{"kind": f"kind {number % 3}"} for number in range(20)]
    folder = tmp_path_factory.mktemp("datasets") / "other"
    return write_dataset(folder, items, texts=[b"a text"] * 20, documents=documents)


def test_existing_labels_texts_and_masks_are_accepted(recipe, other):
    assert problems(recipe) == []
    own = datasets(other, label="json.kind", texts=["txt"], masks="alpha")
    assert problems(recipe, own, "label=key", "masks=alpha") == []
    assert problems(recipe, datasets(other), "label=json.kind", "texts=[txt]") == []
    assert problems(recipe, "label=colour", "masks=seg.png", "prompts=/nowhere", "tasks=[maps]") == []


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["prompts=/nowhere"], "evaluate.prompts: cannot read /nowhere (FileNotFoundError); give a text file"),
        (["class_names=/nowhere"], "evaluate.class_names: cannot read /nowhere"),
        (["label=colour"], "evaluate.label: no column 'colour', and no such member or JSON field in 60 of the 60"),
        (["texts=[json.title]"], "evaluate.texts: no member or JSON field json.title in 60 of the 60 images"),
        (["masks=seg.png"], "evaluate.masks: no member 'seg.png' that is an image in 60 of the 60 images"),
        (["text_encoders={clip: tiny}"], "text_encoders: unknown teacher 'clip'; choose from descriptor"),
        (["text_encoders={descriptor: descriptor}"], "text_encoders: 'descriptor' has no text tower"),
        (["cka_student_layers=[1,16]"], "cka_student_layers: 16; the student has 2 layers; choose from 1..2"),
        (["sizes=[16,30]"], "sizes: 30 px; expected a multiple of the student's patches of 8 px; take 24 or 32"),
        (["sizes=[4]"], "sizes: 4 px; expected a multiple of the student's patches of 8 px; take 8"),
        (["prompts=open_clip:ALL"], "open_clip has no templates 'ALL'; choose from OPENAI_IMAGENET_TEMPLATES, SIMPLE"),
        ([datasets("/nowhere")], "evaluate.datasets: other: '/nowhere' does not exist"),
        ([datasets("OTHER", train="/nowhere")], "evaluate.datasets: other: '/nowhere' does not exist"),
        ([datasets("OTHER", label="json.title")], "evaluate.datasets: other: label: no column 'json.title'"),
        (
            [datasets("OTHER", texts=["json.title"])],
            "evaluate.datasets: other: texts: no member or JSON field json.tit",
        ),
        ([datasets("OTHER", masks="seg.png")], "evaluate.datasets: other: masks: no member 'seg.png'"),
        ([datasets("OTHER", class_names="/nowhere")], "evaluate.class_names: cannot read /nowhere"),
    ],
)
def test_each_error_is_one_line(recipe, other, changes, message):
    [line] = problems(recipe, *(change.replace("OTHER", str(other)) for change in changes))
    assert message in line and "\n" not in line


def test_what_no_sampled_image_has_is_a_warning(recipe, other, monkeypatch):
    monkeypatch.setattr(settings, "_SAMPLED", 5)
    own = datasets(other, label="json.title", texts=["json.title"], masks="seg.png")
    changed = apply_overrides(recipe, [f"evaluate.{own}", "evaluate.label=colour"], "test")
    lines = settings.check(changed, open_mixture(changed.data))
    assert [line.split(": ")[2] for line in lines[1:3]] == ["texts", "masks"]
    assert lines[0].startswith("evaluate.datasets: other: label: no column 'json.title', and no such")
    assert lines[3].startswith("evaluate.label: no column 'colour', and no such member or JSON field in 5 of the 60")
    assert all(line.endswith("; other images may have it") for line in lines)


def test_a_mask_of_colours_is_found_by_the_check(recipe, monkeypatch):
    stream = io.BytesIO()
    Image.fromarray(np.zeros((8, 8, 3), dtype=np.uint8)).save(stream, "PNG")
    monkeypatch.setattr(
        "distill.samples.sources.members.MemberReader.member", lambda self, row, name: stream.getvalue()
    )
    [line] = problems(recipe, "masks=seg.png")
    assert line.startswith("evaluate.masks: the mask of row 0 is an image of mode 'RGB'; give PNGs of mode L")


def test_an_invalid_evaluation_is_rejected_before_training(recipe):
    with pytest.raises(RecipeError, match=r"evaluate\.prompts: cannot read /nowhere"):
        train(apply_overrides(recipe, ["evaluate.prompts=/nowhere"], "test"), Console(quiet=True))
    assert not Path(recipe.run.folder).exists()


def test_the_digest_covers_the_content_of_named_files(recipe, other, tmp_path, monkeypatch):
    (tmp_path / "prompts.txt").write_text("a photo of a {}\n")
    (tmp_path / "names.txt").write_text("class-0\tbars\n")
    save_distill(tmp_path / "model")
    named = {"prompts": tmp_path / "prompts.txt", "class_names": tmp_path / "names.txt"}
    changes = [f"evaluate.{name}={path}" for name, path in named.items()]
    changes += [f"evaluate.text_encoders={{descriptor: 'distill:{tmp_path}/model'}}", f"evaluate.{datasets(other)}"]
    changed = apply_overrides(recipe, changes, "test")
    seen = [settings.evaluation_digest(changed, "f" * 32, 4)]
    assert settings.evaluation_digest(changed, "f" * 32, 4) == seen[0]
    (tmp_path / "prompts.txt").write_text("a picture of a {}\n")
    seen.append(settings.evaluation_digest(changed, "f" * 32, 4))
    (tmp_path / "names.txt").write_text("class-0\tstripes\n")
    seen.append(settings.evaluation_digest(changed, "f" * 32, 4))
    save_distill(tmp_path / "model", seed=1)
    seen.append(settings.evaluation_digest(changed, "f" * 32, 4))
    monkeypatch.setattr(settings, "VERSION", settings.VERSION + 1)
    seen.append(settings.evaluation_digest(changed, "f" * 32, 4))
    seen.append(settings.evaluation_digest(changed, "f" * 32, 5))
    assert len(set(seen)) == len(seen)
    (tmp_path / "names.txt").unlink()
    with pytest.raises(RecipeError, match=r"evaluate\.class_names: cannot read .*names.txt"):
        settings.evaluation_digest(changed, "f" * 32, 4)


def test_datasets_are_named_after_the_last_part_of_their_path(recipe):
    section = apply_overrides(recipe, [f"evaluate.{datasets('x')}"], "test").evaluate
    places = ["/a/test", "s3://b/test/", "c/other", "d/held-out", "{e,f}.tar"]
    found = settings.with_datasets(section, places)
    names = ["other", "test", "test-2", "other-2", "held-out-2", "e-f-.tar"]
    assert [item["name"] for item in found] == names
    assert [item["dataset"] for item in found[1:]] == places
    assert len(settings.with_datasets(section, [])) == 1
