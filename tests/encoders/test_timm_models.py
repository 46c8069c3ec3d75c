from types import FunctionType

import numpy as np
import pytest
import timm
import torch
from timm.data import create_transform, resolve_data_config

from curate import encoders
from curate.core.errors import CurateError
from curate.encoders import timm_models
from tests.encoders.models import TINY, blob_image, save_timm

NAME = f"timm:vit_base_patch16_224?{TINY}"


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    path = tmp_path_factory.mktemp("timm") / "vit.safetensors"
    return path, save_timm(path, seed=5)


def _by_timm(model, image):
    """timm's own evaluation: its transform, its forward."""
    transform = create_transform(**resolve_data_config({}, model=model), is_training=False)
    with torch.inference_mode():
        tokens = model.forward_features(transform(image)[None])
        return model.forward_head(tokens, pre_logits=True).numpy(), tokens.numpy()


@pytest.mark.parametrize("size", [(300, 200), (100, 240), (17, 500)])
def test_a_checkpoint_has_the_vectors_of_timm(checkpoint, size):
    path, model = checkpoint
    encoder = encoders.load(f"{NAME}@{path}", device="cpu")
    image = blob_image(*size)
    features = encoder.encode([encoder.prepare(image)])
    summary, tokens = _by_timm(model, image)
    assert np.allclose(features.summary, summary, atol=1e-5)
    assert np.allclose(features.patches.reshape(1, -1, 64), tokens[:, 1:], atol=1e-5)
    assert features.patches.shape == (1, 14, 14, 64)
    assert (encoder.dim, encoder.patch_dim) == (64, 64)


def test_pixels_are_normalised_as_timm_does(checkpoint):
    path, model = checkpoint
    encoder = encoders.load(f"{NAME}@{path}", device="cpu")
    image = blob_image(300, 200)
    own = create_transform(**resolve_data_config({}, model=model), is_training=False)(image)
    ours = encoder.normalise(torch.from_numpy(encoder.prepare(image))[None])[0]
    assert torch.equal(own, ours)


def test_batch_equals_single(checkpoint):
    encoder = encoders.load(f"{NAME}@{checkpoint[0]}", device="cpu")
    prepared = [encoder.prepare(blob_image(seed=seed)) for seed in range(5)]
    together = encoder.encode(prepared)
    alone = [encoder.encode([one]) for one in prepared]
    assert np.allclose(together.summary, np.concatenate([one.summary for one in alone]), atol=1e-5)
    assert np.allclose(together.patches, np.concatenate([one.patches for one in alone]), atol=1e-5)
    assert encoder.encode(prepared, patches=False).patches is None
    assert encoder.encode([]).summary.shape == (0, 64)


def test_random_weights_follow_the_seed():
    image = blob_image()

    def vector(seed):
        encoder = encoders.load(f"{NAME}&random={seed}", device="cpu")
        assert encoder.identity()["weights"] == f"random:{seed}"
        return encoder.encode([encoder.prepare(image)]).summary

    state = torch.random.get_rng_state()
    assert np.array_equal(vector(1), vector(1))
    assert not np.allclose(vector(1), vector(2))
    assert torch.equal(state, torch.random.get_rng_state())


def test_dinov3_summary_is_its_class_token():
    encoder = encoders.load(f"timm:vit_large_patch16_dinov3?{TINY}&random=0", device="cpu")
    prepared = encoder.prepare(blob_image())
    features = encoder.encode([prepared])
    with torch.inference_mode():
        tokens = encoder.model.forward_features(encoder.normalise(torch.from_numpy(prepared)[None]))
    assert tokens.shape[1] == 1 + 4 + 16 * 16
    assert np.allclose(features.summary, tokens[:, 0].numpy(), atol=1e-5)
    assert np.allclose(features.patches[0].reshape(-1, 64), tokens[0, 5:].numpy(), atol=1e-5)
    assert encoder.registers == 4
    assert np.allclose(features.registers, tokens[:, 1:5].numpy(), atol=1e-5)
    assert encoder.encode([prepared], patches=False).registers is None
    averaged = encoders.load(f"timm:vit_large_patch16_dinov3?{TINY}&random=0&global_pool=avg", device="cpu")
    assert not np.allclose(features.summary, averaged.encode([prepared]).summary, atol=1e-2)


@pytest.mark.parametrize(
    ("spec", "grid", "dim"),
    [
        (f"timm:naflexvit_so400m_patch16_siglip?{TINY}&random=0", (24, 24), 64),
        ("timm:resnet18?random=0", (7, 7), 512),
        (f"timm:vit_base_patch16_224?{TINY}&img_size=[96, 160]&random=0", (6, 10), 64),
        ("timm:swin_tiny_patch4_window7_224?depths=[1, 1, 1, 1]&embed_dim=24&random=0", (7, 7), 192),
    ],
)
def test_patch_grids_of_other_families(spec, grid, dim):
    encoder = encoders.load(spec, device="cpu")
    features = encoder.encode([encoder.prepare(blob_image())])
    assert features.patches.shape == (1, *grid, dim)
    assert encoder.dim == dim
    assert features.registers is None and encoder.registers == 0


def test_preprocessing_can_be_changed():
    encoder = encoders.load(f"{NAME}&random=0&crop_mode=squash&crop_pct=1.0", device="cpu")
    assert encoder.preprocessing["crop_mode"] == "squash"
    wide = blob_image(400, 100)
    assert np.array_equal(encoder.prepare(wide), np.asarray(wide.resize((224, 224), 3)).transpose(2, 0, 1))


def test_bfloat16_is_near_and_named(checkpoint):
    spec = f"{NAME}@{checkpoint[0]}"
    exact, rough = (encoders.load(spec, device="cpu", precision=precision) for precision in ("float32", "bfloat16"))
    prepared = [exact.prepare(blob_image())]
    a, b = exact.encode(prepared).summary[0], rough.encode(prepared).summary[0]
    assert b.dtype == np.float32
    assert 0.99 < a @ b / np.linalg.norm(a) / np.linalg.norm(b) < 1
    assert (exact.identity()["precision"], rough.identity()["precision"]) == ("float32", "bfloat16")


def test_a_folder_in_the_hubs_layout(tmp_path, checkpoint):
    timm.models.save_for_hf(
        checkpoint[1], str(tmp_path / "model"), model_args={"depth": 2, "embed_dim": 64, "num_heads": 4}
    )
    encoder, named = (
        encoders.load(spec, device="cpu") for spec in (f"timm:{tmp_path}/model", f"{NAME}@{checkpoint[0]}")
    )
    prepared = [named.prepare(blob_image())]
    assert np.array_equal(encoder.encode(prepared).summary, named.encode(prepared).summary)


def test_a_checkpoint_that_does_not_match_is_an_error_in_one_line(tmp_path, checkpoint):
    for spec in (
        f"timm:vit_base_patch16_224?depth=3&embed_dim=64&num_heads=4@{checkpoint[0]}",
        f"timm:resnet18@{checkpoint[0]}",
    ):
        with pytest.raises(CurateError) as error:
            encoders.load(spec, device="cpu")
        assert "\n" not in str(error.value)
        assert "cannot load" in str(error.value)
        assert len(str(error.value)) < 600


def test_texts_are_an_error():
    encoder = encoders.load(f"{NAME}&random=0", device="cpu")
    with pytest.raises(CurateError, match="no text tower"):
        encoder.encode_text(["a star"])


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_cuda_without_a_gpu_is_an_error():
    with pytest.raises(CurateError, match="torch sees no GPU"):
        encoders.load(f"{NAME}&random=0", device="cuda")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_out_of_gpu_memory_is_an_error_with_a_remedy():
    encoder = encoders.load(f"{NAME}&random=0", device="cuda")
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(0.01)
    try:
        with pytest.raises(CurateError, match="lower batch_size"):
            encoder.encode([np.zeros((3, 224, 224), dtype=np.uint8)] * (total // 100 // 600_000))
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)


@pytest.mark.parametrize(
    ("options", "reason"),
    [("depht=3", "unexpected keyword argument 'depht'"), ("embed_dim=65", "divisible"), ("num_heads=0", "by zero")],
)
def test_a_model_that_timm_cannot_build_is_one_line_with_timms_reason(options, reason):
    with pytest.raises(CurateError, match=rf"cannot load 'timm:vit_tiny_patch16_224\?.*': .*{reason}") as error:
        encoders.load(f"timm:vit_tiny_patch16_224?{options}&random=0", device="cpu")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("fail", "kind"),
    [
        (lambda: [].gone, AttributeError),
        (lambda: torch.nn.Module().gone, AttributeError),
        (lambda: [][1], IndexError),
    ],
)
def test_bugs_of_our_own_stay_bugs(monkeypatch, fail, kind):
    # The function as if its module were one of the package.
    ours = FunctionType(fail.__code__, {"torch": torch, "__name__": timm_models.__name__})
    monkeypatch.setattr(timm_models, "create", lambda spec: ours())
    with pytest.raises(kind):
        encoders.load(f"{NAME}&random=0", device="cpu")
    monkeypatch.setattr(timm_models, "create", lambda spec: fail())
    with pytest.raises(CurateError, match="cannot load"):
        encoders.load(f"{NAME}&random=0", device="cpu")


def test_too_little_memory_is_not_an_error_of_the_model(monkeypatch):
    def fail(*_args, **_options):
        raise MemoryError

    monkeypatch.setattr(timm, "create_model", fail)
    with pytest.raises(MemoryError):
        encoders.load(f"{NAME}&random=0", device="cpu")
