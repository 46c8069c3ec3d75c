"""Embedding texts so that a text has the same vector, bit for bit, in every batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from curate.encoders.base import Encoder

AT_ONCE = {"cpu": 16, "cuda": 64}
"""Texts per pass. On a CPU, 16 texts are as fast per text as more, and need less padding."""
_TOKENS = 1 << 16
"""Most tokens per pass: models with long contexts get fewer texts."""
_Text = TypeVar("_Text")


def encode_texts(encoder: Encoder, texts: list[str]) -> NDArray[np.float32]:
    """Vectors (n, dim). Raises CurateError if the encoder has no text tower."""
    if encoder.passes:
        return encoder.encode_text(texts)
    most = max(1, _TOKENS // max(1, encoder.context))
    at_once = min(texts_per_pass(encoder), 1 << (most.bit_length() - 1))
    return encode_fixed(encoder.encode_text, texts, "", encoder.dim, at_once)


def texts_per_pass(encoder: Encoder) -> int:
    return AT_ONCE["cpu" if encoder.device == "cpu" else "cuda"]


def encode_fixed(
    encode: Callable[[list[_Text]], NDArray[np.float32]], texts: Sequence[_Text], empty: _Text, dim: int, at_once: int
) -> NDArray[np.float32]:
    """Texts -> vectors (n, dim), in passes of exactly `at_once` texts; empty texts pad the last pass.

    A matrix product rounds differently for each shape. With one shape, a text has the same vector in every batch. We
    checked this bit for bit for powers of two from 8 on, in any order and with one or two threads.
    """
    vectors = np.zeros((len(texts), dim), dtype=np.float32)
    for start in range(0, len(texts), at_once):
        some = texts[start : start + at_once]
        vectors[start : start + len(some)] = encode([*some, *[empty] * (at_once - len(some))])[: len(some)]
    return vectors
