"""dino.txt, compared with the arithmetic of its description on random weights."""

import numpy as np
import open_clip
import pytest
import torch
from torch.nn.functional import gelu, layer_norm, scaled_dot_product_attention, silu

from curate.core.errors import CurateError, InputError, RecipeError
from curate.encoders import load, text_problems

CLASS = "curate.encoders.dino_text:DinoText"


def linear(state, name, outputs, inputs, *, bias=True):
    state[f"{name}.weight"] = torch.randn(outputs, inputs) * inputs**-0.5
    if bias:
        state[f"{name}.bias"] = torch.randn(outputs) * 0.1


def norm(state, name, width):
    state[f"{name}.weight"], state[f"{name}.bias"] = 1 + 0.1 * torch.randn(width), 0.1 * torch.randn(width)


def checkpoint(width=128, hidden=192, text=128, seed=0):
    """Random weights under the names of the published checkpoint."""
    torch.manual_seed(seed)
    state = {"logit_scale": torch.zeros(1)}
    for number in range(2):
        own = f"visual_model.head.blocks.{number}"
        norm(state, f"{own}.norm1", width)
        norm(state, f"{own}.norm2", width)
        linear(state, f"{own}.attn.qkv", 3 * width, width, bias=False)
        linear(state, f"{own}.attn.proj", width, width)
        linear(state, f"{own}.mlp.w1", hidden, width)
        linear(state, f"{own}.mlp.w2", hidden, width)
        linear(state, f"{own}.mlp.w3", width, hidden)
        state[f"{own}.ls1.gamma"], state[f"{own}.ls2.gamma"] = torch.rand(width), torch.rand(width)
        own = f"text_model.backbone.blocks.{number}"
        norm(state, f"{own}.attention_norm", text)
        norm(state, f"{own}.ffn_norm", text)
        linear(state, f"{own}.attention.qkv", 3 * text, text, bias=False)
        linear(state, f"{own}.attention.proj", text, text)
        linear(state, f"{own}.feed_forward.fc1", 4 * text, text)
        linear(state, f"{own}.feed_forward.fc2", text, 4 * text)
    norm(state, "visual_model.head.ln_final", width)
    norm(state, "text_model.backbone.ln_final", text)
    state["text_model.backbone.token_embedding.weight"] = torch.randn(49408, text)
    state["text_model.backbone.positional_embedding"] = torch.randn(77, text)
    linear(state, "text_model.head.linear_projection", 2 * width, text, bias=False)
    return state


def normed(state, name, x):
    return layer_norm(x, x.shape[-1:], state[f"{name}.weight"], state[f"{name}.bias"])


def through(state, name, x):
    return x @ state[f"{name}.weight"].T + state.get(f"{name}.bias", 0)


def attended(state, name, x, *, causal=False):
    """Self-attention of the tokens (T, D) of one sample, in heads of 64."""
    q, k, v = (one.view(len(x), -1, 64).transpose(0, 1) for one in through(state, f"{name}.qkv", x).chunk(3, -1))
    found = scaled_dot_product_attention(q, k, v, is_causal=causal).transpose(0, 1).reshape(x.shape)
    return through(state, f"{name}.proj", found)


def image_vector(state, cls, patches, registers):
    x = torch.cat([cls[None], registers, patches])
    for number in range(2):
        own = f"visual_model.head.blocks.{number}"
        x = x + state[f"{own}.ls1.gamma"] * attended(state, f"{own}.attn", normed(state, f"{own}.norm1", x))
        y = normed(state, f"{own}.norm2", x)
        gated = silu(through(state, f"{own}.mlp.w1", y)) * through(state, f"{own}.mlp.w2", y)
        x = x + state[f"{own}.ls2.gamma"] * through(state, f"{own}.mlp.w3", gated)
    x = normed(state, "visual_model.head.ln_final", x)
    return torch.cat([x[0], x[1 + len(registers) :].mean(0)])


def text_vector(state, text):
    tokens, own = open_clip.tokenize([text])[0], "text_model.backbone"
    x = state[f"{own}.token_embedding.weight"][tokens] + state[f"{own}.positional_embedding"]
    for number in range(2):
        block = f"{own}.blocks.{number}"
        x = x + attended(state, f"{block}.attention", normed(state, f"{block}.attention_norm", x), causal=True)
        y = gelu(through(state, f"{block}.feed_forward.fc1", normed(state, f"{block}.ffn_norm", x)))
        x = x + through(state, f"{block}.feed_forward.fc2", y)
    x = through(state, "text_model.head.linear_projection", normed(state, f"{own}.ln_final", x))
    return x[tokens.argmax()]


@pytest.mark.parametrize("registers", [0, 4])
def test_an_images_vector_is_cls_and_the_mean_patch_after_the_blocks(tmp_path, registers):
    """Images of several sizes, end to end."""
    state = checkpoint()
    torch.save(state, tmp_path / "dino.pth")
    encoder = load(f"{CLASS}@{tmp_path}/dino.pth", device="cpu")
    lengths, cls = [3, 3, 7, 1], torch.randn(4, 128)
    patches, extra = torch.randn(sum(lengths), 128), torch.randn(4, registers, 128)
    found = encoder.image_vectors(cls, patches, lengths, extra if registers else None)
    for vector, *own in zip(found, cls, patches.split(lengths), extra, strict=True):
        assert vector.numpy() == pytest.approx(image_vector(state, *own).numpy(), abs=1e-4)
    assert encoder.image_vectors(cls[:0], patches[:0], []).shape == (0, encoder.dim)


def test_a_texts_vector_is_its_last_token_after_a_causal_transformer(tmp_path):
    state = checkpoint()
    torch.save(state, tmp_path / "dino.pth")
    encoder, texts = load(f"{CLASS}@{tmp_path}/dino.pth", device="cpu"), ["a red star", "two blue houses by the sea"]
    assert text_problems(f"{CLASS}@{tmp_path}/dino.pth") == []
    expected = np.stack([text_vector(state, text).numpy() for text in texts])
    assert encoder.encode_text(texts) == pytest.approx(expected, abs=1e-4)
    assert (encoder.width, encoder.dim, encoder.context) == (128, 256, 77)


def test_another_checkpoint_is_one_line(tmp_path):
    torch.save({"weight": torch.zeros(1)}, tmp_path / "other.pth")
    with pytest.raises(InputError, match=r"so it is not a checkpoint of dino.txt"):
        load(f"{CLASS}@{tmp_path}/other.pth", device="cpu")
    state = checkpoint(text=64)
    del state["visual_model.head.ln_final.bias"]
    torch.save(state, tmp_path / "cut.pth")
    with pytest.raises(InputError, match=r"cannot load .*Missing key"):
        load(f"{CLASS}@{tmp_path}/cut.pth", device="cpu")
    with pytest.raises(RecipeError, match=r"has no weights; give the file of dino.txt after '@'"):
        load(CLASS, device="cpu")
    torch.save(checkpoint(text=64), tmp_path / "dino.pth")
    with pytest.raises(CurateError, match=r"has no image tower; name it in evaluate.text_encoders"):
        load(f"{CLASS}@{tmp_path}/dino.pth", device="cpu").prepare(None)
