"""`curate run` with `image.embed` on JPEGs against the bare encoder loop on the same images, decoded in advance."""

from __future__ import annotations

import shutil
import tempfile
import time
from pathlib import Path

from bench.image.embed import ROWS, photographs
from bench.kit.measure import line
from curate import encoders
from curate.codec.images import decode
from curate.core.recipe.pipeline import Pipeline
from curate.core.recipe.registry import resolve
from curate.engine.run import run

COUNT, THREADS = 256, 2
ENCODER = "timm:vit_small_patch16_224?random=0"


def pipeline(images: Path, embed: bool) -> Pipeline:
    made = Pipeline()
    made.add("pool", resolve("acquire.folder")(namespace="bench", path=str(images)))
    if embed:
        made.add("embed", resolve("image.embed")(encoder=ENCODER, threads=THREADS, batch_size=ROWS), "pool")
    return made


def bare(data: list[bytes]) -> tuple[float, float]:
    """Seconds of the encoder alone, and of decoding and preparing in one thread."""
    encoder = encoders.load(ENCODER)
    began = time.perf_counter()
    prepared = [encoder.prepare(decode(item)) for item in data]
    decoding = time.perf_counter() - began
    encoder.encode(prepared[:ROWS], patches=False)
    began = time.perf_counter()
    for start in range(0, len(prepared), ROWS):
        encoder.encode(prepared[start : start + ROWS], patches=False)
    return time.perf_counter() - began, decoding


def main() -> None:
    folder = Path(tempfile.mkdtemp(prefix="bench-pipeline-"))
    try:
        images = folder / "images"
        images.mkdir()
        data = photographs(COUNT)
        for number, item in enumerate(data):
            (images / f"{number:04d}.jpg").write_bytes(item)
        encoding, decoding = bare(data)
        run(pipeline(images, embed=False), str(folder / "workspace"))
        began = time.perf_counter()
        run(pipeline(images, embed=True), str(folder / "workspace"))
        whole = time.perf_counter() - began
    finally:
        shutil.rmtree(folder)
    line("bare encoder loop, images decoded in advance", f"{COUNT / encoding:.1f} img/s", ENCODER)
    line("curate run: decode, embed, publish; start included", f"{COUNT / whole:.1f} img/s", f"{THREADS} threads")
    line("pipeline against bare encoder", f"{encoding / whole:.2f}", "aim 0.9")
    line("decoding and preparing, one thread", f"{decoding / COUNT * 1e3:.1f} ms", "per 640 x 480 JPEG, ahead of it")


if __name__ == "__main__":
    main()
