"""Films made of photographs, whose cuts, dissolves and fades are known: what the benches of videos look at."""

from __future__ import annotations

import io
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray
from PIL import Image

from bench.kit.features import shared

Frame = NDArray[np.uint8]
FPS, SIZE = 25, (160, 90)
JOINTS = ("dissolve", "black", "white")
MOVES = ("static", "pan", "zoom", "shake", "object")
ALONE = ("pan", "zoom", "shake", "object", "flashes", "light", "letterbox", "strobe")
"""What a film without any cut shows."""


@dataclass
class Film:
    frames: list[Frame]
    """RGB."""
    changes: list[tuple[int, int]]
    """First and last frame that may be called the cut, of each cut, dissolve and fade."""
    kind: str


class Photos:
    """Photographs of the file beside the checkout, a range of them: films of other ranges share none."""

    def __init__(self, first: int, stop: int) -> None:
        table = pq.read_table(shared() / "data" / "imagenet-sample-1000.parquet", columns=["image"])
        self._encoded = table.column("image").slice(first, stop - first)
        self.decoded = lru_cache(64)(self._decoded)

    def _decoded(self, number: int) -> Image.Image:
        """At least 2.5 times as large as what a camera shows of it."""
        image = Image.open(io.BytesIO(self._encoded[number].as_py())).convert("RGB")
        wide = round(SIZE[0] * 2.5)
        return image.resize((wide, wide * 3 // 4), Image.Resampling.BILINEAR)

    def any(self, choose: random.Random) -> Image.Image:
        return self.decoded(choose.randrange(len(self._encoded)))


def hard(photos: Photos, seed: int) -> Film:
    """Shots joined by cuts, a quarter of them letterboxed."""
    return _joined(photos, random.Random(f"hard {seed}"), ("cut",))


def gradual(photos: Photos, seed: int) -> Film:
    """Shots joined by dissolves, and by fades through black and white, a quarter of them letterboxed."""
    return _joined(photos, random.Random(f"gradual {seed}"), JOINTS)


def alone(photos: Photos, seed: int) -> Film:
    """One shot of six seconds, of each of ALONE in turn."""
    choose, kind = random.Random(f"alone {seed}"), ALONE[seed % len(ALONE)]
    frames = _shot(photos, choose, kind if kind in MOVES else choose.choice(MOVES), 6 * FPS)
    if kind in ("flashes", "strobe"):
        for start in choose.sample(range(10, len(frames) - 10), 3) if kind == "flashes" else range(40, 100, 10):
            length, levels = choose.randint(1, 3), choose.choice([-90, 80, 120])
            for place in range(start, start + length):
                frames[place] = _lit(frames[place], 1, levels)
    if kind == "light":
        start, length, gain = choose.randrange(30, 80), choose.choice([1, 12, 40]), choose.choice([0.5, 0.7, 1.5])
        for place in range(start, len(frames)):
            frames[place] = _lit(frames[place], 1 + (gain - 1) * min(1, (place - start + 1) / length), 0)
    if kind == "letterbox":
        frames = _boxed(frames, choose)
    return Film(_noisy(frames, choose), [], kind)


def _joined(photos: Photos, choose: random.Random, joints: Sequence[str]) -> Film:
    frames, changes, kinds = _shot(photos, choose, choose.choice(MOVES), choose.randint(30, 80)), [], set[str]()
    for _ in range(choose.randint(3, 5)):
        following = _shot(photos, choose, choose.choice(MOVES), choose.randint(60 if "cut" not in joints else 25, 100))
        joint, length = choose.choice(joints), choose.randint(8, 25)
        kinds.add(joint)
        if joint == "cut":
            changes.append((len(frames), len(frames)))
            frames += following
        elif joint == "dissolve":
            start = len(frames) - length
            for place in range(length):
                part = (place + 1) / (length + 1)
                frames[start + place] = _mixed(frames[start + place], following[place], part)
            changes.append((start, len(frames)))
            frames += following[length:]
        else:
            start, colour = len(frames) - length, np.full_like(frames[0], 255 if joint == "white" else 0)
            for place in range(length):
                frames[start + place] = _mixed(frames[start + place], colour, (place + 1) / length)
                following[place] = _mixed(colour, following[place], (place + 1) / length)
            changes.append((start, len(frames) + length))
            frames += following
    boxed = choose.random() < 0.25
    if boxed:
        frames = _boxed(frames, choose)
    name = "cut" if "cut" in joints else "gradual"
    return Film(_noisy(frames, choose), changes, f"{name}, letterboxed" if boxed else name)


def _shot(photos: Photos, choose: random.Random, move: str, count: int) -> list[Frame]:
    picture, (width, height) = photos.any(choose), SIZE
    right, down = picture.width - width * 1.2, picture.height - height * 1.2
    left, top, wide = choose.uniform(0, right), choose.uniform(0, down), width * 1.2
    speed, turn = choose.choice([0.03, 0.1, 0.25, 0.5]) * width / FPS, choose.uniform(0, 2 * np.pi)
    grow, shake = choose.choice([-0.3, -0.1, 0.1, 0.3]), choose.uniform(0.01, 0.06) * width
    toy = photos.any(choose).crop((100, 80, 250, 230)).resize((36, 36))
    frames = []
    for number in range(count):
        x, y, w = left, top, wide
        if move == "pan":  # there and back, within the photograph
            x, y = (
                _swing(left + speed * number * np.cos(turn), right),
                _swing(top + speed * number * np.sin(turn), down),
            )
        elif move == "zoom":
            w = wide * float(np.exp(grow * number / FPS / 2))
            w = min(w, picture.width, picture.height * width / height)
            x, y = min(left, picture.width - w), min(top, picture.height - w * height / width)
        elif move == "shake":
            x = min(max(0, left + shake * np.sin(number * 0.9)), right)
            y = min(max(0, top + shake * np.sin(number * 0.7 + 1)), down)
        box = (x, y, x + w, min(picture.height, y + w * height / width))
        image = picture.resize(SIZE, Image.Resampling.BILINEAR, box)
        if move == "object":
            at = round(_swing(speed * number * 2, width - 36)), round(30 + 20 * np.sin(number / 9))
            image.paste(toy, at)
        frames.append(np.asarray(image))
    return frames


def _swing(place: float, most: float) -> float:
    place = abs(place) % (2 * most)
    return float(min(place, 2 * most - place))


def _mixed(a: Frame, b: Frame, part: float) -> Frame:
    return (a * (1 - part) + b * part).astype(np.uint8)


def _lit(frame: Frame, gain: float, levels: float) -> Frame:
    return np.clip(frame * float(gain) + levels, 0, 255).astype(np.uint8)


def _boxed(frames: Sequence[Frame], choose: random.Random) -> list[Frame]:
    """Bars above and below, or at the sides."""
    boxed, bar = [frame.copy() for frame in frames], choose.choice([8, 12, 20])
    across = choose.random() < 0.7
    for frame in boxed:
        view = frame if across else frame.swapaxes(0, 1)
        view[:bar], view[-bar:] = 0, 0
    return boxed


def _noisy(frames: Sequence[Frame], choose: random.Random) -> list[Frame]:
    """As of a sensor: a few fields of noise, shifted for each frame."""
    sigma = choose.choice([0, 1, 3])
    if not sigma:
        return list(frames)
    random_ = np.random.default_rng(choose.randrange(1 << 30))
    field = np.rint(random_.normal(0, sigma, (256, 256, 3))).astype(np.int16)
    width, height = SIZE
    shifts = random_.integers(0, (256 - height, 256 - width), (len(frames), 2))
    return [
        np.clip(frame + field[y : y + height, x : x + width], 0, 255).astype(np.uint8)
        for frame, (y, x) in zip(frames, shifts, strict=True)
    ]


MAKERS: dict[str, Callable[[Photos, int], Film]] = {"hard": hard, "gradual": gradual, "alone": alone}


def films(photos: Photos, counts: dict[str, int], first_seed: int) -> Iterator[tuple[str, Film]]:
    for name, count in counts.items():
        for seed in range(first_seed, first_seed + count):
            yield name, MAKERS[name](photos, seed)
