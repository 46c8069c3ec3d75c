"""A tiny vision-language model with random weights, for `transformers serve`: what it says is nonsense.

It shows that requests, images, seeds and token counts work without a GPU and a real model: 0.2M parameters, 1 MB, tens
of milliseconds an answer.

    python -m pipelines.tiny_vlm FOLDER
"""

from __future__ import annotations

import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

SIDE, PATCH = 56, 14
"""Pixels of an image and of its patches."""
CONTEXT = 8192
"""Tokens of a request and its answer."""
MARKS = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
IMAGE = "<image>"
WORDS = """
a an the this that and with without in on under behind beside near above below of for from to is are was has holds
shows stands sits walks runs sleeps looks plays eats dog cat bird horse cow fish man woman child people face hand hair
hat shirt house room door window wall floor roof street road bridge car bus train boat bicycle tree flower leaf grass
garden park forest field mountain river lake sea beach sky cloud sun moon night day table chair bed lamp book cup
plate bread fruit apple cake red orange yellow green blue purple brown black white grey small large long round old new
bright dark soft wooden metal glass one two three many few left right middle front back photo drawing image sign
"""
TEMPLATE = """
{%- for message in messages -%}
{%- if message['content'] is string -%}{{ message['content'] }} {% else -%}
{%- for part in message['content'] -%}
{%- if part['type'] == 'image' -%}<image> {% elif part['type'] == 'text' -%}{{ part['text'] }} {% endif -%}
{%- endfor -%}
{%- endif -%}
{%- endfor -%}
""".strip()


def write(folder: Path) -> Path:
    """Write the model and its processor, always the same, unless the folder exists."""
    if not folder.exists():
        import torch
        from transformers.utils import logging

        folder.parent.mkdir(parents=True, exist_ok=True)
        logging.disable_progress_bar()
        with torch.random.fork_rng(), TemporaryDirectory(dir=folder.parent) as aside:
            torch.manual_seed(0)
            tokenizer = _tokenizer()
            _model(tokenizer).save_pretrained(f"{aside}/model")
            _processor(tokenizer).save_pretrained(f"{aside}/model")
            Path(aside, "model").rename(folder)
    return folder


def _tokenizer() -> Any:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = [*MARKS.values(), IMAGE, *dict.fromkeys(WORDS.split())]
    made = Tokenizer(models.WordLevel({word: n for n, word in enumerate(words)}, unk_token=MARKS["unk_token"]))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.decoder = decoders.WordPiece(prefix="##")
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=made, additional_special_tokens=[IMAGE], **MARKS)
    tokenizer.image_token = IMAGE
    return tokenizer


def _model(tokenizer: Any) -> Any:
    import torch
    from transformers import CLIPVisionConfig, LlamaConfig, LlavaConfig, LlavaForConditionalGeneration

    layers = {"num_hidden_layers": 2, "num_attention_heads": 4}
    vision = CLIPVisionConfig(
        hidden_size=32, intermediate_size=64, projection_dim=32, image_size=SIDE, patch_size=PATCH, **layers
    )
    ids = {f"{name}_id": tokenizer.convert_tokens_to_ids(word) for name, word in MARKS.items() if name != "unk_token"}
    text = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=128,
        num_key_value_heads=2,
        max_position_embeddings=CONTEXT,
        **layers,
        **ids,
    )
    model = LlavaForConditionalGeneration(
        LlavaConfig(
            vision_config=vision.to_dict(),
            text_config=text.to_dict(),
            image_token_index=tokenizer.convert_tokens_to_ids(IMAGE),
            vision_feature_layer=-1,
            vision_feature_select_strategy="default",
        )
    )
    with torch.no_grad():
        model.lm_head.weight.mul_(8)  # else all words are equally likely for every image
    silent = [tokenizer.convert_tokens_to_ids(word) for word in (*MARKS.values(), IMAGE) if word != MARKS["eos_token"]]
    # without do_sample, temperature and seed have no effect
    model.generation_config.update(do_sample=True, suppress_tokens=silent, eos_token_id=ids["eos_token_id"])
    model.generation_config.update(pad_token_id=ids["pad_token_id"])
    model.generation_config.update(exponential_decay_length_penalty=(8, 1.3))  # texts of a few to 20 words
    return model


def _processor(tokenizer: Any) -> Any:
    from transformers import CLIPImageProcessor, LlavaProcessor

    square = {"height": SIDE, "width": SIDE}
    return LlavaProcessor(
        image_processor=CLIPImageProcessor(size={"shortest_edge": SIDE}, crop_size=square),
        tokenizer=tokenizer,
        patch_size=PATCH,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,  # CLIP's class token
        chat_template=TEMPLATE,
    )


if __name__ == "__main__":
    print(write(Path(sys.argv[1])))
