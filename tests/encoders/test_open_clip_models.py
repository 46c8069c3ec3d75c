import numpy as np
import open_clip
import pytest
import torch

from curate import encoders
from curate.core.errors import CurateError
from tests.encoders.models import blob_image, save_open_clip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("open_clip") / "tiny"
    return path, save_open_clip(path, seed=3)


@pytest.fixture(scope="module")
def encoder(folder):
    return encoders.load(f"open_clip:{folder[0]}", device="cpu")


@pytest.mark.parametrize("size", [(300, 200), (40, 90)])
def test_images_have_the_vectors_of_open_clip(folder, encoder, size):
    path, model = folder
    _, _, transform = open_clip.create_model_and_transforms(f"local-dir:{path}")
    image = blob_image(*size)
    with torch.inference_mode():
        expected = model.encode_image(transform(image)[None]).numpy()
    prepared = encoder.prepare(image)
    assert torch.equal(encoder.normalise(torch.from_numpy(prepared)[None])[0], transform(image))
    features = encoder.encode([prepared])
    assert np.allclose(features.summary, expected, atol=1e-5)
    assert features.patches.shape == (1, 4, 4, 64)
    assert np.allclose(encoder.encode([prepared], patches=False).summary, expected, atol=1e-5)


def test_texts_have_the_vectors_of_open_clip(folder, encoder):
    texts = ["a red star", "two blue houses by the sea"]
    with torch.inference_mode():
        expected = folder[1].encode_text(open_clip.get_tokenizer(f"local-dir:{folder[0]}")(texts)).numpy()
    assert np.allclose(encoder.encode_text(texts), expected, atol=1e-5)
    assert encoder.encode_text(texts).shape == (2, encoder.dim)
    assert encoder.encode_text([]).shape == (0, encoder.dim)


def test_preprocessing_can_be_changed(folder):
    squash = encoders.load(f"open_clip:{folder[0]}?resize_mode=squash&interpolation=bicubic", device="cpu")
    wide = blob_image(200, 50)
    assert np.array_equal(squash.prepare(wide), np.asarray(wide.resize((64, 64), 3)).transpose(2, 0, 1))
    assert squash.preprocessing["resize_mode"] == "squash"


def test_a_checkpoint_of_another_model_is_an_error_in_one_line(folder):
    with pytest.raises(CurateError, match=r"cannot load 'open_clip:ViT-B-32' at"):
        encoders.load(f"open_clip:ViT-B-32@{folder[0] / 'open_clip_model.safetensors'}", device="cpu")
