"""Our reader of clips against decoding their mp4 in training, in clips per second of CPU time.

python -m bench.video.reading [CLIPS]

Clips of 10 s, 360 and 720 lines high, 30 frames/s, move over photographs (1,000 of ImageNet if CURATE_SHARED has them,
otherwise synthetic ones), in H.264 as x264 writes it by default, or MPEG-4 where PyAV has no x264. Ours reads the 8
JPEGs (short side 256, quality 92) that `pack.webdataset` keeps, in the order and packs of training. The peer decodes
the mp4 by PyAV in one thread: `seek` goes to the key frame before each of the 8 times and decodes up to it, `forward`
decodes once and takes these frames. Both cut frames of at most 196 patches of 16 pixels with our functions.

One process without workers, files in the page cache; CPU time is that of all threads. Rounds alternate; ratios are
medians over rounds of (ours / peer in that round), with the smallest and largest. A quarter as many clips have 720
lines. Aims: 200 clips/s, 20 times the mp4.
"""

from __future__ import annotations

import io
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import av
import numpy as np
import torch
import webdataset as wds
from PIL import Image

from bench.distill.reader import image_files, rates, show
from bench.kit.measure import line, load
from curate.encoders.student.patches import grid, patchify
from curate.encoders.student.pixels import resize_to_grid
from distill.recipe.data import SourceRecipe
from distill.samples.batches.loader import Loader
from distill.samples.batches.stream import Stream
from distill.samples.batches.track import Packing
from distill.samples.images.reader import ImageReader
from distill.samples.sources.members import MemberReader
from distill.samples.sources.mixture import Mixture, open_source

CLIPS, TARS = 48, 4
FPS, SECONDS, FRAMES, SIDE, ASPECT = 30, 10, 8, 256, 16 / 9
HEIGHTS = {360: 1, 720: 4}
"""Lines of the mp4s: how many times fewer clips to make, because encoding takes most of the time."""
SHORT_WIDTH = round(ASPECT * SIDE)
PATCH, LIMIT, PREFIX = 16, 196, 5


def views(photo: Image.Image, random: np.random.Generator, height: int) -> list[Image.Image]:
    """A window of the photograph that moves, frame by frame."""
    width = round(ASPECT * height)
    scale = 1.3 * max(width / photo.width, height / photo.height)
    whole = photo.resize((round(photo.width * scale), round(photo.height * scale)), Image.Resampling.BICUBIC)
    room = np.array([whole.width - width, whole.height - height])
    start, end = random.random(2) * room, random.random(2) * room
    corners = np.rint(np.linspace(start, end, FPS * SECONDS)).astype(int).tolist()
    return [whole.crop((left, top, left + width, top + height)) for left, top in corners]


def encoded(frames: list[Image.Image]) -> bytes:
    sink, h264 = io.BytesIO(), "libx264" in av.codecs_available
    with av.open(sink, "w", format="mp4") as output:
        stream: Any = output.add_stream("libx264" if h264 else "mpeg4", rate=FPS)
        stream.width, stream.height, stream.pix_fmt = *frames[0].size, "yuv420p"
        if not h264:
            stream.bit_rate = 1_000_000 if frames[0].height < 720 else 2_500_000
        for frame in frames:
            output.mux(stream.encode(av.VideoFrame.from_image(frame)))
        output.mux(stream.encode(None))
    return sink.getvalue()


def kept(frames: list[Image.Image]) -> dict[str, bytes]:
    """Members of the frames."""
    members = {}
    for number in range(FRAMES):
        picture = frames[(2 * number + 1) * len(frames) // (2 * FRAMES)]
        picture = picture.resize((SHORT_WIDTH, SIDE), Image.Resampling.BICUBIC)
        stream = io.BytesIO()
        picture.save(stream, "JPEG", quality=92, subsampling="4:2:0")
        members[f"{number:02d}.jpg"] = stream.getvalue()
    return members


def write(folder: Path, count: int, height: int) -> list[bytes]:
    """Tars of the frames; returns the mp4s."""
    photos, random, mp4s = image_files(), np.random.default_rng(0), []
    for shard in range(TARS):
        with wds.TarWriter(str(folder / f"clips-{shard:03d}.tar"), encoder=False) as writer:
            for number in range(shard, count, TARS):
                with Image.open(io.BytesIO(photos[number % len(photos)])) as image:
                    frames = views(image.convert("RGB"), random, height)
                writer.write({"__key__": f"{number:06d}", **kept(frames)})
                mp4s.append(encoded(frames))
    return mp4s


# --- ours ---


def ours(mixture: Mixture) -> Iterator[np.ndarray]:
    """An epoch as in training: planned, packed, decoded by a thread."""
    read, every = ImageReader(mixture, patch=PATCH, max_tokens=LIMIT), np.arange(len(mixture))
    packing = Packing(capacity=4096, images=16)
    tokens = read.patch_counts.places(every, None, PREFIX)
    stream = Stream(mixture, every, seed=0, sequences=1, tokens=tokens, packing=packing)
    left = len(mixture)
    for share in Loader(stream, read, workers=1, prefetch=0):  # prefetch would start the next epoch
        assert not share.skipped
        left -= len(share.images)
        yield from (clip.patches for clip in share.images)
        if not left:
            return


def bytes_alone(mixture: Mixture) -> Iterator[list[bytes]]:
    members = MemberReader(mixture)
    yield from map(members.frames, range(len(mixture)))


# --- the mp4 ---


def decoded(mp4s: list[bytes], frames_of: Callable[[Any, Any], Iterator[av.VideoFrame]]) -> Iterator[np.ndarray]:
    columns, rows = grid(SHORT_WIDTH, SIDE, patch=PATCH, max_tokens=LIMIT)
    for data in mp4s:
        with av.open(io.BytesIO(data)) as file:
            stream = file.streams.video[0]
            stream.codec_context.thread_count = 1
            images = (frame.to_image() for frame in frames_of(file, stream))
            yield np.concatenate([patchify(resize_to_grid(image, columns, rows, PATCH), PATCH) for image in images])


def times(stream: Any) -> list[int]:
    """In the stream's time base."""
    return [int((2 * number + 1) * SECONDS / (2 * FRAMES) / stream.time_base) for number in range(FRAMES)]


def forward(file: Any, stream: Any) -> Iterator[av.VideoFrame]:
    wanted = iter(times(stream))
    due = next(wanted)
    for frame in file.decode(stream):
        if frame.pts >= due:
            yield frame
            due = next(wanted, 1 << 60)
            if due == 1 << 60:
                return


def seek(file: Any, stream: Any) -> Iterator[av.VideoFrame]:
    for due in times(stream):
        file.seek(due, stream=stream)
        yield next(frame for frame in file.decode(stream) if frame.pts >= due)


def main() -> None:
    torch.set_num_threads(1)
    count = int(sys.argv[1]) if sys.argv[1:] and __name__ == "__main__" else CLIPS
    for height, part in HEIGHTS.items():
        compare(count // part, height)


def compare(count: int, height: int) -> None:
    with tempfile.TemporaryDirectory(prefix="bench-clips-") as name:
        os.environ["CURATE_CACHE"], tars = f"{name}/cache", Path(name, "tars")
        tars.mkdir()
        mp4s = write(tars, count, height)
        dataset = open_source(str(tars))
        mixture = Mixture([dataset], [SourceRecipe(dataset=str(tars), modality="video", max_tokens=LIMIT)])
        assert mixture.frames(np.arange(count)).tolist() == [FRAMES] * count
        shapes = {next(made()).shape for made in (lambda: ours(mixture), lambda: decoded(mp4s, seek))}
        assert len(shapes) == 1, shapes
        size = dataset.index.numbers("size").mean()
        line(
            f"a clip of {height} lines",
            f"{size / 1e3:.0f} kB",
            f"{FRAMES} JPEGs; its mp4 {np.mean([*map(len, mp4s)]) / 1e3:.0f} kB; {load()}",
        )
        readers: dict[str, Callable[[], Iterator[Any]]] = {
            "ours": lambda: ours(mixture),
            "mp4, seek": lambda: decoded(mp4s, seek),
            "mp4, forward": lambda: decoded(mp4s, forward),
            "bytes of our frames alone": lambda: bytes_alone(mixture),
        }
        show(f"{FRAMES} frames of {count} clips, in patches", rates(count, readers), "clips")


if __name__ == "__main__":
    main()
