"""The model that comes with the package: small, whole, and better than chance at what it is for."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageDraw
from safetensors import safe_open

from curate import encoders
from curate.encoders.spec import SHIPPED
from distill.export.model_folder import CARD, CONFIG, TOKENIZER, WEIGHTS
from distill.recipe import load_recipe


@pytest.fixture(scope="module")
def tiny():
    return encoders.load("tiny")


def test_it_is_as_small_as_it_says():
    assert {item.name for item in Path(SHIPPED).iterdir()} == {CARD, CONFIG, TOKENIZER, WEIGHTS}
    assert (SHIPPED / WEIGHTS).stat().st_size < 12e6
    with safe_open(SHIPPED / WEIGHTS, "numpy") as weights:
        assert sum(np.prod(weights.get_slice(name).get_shape()) for name in weights.keys()) < 6e6  # noqa: SIM118


def test_it_is_the_recipes():
    config = json.loads((SHIPPED / CONFIG).read_text())
    recipe = load_recipe("tiny")
    assert config["student"] == recipe.student.model_dump(mode="json")
    assert config["trained"]["step"] == recipe.steps


def test_it_works_offline_and_reads_texts(tiny):
    assert encoders.problems("tiny") == encoders.text_problems("tiny") == []
    assert tiny.identity() == encoders.identity("tiny")
    assert tiny.context > 0 and tiny.mixed


def _drawn(shape, colour):
    image = Image.new("RGB", (128, 128), "white")
    getattr(ImageDraw.Draw(image), shape)((24, 24, 104, 104), fill=colour)
    return image


def test_it_knows_plain_things_by_name(tiny):
    """Colours of a circle: no picture of these was in any training set."""
    names = ["red", "blue", "green", "yellow", "black"]
    pictures = tiny.encode([tiny.prepare(_drawn("ellipse", name)) for name in names], patches=False).summary
    texts = tiny.encode_text([f"{name} circle" for name in names])
    pictures, texts = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (pictures, texts))
    assert (np.argmax(pictures @ texts.T, axis=1) == np.arange(len(names))).mean() >= 0.6
