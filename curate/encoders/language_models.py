"""Texts by a causal language model of transformers: `hf:NAME` or `hf:FOLDER` (Llama, Qwen, Mistral, Gemma …).

Every token attends to the whole text, and the vector of a text is the mean of its tokens' last hidden states: the text
side of LLM2CLIP (Huang et al. 2024; Xray-Visual, section 4.6.2), after LLM2Vec (BehnamGhader et al. 2024). The vectors
of a model that was not fine-tuned for it are all similar.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import AutoTokenizer
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from curate.core.errors import RecipeError
from curate.encoders.base import Features
from curate.encoders.spec import Spec
from curate.encoders.texts import encode_fixed, texts_per_pass
from curate.encoders.torch_encoder import FrozenEncoder, array, text_features

if TYPE_CHECKING:
    from PIL.Image import Image

_CONTEXT = 512
"""Tokens of a text that are read, as in LLM2CLIP."""
_SHORTEST = 16


def is_language_model(config: Any) -> bool:
    return config.model_type in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES and not hasattr(config, "vision_config")


class LanguageModel(FrozenEncoder):
    """Texts are padded to a power of two of tokens, in passes of one number of texts."""

    model: Any
    passes = True

    def __init__(self, spec: Spec, identity: dict[str, Any], model: Any, device: str) -> None:
        """Raises ValueError if the model ignores masks and reads texts from left to right."""
        source, revision = spec.path or spec.name, spec.options.get("revision", "main")
        self._tokenizer = AutoTokenizer.from_pretrained(source, revision=revision)
        self.context = min(_CONTEXT, getattr(model.config, "max_position_embeddings", _CONTEXT))
        self.dim = model.config.hidden_size
        preprocessing = {"attention": "bidirectional", "pooling": "mean", "tokens": self.context}
        super().__init__(spec, identity, model, preprocessing, device)
        with torch.inference_mode(), self.guarded(2):
            ids = torch.tensor([[0, 1], [0, 2]], device=self.device)
            first = self.hidden(ids, torch.ones_like(ids, dtype=torch.bool))[:, 0]
        if torch.equal(first[0], first[1]):
            raise ValueError(
                "it reads texts from left to right only; give a model with attention, such as Llama or Qwen"
            )

    def prepare(self, image: Image) -> NDArray[Any]:
        raise RecipeError(f"encoder: {self.spec!r} is a language model and embeds texts only; give a model of images")

    def encode(self, batch: list[NDArray[Any]], *, patches: bool = True) -> Features:
        raise NotImplementedError

    def encode_text(self, texts: list[str]) -> NDArray[np.float32]:
        """(B, D); NaN for a text without tokens."""
        return text_features(self, texts, lambda cut: torch.from_numpy(self._by_length(cut)))

    def _by_length(self, texts: list[str]) -> NDArray[np.float32]:
        tokens = self._tokenizer(texts, truncation=True, max_length=self.context)["input_ids"]
        padded = np.array([self._padded(len(some)) for some in tokens])
        vectors = np.empty((len(texts), self.dim), dtype=np.float32)
        for length in np.unique(padded):
            places = np.flatnonzero(padded == length)
            mean = partial(self._means, length=int(length))
            some = [tokens[place] for place in places]
            vectors[places] = encode_fixed(mean, some, [], self.dim, texts_per_pass(self))
        return vectors

    def _padded(self, tokens: int) -> int:
        return min(self.context, max(_SHORTEST, 1 << max(0, tokens - 1).bit_length()))

    def _means(self, tokens: list[list[int]], length: int) -> NDArray[np.float32]:
        ids_BT = torch.zeros(len(tokens), length, dtype=torch.long)
        known_BT = torch.zeros(len(tokens), length, dtype=torch.bool)
        for row, some in enumerate(tokens):
            ids_BT[row, : len(some)] = torch.tensor(some, dtype=torch.long)
            known_BT[row, : len(some)] = True
        known_BT1 = known_BT[..., None].to(self.device)
        hidden_BTD = self.hidden(ids_BT.to(self.device), known_BT1[..., 0]).float()
        return array(hidden_BTD.masked_fill(~known_BT1, 0).sum(1) / known_BT1.sum(1))

    def hidden(self, ids_BT: torch.Tensor, known_BT: torch.Tensor) -> torch.Tensor:
        """Last hidden states (B, T, D); every position attends to the known ones. A mask of four dimensions replaces
        the model's own."""
        bias_BT = torch.zeros(known_BT.shape, dtype=self.model.dtype, device=self.device)
        bias_BT.masked_fill_(~known_BT, torch.finfo(self.model.dtype).min)
        out = self.model(input_ids=ids_BT, attention_mask=bias_BT[:, None, None], use_cache=False)
        hidden_BTD: torch.Tensor = out.last_hidden_state
        return hidden_BTD
