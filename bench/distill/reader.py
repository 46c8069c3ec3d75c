"""Our reader against webdataset and litData: the same pictures, images per second of CPU time.

python -m bench.distill.reader [PICTURES]

Photographs at native aspect, at most 256 patches of 16 pixels: 1,000 of ImageNet's where CURATE_SHARED has them, else
made-up ones. One process without workers, tars and chunks in the page cache; CPU time is that of all its threads, so
threads that read ahead gain nothing. Rounds alternate; ratios are medians over rounds of (ours / peer in that round),
with the smallest and largest. Peers decode as their documentation says and resize either as usual (Pillow, torchvision)
or by our function.

Bytes alone are of the same photographs, and of 10,000 small PNGs (CIFAR-10). "read alone" is the limit: one `pread` per
picture, of files that are open, in an order that is known. They come first: after litData has decoded, it takes twice
as long to read in the same process.
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
"""(a peer's picture, columns, rows) -> pixels (H, W, 3)."""


def pictures() -> list[bytes]:
    path = shared() / "data" / "imagenet-sample-1000.parquet"
    if path.exists():
        return pq.read_table(path, columns=["image"]).column(0).to_pylist()
    print(f"{path} is not there: made-up photographs instead; name its folder in CURATE_SHARED")
    return photographs(300)


def small_pictures() -> list[bytes]:
    path = shared() / "data" / "cifar10-test.parquet"
    if path.exists():
        return pq.read_table(path, columns=["image"]).column(0).to_pylist()
    rng = np.random.default_rng(0)
    return [rng.bytes(int(size)) for size in rng.normal(2300, 300, 10_000).clip(1000)]


def write(folder: Path, data: list[bytes]) -> tuple[Path, Path, Path]:
    """The pictures as tars, and as litData's chunks of pictures and of bytes."""
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
    """An epoch as training reads it: planned, packed, decoded by a thread."""
    read = ImageReader(dataset, patch=PATCH, max_tokens=LIMIT)
    tokens, packing = read.tokens(np.arange(len(dataset))) + 5, Packing(capacity=4096, images=16)
    stream = Stream(dataset, np.arange(len(dataset)), seed=0, sequences=1, tokens=tokens, packing=packing)
    left = len(dataset)
    for share in Loader(stream, read, workers=1, prefetch=0):  # else it would have begun the next epoch when we stop
        assert not share.skipped
        left -= len(share.images)
        yield from (picture.patches for picture in share.images)
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
    """What the system takes, whoever asks it."""
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
        yield patched(sample["jpg"], *sample["jpg"].size, resize)


def litdata_raw(chunks: Path) -> Iterator[Any]:
    return (sample["jpg"] for sample in peers.litdata().StreamingDataset(str(chunks), shuffle=False))


def litdata_decoded(chunks: Path, resize: Resize) -> Iterator[np.ndarray]:
    for picture in litdata_raw(chunks):
        yield patched(picture, picture.shape[2], picture.shape[1], resize)


def patched(picture: Any, width: int, height: int, resize: Resize) -> np.ndarray:
    columns, rows = grid(width, height, patch=PATCH, max_tokens=LIMIT)
    return patchify(resize(picture, columns, rows), PATCH)


def by_pillow(picture: Image.Image, columns: int, rows: int) -> np.ndarray:
    return np.asarray(picture.resize((columns * PATCH, rows * PATCH), Image.Resampling.BICUBIC))


def by_torchvision(picture: torch.Tensor, columns: int, rows: int) -> np.ndarray:
    from torchvision.transforms.v2 import InterpolationMode
    from torchvision.transforms.v2.functional import resize

    size = [rows * PATCH, columns * PATCH]
    picture = picture if len(picture) == 3 else picture.expand(3, -1, -1)
    return resize(picture, size, InterpolationMode.BICUBIC, antialias=True).permute(1, 2, 0).contiguous().numpy()


def by_ours(picture: Image.Image, columns: int, rows: int) -> np.ndarray:
    return resize_to_grid(picture, columns, rows, PATCH)


# --- measuring ---


def rates(count: int, readers: dict[str, Callable[[], Iterator[Any]]]) -> dict[str, list[float]]:
    """Images per CPU second, by reader and round; the first round warms up and does not count."""
    found: dict[str, list[float]] = {name: [] for name in readers}
    for number in range(ROUNDS + 1):
        for name, reader in readers.items():
            began = time.process_time()
            seen = sum(1 for _ in reader())
            taken = time.process_time() - began
            assert seen == count, f"{name}: {seen} of {count}"
            if number:
                found[name].append(count / taken)
    return found


def show(title: str, found: dict[str, list[float]]) -> None:
    print(title)
    for name, values in found.items():
        line(f"  {name}", f"{statistics.median(values):,.0f} images/s", f"{min(values):,.0f} to {max(values):,.0f}")
    for name in list(found)[1:]:
        ratios = [ours / peer for ours, peer in zip(found["ours"], found[name], strict=True)]
        line(f"  ours / {name}", f"{statistics.median(ratios):.2f}x", f"{min(ratios):.2f} to {max(ratios):.2f}")


def compare_bytes(title: str, folder: Path, data: list[bytes]) -> tuple[Dataset, Path, Path]:
    """Returns what the pictures were written as: our dataset, tars and litData's chunks of pictures."""
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
    warnings.simplefilter("ignore")  # litData decodes by an interface that torchvision has deprecated
    torch.set_num_threads(1)
    data = pictures()[: int(sys.argv[1]) if sys.argv[1:] and __name__ == "__main__" else None]
    with tempfile.TemporaryDirectory(prefix="bench-reader-") as name:
        os.environ["CURATE_CACHE"] = f"{name}/cache"
        compare_bytes("small pictures", Path(name, "small"), small_pictures())
        dataset, tars, jpegs = compare_bytes("photographs", Path(name, "photographs"), data)
        decoded: dict[str, Callable[[], Iterator[Any]]] = {
            "ours": lambda: ours_decoded(dataset),
            "webdataset, Pillow's resize": lambda: webdataset_decoded(tars, by_pillow),
            "webdataset, our resize": lambda: webdataset_decoded(tars, by_ours),
            "litData, torchvision's resize": lambda: litdata_decoded(jpegs, by_torchvision),
        }
        show(f"decoded, resized and cut into patches ({len(data)} pictures)", rates(len(data), decoded))


if __name__ == "__main__":
    main()
