import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoImageProcessor, AutoTokenizer

from curate import encoders
from curate.core.errors import CurateError
from tests.encoders.models import blob_image, save_hf

KINDS = ("clip", "siglip", "dinov2")
WITH_TEXTS = ("clip", "siglip", "naflex")


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("hf")
    return {kind: (root / kind, save_hf(root / kind, kind)) for kind in (*KINDS, "naflex")}


@pytest.mark.parametrize("kind", KINDS)
def test_images_have_the_vectors_of_transformers(folders, kind):
    path, model = folders[kind]
    encoder = encoders.load(f"hf:{path}", device="cpu")
    image = blob_image(120, 70)
    pixels = AutoImageProcessor.from_pretrained(path)(image, return_tensors="pt")["pixel_values"]
    with torch.inference_mode():
        out = model(pixels) if kind == "dinov2" else model.get_image_features(pixels)
    summary = out.last_hidden_state[:, 0] if kind == "dinov2" else out.pooler_output
    tokens = out.last_hidden_state[:, 0 if kind == "siglip" else 1 :]
    prepared = encoder.prepare(image)
    assert prepared.dtype == np.uint8
    features = encoder.encode([prepared, prepared])
    assert np.allclose(features.summary, summary.numpy(), atol=1e-4)
    assert np.allclose(features.patches[1].reshape(16, -1), tokens[0].numpy(), atol=1e-4)
    assert features.patches.shape[1:3] == (4, 4)


@pytest.mark.parametrize("kind", WITH_TEXTS)
def test_texts_have_the_vectors_of_transformers(folders, kind):
    path, model = folders[kind]
    encoder = encoders.load(f"hf:{path}", device="cpu")
    texts = ["a red star </s>", "blue house </s>"]
    tokens = AutoTokenizer.from_pretrained(path)(texts, padding="max_length", max_length=12, return_tensors="pt")
    with torch.inference_mode():
        expected = model.get_text_features(**tokens).pooler_output.numpy()
    assert np.allclose(encoder.encode_text(texts), expected, atol=1e-5)
    assert np.allclose(encoder.encode_text(texts[:1]), expected[:1], atol=1e-5)
    assert encoder.encode_text(texts).shape == (2, encoder.dim)
    assert encoders.text_problems(f"hf:{path}") == []


def test_images_are_an_error_for_a_naflex_model(folders):
    encoder = encoders.load(f"hf:{folders['naflex'][0]}", device="cpu")
    with pytest.raises(CurateError, match="embeds texts only; use a checkpoint of fixed resolution"):
        encoder.prepare(blob_image(120, 70))


def test_texts_are_an_error_for_an_image_model(folders):
    encoder = encoders.load(f"hf:{folders['dinov2'][0]}", device="cpu")
    with pytest.raises(CurateError, match="no text tower"):
        encoder.encode_text(["a star"])


def test_a_checkpoint_without_all_weights_is_an_error(tmp_path, folders):
    import shutil

    shutil.copytree(folders["clip"][0], tmp_path / "clip")
    file = tmp_path / "clip" / "model.safetensors"
    state = load_file(file)
    del state["vision_model.post_layernorm.weight"]
    save_file(state, file, metadata={"format": "pt"})
    with pytest.raises(CurateError, match=r"lacks 1 weights .*post_layernorm"):
        encoders.load(f"hf:{tmp_path / 'clip'}", device="cpu")
