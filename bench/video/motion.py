"""Motion of pans over photographs, whose speed is known, in seven encodings: rank correlation with it, and spread.

python -m bench.video.motion [PHOTOS]

PHOTOS: how many to pan over (default 6; two minutes).
"""

from __future__ import annotations

import sys
import time
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from scipy.stats import spearmanr

from bench.kit.features import shared
from bench.kit.measure import line, machine
from bench.video.films import Photos
from curate.video.look import facts
from tests.video.make_shots import encoded

PHOTOS, FIRST = 6, 600
SPEEDS, SLOWEST, FASTEST = 6, 0.02, 0.4
"""Pans over each photograph, all of other speeds, in widths a second."""
FPS, SECONDS, SIZE = 30, 2, (640, 360)
LEAST_RANK, MOST_SPREAD = 0.98, 0.06
WAYS: dict[str, dict[str, Any]] = {
    "H.264": {"codec": "libx264", "preset": "medium"},
    "H.264, gop 12": {"codec": "libx264", "preset": "medium", "g": "12"},
    "H.264, 720p": {"codec": "libx264", "preset": "medium", "size": (1280, 720)},
    "HEVC": {"codec": "libx265", "preset": "veryfast", "x265-params": "log-level=none"},
    "VP9": {"codec": "libvpx-vp9", "deadline": "realtime", "cpu-used": "8", "b": "1M"},
    "AV1": {"codec": "libsvtav1", "preset": "11", "svtav1-params": "lp=1"},
    "MPEG-4": {"codec": "mpeg4", "qscale": "4", "flags": "+qscale"},
}


def pan(picture: Image.Image, speed: float) -> list[NDArray[np.uint8]]:
    """RGB frames of a camera that moves to the right."""
    width, height = SIZE
    large = picture.resize((width * 2, height * 2), Image.Resampling.BICUBIC)
    places = [speed * width * number / FPS for number in range(FPS * SECONDS)]
    return [
        np.asarray(large.resize(SIZE, Image.Resampling.BILINEAR, (left, 100, left + width, 100 + height)))
        for left in places
    ]


def speeds(count: int) -> NDArray[np.float64]:
    """(photographs, speeds)"""
    return np.geomspace(SLOWEST, FASTEST, SPEEDS * count).reshape(SPEEDS, count).T


def measured(photos: Photos, count: int) -> NDArray[np.float64]:
    """(photographs, speeds, ways, 2): the uniform mean, and that of the source's own vectors, NaN without."""
    found = np.full((count, SPEEDS, len(WAYS), 2), np.nan)
    began = time.perf_counter()
    for photo in range(count):
        for place, speed in enumerate(speeds(count)[photo]):
            frames = pan(photos.decoded(photo), speed)
            for way, options in enumerate(WAYS.values()):
                fact = facts(encoded(frames, container="matroska", fps=FPS, **options))
                found[photo, place, way] = fact.motion_mean or 0, fact.source_motion_mean or np.nan
        each = (time.perf_counter() - began) / (photo + 1)
        rate, left = SPEEDS * len(WAYS) / each, each * (count - photo - 1)
        print(f"  {photo + 1} of {count} photographs, {rate:.1f} videos a second, {left:.0f} s left", flush=True)
    return found


def ranked(found: NDArray[np.float64], truth: NDArray[np.float64]) -> float:
    return float(spearmanr(found.ravel(), truth.ravel()).statistic)


def main() -> int:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else PHOTOS
    print(machine())
    if not (shared() / "data").exists():
        print(f"skipped, {shared() / 'data'} does not exist; set CURATE_SHARED to its folder")
        return 0
    found = measured(Photos(FIRST, FIRST + count), count)
    truth = np.broadcast_to(speeds(count)[..., None] * 100, found.shape[:3])
    uniform, source = found[..., 0], found[..., 1]
    has = ~np.isnan(source)
    rank = min(ranked(uniform[:, :, way], truth[:, :, way]) for way in range(len(WAYS)))
    by_source = [ranked(source[:, :, way], truth[:, :, way]) for way in range(len(WAYS)) if has[:, :, way].all()]
    spread = uniform.std(axis=2) / uniform.mean(axis=2)
    line("rank correlation with the true speed, lowest of the encodings", f"{rank:.3f}", f"at least {LEAST_RANK}")
    line("the same, of the source's own vectors where there are any", f"{min(by_source):.3f}")
    line("spread over the encodings: mean", f"{spread.mean():.1%}", f"at most {MOST_SPREAD:.0%}")
    line("spread over the encodings: largest", f"{spread.max():.1%}")
    ratio = source * FPS / truth  # the source's are of a frame
    print(f"  {'measured / true speed':20}{'uniform':>10}{'source':>10}")
    for way, name in enumerate(WAYS):
        own = f"{np.nanmean(ratio[:, :, way]):10.2f}" if has[:, :, way].any() else f"{'none':>10}"
        print(f"  {name:20}{(uniform / truth)[:, :, way].mean():10.2f}{own}")
    print(f"  {'true speed, % a second':28}{'uniform':>10}{'spread':>10}")
    for place in range(SPEEDS):
        print(f"  {truth[:, place].mean():<28.1f}{uniform[:, place].mean():10.2f}{spread[:, place].mean():>10.1%}")
    return int(rank < LEAST_RANK or spread.mean() > MOST_SPREAD)


if __name__ == "__main__":
    sys.exit(main())
