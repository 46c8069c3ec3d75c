import shutil

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoConfig, AutoModel, AutoTokenizer

from curate import encoders
from curate.core.errors import CurateError
from curate.encoders.texts import encode_fixed, encode_texts
from tests.encoders.models import blob_image, save_hf, save_language_model

KINDS = ("Llama", "Qwen2", "Gemma")
TEXTS = ["a red star", "blue house", "star " * 15, "a " * 16, "red " * 17, "house star " * 100, "blue"]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("language")
    for kind in KINDS:
        save_language_model(root / kind, kind)
    return {kind: root / kind for kind in KINDS}


def alone(folder, text):
    """The mean of the hidden states of transformers' own bidirectional model, which gets one text without padding."""
    config = AutoConfig.from_pretrained(folder)
    config.is_causal = False
    model = AutoModel.from_pretrained(folder, config=config).eval()
    ids = AutoTokenizer.from_pretrained(folder)(text, return_tensors="pt")["input_ids"][:, :64]
    with torch.inference_mode():
        return model(input_ids=ids).last_hidden_state[0].mean(0).numpy()


@pytest.mark.parametrize("kind", KINDS)
def test_a_text_has_the_mean_of_its_tokens_and_padding_changes_nothing(kind, folders):
    encoder = encoders.load(f"hf:{folders[kind]}", device="cpu")
    found = encoder.encode_text(TEXTS)
    assert encoder.context == 64 and found.shape == (len(TEXTS), encoder.dim)
    expected = np.stack([alone(folders[kind], text) for text in TEXTS])
    assert np.allclose(found, expected, atol=1e-5) and np.ptp(expected, axis=0).min() > 1e-3
    for some in (TEXTS[::-1], TEXTS[:1], TEXTS * 9):
        assert np.array_equal(encoder.encode_text(some), np.stack([found[TEXTS.index(text)] for text in some]))
    assert np.array_equal(encode_texts(encoder, TEXTS), found)


@pytest.mark.parametrize("kind", KINDS)
def test_a_later_token_changes_an_earlier_one(kind, folders):
    encoder = encoders.load(f"hf:{folders[kind]}", device="cpu")
    ids = torch.tensor([[4, 5, 6], [4, 5, 7]])
    with torch.inference_mode():
        both = encoder.hidden(ids, torch.ones_like(ids, dtype=torch.bool))[:, 0]
        hidden = encoder.hidden(ids, torch.tensor([[True, True, False]] * 2))[:, 0]
    assert (both[0] - both[1]).abs().max() > 1e-3
    assert torch.allclose(hidden[0], hidden[1], atol=1e-6)


def test_weights_are_held_in_the_precision(folders):
    encoder = encoders.load(f"hf:{folders['Llama']}", device="cpu", precision="bfloat16")
    assert encoder.model.dtype == torch.bfloat16
    exact = encoders.load(f"hf:{folders['Llama']}", device="cpu").encode_text(TEXTS)
    assert np.allclose(encoder.encode_text(TEXTS), exact, atol=0.1)


def test_texts_without_tokens_and_images(folders):
    encoder = encoders.load(f"hf:{folders['Llama']}", device="cpu")
    found = encoder.encode_text(["", "a red star", ""])
    assert np.isnan(found[[0, 2]]).all() and np.array_equal(found[1:2], encoder.encode_text(["a red star"]))
    assert encoder.encode_text([]).shape == (0, 32)
    with pytest.raises(CurateError, match="is a language model and embeds texts only"):
        encoder.prepare(blob_image(40, 30))


def test_what_cannot_embed_texts_is_one_line(tmp_path, folders):
    assert encoders.text_problems(f"hf:{folders['Qwen2']}") == encoders.problems(f"hf:{folders['Qwen2']}") == []
    save_hf(tmp_path / "dinov2", "dinov2")
    assert "has no text tower" in encoders.text_problems(f"hf:{tmp_path / 'dinov2'}")[0]
    save_language_model(tmp_path / "rwkv", "Rwkv", attention_hidden_size=32)
    shutil.copytree(folders["Llama"], tmp_path / "words", ignore=shutil.ignore_patterns("tokenizer*"))
    for name, message in (("rwkv", "reads texts from left to right only"), ("words", "cannot load 'hf:local' at")):
        with pytest.raises(CurateError, match=message) as error:
            encoders.load(f"hf:{tmp_path / name}", device="cpu")
        assert "\n" not in str(error.value)
    (tmp_path / "empty").mkdir()
    assert "no config.json in" in encoders.problems(f"hf:{tmp_path / 'empty'}")[0]


@given(st.integers(0, 40), st.sampled_from([1, 2, 16]))
def test_every_pass_has_the_same_size(count, at_once):
    sizes = []

    def encode(texts):
        sizes.append(len(texts))
        return np.array([[float(text or -1)] for text in texts], np.float32)

    assert encode_fixed(encode, [str(i) for i in range(count)], "", 1, at_once)[:, 0].tolist() == list(range(count))
    assert set(sizes) <= {at_once} and len(sizes) == -(-count // at_once)
