"""Finding a picture's texts among all texts, and a text's pictures among all pictures.

A picture may have several texts and a text several pictures: any of its own counts. Where own and other candidates are
equally near, what is counted is the chance that an order drawn at random brings an own one among the first k, so that
vectors that are all the same do no better than chance.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln, logsumexp

from distill.evaluation.tasks.knn import unit

Floats = NDArray[np.floating[Any]]
_CHUNK = 1024


def unique_texts(texts: Sequence[Sequence[str]]) -> tuple[list[str], NDArray[np.int64]]:
    """Texts of each picture -> the different ones (T), and pairs (P, 2) of picture and text."""
    place = {text: number for number, text in enumerate(dict.fromkeys(text for own in texts for text in own))}
    pairs = [(picture, place[text]) for picture, own in enumerate(texts) for text in dict.fromkeys(own)]
    return list(place), np.array(pairs, dtype=np.int64).reshape(-1, 2)


def recalls(
    pictures_ND: Floats,
    texts_TD: Floats,
    pairs_P2: NDArray[np.int64],
    *,
    ks: Sequence[int] = (1, 5, 10),
    temperature: float | None = None,
) -> dict[str, dict[str, float]]:
    """`image_to_text` and `text_to_image`: share of the pictures (texts) with an own text (picture) among the first k.

    pairs: rows of picture and text that belong together; who has none is a candidate but asks nothing. temperature:
    re-weight (Bolya et al. 2025, "PE, retrieval with re-weighting"): a similarity is multiplied
    by its softmax over those who ask, so that a candidate that is near to everyone comes later. It looks at all
    questions at once, so compare such figures only with one another.
    """
    pictures, texts = unit(pictures_ND), unit(texts_TD)
    return {
        "image_to_text": _recall(pictures, texts, pairs_P2, ks, temperature),
        "text_to_image": _recall(texts, pictures, pairs_P2[:, ::-1], ks, temperature),
    }


def _recall(
    asking: Floats, found: Floats, pairs: NDArray[np.int64], ks: Sequence[int], temperature: float | None
) -> dict[str, float]:
    pairs = pairs[np.argsort(pairs[:, 0], kind="stable")]
    hits = np.zeros(len(ks))
    over = None if temperature is None else _log_normalisers(asking, found, temperature)
    for start in range(0, len(asking), _CHUNK):
        similarity = asking[start : start + _CHUNK] @ found.T
        if over is not None and temperature is not None:
            similarity = similarity * np.exp(similarity / temperature - over)
        first, last = np.searchsorted(pairs[:, 0], [start, start + len(similarity)])
        own = np.zeros(similarity.shape, dtype=bool)
        own[pairs[first:last, 0] - start, pairs[first:last, 1]] = True
        asked = own.any(1)
        hits += _hits(similarity[asked], own[asked], ks)
    count = len(np.unique(pairs[:, 0]))
    return {f"R@{k}": float(hit / count) for k, hit in zip(ks, hits, strict=True)}


def _log_normalisers(asking: Floats, found: Floats, temperature: float) -> NDArray[np.float64]:
    """log of the sum over all who ask of exp(similarity / temperature), of each candidate (F,)."""
    total = np.full(len(found), -np.inf)
    for start in range(0, len(asking), _CHUNK):
        scaled = (asking[start : start + _CHUNK] @ found.T).astype(np.float64) / temperature
        total = np.logaddexp(total, logsumexp(scaled, axis=0))
    return total


def _hits(similarity: Floats, own: NDArray[np.bool_], ks: Sequence[int]) -> NDArray[np.float64]:
    """Expected number of rows (of M) with an own candidate among the first k, for each k."""
    best = np.where(own, similarity, -np.inf).max(1, keepdims=True, initial=-np.inf)
    before = (similarity > best).sum(1)
    level = similarity == best
    tied, mine = (level & ~own).sum(1), (level & own).sum(1)
    return np.array([_chance(np.clip(k - before, 0, tied + mine), tied, mine).sum() for k in ks])


def _chance(drawn: NDArray[Any], others: NDArray[Any], own: NDArray[Any]) -> NDArray[np.float64]:
    """That `drawn` of (others + own), without putting back, hold one of `own`: 1 - C(others, drawn) / C(all, drawn)."""
    total, missed = others + own, np.minimum(drawn, others)
    log = gammaln(others + 1) - gammaln(others - missed + 1) - gammaln(total + 1) + gammaln(total - missed + 1)
    return np.where(drawn > others, 1.0, 1.0 - np.exp(log))
