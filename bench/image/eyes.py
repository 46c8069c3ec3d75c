"""Which included encoder sees photos best, and what it costs: kNN (k = 5, leave one out) of the kinds of ImageNet's
thousand photos and of CIFAR-10's classes, and seconds of one core an image, decoding apart.

python -m bench.image.eyes [--encoders NAME …] [--images N]
"""

from __future__ import annotations

import argparse
import time

import numpy as np
import torch
from numpy.typing import NDArray

from bench.ablations.cifar import cifar
from bench.kit.measure import machine
from bench.select.balance.pools import PHOTO_ENCODER, kinds
from curate import encoders
from curate.codec.images import decode
from curate.core.contracts import Sample
from curate.kernels.neighbours import knn_right

DRAWS = 2000
"""Bootstrap samples of images."""


def measure(name: str, images: list[bytes]) -> tuple[NDArray[np.float32], float, float]:
    """Unit vectors (n, d), and milliseconds of a core for decoding, and for preparing and encoding, an image."""
    encoder = encoders.load(name, device="cpu")
    found, decoding, rest = [], 0.0, 0.0
    for start in range(0, len(images), 16):
        began = time.process_time()
        opened = [Sample(data, decode).image() for data in images[start : start + 16]]
        middle = time.process_time()
        found.append(encoder.encode([encoder.prepare(image) for image in opened], patches=False).summary)
        decoding, rest = decoding + middle - began, rest + time.process_time() - middle
    vectors = np.concatenate(found)
    vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-9)
    return vectors, 1000 * decoding / len(images), 1000 * rest / len(images)


def accuracy(vectors: NDArray[np.float32], labels: NDArray[np.int64]) -> str:
    """With a 95 % interval over images."""
    every = np.arange(len(labels))
    right = knn_right(vectors, labels, every, every)
    drawn = np.random.default_rng(0).choice(right, (DRAWS, len(right))).mean(axis=1)
    low, high = np.percentile(drawn, [2.5, 97.5])
    return f"{right.mean():.1%} ({low:.1%} to {high:.1%})"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--encoders", nargs="*", default=["descriptor", "tiny", "lite0", "lite1"])
    parser.add_argument("--images", type=int, default=1000, help="from CIFAR-10: how many")
    options = parser.parse_args()
    torch.set_num_threads(1)
    photos = kinds(PHOTO_ENCODER)[1]
    photos = photos.take(np.flatnonzero(photos.labels >= 0))
    test = cifar("test")
    test = test.take(np.random.default_rng(0).choice(len(test), options.images, replace=False))
    print(f"{machine()}; {len(photos)} photos of {len(photos.classes) - 1} kinds, {len(test)} images of CIFAR-10")
    print("| encoder | kinds of photos | CIFAR-10 | ms, decoding | ms, encoding |\n|---|---|---|---|---|")
    for name in options.encoders:
        vectors, decoding, encoding = measure(name, photos.images)
        small = measure(name, test.images)[0]
        figures = [accuracy(vectors, photos.labels), accuracy(small, test.labels), f"{decoding:.1f}", f"{encoding:.1f}"]
        print(f"| `{name}` | {' | '.join(figures)} |", flush=True)


if __name__ == "__main__":
    main()
