"""Scores of an exported student for each held-out image."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL.Image import Image
from scipy.stats import rankdata

import distill
from bench.ablations.folders import HOME
from curate.codec.images import decode
from curate.core.contracts import Sample
from curate.core.hashing import digest
from curate.encoders import identity, load
from curate.encoders.student.model import DistilledModel
from distill.evaluation.tasks import probe
from distill.evaluation.tasks.knn import knn_votes, unit

Floats = NDArray[np.float32]
K, TEMPERATURE = 20, 0.07
_BATCH = 128


@dataclass(frozen=True)
class Outputs:
    """The student's outputs for n images."""

    summary: Floats
    """(n, width)."""
    predictions: dict[str, Floats]
    """Predictions of each teacher's summaries (n, D), in the teacher's own space."""
    embedding: Floats | None
    """(n, embed), compared with texts; None without a text tower."""


@torch.no_grad()
def outputs(model: DistilledModel, images: Sequence[bytes | Image]) -> Outputs:
    torch.set_num_threads(1)
    summaries: list[Floats] = []
    embeddings: list[Floats] = []
    predictions: dict[str, list[Floats]] = {}
    for start in range(0, len(images), _BATCH):
        batch = images[start : start + _BATCH]
        output = model([decode(own) if isinstance(own, bytes) else own for own in batch])
        summaries.append(output.summary.float().numpy())
        if output.embedding is not None:
            embeddings.append(output.embedding.float().numpy())
        for name, (summary, _) in output.teachers.items():
            predictions.setdefault(name, []).append(summary.float().numpy())
    joined = {name: np.concatenate(parts) for name, parts in predictions.items()}
    return Outputs(np.concatenate(summaries), joined, np.concatenate(embeddings) if embeddings else None)


def embed_images(model: DistilledModel, images: Sequence[bytes]) -> Floats:
    """Embeddings (n, embed)."""
    found = outputs(model, images).embedding
    assert found is not None
    return found


@torch.no_grad()
def embed_texts(model: DistilledModel, texts: Sequence[str]) -> Floats:
    """Embeddings (n, embed)."""
    chunks = [texts[start : start + 256] for start in range(0, len(texts), 256)]
    return np.concatenate([model.encode_text(chunk).float().numpy() for chunk in chunks])


def teacher_summaries(spec: str, images: Sequence[bytes], name: str) -> Floats:
    """A teacher's summaries (n, D), cached under its identity and `name`, which identifies the images."""
    place = HOME / "teachers" / f"{name}-{len(images)}-{digest(identity(spec))[:12]}.npy"
    if not place.exists():
        torch.set_num_threads(1)
        encoder = load(spec, device="cpu")
        parts = []
        for start in range(0, len(images), _BATCH):
            batch = [encoder.prepare(Sample(data, decode).image()) for data in images[start : start + _BATCH]]
            parts.append(encoder.encode(batch, patches=False).summary)
        place.parent.mkdir(parents=True, exist_ok=True)
        partial = place.with_suffix(".tmp.npy")
        np.save(partial, np.concatenate(parts))
        partial.rename(place)
    return np.load(place)


def knn_right(
    bank_ND: Floats, bank_labels: NDArray[np.int64], test_MD: Floats, labels: NDArray[np.int64], classes: int
) -> Floats:
    """1 if the weighted vote of the 20 nearest neighbours is right, otherwise 0 (M,)."""
    votes = knn_votes(bank_ND, bank_labels, test_MD, classes=classes, k=K, temperature=TEMPERATURE)
    return (votes.argmax(1) == labels).astype(np.float32)


def probe_right(
    bank_ND: Floats, bank_labels: NDArray[np.int64], test_MD: Floats, labels: NDArray[np.int64], classes: int
) -> Floats:
    """1 if ridge regression onto the classes is right, otherwise 0 (M,)."""
    sums = probe.Sums.empty(bank_ND.shape[1], classes)
    sums.add(bank_ND, probe.one_hot(bank_labels, classes))
    return (probe.fit(sums)(test_MD).argmax(1) == labels).astype(np.float32)


def cosines(predictions_MD: Floats, targets_MD: Floats) -> Floats:
    """Cosines (M,) of predictions and the teacher's summaries, both centred on the teacher's mean over these images."""
    mean = targets_MD.mean(0)
    return (unit(predictions_MD - mean) * unit(targets_MD - mean)).sum(1)


def rank_correlations(own_MD: Floats, teachers_MD: Floats, others: int = 1000) -> Floats:
    """Spearman's correlation (M,) of an image's cosines with the first `others` images, student against teacher."""
    ranks = []
    for vectors in (own_MD, teachers_MD):
        centred = unit(vectors - vectors.mean(0))
        cosine = centred @ centred[:others].T
        np.fill_diagonal(cosine[:others], np.inf)  # the image itself gets the highest rank in both
        ranks.append(rankdata(cosine, axis=1) - (cosine.shape[1] + 1) / 2)
    return ((ranks[0] * ranks[1]).sum(1) / np.sqrt((ranks[0] ** 2).sum(1) * (ranks[1] ** 2).sum(1))).astype(np.float32)


def model_of(folder: Path) -> DistilledModel:
    return distill.load(folder).eval()


def only(scores: Floats, counted: NDArray[np.bool_]) -> Floats:
    """Scores (P,) with NaN for images that do not count."""
    return np.where(counted, scores, np.nan).astype(np.float32)


def in_parts(
    scores: Floats, labels: NDArray[np.int64], groups: dict[str, NDArray[np.int64]], name: str
) -> dict[str, Floats]:
    """Scores restricted to the images of each group of classes, by the groups' names."""
    return {f"{name}, {group}": only(scores, np.isin(labels, classes)) for group, classes in groups.items()}
