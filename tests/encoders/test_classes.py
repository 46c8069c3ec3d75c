"""Encoders that are classes outside of the package, named `package.module:Class`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from curate.core.errors import InputError, RecipeError
from curate.encoders import Encoder, Features, identity, load, parse_spec, problems, text_problems
from curate.encoders.spec import Spec, is_public
from curate.image.embed import Embed

NAME = "tests.encoders.test_classes:Mean"


class Mean(Encoder):
    """The mean colour, times the number in the file at its path."""

    dim = 3

    def __init__(self, spec: Spec, identity: dict[str, Any], device: str) -> None:
        super().__init__(spec, identity, device)
        self.factor = float(Path(spec.path).read_text()) if spec.path else float(spec.options.get("factor", 1))

    @property
    def preprocessing(self) -> dict[str, Any]:
        return {}

    def prepare(self, image: Image.Image) -> NDArray[Any]:
        return np.asarray(image)

    def encode(self, batch: list[NDArray[Any]], *, patches: bool = True) -> Features:
        return Features(self.factor * np.stack([one.mean((0, 1), dtype=np.float32) for one in batch]))


class Words(Mean):
    context = 5


def test_a_class_is_loaded_with_its_options_and_path(tmp_path):
    image = Image.new("RGB", (4, 4), (10, 20, 30))
    (tmp_path / "factor.txt").write_text("3")
    for name, factor in ((NAME, 1), (f"{NAME}?factor=2", 2), (f"{NAME}@{tmp_path}/factor.txt", 3)):
        encoder = load(name, device="cpu", precision="float32")
        assert encoder.encode([encoder.prepare(image)]).summary.tolist() == [[10 * factor, 20 * factor, 30 * factor]]
        assert encoder.identity() == identity(name)
        assert (encoder.spec, encoder.device, encoder.precision) == (parse_spec(name).public, "cpu", "float32")
        assert problems(name) == [] and not is_public(name)
        assert Embed(encoder=name).identity() == identity(name)


def test_its_identity_has_its_version_and_the_digest_of_its_file(tmp_path, monkeypatch):
    one, two = tmp_path / "one.txt", tmp_path / "two.txt"
    one.write_text("1")
    two.write_text("2")
    assert identity(f"{NAME}@{one}") != identity(f"{NAME}@{two}")
    assert str(tmp_path) not in str(identity(f"{NAME}@{one}"))
    before = identity(NAME)
    assert before["encoder"] == NAME
    assert identity(f"{NAME}?factor=2") != before
    monkeypatch.setattr(Mean, "version", 2)
    assert identity(NAME) != before


def test_a_class_reads_texts_if_it_has_a_context():
    assert text_problems("tests.encoders.test_classes:Words") == []
    assert "has no text tower" in text_problems(NAME)[0]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("tests.encoders.nothing:Mean", "encoder: cannot import 'tests.encoders.nothing:Mean'"),
        ("tests.encoders.test_classes:Medium", "encoder: cannot import 'tests.encoders.test_classes:Medium'"),
        (
            "pathlib:Path",
            "encoder: 'pathlib:Path' is not an Encoder; give a class derived from curate.encoders.Encoder",
        ),
        (f"{NAME}@/none.txt", "encoder: no weights at '/none.txt'; give an existing file or folder"),
    ],
)
def test_mistakes_are_one_line(name, message):
    [problem] = problems(name)
    assert problem.startswith(message)
    with pytest.raises(InputError, match="encoder: "):
        load(name)


@pytest.mark.parametrize("name", ["nowhere:Mean", "not a module:Mean", "pathlib:"])
def test_a_name_without_a_class_is_an_error_with_examples(name):
    with pytest.raises(RecipeError, match=r"encoder: .*try 'timm:vit_base_patch16_dinov3'"):
        parse_spec(name)
