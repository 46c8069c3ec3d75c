"""Retrieval of an image's texts among all texts, and of a text's images among all images.

An image may have several texts and a text several images; each of them counts as a hit. If hits and other candidates
are equally near, the recall is the probability that a random order puts a hit among the first k. Constant vectors
therefore score no better than chance.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln, logsumexp

from distill.evaluation.datasets import EvaluationSet
from distill.evaluation.extraction import Vectors
from distill.evaluation.models import EvaluatedModel, space_name
from distill.evaluation.result import Result, not_computed
from distill.evaluation.tasks import ensemble
from distill.evaluation.tasks.classification import HEADS_TOGETHER, MIN_HEADS
from distill.evaluation.tasks.knn import unit
from distill.recipe import EvaluateRecipe

Floats = NDArray[np.floating[Any]]
Fusion = Callable[[list[Floats]], Floats]
"""Similarities (N, F) of each head -> one similarity."""
_CHUNK = 1024
_TEXT_BATCH = 512
NO_TEXT_ENCODER = (
    "no model here encodes texts; train with student.text and contrastive, use a teacher with a text tower, or name "
    "one in evaluate.text_encoders"
)


def run(data: EvaluationSet, vectors: Vectors, models: Sequence[EvaluatedModel], rows: Sequence[int]) -> Result:
    """Recalls between the images of the rows that could be read and all of their texts."""
    readers = [model for model in models if model.texts]
    names = data.text_names()
    if not readers:
        return not_computed(NO_TEXT_ENCODER)
    if not names:
        return not_computed("no texts given; set evaluate.texts to members (txt) or JSON fields (json.title)")
    rows = [row for row in rows if row in vectors.rows]
    texts = data.texts(names, rows)
    having = [place for place, own in enumerate(texts) if own]
    if len(having) < 2:
        return not_computed(f"{len(having)} of {len(rows)} images have a text ({', '.join(names)}); retrieval needs 2")
    rows, texts = [rows[place] for place in having], [texts[place] for place in having]
    unique, pairs = unique_texts(texts)
    if len(unique) < 2:
        return not_computed(f"all {len(rows)} images have the same text ({', '.join(names)}); retrieval needs 2 texts")
    found: dict[str, Any] = {}
    for model in readers:
        heads = []
        for space, encode_text in model.texts.items():
            encoded = [encode_text(unique[at : at + _TEXT_BATCH]) for at in range(0, len(unique), _TEXT_BATCH)]
            heads.append((vectors.stack(model.name, space, rows), np.concatenate(encoded)))
            found[space_name(model, space)] = _of_heads(heads[-1:], pairs, data.settings)
        if len(heads) >= MIN_HEADS:
            found[f"{model.name}, {HEADS_TOGETHER}"] = _of_heads(heads, pairs, data.settings)
    return {"models": found, "pictures": len(rows), "texts": len(unique), "pairs": len(pairs), "from": names}


def _of_heads(
    heads: Sequence[tuple[Floats, Floats]], pairs: NDArray[np.int64], settings: EvaluateRecipe
) -> dict[str, Any]:
    """Recalls by the similarity of one head, or by the fused similarity of several."""

    def fuse(similarities: list[Floats]) -> Floats:
        return ensemble.fused(similarities, settings.ensemble_temperature, settings.gamma)

    found: dict[str, Any] = {**recalls_of_heads(heads, pairs, fuse)}
    if settings.retrieval_temperature is not None:
        found["reweighted"] = recalls_of_heads(heads, pairs, fuse, temperature=settings.retrieval_temperature)
    return found


def unique_texts(texts: Sequence[Sequence[str]]) -> tuple[list[str], NDArray[np.int64]]:
    """Texts of each image -> the distinct texts (T), and pairs (P, 2) of image and text."""
    place = {text: number for number, text in enumerate(dict.fromkeys(text for own in texts for text in own))}
    pairs = [(image, place[text]) for image, own in enumerate(texts) for text in dict.fromkeys(own)]
    return list(place), np.array(pairs, dtype=np.int64).reshape(-1, 2)


def recalls(
    images_ND: Floats,
    texts_TD: Floats,
    pairs_P2: NDArray[np.int64],
    *,
    ks: Sequence[int] = (1, 5, 10),
    temperature: float | None = None,
) -> dict[str, dict[str, float]]:
    """`image_to_text`, `text_to_image`: share of the images (texts) with one of their texts (images) among the first k.

    pairs: rows of image and text that belong together; rows without a pair are candidates, but not queries.
    temperature: re-weighting (Bolya et al. 2025, "PE, retrieval with re-weighting"), which multiplies a similarity by
    its softmax over the queries, so that a candidate near to all queries ranks lower. It uses all queries at once, so
    compare such figures only with one another.
    """
    return recalls_of_heads([(images_ND, texts_TD)], pairs_P2, lambda own: own[0], ks=ks, temperature=temperature)


def recalls_of_heads(
    heads: Sequence[tuple[Floats, Floats]],
    pairs_P2: NDArray[np.int64],
    fuse: Fusion,
    *,
    ks: Sequence[int] = (1, 5, 10),
    temperature: float | None = None,
) -> dict[str, dict[str, float]]:
    """`recalls` of several heads, each with its own vectors of the same images (N, D) and texts (T, D).

    fuse: computes one similarity (queries, candidates) from those of the heads; not called for a single head.
    """
    units = [(unit(images), unit(texts)) for images, texts in heads]
    images, texts = _Similarity(units, fuse), _Similarity([(own[1], own[0]) for own in units], fuse)
    return {
        "image_to_text": _recall(images, pairs_P2, ks, temperature),
        "text_to_image": _recall(texts, pairs_P2[:, ::-1], ks, temperature),
    }


@dataclass(frozen=True)
class _Similarity:
    """Similarity of queries to candidates, computed for some queries at a time."""

    heads: Sequence[tuple[Floats, Floats]]
    """Unit vectors of the queries and of the candidates."""
    fuse: Fusion

    @property
    def size(self) -> tuple[int, int]:
        return len(self.heads[0][0]), len(self.heads[0][1])

    def __call__(self, start: int) -> Floats:
        own: list[Floats] = [queries[start : start + _CHUNK] @ candidates.T for queries, candidates in self.heads]
        return own[0] if len(own) == 1 else self.fuse(own)


def _recall(
    similarity_of: _Similarity, pairs: NDArray[np.int64], ks: Sequence[int], temperature: float | None
) -> dict[str, float]:
    pairs = pairs[np.argsort(pairs[:, 0], kind="stable")]
    hits = np.zeros(len(ks))
    over = None if temperature is None else _log_normalisers(similarity_of, temperature)
    for start in range(0, similarity_of.size[0], _CHUNK):
        similarity = similarity_of(start)
        if over is not None and temperature is not None:
            similarity = similarity * np.exp(similarity / temperature - over)
        first, last = np.searchsorted(pairs[:, 0], [start, start + len(similarity)])
        own = np.zeros(similarity.shape, dtype=bool)
        own[pairs[first:last, 0] - start, pairs[first:last, 1]] = True
        paired = own.any(1)
        hits += _hits(similarity[paired], own[paired], ks)
    count = len(np.unique(pairs[:, 0]))
    return {f"R@{k}": float(hit / count) for k, hit in zip(ks, hits, strict=True)}


def _log_normalisers(similarity_of: _Similarity, temperature: float) -> NDArray[np.float64]:
    """Log of the sum over the queries of exp(similarity / temperature), per candidate (F,)."""
    queries, candidates = similarity_of.size
    total = np.full(candidates, -np.inf)
    for start in range(0, queries, _CHUNK):
        scaled = similarity_of(start).astype(np.float64) / temperature
        total = np.logaddexp(total, logsumexp(scaled, axis=0))
    return total


def _hits(similarity: Floats, own: NDArray[np.bool_], ks: Sequence[int]) -> NDArray[np.float64]:
    """Expected number of the M queries with a hit among the first k candidates, for each k."""
    best = np.where(own, similarity, -np.inf).max(1, keepdims=True, initial=-np.inf)
    before = (similarity > best).sum(1)
    level = similarity == best
    tied, mine = (level & ~own).sum(1), (level & own).sum(1)
    return np.array([_chance(np.clip(k - before, 0, tied + mine), tied, mine).sum() for k in ks])


def _chance(drawn: NDArray[Any], others: NDArray[Any], own: NDArray[Any]) -> NDArray[np.float64]:
    """Probability that `drawn` of (others + own), without replacement, include one of `own`: 1 - C(others, drawn) /
    C(all, drawn)."""
    total, missed = others + own, np.minimum(drawn, others)
    log = gammaln(others + 1) - gammaln(others - missed + 1) - gammaln(total + 1) + gammaln(total - missed + 1)
    chance: NDArray[np.float64] = np.where(drawn > others, 1.0, 1.0 - np.exp(log))
    return chance
