"""A text side for a trained backbone: its text tower is trained with the images' side locked (LiT), on CLS and the mean
patch as dino.txt's, and then serves the head of any student that predicts that backbone's features."""

import numpy as np
import pytest
import torch
from rich.console import Console

from curate import encoders
from curate.core.errors import InputError, RecipeError
from curate.encoders.student.model import load
from curate.encoders.student.reduction import Reduction
from distill.commands.train import train
from distill.evaluation.extraction import FeatureExtractor
from distill.evaluation.models import OWN, StudentModel, TeacherModel, TextSide
from distill.export import export
from distill.recipe import parse_recipe
from distill.samples.batches.loader import collate
from tests.distill.conftest import recipe_values
from tests.distill.datasets import drawn_items, write_dataset
from tests.distill.evaluation.toys import ALONE, context

QUIET = Console(quiet=True)
TEXT = {"vocabulary": 300, "width": 16, "heads": 2, "depth": 1, "context": 8}
LOCKED = {"text": TEXT, "embed": 24, "embedded": "summary + patches"}


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = tmp_path_factory.mktemp("lit")
    write_dataset(root / "d", drawn_items(20), texts=[f"bars {row % 4}".encode() for row in range(20)])
    return root


def recipe(root, name, **changes):
    values = recipe_values(str(root / "d"), str(root / name))
    values["student"] |= changes.pop("student", {})
    values["train"] |= changes.pop("train", {})
    values["data"]["sources"][0]["texts"] = {"txt": 1.0}
    return parse_recipe(values | {"evaluate": {"tasks": []}} | changes, "test")


@pytest.fixture(scope="module")
def folders(root):
    """Exports of a backbone with experts, and of that backbone with a text tower."""
    experts = {"moe": {"experts": 4, "active": 2, "hidden": 16, "balance_rate": 0.1}}
    base = export(train(recipe(root, "base", student=experts), QUIET).path)
    locked = recipe(
        root, "locked", student=experts | LOCKED, teachers=[], contrastive={},
        init_from={"weights": str(base)}, train={"rates": {"backbone": 0}, "weight_decay": 0.5},
    )  # fmt: skip
    return base, export(train(locked, QUIET).path)


def test_the_locked_backbone_stays_and_its_text_tower_is_trained(folders):
    base, locked = (load(folder) for folder in folders)
    before, after = base.student.backbone.state_dict(), locked.student.backbone.state_dict()
    assert all(torch.equal(value, after[name]) for name, value in before.items())
    assert before["blocks.0.mlp.bias"].any()
    one = context(recipe(folders[0].parents[1], "images", teachers=[{"encoder": "descriptor"}]))
    images = collate([one.reader.get(row) for row in range(5)])
    with torch.inference_mode():
        output = locked.student(images.tensor(torch.device("cpu")), images.grids)
        patches = output.patches.split([rows * columns for rows, columns in images.grids])
        joined = torch.cat([output.summary, torch.stack([own.mean(0) for own in patches])], -1)
        assert torch.allclose(locked.student.image_vectors(output), locked.student.project(joined), atol=1e-6)
    texts = ["bars 1", "bars 2"]
    assert locked.encode_text(texts).shape == (2, 24)


def test_it_serves_the_teacher_with_its_weights_and_a_students_head_for_it(folders):
    base, locked = folders
    teacher = {"encoder": f"distill:{base}", "name": "base", "pictures": "own"}
    run = recipe(base.parents[1], "student", teachers=[teacher])
    one = context(run)
    side_of = encoders.load(f"distill:{locked}", device="cpu")
    side = TextSide(side_of.encode_text, side_of.image_vectors)
    student = one.new_student().eval()
    trained = StudentModel("s", student, teachers=["base"], standardisers=one.fit_standardisers(), sides={"base": side})
    extractor = FeatureExtractor([trained, TeacherModel("base", side)], one.teachers, one.reader, ALONE)
    found = extractor.extract(collate([one.reader.get(row) for row in range(5)]))
    head = found.outputs["s"].predictions["base"]
    student.backbone.reduction = Reduction(keep=0.5, layers=(1,))
    with pytest.raises(InputError, match="texts of 'base' are compared with patches"):
        extractor.extract(found.batch)
    means = [own.reshape(-1, 16).mean(0) for _, own in found.per_image(head.patches.numpy())]
    weight = side_of.model.student.project.weight.numpy()
    expected = np.concatenate([head.summary.numpy(), np.stack(means)], 1) @ weight.T
    assert found.outputs["s"].spaces["base with patches"] == pytest.approx(expected, abs=1e-5)

    members = [one.reader.members.read(row) for row in found.rows]
    own = load(locked)(members).embedding.detach().numpy()
    assert found.outputs["teacher base"].spaces[OWN] == pytest.approx(own, abs=1e-4)


def test_patches_that_are_not_left_cannot_be_joined(root):
    with pytest.raises(RecipeError, match="embedded: the output of each patch is needed; remove keep, merge and tub"):
        recipe(root, "kept", student=LOCKED | {"keep": 0.5}, contrastive={})
