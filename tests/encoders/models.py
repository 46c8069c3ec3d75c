"""Tiny models with random weights, saved as the libraries save real ones: there is no network in the tests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from safetensors.torch import save_file

TINY = "depth=2&embed_dim=64&num_heads=4"
_OPEN_CLIP = {
    "embed_dim": 32,
    "vision_cfg": {"image_size": 64, "layers": 2, "width": 64, "patch_size": 16, "head_width": 16},
    "text_cfg": {"context_length": 16, "vocab_size": 49408, "width": 32, "heads": 2, "layers": 2},
}
_VISION = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "image_size": 32,
    "patch_size": 8,
}
WORDS = ["<pad>", "<unk>", "<s>", "</s>", "a", "red", "blue", "star", "house"]
_TEXT = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "vocab_size": len(WORDS),
    "max_position_embeddings": 12,
    "pad_token_id": 0,
    "bos_token_id": 2,
    "eos_token_id": 3,
}


def blob_image(width: int = 90, height: int = 60, seed: int = 0) -> Image.Image:
    """Soft blobs: noise would hide differences of resizing, flat colours would hide everything."""
    values = np.random.default_rng(seed).integers(0, 256, (6, 9, 3), dtype=np.uint8)
    return Image.fromarray(values).resize((width, height), Image.Resampling.BICUBIC)


def save_timm(path: Path, seed: int, name: str = "vit_base_patch16_224", **options: Any) -> torch.nn.Module:
    """A checkpoint with a classifier of 10 classes, as timm publishes them."""
    import timm

    torch.manual_seed(seed)
    arguments = {"depth": 2, "embed_dim": 64, "num_heads": 4, "num_classes": 10, **options}
    model = timm.create_model(name, pretrained=False, **arguments)
    save_file(model.state_dict(), path)
    return model.eval()


def save_open_clip(folder: Path, seed: int) -> Any:
    """A folder in the layout of the hub: open_clip_config.json and open_clip_model.safetensors."""
    import open_clip

    torch.manual_seed(seed)
    folder.mkdir()
    preprocess = {"mean": [0.5, 0.4, 0.3], "std": [0.2, 0.3, 0.4], "interpolation": "bilinear"}
    config = {"model_cfg": _OPEN_CLIP, "preprocess_cfg": preprocess}
    (folder / "open_clip_config.json").write_text(json.dumps(config))
    model = open_clip.CLIP(**json.loads(json.dumps(_OPEN_CLIP)))
    save_file(model.state_dict(), folder / "open_clip_model.safetensors")
    return model.eval()


def save_hf(folder: Path, kind: str) -> Any:
    """A model with its image processor (and, for image-text models, its tokenizer), by `save_pretrained`."""
    import transformers

    torch.manual_seed(0)
    crop = {"size": {"shortest_edge": 40}, "crop_size": {"height": 32, "width": 32}}
    processor = transformers.CLIPImageProcessor(**crop)
    if kind == "clip":
        model = transformers.CLIPModel(
            transformers.CLIPConfig(vision_config=_VISION, text_config=_TEXT, projection_dim=24)
        )
    elif kind == "siglip":
        model = transformers.SiglipModel(transformers.SiglipConfig(vision_config=_VISION, text_config=_TEXT))
        processor = transformers.SiglipImageProcessor(size={"height": 32, "width": 32})
    elif kind == "naflex":
        vision = {**_VISION, "num_patches": 16}
        text = _TEXT | {"projection_size": 32}
        model = transformers.Siglip2Model(transformers.Siglip2Config(vision_config=vision, text_config=text))
        processor = transformers.Siglip2ImageProcessor(patch_size=8, max_num_patches=16)
    else:
        model = transformers.Dinov2Model(transformers.Dinov2Config(**_VISION))
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    if kind != "dinov2":
        _tokenizer().save_pretrained(folder)
    return model.eval()


def save_language_model(folder: Path, kind: str = "Qwen2", seed: int = 0, **options: Any) -> Any:
    """A causal language model, with a tokenizer that knows no padding."""
    import transformers
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    torch.manual_seed(seed)
    words = Tokenizer(models.BPE())
    words.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    letters = pre_tokenizers.ByteLevel.alphabet()
    words.train_from_iterator(WORDS, trainers.BpeTrainer(initial_alphabet=letters, show_progress=False))
    sizes = {"vocab_size": words.get_vocab_size(), "max_position_embeddings": 64, "num_key_value_heads": 1}
    config = getattr(transformers, f"{kind}Config")(**(_TEXT | sizes | {"pad_token_id": None} | options))
    model = transformers.AutoModelForCausalLM.from_config(config)
    model.save_pretrained(folder)
    transformers.PreTrainedTokenizerFast(tokenizer_object=words).save_pretrained(folder)
    return model.eval()


def _tokenizer() -> Any:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(models.WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token="<pad>", unk_token="<unk>", bos_token="<s>", eos_token="</s>"
    )
