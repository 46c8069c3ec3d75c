"""An exported model looks at files, bytes, PIL's pictures and arrays as the reader of training looks at them."""

import io
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageFile

import distill
from curate.core.errors import InputError
from distill.recipe import SourceRecipe
from distill.samples.images.images import Picture, Pictures
from distill.samples.images.patches import patchify
from distill.samples.sources.dataset import open_dataset
from distill.samples.sources.mixture import as_blend
from tests.distill.datasets import Item, drawn_items, write_dataset
from tests.distill.exports import save_distill
from tests.encoders.models import picture


def file_of(image: Image.Image, kind: str, **options) -> bytes:
    stream = io.BytesIO()
    image.save(stream, kind, **options)
    return stream.getvalue()


def turned() -> Image.Exif:
    exif = Image.Exif()
    exif[0x0112] = 6
    return exif


def clear(image: Image.Image) -> Image.Image:
    image = image.convert("RGBA")
    image.putalpha(Image.fromarray(np.tile(np.arange(image.width, dtype=np.uint8), (image.height, 1))))
    return image


RGB, WIDE = picture(90, 60), picture(64, 64, seed=1)
DEEP = Image.fromarray((np.asarray(WIDE.convert("L")).astype(np.uint16) * 257)[:40])
FILES = {
    "RGB": file_of(RGB, "PNG"),
    "RGBA": file_of(clear(RGB), "PNG"),
    "LA": file_of(clear(RGB).convert("LA"), "PNG"),
    "P with a clear colour": file_of(RGB.quantize(16), "PNG", transparency=3),
    "P with clear colours": file_of(RGB.quantize(16), "PNG", transparency=bytes(range(0, 160, 10))),
    "I;16": file_of(DEEP, "PNG"),
    "turned JPEG": file_of(RGB, "JPEG", exif=turned()),
    "turned TIFF": file_of(RGB, "TIFF", exif=turned()),
    "CMYK": file_of(RGB.convert("CMYK"), "JPEG"),
    "large JPEG": file_of(picture(640, 480, seed=2), "JPEG"),
    "of the grid's own size": file_of(picture(32, 16, seed=3), "PNG"),
}


@pytest.fixture(scope="module")
def blend(tmp_path_factory):
    sizes = {"I;16": (64, 40), "turned JPEG": (60, 90), "turned TIFF": (60, 90), "large JPEG": (640, 480)}
    sizes["of the grid's own size"] = (32, 16)
    keys = [item.key for item in drawn_items(len(FILES))]
    items = [Item(data, *sizes.get(name, (90, 60)), key) for (name, data), key in zip(FILES.items(), keys, strict=True)]
    dataset = open_dataset(str(write_dataset(tmp_path_factory.mktemp("given") / "d", items)))
    return as_blend(dataset, [SourceRecipe(dataset=dataset.url, max_tokens=24)])


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """24 patches of 8 pixels at most."""
    place = tmp_path_factory.mktemp("given") / "model"
    save_distill(place)
    return distill.load(place)


def decoding(model, how):
    values = model.config.preprocessing.model_copy(update={"decoding": how})
    model.config = model.config.model_copy(update={"preprocessing": values})
    return model


@pytest.mark.parametrize("how", ["whole", "reduced"])
@pytest.mark.parametrize("name", FILES)
def test_a_file_is_seen_as_in_training_bit_for_bit(model, blend, tmp_path, name, how):
    expected = Pictures(blend, patch=8, whole=how == "whole").get(list(FILES).index(name))
    assert isinstance(expected, Picture)
    path = tmp_path / "a picture"
    path.write_bytes(FILES[name])
    decoding(model, how)
    given = [FILES[name], path, str(path), bytearray(FILES[name])]
    if how == "whole" or name != "large JPEG":
        given.append(Image.open(path))
    for one in given:
        assert np.array_equal(patchify(model.prepare(one), 8), expected.patches)
    if name == "large JPEG" and how == "reduced":
        assert not np.array_equal(patchify(decoding(model, "whole").prepare(path), 8), expected.patches)


def test_a_picture_given_is_not_changed(model):
    image = Image.open(io.BytesIO(FILES["P with a clear colour"]))
    before = dict(image.info)
    model.prepare(image)
    assert image.info == before and image.mode == "P"


@torch.no_grad()
def test_several_at_once(model):
    stack = np.stack([np.asarray(picture(32, 16, seed=seed)) for seed in range(3)])
    assert model(stack, teachers=[]).summary.shape == (3, 32)
    assert torch.equal(model(iter(stack), teachers=[]).summary, model(tuple(stack), teachers=[]).summary)


CUT = FILES["RGB"][:200]


@pytest.mark.parametrize(
    ("given", "error", "said"),
    [
        (RGB, TypeError, r"a Image is a single picture; give a list, as in model\(\[picture\]\)"),
        ("a.png", TypeError, "a str is a single picture"),
        (Path("a.png"), TypeError, "a PosixPath is a single picture"),
        (FILES["RGB"], TypeError, "a bytes is a single picture"),
        (np.zeros((8, 8, 3), np.uint8), TypeError, r"a ndarray of shape \(8, 8, 3\) is a single picture"),
        (7, TypeError, "a int is no list of pictures"),
        ([RGB, None], TypeError, "picture 1: a NoneType is no picture; give a path, encoded bytes"),
        ([torch.zeros(3, 8, 8)], TypeError, r"picture 0: a Tensor of shape \(3, 8, 8\) is no picture"),
        ([np.zeros((8, 8))], InputError, r"picture 0: a picture of shape \(8, 8\) and type float64; give RGB bytes"),
        (["/nowhere.png"], InputError, r"picture 0: '/nowhere.png' cannot be read \(No such file"),
        (["/"], InputError, r"picture 0: '/' cannot be read \(Is a directory"),
        ([b"", RGB], InputError, r"picture 0: 0 bytes: no picture can be read \(empty"),
        ([RGB, b"GIF89a"], InputError, "picture 1: 6 bytes: no picture can be read"),
        ([CUT], InputError, "picture 0: 200 bytes: no picture can be read .*; give one that is whole"),
    ],
)
def test_what_is_no_list_of_pictures_is_one_line(model, given, error, said):
    with pytest.raises(error, match=said) as raised:
        model(given)
    assert "\n" not in str(raised.value)


def test_a_cut_picture_of_pils_is_one_line(model, monkeypatch):
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", False)
    with pytest.raises(InputError, match=r"picture 0: a PngImageFile .*cannot be read"):
        model([Image.open(io.BytesIO(CUT))])


@torch.no_grad()
def test_texts_come_in_a_list(model):
    assert model.encode_text([]).shape == (0, 24)
    for given, said in (("abc", "a text alone"), ([None], "text 0 is a NoneType"), (["a", b"b"], "text 1 is a bytes")):
        with pytest.raises(TypeError, match=said):
            model.encode_text(given)
    assert model.encode_text(["\ud83d", "", "\x00"]).isfinite().all()
