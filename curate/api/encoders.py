"""Encoders compared on a sample of a folder: which of them separates its labels, its folders or altered copies best."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageEnhance

from curate.acquire.folder import AcquireFolder
from curate.caption.compare.statistics import paired
from curate.codec.images import decode
from curate.core.contracts import Incoming
from curate.core.errors import InputError, Reject
from curate.core.hashing import make_key, rank_below, ranks
from curate.core.reader import as_reader
from curate.duplicates.near.hamming import band_edges, components
from curate.encoders.base import Encoder
from curate.encoders.families import load
from curate.kernels.neighbours import knn_right
from curate.kernels.perceptual import HASH_BYTES, perceptual_hash

LEAST = 20
"""Images that a comparison by labels or folders needs in groups of two or more."""
COPY_DISTANCE = 6
"""Bits of the perceptual hash within which an image counts as a copy of another, as in `duplicates.find`."""
ENOUGH = 512
"""Pixels of a side below which JPEGs are not decoded at a fraction of their size."""
_BATCH = 16


@dataclass(frozen=True)
class ComparedEncoders:
    by: str
    """What was separated: labels, folders, or altered copies from other images."""
    images: int
    accuracy: dict[str, float]
    """Encoder -> share of images whose 5 nearest others vote for its group; or of copies nearest to their original."""
    encoder: str
    """The best one, or the first that may be as good."""
    verdict: str


@dataclass(frozen=True)
class _Seen:
    by: str
    """What its group is: labels or folders."""
    group: str
    hash: bytes
    views: list[NDArray[Any]]
    """The image, prepared for each encoder."""
    altered: list[NDArray[Any]]


def compare_encoders(path: str, specs: Sequence[str], sample: int = 500) -> ComparedEncoders:
    """specs: encoders; the first is chosen if none is better. sample: number of images, approximately; chosen by hash.

    Copies of an image count once. Raises CurateError for unknown encoders, InputError for less than two images.
    """
    encoders = [load(spec) for spec in specs]
    source = AcquireFolder.model_validate({"namespace": "sample", "path": path, "label": -1})
    seen = _apart(list(_look(source, encoders, sample)))
    if len(seen) < 2:
        raise InputError(f"{path}: {len(seen)} different images can be decoded; give a folder with at least two")
    for by in ("labels", "folders"):
        sizes = Counter(one.group for one in seen if one.by == by and one.group)
        grouped = [one for one in seen if one.by == by and sizes[one.group] > 1]
        if len(sizes) > 1 and len(grouped) >= LEAST:
            codes = np.unique([one.group for one in grouped], return_inverse=True)[1]
            vectors = (_vectors(encoder, [one.views[n] for one in grouped]) for n, encoder in enumerate(encoders))
            every = np.arange(len(codes))
            return _judged(by, specs, [knn_right(one, codes, every, every) for one in vectors])
    right = []
    for n, encoder in enumerate(encoders):
        altered = _vectors(encoder, [one.altered[n] for one in seen])
        right.append(_found(altered, _vectors(encoder, [one.views[n] for one in seen])))
    return _judged("altered copies", specs, right)


def _judged(by: str, specs: Sequence[str], right: list[NDArray[np.float64]]) -> ComparedEncoders:
    """right: for each encoder, 1 for images that it puts right, otherwise 0 (n,)."""
    accuracy = {spec: float(one.mean()) for spec, one in zip(specs, right, strict=True)}
    best = max(range(len(specs)), key=lambda n: accuracy[specs[n]])
    others = {n: paired(one, right[best]) for n, one in enumerate(right) if n != best}
    ahead = {n: found.difference for n, found in others.items() if found is not None}
    chosen = min([best, *(n for n, difference in ahead.items() if not difference.excludes(0))])
    equal = any(not difference.excludes(0) for difference in ahead.values())
    verdict = f"undecided by {by}, so {specs[chosen]}" if equal else f"{specs[best]} is best by {by}"
    shown = ", ".join(f"{spec} {share:.1%}" for spec, share in accuracy.items())
    for n, difference in ahead.items():
        points = f"{100 * difference.low:+.1f} to {100 * difference.high:+.1f} points"
        shown += f"; {specs[best]} against {specs[n]}: {points} (95 %)"
    return ComparedEncoders(by, len(right[0]), accuracy, specs[chosen], f"{verdict}: {shown}")


# --- the sample -------------------------------------------------------------------------------------------------------


def _look(source: AcquireFolder, encoders: list[Encoder], sample: int) -> Iterator[_Seen]:
    items = _sampled(source, sample)
    with ThreadPoolExecutor() as pool:
        while chunk := list(islice(items, 4 * _BATCH)):
            yield from (one for one in pool.map(lambda item: _see(item, encoders), chunk) if one is not None)


def _sampled(source: AcquireFolder, sample: int) -> Iterator[Incoming]:
    portions = source.plan()
    share = min(1.0, sample / sum(portion.rows or 0 for portion in portions))
    for portion in portions:
        files = portion.content["files"]
        inside = rank_below(ranks(0, [make_key("sample", file["path"]) for file in files]), share)
        chosen = [file for file, taken in zip(files, inside, strict=True) if taken]
        yield from source.read(replace(portion, content=portion.content | {"files": chosen}))


def _see(item: Incoming, encoders: list[Encoder]) -> _Seen | None:
    """None for an image that cannot be decoded."""
    try:
        if item.reject or item.data is None:
            return None
        data = as_reader(item.data).bytes()
        image = decode(data, enough=lambda width, height: (min(width, ENOUGH), min(height, ENOUGH)))
    except Reject:
        return None
    other = _altered(image, item.source_id)
    views, altered = ([encoder.prepare(view) for encoder in encoders] for view in (image, other))
    print_, flat = perceptual_hash(image)
    if flat:  # only equal files are copies
        print_ = hashlib.sha256(data).digest()
    label = item.meta.get("label")
    by = "folders" if "folder" in item.meta else "labels"
    return _Seen(by, "" if label is None else str(label), print_, views, altered)


def _altered(image: Image.Image, name: str) -> Image.Image:
    """A part of 49 to 81 % of the image, with another brightness and other colours, as a copy on the web may be."""
    random = np.random.default_rng(int(make_key("altered", name), 16))
    sides = [max(1, round(side * random.uniform(0.7, 0.9))) for side in image.size]
    left, top = (int(random.integers(0, side - part + 1)) for side, part in zip(image.size, sides, strict=True))
    part = image.crop((left, top, left + sides[0], top + sides[1]))
    for change in (ImageEnhance.Brightness, ImageEnhance.Color):
        part = change(part).enhance(random.uniform(0.7, 1.3))
    return part


def _apart(seen: list[_Seen]) -> list[_Seen]:
    """The images without copies of earlier ones."""
    hashes = np.frombuffer(b"".join(one.hash for one in seen), np.uint8).reshape(-1, HASH_BYTES)
    edges = [edge for band in range(COPY_DISTANCE + 1) for edge in band_edges(hashes, band, COPY_DISTANCE)]
    _, first = np.unique(components(len(seen), edges), return_index=True)
    return [seen[row] for row in sorted(first)]


# --- what is counted --------------------------------------------------------------------------------------------------


def _vectors(encoder: Encoder, prepared: list[NDArray[Any]]) -> NDArray[np.float32]:
    """Unit vectors (n, D)."""
    starts = range(0, len(prepared), _BATCH)
    vectors = np.concatenate([encoder.encode(prepared[n : n + _BATCH], patches=False).summary for n in starts])
    return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), np.float32(1e-9))


def _found(altered_ND: NDArray[np.float32], vectors_ND: NDArray[np.float32]) -> NDArray[np.float64]:
    """1 for altered copies (N,) whose nearest image is their original, otherwise 0."""
    return ((altered_ND @ vectors_ND.T).argmax(axis=1) == np.arange(len(vectors_ND))).astype(np.float64)
