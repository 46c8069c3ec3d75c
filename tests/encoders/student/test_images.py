"""An exported model reads files, bytes, Pillow images and arrays as training reads them."""

import io
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageFile

import distill
from curate.core.errors import InputError
from curate.encoders.student.patches import patchify
from distill.recipe import SourceRecipe
from distill.samples.images.reader import ImageReader, PatchedImage
from distill.samples.sources.dataset import open_dataset
from distill.samples.sources.mixture import as_mixture
from tests.distill.datasets import Item, drawn_items, write_dataset
from tests.distill.exports import save_distill
from tests.encoders.models import blob_image


def file_of(image: Image.Image, kind: str, **options) -> bytes:
    stream = io.BytesIO()
    image.save(stream, kind, **options)
    return stream.getvalue()


def rotated() -> Image.Exif:
    exif = Image.Exif()
    exif[0x0112] = 6
    return exif


def transparent(image: Image.Image) -> Image.Image:
    image = image.convert("RGBA")
    image.putalpha(Image.fromarray(np.tile(np.arange(image.width, dtype=np.uint8), (image.height, 1))))
    return image


RGB, WIDE = blob_image(90, 60), blob_image(64, 64, seed=1)
DEEP = Image.fromarray((np.asarray(WIDE.convert("L")).astype(np.uint16) * 257)[:40])
FILES = {
    "RGB": file_of(RGB, "PNG"),
    "RGBA": file_of(transparent(RGB), "PNG"),
    "LA": file_of(transparent(RGB).convert("LA"), "PNG"),
    "P with a transparent colour": file_of(RGB.quantize(16), "PNG", transparency=3),
    "P with transparent colours": file_of(RGB.quantize(16), "PNG", transparency=bytes(range(0, 160, 10))),
    "I;16": file_of(DEEP, "PNG"),
    "rotated JPEG": file_of(RGB, "JPEG", exif=rotated()),
    "rotated TIFF": file_of(RGB, "TIFF", exif=rotated()),
    "CMYK": file_of(RGB.convert("CMYK"), "JPEG"),
    "large JPEG": file_of(blob_image(640, 480, seed=2), "JPEG"),
    "the grid's size": file_of(blob_image(32, 16, seed=3), "PNG"),
}


@pytest.fixture(scope="module")
def mixture(tmp_path_factory):
    sizes = {"I;16": (64, 40), "rotated JPEG": (60, 90), "rotated TIFF": (60, 90), "large JPEG": (640, 480)}
    sizes["the grid's size"] = (32, 16)
    keys = [item.key for item in drawn_items(len(FILES))]
    items = [Item(data, *sizes.get(name, (90, 60)), key) for (name, data), key in zip(FILES.items(), keys, strict=True)]
    dataset = open_dataset(str(write_dataset(tmp_path_factory.mktemp("images") / "d", items)))
    return as_mixture(dataset, [SourceRecipe(dataset=dataset.url, max_tokens=24)])


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """24 patches of 8 pixels at most."""
    place = tmp_path_factory.mktemp("images") / "model"
    save_distill(place)
    return distill.load(place)


def decoding(model, how):
    values = model.config.preprocessing.model_copy(update={"decoding": how})
    model.config = model.config.model_copy(update={"preprocessing": values})
    return model


@pytest.mark.parametrize("how", ["whole", "reduced"])
@pytest.mark.parametrize("name", FILES)
def test_a_file_has_the_pixels_of_training_bit_for_bit(model, mixture, tmp_path, name, how):
    expected = ImageReader(mixture, patch=8, whole=how == "whole").get(list(FILES).index(name))
    assert isinstance(expected, PatchedImage)
    path = tmp_path / "an image"
    path.write_bytes(FILES[name])
    decoding(model, how)
    images = [FILES[name], path, str(path), bytearray(FILES[name])]
    if how == "whole" or name != "large JPEG":
        images.append(Image.open(path))
    for image in images:
        assert np.array_equal(patchify(model.prepare(image), 8), expected.patches)
    if name == "large JPEG" and how == "reduced":
        assert not np.array_equal(patchify(decoding(model, "whole").prepare(path), 8), expected.patches)


def test_preparing_does_not_change_the_image(model):
    image = Image.open(io.BytesIO(FILES["P with a transparent colour"]))
    before = dict(image.info)
    model.prepare(image)
    assert image.info == before and image.mode == "P"


@torch.no_grad()
def test_a_batch_may_be_any_iterable(model):
    stack = np.stack([np.asarray(blob_image(32, 16, seed=seed)) for seed in range(3)])
    assert model(stack, teachers=[]).summary.shape == (3, 32)
    assert torch.equal(model(iter(stack), teachers=[]).summary, model(tuple(stack), teachers=[]).summary)


TRUNCATED = FILES["RGB"][:200]


@pytest.mark.parametrize(
    ("images", "error", "message"),
    [
        (RGB, TypeError, r"expected a list of images, not one Image; write model\(\[image\]\)"),
        ("a.png", TypeError, "expected a list of images, not one str"),
        (Path("a.png"), TypeError, "expected a list of images, not one PosixPath"),
        (FILES["RGB"], TypeError, "expected a list of images, not one bytes"),
        (np.zeros((8, 8, 3), np.uint8), TypeError, r"not one ndarray of shape \(8, 8, 3\)"),
        (7, TypeError, "expected a list of images, not int"),
        ([RGB, None], TypeError, "image 1: expected an image, not NoneType; give a path, encoded bytes"),
        ([torch.zeros(3, 8, 8)], TypeError, r"image 0: expected an image, not Tensor of shape \(3, 8, 8\)"),
        ([np.zeros((8, 8))], InputError, r"image 0: expected RGB bytes .*, not shape \(8, 8\) and type float64"),
        (["/nowhere.png"], InputError, r"image 0: cannot read '/nowhere.png' \(No such file"),
        (["/"], InputError, r"image 0: cannot read '/' \(Is a directory"),
        ([b"", RGB], InputError, r"image 0: 0 bytes: cannot decode the image \(empty"),
        ([RGB, b"GIF89a"], InputError, "image 1: 6 bytes: cannot decode the image"),
        ([TRUNCATED], InputError, "image 0: 200 bytes: cannot decode the image .*; give an intact file"),
    ],
)
def test_other_input_is_an_error_in_one_line(model, images, error, message):
    with pytest.raises(error, match=message) as raised:
        model(images)
    assert "\n" not in str(raised.value)


def test_a_truncated_pillow_image_is_an_error_in_one_line(model, monkeypatch):
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", False)
    with pytest.raises(InputError, match=r"image 0: cannot decode the PngImageFile"):
        model([Image.open(io.BytesIO(TRUNCATED))])


@torch.no_grad()
def test_texts_come_in_a_list(model):
    assert model.encode_text([]).shape == (0, 24)
    for texts, message in (
        ("abc", "expected a list of texts, not one str"),
        ([None], "text 0: expected str, not NoneType"),
        (["a", b"b"], "text 1: expected str, not bytes"),
    ):
        with pytest.raises(TypeError, match=message):
            model.encode_text(texts)
    assert model.encode_text(["\ud83d", "", "\x00"]).isfinite().all()
