"""The model in the package: small, complete, independent of `distill`, and better than chance."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageDraw
from safetensors import safe_open

from curate import encoders
from curate.encoders.spec import SHIPPED
from curate.encoders.student.config import StudentConfig
from curate.encoders.student.model_folder import CARD, CONFIG, TOKENIZER, WEIGHTS
from distill.recipe import load_recipe


@pytest.fixture(scope="module")
def tiny():
    return encoders.load("tiny")


def test_it_is_small():
    assert {item.name for item in Path(SHIPPED).iterdir()} == {CARD, CONFIG, TOKENIZER, WEIGHTS}
    assert (SHIPPED / WEIGHTS).stat().st_size < 12e6
    with safe_open(SHIPPED / WEIGHTS, "numpy") as weights:
        assert sum(np.prod(weights.get_slice(name).get_shape()) for name in weights.keys()) < 6e6  # noqa: SIM118


def test_it_has_the_sizes_of_its_recipe():
    config = json.loads((SHIPPED / CONFIG).read_text())
    recipe = load_recipe("tiny")
    assert StudentConfig.model_validate(config["student"]) == recipe.student
    assert config["trained"]["step"] == recipe.steps


def test_it_works_offline_and_reads_texts(tiny):
    assert encoders.problems("tiny") == encoders.text_problems("tiny") == []
    assert tiny.identity() == encoders.identity("tiny")
    assert tiny.context > 0 and tiny.mixed


@pytest.mark.long
def test_it_needs_curate_only():
    """`import distill` fails in this process."""
    code = (
        "import sys\nsys.modules['distill'] = None\n"
        "from PIL import Image\nfrom curate import encoders\n"
        "assert not encoders.problems('tiny') and not encoders.text_problems('tiny')\n"
        "tiny = encoders.load('tiny')\nassert tiny.identity() == encoders.identity('tiny')\n"
        "images = tiny.encode([tiny.prepare(Image.new('RGB', (90, 60)))])\n"
        "assert images.summary.shape == tiny.encode_text(['a star']).shape == (1, tiny.dim)\n"
        "assert not [name for name in sys.modules if name.startswith('distill.')]"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def _drawn(shape, colour):
    image = Image.new("RGB", (128, 128), "white")
    getattr(ImageDraw.Draw(image), shape)((24, 24, 104, 104), fill=colour)
    return image


def test_it_names_colours(tiny):
    """Circles of five colours, none of which was in a training set."""
    names = ["red", "blue", "green", "yellow", "black"]
    images = tiny.encode([tiny.prepare(_drawn("ellipse", name)) for name in names], patches=False).summary
    texts = tiny.encode_text([f"{name} circle" for name in names])
    images, texts = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (images, texts))
    assert (np.argmax(images @ texts.T, axis=1) == np.arange(len(names))).mean() >= 0.6
