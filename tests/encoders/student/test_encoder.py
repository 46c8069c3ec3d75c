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
from curate.encoders.student.model_folder import CONFIG, WEIGHTS
from distill.samples.images.reader import PatchedImage
from distill.teachers import EncoderTeacher, Shape
from tests.distill.exports import TEXTS, save_distill
from tests.encoders.models import blob_image

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
    return [blob_image(*size, seed=seed) for seed, size in enumerate(SIZES)]


@pytest.fixture(scope="module")
def model(folder):
    return distill.load(folder)


@torch.no_grad()
def test_images_of_any_shape_have_the_models_vectors(encoder, model, images, monkeypatch):
    """In one forward pass or several."""
    output = model(images)
    prepared = [encoder.prepare(image) for image in images]
    assert encoder.mixed and len({item.shape for item in prepared}) > 3
    features = encoder.encode(prepared)
    assert np.array_equal(features.summary, output.embedding.numpy())
    assert [grid.shape for grid in features.patches] == [(*grid, 32) for grid in output.grids]
    monkeypatch.setattr("curate.encoders.student.encoder._TOKENS", {"cpu": 20})
    pieces = encoder.encode(prepared)
    assert np.allclose(pieces.summary, features.summary, atol=1e-5)
    assert all(np.allclose(*pair, atol=1e-5) for pair in zip(pieces.patches, features.patches, strict=True))
    assert encoder.encode(prepared, patches=False).patches is None
    assert encoder.encode([]).summary.shape == (0, encoder.dim)
    assert (encoder.dim, encoder.patch_dim, encoder.context) == (24, 32, 12)


@torch.no_grad()
def test_a_head_predicts_in_its_teachers_space(folder, model, images):
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
    """With native aspect ratios, patches on the grid of each image, and registers."""
    save_distill(tmp_path / "model", text=False)
    teacher = EncoderTeacher(encoders.load(f"distill:{tmp_path}/model", device="cpu"), registers=2)
    assert teacher.shape == Shape(32, 32, 2)
    prepared = [teacher.prepare(image) for image in images]
    patched = [PatchedImage(row, (2, 2), np.zeros((4, 192), dtype=np.uint8)) for row in range(len(images))]
    output = distill.load(tmp_path / "model")(images)
    for place, features in enumerate(teacher.features(patched, prepared)):
        assert torch.equal(features.summary, output.summary[place])
        assert torch.equal(features.patches, output.patches[place])
        assert torch.equal(features.registers, output.registers[place])


def test_max_tokens_limits_the_patches(folder, encoder):
    small = encoders.load(f"distill:{folder}?max_tokens=4", device="cpu")
    assert small.prepare(blob_image(200, 200)).shape == (16, 16, 3)
    assert encoder.prepare(blob_image(200, 200)).shape == (40, 32, 3)
    assert small.preprocessing["max_tokens"] == 4 and encoder.preprocessing["max_tokens"] == 24
    assert small.spec == "distill:local?max_tokens=4"
    assert small.identity() != encoder.identity()


@torch.no_grad()
def test_texts_have_the_models_vectors(encoder, model):
    assert np.allclose(encoder.encode_text(TEXTS), model.encode_text(TEXTS).numpy(), atol=1e-5)
    assert encoder.encode_text([]).shape == (0, encoder.dim)
    assert encoder.encode_text(["", "star " * 100_000]).shape == (2, encoder.dim)


def test_half_precision_is_close(folder, encoder, images):
    rough = encoders.load(f"distill:{folder}", device="cpu", precision="bfloat16")
    prepared = [encoder.prepare(image) for image in images]
    a, b = encoder.encode(prepared).summary, rough.encode(prepared).summary
    cosine = (a * b).sum(1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)
    assert rough.identity()["precision"] == "bfloat16" and 0.98 < cosine.min() < 1 - 1e-9


def test_identity_depends_on_content_and_is_known_before_loading(folder, encoder, tmp_path):
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
    ("options", "message"),
    [
        ("?head=clip", "has no head .clip.; choose one of: plain, dense"),
        ("?max_tokens=0", "max_tokens must be an integer of 1 or more, not 0"),
        ("?max_tokens=many", "max_tokens must be an integer of 1 or more, not .many."),
    ],
)
def test_problems_have_one_line(folder, options, message):
    [line] = encoders.problems(f"distill:{folder}{options}")
    assert line.startswith("encoder: ") and "\n" not in line
    with pytest.raises(InputError, match=message):
        encoders.load(f"distill:{folder}{options}")


def test_corrupt_folders_are_errors_in_one_line(tmp_path):
    """The same line from `problems`, `identity` and `load`."""
    spec = f"distill:{tmp_path}/model"
    assert "is not a folder; give a folder written by `distill export`" in encoders.problems(spec)[0]
    with pytest.raises(InputError, match="is not a folder; give a folder written by `distill export`"):
        encoders.identity(spec)
    with pytest.raises(InputError, match=r"no config\.json in .*; give a folder written by `distill export`"):
        encoders.identity(f"distill:{tmp_path}")
    save_distill(tmp_path / "model", text=False, teachers=["one"])
    assert "has no text tower; use an image-text model: 'tiny'" in encoders.text_problems(spec)[0]
    weights = tmp_path / "model" / WEIGHTS
    weights.write_bytes(weights.read_bytes()[:300])
    with pytest.raises(InputError, match="cannot read"):
        encoders.load(spec, device="cpu")
    weights.unlink()
    assert "no model.safetensors in" in encoders.problems(spec)[0]
    config = json.loads((tmp_path / "model" / CONFIG).read_text())
    (tmp_path / "model" / CONFIG).write_text(json.dumps({**config, "version": 9}))
    assert "is a model of version 9, but this package reads versions up to 1" in encoders.problems(spec)[0]


@pytest.fixture
def shipped(folder, monkeypatch):
    monkeypatch.setattr(specs, "SHIPPED", folder)


def test_tiny_loads_the_model_in_the_package(shipped, encoder, images):
    tiny = encoders.load("tiny")
    assert encoders.problems("tiny") == encoders.text_problems("tiny") == []
    assert (tiny.spec, tiny.device, tiny.precision) == ("tiny", "cpu", "float32")
    assert tiny.identity() == encoders.identity("tiny") == {**encoder.identity(), "encoder": "tiny"}
    prepared = [tiny.prepare(image) for image in images]
    assert np.array_equal(tiny.encode(prepared).summary, encoder.encode(prepared).summary)
    assert tiny.encode_text(["a star"]).shape == (1, tiny.dim)


def test_tiny_without_its_weights_is_an_error_in_one_line(monkeypatch, tmp_path):
    monkeypatch.setattr(specs, "SHIPPED", tmp_path / "none")
    line = "encoder: the weights of 'tiny' are missing from this installation; reinstall the package"
    assert encoders.problems("tiny") == [line]
    with pytest.raises(InputError, match=line):
        encoders.load("tiny")
