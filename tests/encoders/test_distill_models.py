import json
import subprocess
import sys

import numpy as np
import pytest
import torch

import distill
from curate import encoders
from curate.core.errors import CurateError, InputError
from curate.encoders import spec as specs
from distill.export.model_folder import CONFIG, WEIGHTS
from distill.samples.images.images import Picture
from distill.teachers import EncoderTeacher, Shape
from tests.distill.exports import TEXTS, save_distill
from tests.encoders.models import picture

SIZES = [(90, 60), (16, 40), (200, 200), (8, 8), (300, 20), (90, 60)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("distill") / "model"
    save_distill(path)
    return path


@pytest.fixture(scope="module")
def encoder(folder):
    return encoders.load(f"distill:{folder}", device="cpu")


@pytest.fixture(scope="module")
def images():
    return [picture(*size, seed=seed) for seed, size in enumerate(SIZES)]


@pytest.fixture(scope="module")
def model(folder):
    return distill.load(folder)


@torch.no_grad()
def test_pictures_of_any_shape_as_the_model_itself(encoder, model, images, monkeypatch):
    """In however many passes."""
    seen = model(images)
    prepared = [encoder.prepare(image) for image in images]
    assert encoder.mixed and len({item.shape for item in prepared}) > 3
    features = encoder.encode(prepared)
    assert np.array_equal(features.summary, seen.embedding.numpy())
    assert [grid.shape for grid in features.patches] == [(*grid, 32) for grid in seen.grids]
    monkeypatch.setattr("distill.export.encoder._TOKENS", {"cpu": 20})
    pieces = encoder.encode(prepared)
    assert np.allclose(pieces.summary, features.summary, atol=1e-5)
    assert all(np.allclose(*pair, atol=1e-5) for pair in zip(pieces.patches, features.patches, strict=True))
    assert encoder.encode(prepared, patches=False).patches is None
    assert encoder.encode([]).summary.shape == (0, encoder.dim)
    assert (encoder.dim, encoder.patch_dim, encoder.context) == (24, 32, 12)


@torch.no_grad()
def test_a_head_gives_its_teachers_space(folder, model, images):
    teachers = model(images).teachers
    for name, dim, patch_dim in (("plain", 10, None), ("dense", 12, 6)):
        encoder = encoders.load(f"distill:{folder}?head={name}", device="cpu")
        features = encoder.encode([encoder.prepare(image) for image in images])
        assert (encoder.dim, encoder.patch_dim, encoder.context) == (dim, patch_dim, 0)
        assert np.array_equal(features.summary, teachers[name][0].numpy())
        assert (features.patches is None) == (patch_dim is None)
        with pytest.raises(CurateError, match="has no text tower"):
            encoder.encode_text(["a star"])


@torch.no_grad()
def test_a_student_becomes_a_teacher(tmp_path, images):
    """Of native aspect, with patches on the grid of each picture, and registers beside its CLS token."""
    save_distill(tmp_path / "model", text=False)
    teacher = EncoderTeacher(encoders.load(f"distill:{tmp_path}/model", device="cpu"), registers=2)
    assert teacher.shape == Shape(32, 32, 2)
    prepared = [teacher.prepare(image) for image in images]
    pictures = [Picture(row, (2, 2), np.zeros((4, 192), dtype=np.uint8)) for row in range(len(images))]
    seen = distill.load(tmp_path / "model")(images)
    for place, answer in enumerate(teacher.answer(pictures, prepared)):
        assert torch.equal(answer.summary, seen.summary[place])
        assert torch.equal(answer.patches, seen.patches[place])
        assert torch.equal(answer.registers, seen.registers[place])


def test_fewer_patches_when_asked(folder, encoder):
    small = encoders.load(f"distill:{folder}?max_tokens=4", device="cpu")
    assert small.prepare(picture(200, 200)).shape == (16, 16, 3)
    assert encoder.prepare(picture(200, 200)).shape == (40, 32, 3)
    assert small.preprocessing["max_tokens"] == 4 and encoder.preprocessing["max_tokens"] == 24
    assert small.spec == "distill:local?max_tokens=4"
    assert small.identity() != encoder.identity()


@torch.no_grad()
def test_texts_as_the_model_itself(encoder, model):
    assert np.allclose(encoder.encode_text(TEXTS), model.encode_text(TEXTS).numpy(), atol=1e-5)
    assert encoder.encode_text([]).shape == (0, encoder.dim)
    assert encoder.encode_text(["", "star " * 100_000]).shape == (2, encoder.dim)


def test_half_precision_is_close(folder, encoder, images):
    rough = encoders.load(f"distill:{folder}", device="cpu", precision="bfloat16")
    prepared = [encoder.prepare(image) for image in images]
    a, b = encoder.encode(prepared).summary, rough.encode(prepared).summary
    cosine = (a * b).sum(1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)
    assert rough.identity()["precision"] == "bfloat16" and 0.98 < cosine.min() < 1 - 1e-9


def test_identity_is_of_bytes_and_known_before_loading(folder, encoder, tmp_path):
    spec = f"distill:{folder}"
    assert encoders.problems(spec) == encoders.text_problems(spec) == []
    assert encoder.identity() == encoders.identity(spec)
    assert encoder.identity()["encoder"] == "distill:local" and str(folder) not in repr(encoder.identity())
    save_distill(tmp_path / "copy")
    save_distill(tmp_path / "other", seed=1)
    assert encoders.identity(f"distill:{tmp_path}/copy") == encoder.identity()
    assert encoders.identity(f"distill:{tmp_path}/other")["weights"] != encoder.identity()["weights"]


def test_a_driver_needs_no_torch(folder):
    code = (
        f"import sys\nfrom curate import encoders\nspec = 'distill:{folder}?head=plain'\n"
        "encoders.identity(spec); assert not encoders.problems(spec) and encoders.text_problems(spec)\n"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ("?head=clip", "names no head of the model in .*; choose one of: plain, dense"),
        ("?max_tokens=0", "max_tokens=0 is no whole number of patches; give 1 or more"),
        ("?max_tokens=many", "max_tokens='many' is no whole number"),
    ],
)
def test_problems_are_one_line(folder, options, says):
    [line] = encoders.problems(f"distill:{folder}{options}")
    assert line.startswith("encoder: ") and "\n" not in line
    with pytest.raises(InputError, match=says):
        encoders.load(f"distill:{folder}{options}")


def test_broken_folders_are_one_line(tmp_path):
    """The same line, whoever asks first."""
    spec = f"distill:{tmp_path}/model"
    assert "is no folder; give one that `distill export` wrote" in encoders.problems(spec)[0]
    with pytest.raises(InputError, match="is no folder; give one that `distill export` wrote"):
        encoders.identity(spec)
    with pytest.raises(InputError, match=r"no config\.json in .*; give a folder that `distill export` wrote"):
        encoders.identity(f"distill:{tmp_path}")
    save_distill(tmp_path / "model", text=False, teachers=["one"])
    assert "has no text tower; use an image-text model: 'tiny'" in encoders.text_problems(spec)[0]
    weights = tmp_path / "model" / WEIGHTS
    weights.write_bytes(weights.read_bytes()[:300])
    with pytest.raises(InputError, match="cannot be read"):
        encoders.load(spec, device="cpu")
    weights.unlink()
    assert "no model.safetensors in" in encoders.problems(spec)[0]
    config = json.loads((tmp_path / "model" / CONFIG).read_text())
    (tmp_path / "model" / CONFIG).write_text(json.dumps({**config, "version": 9}))
    assert "is a model of version 9, this package reads up to 1" in encoders.problems(spec)[0]


@pytest.fixture
def shipped(folder, monkeypatch):
    monkeypatch.setattr(specs, "SHIPPED", folder)


def test_tiny_is_a_model_that_comes_along(shipped, encoder, images):
    tiny = encoders.load("tiny")
    assert encoders.problems("tiny") == encoders.text_problems("tiny") == []
    assert (tiny.spec, tiny.device, tiny.precision) == ("tiny", "cpu", "float32")
    assert tiny.identity() == encoders.identity("tiny") == {**encoder.identity(), "encoder": "tiny"}
    prepared = [tiny.prepare(image) for image in images]
    assert np.array_equal(tiny.encode(prepared).summary, encoder.encode(prepared).summary)
    assert tiny.encode_text(["a star"]).shape == (1, tiny.dim)


def test_without_its_weights_tiny_is_one_line(monkeypatch, tmp_path):
    monkeypatch.setattr(specs, "SHIPPED", tmp_path / "none")
    line = "encoder: the weights of 'tiny' are not in this installation; install the package anew"
    assert encoders.problems("tiny") == [line]
    with pytest.raises(InputError, match=line):
        encoders.load("tiny")
