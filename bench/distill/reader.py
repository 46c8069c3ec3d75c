"""Our reader against webdataset and litData on the same images, in images per second of CPU time.

python -m bench.distill.reader [IMAGES]

Photographs at native aspect ratio, at most 256 patches of 16 pixels: 1,000 of ImageNet if CURATE_SHARED has them,
otherwise synthetic ones. One process without workers, tars and chunks in the page cache; CPU time is that of all its
threads, so threads that read ahead gain nothing. Rounds alternate; ratios are medians over rounds of (ours / peer in
that round), with the smallest and largest. Peers decode as in their documentation and resize with Pillow, torchvision
or our function.

Reading bytes without decoding uses the same photographs, and 10,000 small PNGs (CIFAR-10). "read alone" is the limit:
one `pread` per image from open files, in a known order. These come first: after litData has decoded, reading takes
twice as long in the same process.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import torch
from PIL import Image

from bench.image.embed import photographs
from bench.kit import peers
from bench.kit.features import shared
from bench.kit.measure import line
from curate.encoders.student.patches import grid, patchify
from curate.encoders.student.pixels import resize_to_grid
from distill.samples.batches.loader import Loader
from distill.samples.batches.stream import Stream
from distill.samples.batches.track import Packing
from distill.samples.images.reader import ImageReader
from distill.samples.sources.dataset import Dataset
from distill.samples.sources.members import MemberReader
from distill.samples.sources.mixture import open_source

ROUNDS = 5
TARS = 10
PATCH, LIMIT = 16, 256
Resize = Callable[[Any, int, int], np.ndarray]
"""(a peer's image, columns, rows) -> pixels (H, W, 3)."""


def image_files() -> list[bytes]:
    path = shared() / "data" / "imagenet-sample-1000.parquet"
    if path.exists():
        return pq.read_table(path, columns=["image"]).column(0).to_pylist()
    print(f"{path} is missing: using synthetic photographs; set CURATE_SHARED to the folder that contains data/")
    return photographs(300)


def small_image_files() -> list[bytes]:
    path = shared() / "data" / "cifar10-test.parquet"
    if path.exists():
        return pq.read_table(path, columns=["image"]).column(0).to_pylist()
    rng = np.random.default_rng(0)
    return [rng.bytes(int(size)) for size in rng.normal(2300, 300, 10_000).clip(1000)]


def write(folder: Path, data: list[bytes]) -> tuple[Path, Path, Path]:
    """The images as tars, and as litData's chunks of images and of bytes."""
    import webdataset as wds

    litdata = peers.litdata()
    tars, jpegs, raw = (folder / name for name in ("tars", "jpegs", "bytes"))
    tars.mkdir(parents=True)
    for number in range(TARS):
        with wds.TarWriter(str(tars / f"tars-{number:03d}.tar"), encoder=False) as writer:
            for place in range(number, len(data), TARS):
                writer.write(
                    {"__key__": f"{place:06d}", "png" if data[place][:4] == b"\x89PNG" else "jpg": data[place]}
                )
    for path, wrap in ((jpegs, lambda item: litdata.types.Jpeg(bytes=item)), (raw, bytes)):
        cache = litdata.streaming.cache.Cache(str(path), chunk_bytes="64MB")
        for place, item in enumerate(data):
            cache[place] = {"jpg": wrap(item), "index": place}
        cache.done()
        cache.merge()
    return tars, jpegs, raw


# --- ours ---


def ours_decoded(dataset: Dataset) -> Iterator[np.ndarray]:
    """An epoch as in training: planned, packed, decoded by a thread."""
    read = ImageReader(dataset, patch=PATCH, max_tokens=LIMIT)
    tokens, packing = read.tokens(np.arange(len(dataset))) + 5, Packing(capacity=4096, images=16)
    stream = Stream(dataset, np.arange(len(dataset)), seed=0, sequences=1, tokens=tokens, packing=packing)
    left = len(dataset)
    for share in Loader(stream, read, workers=1, prefetch=0):  # prefetch would start the next epoch
        assert not share.skipped
        left -= len(share.images)
        yield from (image.patches for image in share.images)
        if not left:
            return


def ours_raw(dataset: Dataset) -> Iterator[bytes]:
    members = MemberReader(dataset)
    packing = Packing(capacity=64, images=64)
    stream = Stream(dataset, np.arange(len(dataset)), seed=0, sequences=4, packing=packing)
    for step in takewhile(lambda step: step.epoch == 0, stream.steps()):
        for rows in step.sequences:
            yield from map(members.read, rows.tolist())


def read_alone(dataset: Dataset) -> Iterator[bytes]:
    """The system calls alone."""
    shard, offset, size = (dataset.index.numbers(name).tolist() for name in ("shard", "offset", "size"))
    tars = [os.open(dataset.storage.path(name), os.O_RDONLY) for name in dataset.tars]
    order = np.random.default_rng(0).permutation(len(dataset)).tolist()
    try:
        yield from (os.pread(tars[shard[row]], size[row], offset[row]) for row in order)
    finally:
        for tar in tars:
            os.close(tar)


# --- peers ---


def webdataset_raw(tars: Path) -> Iterator[Any]:
    import webdataset as wds

    names = sorted(str(path) for path in tars.glob("*.tar"))
    return (sample["jpg"] for sample in wds.WebDataset(names, shardshuffle=False, empty_check=False))


def webdataset_decoded(tars: Path, resize: Resize) -> Iterator[np.ndarray]:
    import webdataset as wds

    names = sorted(str(path) for path in tars.glob("*.tar"))
    for sample in wds.WebDataset(names, shardshuffle=False, empty_check=False).decode("pilrgb"):
        image: Image.Image = sample["jpg"]
        yield patched(image, image.width, image.height, resize)


def litdata_raw(chunks: Path) -> Iterator[Any]:
    return (sample["jpg"] for sample in peers.litdata().StreamingDataset(str(chunks), shuffle=False))


def litdata_decoded(chunks: Path, resize: Resize) -> Iterator[np.ndarray]:
    for image in litdata_raw(chunks):
        yield patched(image, image.shape[2], image.shape[1], resize)


def patched(image: Any, width: int, height: int, resize: Resize) -> np.ndarray:
    columns, rows = grid(width, height, patch=PATCH, max_tokens=LIMIT)
    return patchify(resize(image, columns, rows), PATCH)


def by_pillow(image: Image.Image, columns: int, rows: int) -> np.ndarray:
    return np.asarray(image.resize((columns * PATCH, rows * PATCH), Image.Resampling.BICUBIC))


def by_torchvision(image: torch.Tensor, columns: int, rows: int) -> np.ndarray:
    from torchvision.transforms.v2 import InterpolationMode
    from torchvision.transforms.v2.functional import resize

    size = [rows * PATCH, columns * PATCH]
    image = image if len(image) == 3 else image.expand(3, -1, -1)
    return resize(image, size, InterpolationMode.BICUBIC, antialias=True).permute(1, 2, 0).contiguous().numpy()


def by_ours(image: Image.Image, columns: int, rows: int) -> np.ndarray:
    return resize_to_grid(image, columns, rows, PATCH)


# --- measuring ---


def rates(count: int, readers: dict[str, Callable[[], Iterator[Any]]]) -> dict[str, list[float]]:
    """Images per CPU second, by reader and round; the first round is a warm-up and not counted."""
    found: dict[str, list[float]] = {name: [] for name in readers}
    for number in range(ROUNDS + 1):
        for name, reader in readers.items():
            began = time.process_time()
            count_read = sum(1 for _ in reader())
            taken = time.process_time() - began
            assert count_read == count, f"{name}: {count_read} of {count}"
            if number:
                found[name].append(count / taken)
    return found


def show(title: str, found: dict[str, list[float]], things: str = "images") -> None:
    print(title)
    for name, values in found.items():
        line(f"  {name}", f"{statistics.median(values):,.0f} {things}/s", f"{min(values):,.0f} to {max(values):,.0f}")
    for name in list(found)[1:]:
        ratios = [ours / peer for ours, peer in zip(found["ours"], found[name], strict=True)]
        line(f"  ours / {name}", f"{statistics.median(ratios):.2f}x", f"{min(ratios):.2f} to {max(ratios):.2f}")


def compare_bytes(title: str, folder: Path, data: list[bytes]) -> tuple[Dataset, Path, Path]:
    """Compare the readers of bytes; returns our dataset, the tars and litData's chunks of images."""
    tars, jpegs, raw = write(folder, data)
    began = time.process_time()
    dataset = open_source(str(tars))
    taken = time.process_time() - began
    line(f"indexing {title}, once", f"{len(data) / taken:,.0f} images/s", f"{len(data)} in {TARS} tars")
    readers: dict[str, Callable[[], Iterator[Any]]] = {
        "ours": lambda: ours_raw(dataset),
        "webdataset": lambda: webdataset_raw(tars),
        "litData": lambda: litdata_raw(raw),
        "read alone": lambda: read_alone(dataset),
    }
    mean = sum(map(len, data)) / len(data)
    show(f"bytes of {title}, {mean / 1000:.1f} kB each", rates(len(data), readers))
    return dataset, tars, jpegs


def main() -> None:
    warnings.simplefilter("ignore")  # litData uses an interface that torchvision has deprecated
    torch.set_num_threads(1)
    data = image_files()[: int(sys.argv[1]) if sys.argv[1:] and __name__ == "__main__" else None]
    with tempfile.TemporaryDirectory(prefix="bench-reader-") as name:
        os.environ["CURATE_CACHE"] = f"{name}/cache"
        compare_bytes("small images", Path(name, "small"), small_image_files())
        dataset, tars, jpegs = compare_bytes("photographs", Path(name, "photographs"), data)
        decoded: dict[str, Callable[[], Iterator[Any]]] = {
            "ours": lambda: ours_decoded(dataset),
            "webdataset, Pillow's resize": lambda: webdataset_decoded(tars, by_pillow),
            "webdataset, our resize": lambda: webdataset_decoded(tars, by_ours),
            "litData, torchvision's resize": lambda: litdata_decoded(jpegs, by_torchvision),
        }
        show(f"decoded, resized and cut into patches ({len(data)} images)", rates(len(data), decoded))


if __name__ == "__main__":
    main()
