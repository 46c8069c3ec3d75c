"""Cost of `image.embed` compared with the encoder alone, and accuracy of `descriptor`.

python -m bench.image.embed                  rates of encoder, stage and decoding, on synthetic photographs; with a GPU,
                                             of larger encoders
python -m bench.image.embed judge FOLDER     kNN accuracy of `descriptor` on a folder of images, with folders as labels
"""

from __future__ import annotations

import hashlib
import io
import os
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from PIL import Image

from curate import encoders
from curate.codec.images import decode
from curate.core.contracts import Batch, Sample
from curate.core.errors import Reject
from curate.core.vectors import from_binary
from curate.image.embed import Embed
from curate.kernels.nearest.backends import has_cuda

GPU = has_cuda()
THREADS = (os.cpu_count() or 2) if GPU else 2
ON_CPU = {"descriptor": 256, "timm:vit_small_patch16_224?random=0": 64}
ON_GPU = {"timm:vit_base_patch16_224?random=0": 2048, "timm:vit_so400m_patch14_siglip_384?random=0": 512}
DRAWN = 64
"""Different images; more are these again."""
ROWS, ROUNDS = (256 if GPU else 32), 2
_NEIGHBOURS, _TEMPERATURE = 20, 0.07


def photographs(count: int, width: int = 640, height: int = 480) -> list[bytes]:
    """JPEGs with the spectrum of photographs (amplitude ~ 1/f), which determines the speed of decoders and HOG."""
    rng = np.random.default_rng(0)
    frequency = np.hypot(np.fft.fftfreq(height)[:, None], np.fft.rfftfreq(width)[None])
    frequency[0, 0] = np.inf
    out = []
    for _ in range(count):
        phase = np.exp(2j * np.pi * rng.random((3, *frequency.shape)))
        planes = np.fft.irfft2(phase / frequency, s=(height, width))
        pixels = 128 + 50 * (planes / planes.std()).transpose(1, 2, 0)
        buffer = io.BytesIO()
        Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(buffer, "JPEG", quality=90)
        out.append(buffer.getvalue())
    return out


def run() -> Iterator[dict[str, Any]]:
    with ThreadPoolExecutor(THREADS) as pool:
        for name, count in (ON_GPU if GPU else ON_CPU).items():
            stage = Embed(encoder=name, threads=THREADS, batch_size=ROWS)
            stage.setup({})
            drawn = photographs(min(count, DRAWN) if GPU else count)
            yield _measure(stage, [drawn[at % len(drawn)] for at in range(count)], pool)


def _measure(stage: Embed, data: list[bytes], pool: ThreadPoolExecutor) -> dict[str, Any]:
    samples = [Sample(item, decode) for item in data]
    decoding = _seconds(lambda: list(pool.map(lambda sample: sample.image(), samples)))
    encoder = encoders.load(stage.encoder, precision=stage.precision)
    prepared = list(pool.map(lambda sample: encoder.prepare(sample.image()), samples))
    batches = [prepared[at : at + ROWS] for at in range(0, len(prepared), ROWS)]
    encoder.encode(batches[0], patches=False)
    bare = piped = whole = float("inf")
    # Alternate and take the best of each, so that other load on the machine affects all three alike.
    for _ in range(ROUNDS):
        bare = min(bare, _seconds(lambda: [encoder.encode(batch, patches=False) for batch in batches]))
        piped = min(piped, _seconds(lambda: list(embedded(stage, samples, pool))))
        fresh = [Sample(item, decode) for item in data]
        whole = min(whole, _seconds(lambda fresh=fresh: list(embedded(stage, fresh, pool))))
    count = len(data)
    return {
        "encoder": stage.encoder,
        "images": count,
        "hardware": stage.hardware(),
        "encoder_images_per_second": count / bare,
        "stage_images_per_second": count / piped,
        "stage_to_encoder": bare / piped,
        "with_decoding_images_per_second": count / whole,
        "with_decoding_to_encoder": bare / whole,
        "decoding_ms_per_image_and_thread": 1000 * decoding * THREADS / count,
    }


def embedded(stage: Embed, samples: list[Sample], pool: ThreadPoolExecutor) -> Iterator[dict[str, Any]]:
    """Columns of each batch; threads prepare the next batch in the meantime, as in the engine."""
    ahead = [pool.submit(stage.prepare, sample) for sample in samples[:ROWS]]
    for start in range(0, len(samples), ROWS):
        waiting, following = ahead, samples[start + ROWS : start + 2 * ROWS]
        ahead = [pool.submit(stage.prepare, sample) for sample in following]
        prepared = [future.result() for future in waiting]
        keys = pa.array([f"{start + row:032x}" for row in range(len(prepared))])
        yield stage.process(Batch(pa.table({"key": keys}), prepared))


def judge(folder: Path) -> dict[str, Any]:
    """Leave-one-out kNN accuracy (k = 20, votes weighted by exp(cosine / 0.07)), with an image's folder as its label.

    Byte-identical copies count once. Images that `image.embed` rejects are left out.
    """
    unique: dict[str, Path] = {}
    for path in sorted(folder.rglob("*.png")):
        unique.setdefault(hashlib.sha256(path.read_bytes()).hexdigest(), path)
    stage = Embed()
    stage.setup({})
    with ThreadPoolExecutor(THREADS) as pool:
        prepared = list(pool.map(lambda path: _prepared(stage, path), unique.values()))
    kept = [(path, array) for path, array in zip(unique.values(), prepared, strict=True) if array is not None]
    started = time.perf_counter()
    columns = stage.process(Batch(pa.table({"key": [""] * len(kept)}), [array for _, array in kept]))
    seconds = time.perf_counter() - started
    names = [str(path.parent.relative_to(folder)) for path, _ in kept]
    labels = np.unique(names, return_inverse=True)[1]
    return {
        "images": len(kept),
        "categories": int(labels.max()) + 1,
        "dim": columns["embedding"].type.byte_width // 2,
        "encode_ms_per_image": 1000 * seconds / len(kept),
        "largest_category": float(np.bincount(labels).max() / len(labels)),
        "knn_accuracy": knn(from_binary(columns["embedding"]), labels),
        "knn_accuracy_form_only": knn(from_binary(columns["embedding"])[:, :512], labels),
        "knn_accuracy_colour_only": knn(from_binary(columns["embedding"])[:, 512:], labels),
    }


def knn(vectors: np.ndarray, labels: np.ndarray) -> float:
    """Share of rows whose label wins the vote of their nearest neighbours among the other rows."""
    unit = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-9)
    right = 0
    for start in range(0, len(unit), 1024):
        cosine = unit[start : start + 1024] @ unit.T
        rows = np.arange(len(cosine))
        cosine[rows, start + rows] = -np.inf
        nearest = np.argpartition(-cosine, _NEIGHBOURS, axis=1)[:, :_NEIGHBOURS]
        near = np.take_along_axis(cosine, nearest, axis=1)
        votes = np.zeros((len(cosine), labels.max() + 1))
        np.add.at(votes, (rows[:, None], labels[nearest]), np.exp((near - 1) / _TEMPERATURE))
        right += int((votes.argmax(axis=1) == labels[start : start + 1024]).sum())
    return right / len(unit)


def _prepared(stage: Embed, path: Path) -> np.ndarray | None:
    try:
        return stage.prepare(Sample(path.read_bytes(), decode))
    except Reject:
        return None


def _seconds(work: Callable[[], Any]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def main() -> None:
    rows = [judge(Path(sys.argv[2]))] if sys.argv[1:2] == ["judge"] else run()
    for row in rows:
        for name, value in row.items():
            print(f"{name:36} {value:.3f}" if isinstance(value, float) else f"{name:36} {value}")
        print(flush=True)


if __name__ == "__main__":
    main()
