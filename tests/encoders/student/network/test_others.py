"""The student built as others' vision transformers has their outputs, with the same random weights."""

from __future__ import annotations

from typing import Any

import numpy as np
import open_clip
import pytest
import timm
import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate
from transformers import CLIPConfig, CLIPModel, Dinov2WithRegistersConfig, Dinov2WithRegistersModel

from curate.encoders.student.config import StudentConfig, TextConfig
from curate.encoders.student.foreign import translated
from curate.encoders.student.network.layers import kept_branches
from curate.encoders.student.network.rope import resized
from curate.encoders.student.network.student import Student, build_student
from curate.encoders.student.patches import patchify
from curate.encoders.student.tokenizer import ClipTokenizer

CLIP: dict[str, Any] = {
    "norm": "layer", "mlp": "gelu", "mlp_ratio": 4.0, "bias": True, "qk_norm": False, "pre_norm": True, "registers": 0,
    "positions": "absolute",
}  # fmt: skip
PE = CLIP | {"positions": "absolute + axial", "pool": "attention"}
OF_CLIP = {"pixel_mean": open_clip.OPENAI_DATASET_MEAN, "pixel_std": open_clip.OPENAI_DATASET_STD}
TEXTS = ["a cat!", "two dogs, in the !! park on a very long day with many words", "x"]


def drawn(model: nn.Module) -> nn.Module:
    """Weights that matter: timm's biases, scales and positions begin as zeros and ones."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for item in model.parameters():
            item += torch.randn(item.shape, generator=generator) * (0.3 if item.ndim < 2 else 0.05)
    return model.double().eval()


def filled(config: StudentConfig, library: str, model: nn.Module) -> Student:
    student = build_student(config, [], seed=0).double()
    missing, unexpected = student.load_state_dict(translated(library, model.state_dict()), strict=False)
    assert not [name for name in missing if not name.startswith(("logit", "project"))]
    assert not unexpected
    return student


def images(side: int, patch: int, mean: Any = (0.5,) * 3, std: Any = (0.5,) * 3) -> tuple[Tensor, Tensor]:
    """Two images as our patches, and as others' pixels."""
    pixels = np.random.default_rng(0).integers(0, 256, (2, side, side, 3), dtype=np.uint8)
    scaled = (torch.from_numpy(pixels).double() / 255 - torch.tensor(mean)) / torch.tensor(std)
    return torch.from_numpy(np.concatenate([patchify(one, patch) for one in pixels])), scaled.permute(0, 3, 1, 2)


@pytest.mark.parametrize("class_token", [True, False], ids=["B and L", "G"])
@pytest.mark.parametrize("grid", [4, 5], ids=["learned grid", "larger grid"])
def test_perception_encoders_of_timm(class_token, grid):
    """With learned positions resized as PE resizes them, bilinearly."""
    sizes = {"embed_dim": 48, "depth": 2, "num_heads": 3, "img_size": 8 * grid, "ref_feat_shape": (grid, grid)}
    offset = {"class_token": class_token, "rope_grid_offset": float(class_token)}
    other: Any = drawn(
        timm.create_model("vit_pe_core_tiny_patch16_384", patch_size=8, num_classes=0, **sizes, **offset)
    )
    size = {"patch": 8, "width": 48, "depth": 2, "heads": 3, "position_grid": 4, "class_token": class_token}
    table = torch.randn(1, int(class_token) + 16, 48, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    first, rest = table[:, : int(class_token)], table[:, int(class_token) :].transpose(1, 2).unflatten(2, (4, 4))
    ours = {**other.state_dict(), "pos_embed": table}
    with torch.no_grad():
        wide = interpolate(rest, size=(grid, grid), mode="bilinear", align_corners=False).flatten(2).transpose(1, 2)
        other.pos_embed.copy_(torch.cat([first, wide], dim=1))
    student = build_student(StudentConfig(**size, **PE), [], seed=0).double()
    student.load_state_dict(translated("timm", ours))
    patches, pixels = images(8 * grid, 8)
    found = student(patches, [(grid, grid)] * 2)
    features = other.forward_features(pixels)
    assert torch.allclose(found.patches, features[:, int(class_token) :].flatten(0, 1), atol=1e-5)
    assert torch.allclose(found.summary, other.forward_head(features), atol=1e-5)


def test_both_towers_of_open_clip():
    vision = {"image_size": 32, "layers": 2, "width": 32, "patch_size": 8, "head_width": 16}
    text = {"context_length": 12, "vocab_size": 49408, "width": 32, "heads": 4, "layers": 2}
    other = drawn(open_clip.CLIP(embed_dim=24, quick_gelu=True, vision_cfg=vision, text_cfg=text))
    tower = TextConfig(tower="clip", vocabulary=49408, context=12, width=32, depth=2, heads=4, mlp="quick_gelu")
    size: Any = {"patch": 8, "width": 32, "depth": 2, "heads": 2, "position_grid": 4, "embed": 24, "text": tower}
    student = filled(StudentConfig(**size, **CLIP | OF_CLIP | {"mlp": "quick_gelu"}), "open_clip", other)
    patches, pixels = images(32, 8, *OF_CLIP.values())
    vectors = student.project(student(patches, [(4, 4)] * 2).summary)
    assert torch.allclose(vectors, other.encode_image(pixels), atol=1e-5)
    tokens = ClipTokenizer().encode(TEXTS, 12)
    assert tokens.shape == (3, 12)
    theirs = open_clip.get_tokenizer("ViT-B-32")(TEXTS, context_length=12)
    assert np.array_equal(tokens, theirs.numpy())
    assert torch.allclose(student.text(torch.from_numpy(tokens)), other.encode_text(theirs), atol=1e-5)
    alone = student.text(torch.from_numpy(ClipTokenizer().encode(TEXTS[:1], 12)))
    assert torch.allclose(alone, other.encode_text(theirs)[:1], atol=1e-5)
    assert student.text(torch.from_numpy(ClipTokenizer().encode([], 12))).shape == (0, 24)


def test_both_towers_of_transformers():
    both: dict[str, Any] = {
        "hidden_size": 32,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
    }
    both["hidden_act"] = "gelu"
    text = both | {"vocab_size": 49408, "max_position_embeddings": 12, "bos_token_id": 49406, "eos_token_id": 49407}
    vision = both | {"image_size": 32, "patch_size": 8}
    other: Any = drawn(CLIPModel(CLIPConfig(text_config=text, vision_config=vision, projection_dim=24)))
    tower = TextConfig(tower="clip", vocabulary=49408, context=12, width=32, depth=2, heads=2)
    size: Any = {"patch": 8, "width": 32, "depth": 2, "heads": 2, "position_grid": 4, "embed": 24, "text": tower}
    student = filled(StudentConfig(**size, **CLIP), "hf", other)
    patches, pixels = images(32, 8)
    vectors = student.project(student(patches, [(4, 4)] * 2).summary)
    assert torch.allclose(vectors, other.get_image_features(pixels).pooler_output, atol=1e-5)
    tokens = torch.from_numpy(ClipTokenizer().encode(TEXTS, 12))
    assert torch.allclose(student.text(tokens), other.get_text_features(tokens).pooler_output, atol=1e-5)


def test_dinov2_of_transformers():
    size = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "image_size": 32, "patch_size": 8}
    other: Any = drawn(Dinov2WithRegistersModel(Dinov2WithRegistersConfig(**size, layer_norm_eps=1e-5)))
    own: Any = CLIP | {"patch": 8, "width": 32, "depth": 2, "heads": 2, "position_grid": 4, "registers": 4}
    student = build_student(StudentConfig(**own | {"pre_norm": False, "layer_scale": 1.0}), [], seed=0).double()
    weights = translated("hf", other.state_dict())
    assert weights.pop("embeddings.mask_token").shape == (1, 32)
    student.load_state_dict(weights)
    patches, pixels = images(32, 8)
    found, expected = student(patches, [(4, 4)] * 2), other(pixels).last_hidden_state
    assert torch.allclose(found.summary, expected[:, 0], atol=1e-5)
    assert torch.allclose(found.registers, expected[:, 1:5], atol=1e-5)
    assert torch.allclose(found.patches, expected[:, 5:].flatten(0, 1), atol=1e-5)


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("vit_pe_core_base_patch16_224", {"patch": 16, "width": 768, "depth": 12, "heads": 12, "position_grid": 14}),
        ("vit_pe_core_large_patch14_336", {"patch": 14, "width": 1024, "depth": 24, "heads": 16, "position_grid": 24}),
        (
            "vit_pe_core_gigantic_patch14_448",
            {"patch": 14, "width": 1536, "depth": 50, "heads": 16, "mlp_ratio": 8960 / 1536, "class_token": False,
             "position_grid": 32},
        ),
    ],
)  # fmt: skip
def test_perception_encoders_have_timms_weights(name, size):
    """By number, name and shape; timm's projection to the texts' space has a bias, PE's and ours has none."""
    with torch.device("meta"):
        other = timm.create_model(name, num_classes=1024)
        text = TextConfig(tower="clip", vocabulary=49408, width=1024, depth=1, heads=16)
        student = Student(StudentConfig(**{**PE, **size}, text=text, embed=1024), [])
        theirs = {
            key: value.shape for key, value in translated("timm", other.state_dict()).items() if key != "head.bias"
        }
    own = {key: value.shape for key, value in student.state_dict().items() if key.startswith(("backbone", "project"))}
    assert own == theirs
    total = sum(item.numel() for item in (*student.backbone.parameters(), *student.project.parameters()))
    assert total == sum(item.numel() for item in other.parameters()) - 1024


@pytest.mark.parametrize("grid", [(3, 3), (5, 2), (2, 7), (1, 1)])
def test_learned_positions_are_resized_as_torch_does(grid):
    table = torch.randn(9, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    square = table.T.unflatten(1, (3, 3))[None]
    expected = interpolate(square, size=grid, mode="bilinear", align_corners=False)[0].flatten(1).T
    assert torch.allclose(resized(table, [(2, 2), grid])[4:], expected, atol=1e-12)


def test_images_skip_branches_at_the_rate_of_their_block():
    draws = np.random.default_rng(0).integers(0, 2**64, 4000, dtype=np.uint64)
    kept = kept_branches(draws, 0.4, 3)
    dropped = (kept == 0).double().mean(1)
    assert torch.allclose(dropped, torch.tensor([[0.0], [0.2], [0.4]]).double().expand(3, 2), atol=0.03)
    assert torch.allclose(kept.double().mean(1), torch.ones(3, 2).double(), atol=0.06)
    assert torch.equal(kept_branches(draws[5:6], 0.4, 3), kept[:, 5:6])
    both = ((kept[2] == 0).all(1)).double().mean()
    assert abs(both - 0.16) < 0.03
