"""Films of clip-arts before a camera, of which everything is known: cuts, motion, copies, hashtags.

`make_films` writes a folder of videos with the metadata of Hugging Face's imagefolder:

    FOLDER/0042.mp4            one to four shots, joined by cuts; a shot is a clip-art of the film's kind
    FOLDER/0042-smaller.mp4    a copy, of one film in COPY_EVERY: half as large, trimmed, or of low quality
    FOLDER/metadata.jsonl      a line per film: file_name, caption (titles and #tags), label, moves, cuts_ms, copy_of

FFmpeg's own encoder `mpeg4` writes them, which any build of FFmpeg has.
"""

from __future__ import annotations

import io
import json
import random
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any, Literal, TypeAlias

import av
import numpy as np
from PIL import Image

from curate.codec.images import probe
from curate.core.errors import InputError

Move: TypeAlias = Literal["left", "right", "zoom", "shake", "still"]
MOVES: tuple[Move, ...] = ("left", "right", "zoom", "shake")
COPIES = ("smaller", "trimmed", "worse")
COPY_EVERY, STILL_EVERY = 8, 10
FPS, SIZE = 15, (320, 180)
ROOM = 1.5
"""Size of a scene, of which the camera shows a part of SIZE."""
KINDS = (
    "computer/icons", "signs_and_symbols/flags", "recreation/games", "animals/mammals", "food/fruit",
    "transportation/aiga-symbols", "shapes/stars", "recreation/music", "people",
)  # fmt: skip
"""Folders of clip-arts that films show, the most frequent first: the n-th is in 1/n as many films as the first."""
MOST_PIXELS = 1 << 21
QUALITY: Mapping[str, str] = {"qmin": "3", "qmax": "3", "flags": "+bitexact"}
WORSE = {**QUALITY, "qmin": "12", "qmax": "12"}


@dataclass(frozen=True)
class ClipArt:
    path: Path
    kind: str
    """The last folder of one of KINDS."""
    title: str
    tags: tuple[str, ...] = ()


@dataclass(frozen=True)
class Shot:
    art: ClipArt
    move: Move
    frames: int


@dataclass(frozen=True)
class Film:
    name: str
    shots: tuple[Shot, ...]
    copy: str | None = None
    """One of COPIES, or none."""

    @property
    def cuts_ms(self) -> list[int]:
        """Times of the first frames after cuts."""
        ends = np.cumsum([shot.frames for shot in self.shots])[:-1]
        return [round(1000 * int(frame) / FPS) for frame in ends]

    def lines(self) -> list[dict[str, Any]]:
        """Metadata of the film, and of its copy."""
        tags = dict.fromkeys(tag for shot in self.shots for tag in shot.art.tags)
        about = {
            "file_name": f"{self.name}.mp4",
            "caption": " ".join([*(shot.art.title for shot in self.shots), *(f"#{tag}" for tag in tags)]),
            "label": self.shots[0].art.kind,
            "moves": [shot.move for shot in self.shots],
            "cuts_ms": self.cuts_ms,
        }
        copied = {"file_name": f"{self.name}-{self.copy}.mp4", "copy_of": about["file_name"]}
        return [about, about | copied] if self.copy else [about]


def clip_arts(images: Path) -> dict[str, list[ClipArt]]:
    """By kind, in an order that looks random. Raises InputError without any."""
    found: dict[str, list[ClipArt]] = {}
    works = [json.loads(line) for line in (images / "metadata.jsonl").read_text(encoding="utf-8").splitlines()]
    for kind in KINDS:
        name = kind.split("/")[-1]
        for work in works:
            path = images / work["file_name"]
            if f"{work['category']}/".startswith(f"{kind}/") and _is_small(path):
                words = [*work["category"].split("/"), *work["keywords"][:2]]
                tags = dict.fromkeys("".join(filter(str.isalnum, word.lower())) for word in words)
                art = ClipArt(path, name, work["title"].strip() or path.stem, tuple(filter(None, tags)))
                found.setdefault(name, []).append(art)
        random.Random(name).shuffle(found.get(name, []))
    if not found:
        raise InputError(f"{images}: no images of {', '.join(KINDS)}; give a folder of OpenClipart")
    return found


def _is_small(path: Path) -> bool:
    """Some clip-arts have over 100 megapixels, and a film shows 20,000 of them."""
    known = probe(path.read_bytes())
    return known.width * known.height <= MOST_PIXELS


def cast(arts: Mapping[str, Sequence[ClipArt]], count: int) -> Iterator[Film]:
    """Films of one kind each. A clip-art is in one shot, unless there are too few."""
    choose, used, kinds = random.Random("films"), dict.fromkeys(arts, 0), list(arts)
    for number in range(count):
        (kind,) = choose.choices(kinds, [1 / (place + 1) for place in range(len(kinds))])
        still, shots = number % STILL_EVERY == STILL_EVERY - 1, []
        for _ in range(choose.randint(1, 4)):
            art = arts[kind][used[kind] % len(arts[kind])]
            used[kind] += 1
            move = "still" if still else choose.choice(MOVES)
            shots.append(Shot(art, move, round(choose.uniform(1.5, 3) * FPS)))
        copy = COPIES[number // COPY_EVERY % len(COPIES)] if number % COPY_EVERY == 0 else None
        yield Film(f"{number:04}", tuple(shots), copy)


def make_films(images: Path, count: int, folder: Path, threads: int = 2) -> list[Film]:
    """Write `count` films, and copies of some, into an existing folder."""
    films = list(cast(clip_arts(images), count))
    with ThreadPoolExecutor(threads) as pool:
        lines = [line for some in pool.map(lambda film: _write(film, folder), films) for line in some]
    text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
    (folder / "metadata.jsonl").write_text(text, encoding="utf-8")
    return films


def _write(film: Film, folder: Path) -> list[dict[str, Any]]:
    frames, lines = list(drawn(film)), film.lines()
    (folder / lines[0]["file_name"]).write_bytes(encoded(frames))
    if film.copy == "smaller":
        frames = [frame.resize((SIZE[0] // 2, SIZE[1] // 2), Image.Resampling.BOX) for frame in frames]
    elif film.copy == "trimmed":
        frames = frames[FPS // 3 : -FPS // 3]
    if film.copy:
        (folder / lines[1]["file_name"]).write_bytes(encoded(frames, WORSE if film.copy == "worse" else QUALITY))
    return lines


def drawn(film: Film) -> Iterator[Image.Image]:
    """Frames of SIZE."""
    for number, shot in enumerate(film.shots):
        choose = random.Random(f"{film.name} {number}")
        scene, speed = _scene(shot.art, choose), choose.uniform(0.5, 1)
        for frame in range(shot.frames):
            box = _view(shot.move, frame, frame / max(1, shot.frames - 1) - 0.5, speed)
            yield scene.resize(SIZE, Image.Resampling.BILINEAR, box)


def _scene(art: ClipArt, choose: random.Random) -> Image.Image:
    """A clip-art before blots of one light colour, ROOM times SIZE."""
    width, height = (round(side * ROOM) for side in SIZE)
    colour = np.array([choose.randint(150, 225) for _ in range(3)])
    colours = (colour + [[[choose.randint(-40, 30)] for _ in range(8)] for _ in range(5)]).astype(np.uint8)
    scene = Image.fromarray(colours).resize((width, height), Image.Resampling.BICUBIC)
    with Image.open(art.path) as image:
        picture = image.convert("RGBA")
    picture.thumbnail((SIZE[0] * 0.6, SIZE[1] * 0.8), Image.Resampling.BOX)
    scene.paste(picture, ((width - picture.width) // 2, (height - picture.height) // 2), picture)
    return scene


def _view(move: Move, frame: int, time: float, speed: float) -> tuple[float, float, float, float]:
    """What the camera shows of the scene. time: -0.5 to 0.5. To the right is to the left, backwards."""
    (width, height), room = SIZE, (ROOM - 1) / 2
    x = y = 0.0
    if move == "zoom":
        width, height = (round(side * (1 - speed * 0.3 * (time + 0.5))) for side in SIZE)
    elif move == "shake":
        x, y = room * SIZE[0] * speed * np.sin(frame * 1.3) / 12, room * SIZE[1] * speed * np.cos(frame * 0.9) / 12
    elif move != "still":
        x = time * 2 * room * SIZE[0] * speed * (1 if move == "right" else -1)
    left, top = ROOM * SIZE[0] / 2 + x - width / 2, ROOM * SIZE[1] / 2 + y - height / 2
    return left, top, left + width, top + height


def encoded(frames: Sequence[Image.Image], options: Mapping[str, str] = QUALITY, fps: int = FPS) -> bytes:
    """An mp4 of frames of one size."""
    sink = io.BytesIO()
    with av.open(sink, "w", format="mp4") as output:
        stream: Any = output.add_stream("mpeg4", rate=Fraction(fps), options=dict(options))
        stream.width, stream.height = frames[0].size
        stream.pix_fmt, stream.codec_context.thread_count = "yuv420p", 1
        for frame in frames:
            output.mux(stream.encode(av.VideoFrame.from_image(frame)))
        output.mux(stream.encode(None))
    return sink.getvalue()
