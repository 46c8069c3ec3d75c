"""Images and texts, from the tars to a student that distinguishes them."""

import json

import pytest
import torch
from rich.console import Console

from curate.encoders.student.tokenizer import Tokenizer
from distill.commands.train import train
from distill.context import StageContext
from distill.objectives.contrastive import same
from distill.parallel import World
from distill.recipe import Recipe, parse_recipe
from distill.samples.batches.loader import collate
from distill.samples.sources.mixture import open_mixture
from tests.distill.conftest import recipe_values
from tests.distill.datasets import drawn_items, write_dataset

WORDS = ["Red bars", "green stripes", "blue  bars", "violet lines"]
ALONE = World(0, 1, torch.device("cpu"))


@pytest.fixture
def recipe(tmp_path) -> Recipe:
    items = drawn_items(40)
    texts = [WORDS[int(item.columns["label"][-1])].encode() for item in items]
    values = recipe_values(str(write_dataset(tmp_path / "data", items, texts=texts)), str(tmp_path / "run"))
    values["teachers"] = []
    values["contrastive"] = {"temperature": 0.2}
    values["data"]["sources"][0]["texts"] = {"txt": 1.0}
    values["data"]["augment"] = {"crop": [0.7, 1.0], "flip": True, "colour": 0.1}
    text = {"vocabulary": 300, "context": 8, "width": 16, "depth": 1, "heads": 2}
    values["student"] |= {"text": text, "embed": 16}
    return parse_recipe(values, "test")


def test_a_student_learns_from_texts(recipe):
    values = recipe.model_dump(mode="json")
    values["train"] |= {"steps": 20, "learning_rate": 5e-3, "warmup_steps": 3}
    values["run"] |= {"checkpoint_every": 100, "tensorboard": False}
    other = {"name": "again", "dataset": values["data"]["sources"][0]["dataset"], "test_fraction": 1.0}
    values["evaluate"] |= {"tasks": ["retrieval"], "datasets": [other]}
    run = train(parse_recipe(values, "test"), Console(quiet=True))
    losses = [json.loads(line)["contrastive"] for line in run.metrics.read_text().splitlines()]
    assert losses[-1] < 0.6 * losses[0]
    assert len(Tokenizer.parse((run.path / "tokenizer.json").read_text())) <= 300
    sets = json.loads((run.path / "evaluation.json").read_text())["sets"]
    assert [item["retrieval"]["from"] for item in sets] == [["txt"], ["txt"]]  # the members of data.sources


def test_groups_contain_equal_texts_and_duplicate_sets(recipe):
    mixture = open_mixture(recipe.data)
    context = StageContext.of(recipe, mixture, ALONE)
    context.tokenizer = context.fit_tokenizer()
    batch = collate([context.reader.get(row, 0) for row in range(10)])
    groups = context.groups(batch, context.text_tokens(batch))
    labels = [mixture.strings("label")[image.row] for image in batch.images]
    sets = [mixture.strings("duplicate_set")[image.row] for image in batch.images]
    for i, row in enumerate(same(groups).tolist()):
        assert row == [i != j and (labels[i] == labels[j] or sets[i] == sets[j]) for j in range(10)]
    assert torch.equal(groups, context.groups(batch, context.text_tokens(batch)))
