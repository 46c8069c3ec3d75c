"""How many mismatched pairs a filter by similarity finds, as in Xray-Visual, Table 2: `align.similarity` with `tiny`.

    python -m bench.text.mismatched

Clip-arts with their own texts, of which a share gets a text of another clip-art (own) or an alt text of the web (web).
For each threshold: the share of mismatched and of matched pairs below it, and the share of mismatched pairs among those
that stay, for 10, 30 and 50 % of them mixed in. `tiny` was trained on this corpus, so that it tells more here than on
other images; photos of ImageNet with their class names, of which it knows nothing, are beside it.
"""

from __future__ import annotations

import io
from collections.abc import Sequence

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray
from PIL import Image

from bench.ablations.clip_arts import clip_arts
from bench.kit.features import shared
from bench.kit.measure import machine
from curate import encoders

THRESHOLDS = (0.15, 0.25, 0.35)
SHARES = (0.1, 0.3, 0.5)
AT_ONCE = 64


def image_vectors(images: Sequence[bytes]) -> NDArray[np.float32]:
    encoder = encoders.load("tiny")
    found = []
    for start in range(0, len(images), AT_ONCE):
        opened = [Image.open(io.BytesIO(data)).convert("RGB") for data in images[start : start + AT_ONCE]]
        found.append(encoder.encode([encoder.prepare(image) for image in opened], patches=False).summary)
    return unit(np.concatenate(found))


def text_vectors(texts: Sequence[str]) -> NDArray[np.float32]:
    encoder = encoders.load("tiny")
    return unit(np.concatenate([encoder.encode_text(texts[n : n + AT_ONCE]) for n in range(0, len(texts), AT_ONCE)]))


def unit(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), np.float32(1e-9))


def show(name: str, matched: NDArray[np.float32], mismatched: NDArray[np.float32]) -> None:
    for threshold in THRESHOLDS:
        found, lost = float((mismatched < threshold).mean()), float((matched < threshold).mean())
        left = [share * (1 - found) / (share * (1 - found) + (1 - share) * (1 - lost)) for share in SHARES]
        rest = " | ".join(f"{value:.1%}" for value in left)
        print(f"| {name} | {threshold} | {found:.1%} | {lost:.1%} | {rest} |")


def main() -> None:
    print(machine())
    print(
        "| images, mismatched texts | threshold | mismatched below | matched below | of 10 % stay | of 30 % | of 50 % |"
    )
    print("|---|---|---|---|---|---|---|")
    data, rng = shared() / "data", np.random.default_rng(0)
    web = pq.read_table(data / "laion-alt-text-10k.parquet", columns=["caption"]).column(0).to_pylist()
    arts = clip_arts()
    rows = np.array([row for row, text in enumerate(arts.texts) if text])
    photos = pq.read_table(data / "imagenet-sample-1000.parquet", columns=["image", "name"]).to_pydict()
    pools = {
        "clip-arts": ([arts.images[row] for row in rows], [arts.texts[row] for row in rows]),
        "photos": (photos["image"], [f"a photo of a {name}" for name in photos["name"]]),
    }
    for name, (images, texts) in pools.items():
        seen, read = image_vectors(images), text_vectors(texts)
        matched = (seen * read).sum(axis=1)
        own, number = rng.permutation(len(texts)), np.unique(texts, return_inverse=True)[1]
        other = number[own] != number
        show(f"{name}, own", matched, (seen[other] * read[own[other]]).sum(axis=1))
        taken = [web[place] for place in rng.choice(len(web), len(texts)) if web[place]]
        show(f"{name}, web", matched, (seen[: len(taken)] * text_vectors(taken)).sum(axis=1))


if __name__ == "__main__":
    main()
