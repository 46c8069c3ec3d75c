"""A small causal language model for the texts of `objectives`: a Llama of 1.2M parameters, taught on WordNet's glosses.

python -m bench.ablations.language      writes it to .cache/ablations/language, prints its losses and CPU-minutes

First each word is predicted from those before it, in "dog, domestic dog: a member of the genus Canis"; then the mean
of a gloss's hidden states is brought close to that of its lemmas, with attention in both directions: the fine-tuning of
LLM2CLIP (Huang et al. 2024), which has two captions of an image instead.
"""

from __future__ import annotations

import itertools
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor
from torch.nn.functional import cross_entropy, normalize
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from bench.ablations.folders import HOME
from curate.kernels.wordnet import database

VOCABULARY, CONTEXT, WIDTH, DEPTH = 4096, 48, 128, 4
STEPS, BATCH, RATE = 1500, 32, 2e-3
"""For the prediction of words."""
PAIR_STEPS, PAIRS, PAIR_RATE, TEMPERATURE = 300, 96, 5e-4, 0.05
_END = "<end>"


def language_model() -> Path:
    """Its folder, in the layout of transformers; taught if it does not exist."""
    folder = HOME / "language"
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as partial:
            built = Path(partial) / "language"
            _teach(built)
            built.rename(folder)
    return folder


def glosses() -> list[tuple[str, str]]:
    """Lemmas of each noun and verb, and what they mean, without its examples."""
    found = []
    for name in ("data.noun", "data.verb"):
        for line in database.read(name).decode("latin-1").splitlines():
            fields, _, gloss = line.partition(" | ")
            words = fields.split(" ")
            lemmas = [words[4 + 2 * place].replace("_", " ") for place in range(int(words[3], 16))]
            found.append((", ".join(lemmas), gloss.split('; "')[0].strip()))
    return found


def _teach(folder: Path) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    pairs = glosses()
    tokenizer = _tokenizer([f"{lemmas}: {gloss}" for lemmas, gloss in pairs])
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=WIDTH, intermediate_size=2 * WIDTH, num_hidden_layers=DEPTH,
        num_attention_heads=WIDTH // 32, max_position_embeddings=128, tie_word_embeddings=True,
        bos_token_id=0, eos_token_id=0, pad_token_id=0,
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    _predict(model, tokenizer, pairs)
    _pair(model, tokenizer, pairs)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _tokenizer(texts: list[str]) -> PreTrainedTokenizerFast:
    bytes_ = Tokenizer(models.BPE())
    bytes_.pre_tokenizer, bytes_.decoder = pre_tokenizers.ByteLevel(add_prefix_space=True), decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY, special_tokens=[_END], initial_alphabet=alphabet, show_progress=False
    )
    bytes_.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=bytes_, eos_token=_END, pad_token=_END)


def _predict(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, pairs: list[tuple[str, str]]) -> None:
    stream = np.concatenate([[*ids, 0] for ids in tokenizer([f"{a}: {b}" for a, b in pairs])["input_ids"]])
    rows = torch.from_numpy(stream[: len(stream) // CONTEXT * CONTEXT].reshape(-1, CONTEXT).astype(np.int64))
    for step, chosen, optimizer in _steps(model, len(rows), STEPS, BATCH, RATE):
        logits = model(input_ids=rows[chosen], use_cache=False).logits
        loss = cross_entropy(logits[:, :-1].flatten(0, 1), rows[chosen][:, 1:].flatten())
        _update(model, loss, optimizer)
        if step % 250 == 0:
            print(f"next token, step {step} of {STEPS}: loss {loss.item():.2f}", flush=True)


def _pair(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, pairs: list[tuple[str, str]]) -> None:
    given = zip(*pairs, strict=True)
    sides = [tokenizer(list(texts), truncation=True, max_length=CONTEXT)["input_ids"] for texts in given]
    for step, chosen, optimizer in _steps(model, len(pairs), PAIR_STEPS, PAIRS, PAIR_RATE):
        lemmas, meanings = (normalize(_means(model, [side[row] for row in chosen.tolist()]), dim=-1) for side in sides)
        scores, own = lemmas @ meanings.T / TEMPERATURE, torch.arange(len(chosen))
        loss = (cross_entropy(scores, own) + cross_entropy(scores.T, own)) / 2
        _update(model, loss, optimizer)
        if step % 100 == 0:
            print(f"pairs, step {step} of {PAIR_STEPS}: loss {loss.item():.2f}", flush=True)


def _steps(
    model: LlamaForCausalLM, rows: int, steps: int, batch: int, rate: float
) -> Iterator[tuple[int, Tensor, torch.optim.Optimizer]]:
    """Steps, rows of a batch, and the optimizer; a one-cycle schedule."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, betas=(0.9, 0.98), weight_decay=0.05, fused=True)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, total_steps=steps + 1, pct_start=0.05)
    orders = (torch.from_numpy(np.random.default_rng(epoch).permutation(rows)) for epoch in itertools.count())
    batches = (part for order in orders for part in order.split(batch) if len(part) == batch)
    for step, chosen in enumerate(itertools.islice(batches, steps), 1):
        yield step, chosen, optimizer
        schedule.step()


def _update(model: LlamaForCausalLM, loss: Tensor, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()


def _means(model: LlamaForCausalLM, texts: list[list[int]]) -> Tensor:
    """(B, WIDTH): means of hidden states, every token attending to the whole text, as `text.embed` computes them."""
    length = max(len(text) for text in texts)
    ids, known = torch.zeros(len(texts), length, dtype=torch.long), torch.zeros(len(texts), length, dtype=torch.bool)
    for row, text in enumerate(texts):
        ids[row, : len(text)], known[row, : len(text)] = torch.tensor(text), True
    bias = torch.zeros(known.shape).masked_fill(~known, torch.finfo(torch.float32).min)
    hidden = model.model(input_ids=ids, attention_mask=bias[:, None, None], use_cache=False).last_hidden_state
    return hidden.masked_fill(~known[..., None], 0).sum(1) / known.sum(1, keepdim=True)


def main() -> None:
    began = time.process_time()
    folder = language_model()
    print(f"{folder}; {(time.process_time() - began) / 60:.1f} CPU-minutes")


if __name__ == "__main__":
    main()
