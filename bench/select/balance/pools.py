"""Pools on which balance can be counted: points of known density, and images whose classes are known.

Each seed draws a pool: which class is rare, which rows are held out, and the points.
"""

from __future__ import annotations

import hashlib
import io
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from PIL import Image

from bench.ablations.cifar import Images, long_tail, parts
from bench.ablations.cifar_student import teacher
from bench.ablations.folders import HOME
from bench.ablations.judge import teacher_summaries
from bench.kit.features import bench_points, shared
from curate.api.encoders import COPY_DISTANCE
from curate.codec.images import decode
from curate.core.contracts import Sample
from curate.duplicates.near.hamming import band_edges, components
from curate.kernels.perceptual import HASH_BYTES, perceptual_hash
from curate.kernels.wordnet.hypernyms import taxonomy
from tests.conftest import ROOT

ROWS = 4000
HELD_OUT = 0.2
"""Share of a labelled pool's rows that are asked for their class and never sampled."""
CLASSES, POWER = 50, 1.0
CLIP_ARTS = ROOT / ".cache/openclipart/images"

Floats = NDArray[np.float32]
Indices = NDArray[np.int64]


@dataclass(frozen=True)
class Pool:
    vectors: Floats
    """(n, d): of unit length if `unit`."""
    labels: Indices | None = None
    """(n,); -1 for a row that belongs to no class."""
    asked: Floats | None = None
    """(m, d): rows that are held out."""
    asked_labels: Indices | None = None
    unit: bool = True
    trees: dict[Any, Any] = field(default_factory=dict)
    """What methods have fitted on it."""


def held_out(vectors: Floats, labels: Indices, rng: np.random.Generator) -> Pool:
    """The rows apart from a share that is held out; rows without a class never are."""
    apart = (rng.random(len(labels)) < HELD_OUT) & (labels >= 0)
    return Pool(vectors[~apart], labels[~apart], vectors[apart], labels[apart])


def unit(vectors: Floats) -> Floats:
    return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), np.float32(1e-9))


# --- points -----------------------------------------------------------------------------------------------------------


def disc(seed: int) -> Pool | None:
    points = bench_points("disc")
    if points is None:
        return None
    rng = np.random.default_rng(seed)
    return Pool(points[rng.choice(len(points), 2 * ROWS, replace=False)], unit=False)


def spheres(
    dim: int, power: float = POWER, copies: float = 0, widths: float = 1, noise: float = 0
) -> Callable[..., Pool]:
    """Classes around directions of a sphere: sizes fall as rank ** -power, widths grow by a factor of `widths`, a share
    of the rows are near copies, and a share are directions at random."""

    def draw(seed: int) -> Pool:
        rng = np.random.default_rng(seed)
        share = np.arange(1, CLASSES + 1) ** -power
        labels = np.sort(rng.choice(CLASSES, ROWS, p=share / share.sum()))
        centres = unit(rng.standard_normal((CLASSES, dim)).astype(np.float32))
        width = rng.permutation(np.geomspace(0.8 / widths, 0.8, CLASSES)) if widths > 1 else np.full(CLASSES, 0.8)
        moved = rng.standard_normal((ROWS, dim)).astype(np.float32) * (width[labels, None] / np.sqrt(dim)).astype(
            np.float32
        )
        vectors = unit(centres[labels] + moved)
        again = rng.choice(ROWS, int(copies * ROWS), replace=False)
        others = rng.choice(ROWS, len(again))
        labels[again] = labels[others]
        vectors[again] = unit(vectors[others] + rng.standard_normal((len(again), dim)).astype(np.float32) * 0.02)
        stray = rng.choice(ROWS, int(noise * ROWS), replace=False)
        vectors[stray], labels[stray] = unit(rng.standard_normal((len(stray), dim)).astype(np.float32)), -1
        return held_out(vectors, labels, rng)

    return draw


# --- images -----------------------------------------------------------------------------------------------------------


def features(images: list[bytes], encoder: str, name: str) -> Floats:
    return unit(teacher_summaries(teacher() if encoder == "taught" else encoder, images, name).astype(np.float32))


PHOTO_ENCODER = "lite1"
"""Its pools lose near copies first, as the product's do; the older ones are kept as they were."""


def distinct(images: list[bytes], encoder: str, name: str) -> Indices:
    """Rows of the images that `duplicates.drop` keeps, in another order of preference; all rows for other encoders."""
    if encoder != PHOTO_ENCODER:
        return np.arange(len(images))
    place = home() / "distinct" / f"{name}-{len(images)}.npy"
    if not place.exists():
        found = [perceptual_hash(Sample(data, decode).image()) for data in images]
        prints = [
            hashlib.sha256(data).digest() if flat else one for data, (one, flat) in zip(images, found, strict=True)
        ]
        hashes = np.frombuffer(b"".join(prints), np.uint8).reshape(-1, HASH_BYTES)
        edges = [edge for band in range(COPY_DISTANCE + 1) for edge in band_edges(hashes, band, COPY_DISTANCE)]
        place.parent.mkdir(parents=True, exist_ok=True)
        np.save(place, np.sort(np.unique(components(len(images), edges), return_index=True)[1]))
    return np.load(place)


@lru_cache(maxsize=4)
def cifar_vectors(encoder: str) -> tuple[Floats, Images]:
    _, others = parts()
    rows = distinct(others.images, encoder, "cifar-others")
    return features(others.images, encoder, "cifar-others")[rows], others.take(rows)


def cifar(encoder: str, tail: bool) -> Callable[[int], Pool]:
    def draw(seed: int) -> Pool:
        vectors, others = cifar_vectors(encoder)
        rng = np.random.default_rng(seed)
        place = {name: row for row, name in enumerate(others.names)}
        if tail:
            kept = [name for name in long_tail(others, seed).names if name in place]
            rows = rng.permutation(np.array([place[name] for name in kept]))[:ROWS]
        else:
            rows = rng.choice(len(others), ROWS, replace=False)
        return held_out(vectors[rows], others.labels[rows], rng)

    return draw


@lru_cache(maxsize=3)
def _clip_arts(encoder: str) -> tuple[Floats, Indices]:
    unique = {path.read_bytes(): path for path in sorted(CLIP_ARTS.rglob("*.png"))}
    kept = {data: path for data, path in unique.items() if _readable(data)}
    names = np.array([path.relative_to(CLIP_ARTS).parts[0] for path in kept.values()])
    rows = distinct(list(kept), encoder, "clip-arts")
    return features(list(kept), encoder, "clip-arts")[rows], np.unique(names, return_inverse=True)[1][rows]


def _readable(data: bytes) -> bool:
    try:
        return np.prod(Image.open(io.BytesIO(data)).size) < 50_000_000
    except (OSError, Image.DecompressionBombError):
        return False


def clip_arts(encoder: str) -> Callable[[int], Pool | None]:
    def draw(seed: int) -> Pool | None:
        if not CLIP_ARTS.is_dir():
            return None
        vectors, labels = _clip_arts(encoder)
        rng = np.random.default_rng(seed)
        rows = rng.choice(len(labels), min(ROWS, len(labels)), replace=False)
        return held_out(vectors[rows], labels[rows], rng)

    return draw


PHOTOS, CROPS = 200, 64


@lru_cache(maxsize=3)
def _crops(encoder: str) -> tuple[Floats, Indices]:
    """Crops of photos (PHOTOS * CROPS, d), each photo a class."""
    photos = _photos().column("image").to_pylist()
    chosen = np.random.default_rng(0).choice(len(photos), PHOTOS, replace=False)
    found: list[bytes] = []
    for number in chosen:
        value = photos[number]
        found += crops(value["bytes"] if isinstance(value, dict) else value, int(number))
    rows = distinct(found, encoder, "imagenet-crops")
    return features(found, encoder, "imagenet-crops")[rows], np.repeat(np.arange(PHOTOS), CROPS)[rows]


def _photos() -> pa.Table:
    return pq.read_table(shared() / "data" / "imagenet-sample-1000.parquet", columns=["image", "wnid"])


def crops(data: bytes, seed: int) -> list[bytes]:
    """Views of a photo: a third to all of its area, perhaps mirrored, lighter or darker, in other colours."""
    image = Image.open(io.BytesIO(data)).convert("RGB")
    rng = np.random.default_rng(seed)
    views = []
    for _ in range(CROPS):
        side = np.sqrt(rng.uniform(0.3, 1.0))
        width, height = (max(8, int(side * length)) for length in image.size)
        left, top = rng.integers(0, image.width - width + 1), rng.integers(0, image.height - height + 1)
        view = image.crop((left, top, left + width, top + height)).resize((128, 128))
        if rng.random() < 0.5:
            view = view.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        pixels = np.asarray(view, np.float32) * rng.uniform(0.7, 1.3, 3).astype(np.float32)
        stream = io.BytesIO()
        Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(stream, "JPEG", quality=90)
        views.append(stream.getvalue())
    return views


def photos(encoder: str) -> Callable[[int], Pool]:
    def draw(seed: int) -> Pool:
        vectors, labels = _crops(encoder)
        rng = np.random.default_rng(seed)
        sizes = np.rint(CROPS * np.arange(1, PHOTOS + 1) ** -0.5).astype(int)[rng.permutation(PHOTOS)]
        rows = np.concatenate(
            [rng.permutation(np.flatnonzero(labels == label))[:size] for label, size in enumerate(sizes)]
        )
        return held_out(vectors[rows], labels[rows], rng)

    return draw


KIND = range(10, 61)
"""Photos of a kind: the deepest hypernym of a photo's class that has as many."""


@lru_cache(maxsize=1)
def kinds(encoder: str) -> tuple[Floats, Images]:
    """One photo of each of ImageNet's classes, as they are; the label of those of no kind is -1, the empty class."""
    table, known = _photos(), taxonomy()
    names = [known.by_offset[wnid[1:]] for wnid in table.column("wnid").to_pylist()]
    of = [known.kinds(name) for name in names]
    counts = Counter(kind for some in of for kind in some)
    deep = [[kind for kind in some if counts[kind] in KIND] for some in of]
    chosen = [max(some, key=lambda kind: len(known.path(kind)), default="") for some in deep]
    sizes = Counter(chosen)
    classes = sorted(kind for kind in sizes if kind and sizes[kind] in KIND)
    labels = np.array([classes.index(kind) if kind in classes else -1 for kind in chosen])
    images = table.column("image").to_pylist()
    return features(images, encoder, "imagenet-photos"), Images(images, names, labels, [*classes, ""])


def kinds_pool(encoder: str) -> Callable[[int], Pool]:
    def draw(seed: int) -> Pool:
        vectors, photos = kinds(encoder)
        return held_out(vectors, photos.labels, np.random.default_rng(seed))

    return draw


POOLS: dict[str, Callable[[int], Pool | None]] = {
    "disc": disc,
    "sphere 64": spheres(64),
    "sphere 256": spheres(256),
    "sphere 64, copies": spheres(64, copies=0.3),
    "sphere 64, equal, spread": spheres(64, power=0, widths=6),
    "sphere 64, 5 % noise": spheres(64, noise=0.05),
    **{
        f"CIFAR-10{', 100 : 1' if tail else ''}, {encoder}": cifar(encoder, tail)
        for encoder in ("taught", "descriptor", "tiny")
        for tail in (False, True)
    },
    **{f"OpenClipart, {encoder}": clip_arts(encoder) for encoder in ("tiny", "descriptor")},
    **{f"ImageNet crops, {encoder}": photos(encoder) for encoder in ("tiny", "descriptor")},
    f"CIFAR-10, {PHOTO_ENCODER}": cifar(PHOTO_ENCODER, False),
    f"CIFAR-10, 100 : 1, {PHOTO_ENCODER}": cifar(PHOTO_ENCODER, True),
    f"ImageNet crops, {PHOTO_ENCODER}": photos(PHOTO_ENCODER),
    f"ImageNet kinds, {PHOTO_ENCODER}": kinds_pool(PHOTO_ENCODER),
    f"OpenClipart, {PHOTO_ENCODER}": clip_arts(PHOTO_ENCODER),
}


def home() -> Path:
    return HOME / "balance"
