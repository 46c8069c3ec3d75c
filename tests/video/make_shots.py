"""Moving images whose truth is known: shots of textures that a camera pans over, zooms into or shakes before."""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from typing import Any, Literal

import av
import numpy as np
from numpy.typing import NDArray
from PIL import Image

from tests.codec.video.make_videos import ordinary_priority

os.environ.setdefault("SVT_LOG", "1")  # errors only: SVT-AV1 prints its settings

Frame = NDArray[np.uint8]
Kind = Literal["static", "pan", "zoom", "shake"]


@cache
def texture(seed: int, width: int, height: int) -> Image.Image:
    """A picture of large and small blots, in its own colours."""
    random = np.random.default_rng(seed)
    total = np.zeros((height, width, 3))
    for cells in (3, 7, 16, 40, 90):
        rough = random.integers(0, 256, (cells * height // width + 2, cells, 3), dtype=np.uint8)
        total += np.asarray(Image.fromarray(rough).resize((width, height), Image.Resampling.BICUBIC)) / cells**0.5
    total -= total.min(axis=(0, 1))
    low, high = random.uniform(0, 60, 3), random.uniform(140, 255, 3)
    return Image.fromarray((low + total / total.max(axis=(0, 1)) * (high - low)).astype(np.uint8))


def shot(
    seed: int,
    kind: Kind = "static",
    seconds: float = 2.0,
    speed: float = 0.05,
    size: tuple[int, int] = (320, 180),
    fps: float = 30,
) -> list[Frame]:
    """RGB frames. speed: widths a second of a pan, growth a second of a zoom, strength of a shake."""
    width, height = size
    picture = texture(seed, width * 2, height * 2)
    frames = []
    for number in range(round(seconds * fps)):
        time, left, top, wide = number / fps, width / 2, height / 2, float(width)
        if kind == "pan":
            left = speed * width * time
        elif kind == "zoom":
            wide = 1.5 * width / (1 + speed * time)
            left, top = width - wide / 2, height - wide * height / width / 2
        elif kind == "shake":
            left += speed * width * 0.3 * np.sin(time * 23)
            top += speed * height * 0.3 * np.sin(time * 17)
        box = (left, top, left + wide, top + wide * height / width)
        frames.append(np.asarray(picture.resize(size, Image.Resampling.BILINEAR, box)))
    return frames


@dataclass
class Film:
    frames: list[Frame]
    changes: list[tuple[int, int]]
    """First and last frame that may be called the cut, of each cut, dissolve and fade."""


def film(shots: Sequence[list[Frame]], how: Sequence[str], length: int = 20) -> Film:
    """Shots joined by `cut`, `dissolve` or `fade` (through black), of `length` frames each."""
    frames, changes = list(shots[0]), list[tuple[int, int]]()
    for following, joint in zip(shots[1:], how, strict=True):
        if joint == "cut":
            changes.append((len(frames), len(frames)))
            frames += following
            continue
        start = len(frames) - length
        if joint == "dissolve":
            for place in range(length):
                part = (place + 1) / (length + 1)
                frames[start + place] = _mixed(frames[start + place], following[place], part)
            changes.append((start, len(frames)))
            frames += following[length:]
        else:
            black = np.zeros_like(following[0])
            for place in range(length):
                frames[start + place] = _mixed(frames[start + place], black, (place + 1) / length)
            back = [_mixed(black, frame, (place + 1) / length) for place, frame in enumerate(following[:length])]
            changes.append((start, len(frames) + length))
            frames += back + following[length:]
    return Film(frames, changes)


def boxed(frame: Frame, left: int, top: int, right: int, bottom: int, colour: int = 4) -> Frame:
    """With bars of these widths and heights."""
    frame = frame.copy()
    height, width = frame.shape[:2]
    frame[:top], frame[height - bottom :], frame[:, :left], frame[:, width - right :] = (colour,) * 4
    return frame


def lighter(frame: Frame, levels: int = 110) -> Frame:
    return np.clip(frame.astype(int) + levels, 0, 255).astype(np.uint8)


def small(frame: Frame) -> Frame:
    """What the kernels see of an RGB frame: (3, 27, 48)."""
    return np.moveaxis(
        np.asarray(Image.fromarray(frame).convert("YCbCr").resize((48, 27), Image.Resampling.BOX)), -1, 0
    )


def luma(frame: Frame) -> Frame:
    return np.asarray(Image.fromarray(frame).convert("L"))


@ordinary_priority()
def encoded(
    frames: Sequence[Frame],
    codec: str = "mpeg4",
    container: str = "mp4",
    fps: int = 30,
    size: tuple[int, int] | None = None,
    pix_fmt: str = "yuv420p",
    times_ms: Sequence[int] | None = None,
    **options: str,
) -> bytes:
    sink = io.BytesIO()
    with av.open(sink, "w", format=container) as output:
        stream: Any = output.add_stream(codec, rate=fps, options=options or {"qscale": "4", "flags": "+qscale"})
        stream.width, stream.height = size or frames[0].shape[1::-1]
        stream.pix_fmt, stream.codec_context.thread_count = pix_fmt, 1
        for number, frame in enumerate(frames):
            picture = Image.fromarray(frame).resize(size, Image.Resampling.BOX) if size else Image.fromarray(frame)
            image = av.VideoFrame.from_image(picture)
            if times_ms:
                stream.time_base = stream.codec_context.time_base = image.time_base = Fraction(1, 1000)
                image.pts = times_ms[number]
            output.mux(stream.encode(image))
        output.mux(stream.encode(None))
    return sink.getvalue()


def _mixed(a: Frame, b: Frame, part: float) -> Frame:
    return (a * (1 - part) + b * part).astype(np.uint8)
