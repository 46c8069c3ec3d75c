from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image, ImageFilter
from scipy.ndimage import laplace

from curate.codec.images import decode
from curate.core.contracts import Batch, Sample
from curate.image import appearance
from curate.image.appearance import Appearance, colours, saturation, sharpness
from tests.codec.make_images import encoded, noise


def measured(*images: Image.Image) -> pa.Table:
    stage = Appearance()
    prepared = [stage.prepare(Sample(encoded(image, "PNG"), decode)) for image in images]
    return pa.table(stage.process(Batch(pa.table({}), prepared)), schema=stage.schema())


def test_a_blurred_image_is_less_sharp() -> None:
    image = noise(300, 200)
    sharp = measured(image, *(image.filter(ImageFilter.GaussianBlur(radius)) for radius in (1, 3))).column("sharpness")
    assert sharp[0].as_py() > 10 * sharp[1].as_py() > 100 * sharp[2].as_py() > 0


def test_sharpness_is_the_variance_of_the_laplacian() -> None:
    image = noise(40, 30)
    reference = laplace(np.asarray(image.convert("L"), dtype=float))[1:-1, 1:-1].var()
    assert sharpness(image) == pytest.approx(reference)


def test_sharpness_does_not_depend_on_the_resolution_above_the_side(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(appearance, "SIDE", 128)
    image = noise(64, 48)
    sizes = [(256, 192), (384, 288)]
    large = [image.resize(size, Image.Resampling.BICUBIC) for size in sizes]
    values = measured(*large).column("sharpness").to_pylist()
    assert values[1] == pytest.approx(values[0], rel=0.3)
    assert sharpness(large[1]) < 0.3 * sharpness(large[0])


@pytest.mark.parametrize(
    ("colour", "expected"), [("red", 1), ("white", 0), ("black", 0), ((90, 90, 90), 0), ((200, 100, 100), 0.5)]
)
def test_saturation_is_that_of_hsv(colour: str | tuple[int, int, int], expected: float) -> None:
    assert saturation(Image.new("RGB", (5, 4), colour)) == pytest.approx(expected, abs=0.003)
    half = Image.new("RGB", (4, 2), "white")
    half.paste(colour, (0, 0, 2, 2))
    assert saturation(half) == pytest.approx(expected / 2, abs=0.003)


@pytest.mark.parametrize("size", [(1, 1), (2, 9), (5000, 2), (1, 5000)])
def test_thin_images_have_values(size: tuple[int, int]) -> None:
    table = measured(Image.new("RGB", size, "red"))
    assert table.to_pylist() == [{"sharpness": 0.0, "saturation": 1.0, "colours": ["red"]}]


@pytest.mark.parametrize(
    ("colour", "name"),
    [
        ("red", "red"), ((250, 20, 60), "red"), ("orange", "orange"), ("yellow", "yellow"), ("green", "green"),
        ("navy", "blue"), ("skyblue", "blue"), ("purple", "purple"), ("hotpink", "pink"), ("saddlebrown", "brown"),
        ("black", "black"), ((120, 118, 121), "grey"), ("white", "white"), ((250, 245, 240), "white"),
    ],
)  # fmt: skip
def test_a_plain_image_has_its_colour(colour: str | tuple[int, int, int], name: str) -> None:
    assert colours(Image.new("RGB", (30, 20), colour)) == [name]


def test_colours_are_those_of_the_middle_by_area() -> None:
    image = Image.new("RGB", (80, 80), "blue")
    image.paste("red", (20, 20, 60, 60))
    assert colours(image) == ["blue", "red"]
    image.paste("red", (10, 10, 70, 70))
    assert colours(image) == ["red"]
