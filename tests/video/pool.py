"""A pool of videos for runs, and stages over it: clips, windows, frames, vectors, sets and a dataset."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Annotated, Any, ClassVar

import numpy as np

from curate.core.contracts import Incoming, Portion, Runtime, Source
from curate.core.recipe import registry
from curate.core.recipe.pipeline import Pipeline
from tests.video.make_shots import Frame, encoded, shot

FPS = 15
SIZE, SMALL = (160, 90), (96, 54)


def _shot(seed: int, kind: Any, seconds: float, speed: float = 0.1, size: tuple[int, int] = SIZE) -> list[Frame]:
    return shot(seed, kind, seconds, speed, size, FPS)


def _film() -> list[Frame]:
    return [*_shot(1, "pan", 3), *_shot(2, "zoom", 3, 0.2)]


def _edited() -> list[Frame]:
    """What clips leave out: a short shot and a black one."""
    shots = [_shot(6, "pan", 3, size=SMALL), _shot(7, "pan", 1, size=SMALL), _shot(8, "zoom", 5, 0.2, SMALL)]
    return [*shots[0], *shots[1], *[np.zeros_like(shots[0][0])] * FPS, *shots[2]]


MADE: dict[str, Callable[[], bytes]] = {
    "film": lambda: encoded(_film(), qscale="3", flags="+qscale", fps=FPS),
    "again": lambda: encoded(_film(), "mjpeg", "avi", pix_fmt="yuvj420p", fps=FPS),
    "smaller": lambda: encoded(_film(), size=SMALL, fps=FPS),
    "trimmed": lambda: encoded(_film()[9:-10], qscale="6", flags="+qscale", fps=FPS),
    "other": lambda: encoded([*_shot(4, "pan", 3), *_shot(5, "zoom", 3, 0.2)], fps=FPS),
    "edited": lambda: encoded(_edited(), fps=FPS),
    "text": lambda: b"no video" * 50,
    "empty": lambda: b"",
}


@cache
def video(name: str) -> bytes:
    """One of MADE: a film of two shots, copies of it, others, and files that are not videos; or `short-N`, of 2 s."""
    if name in MADE:
        return MADE[name]()
    return encoded(_shot(100 + int(name.removeprefix("short-")), "pan", 2, 0.2, (64, 36)), fps=FPS)


class Films(Source):
    op: ClassVar[str] = "tests.films"
    media: ClassVar[tuple[str, ...]] = ("video",)
    names: tuple[tuple[str, ...], ...] = (("film", "again", "smaller"), ("trimmed", "other", "edited", "text", "empty"))
    more: Annotated[int, Runtime()] = 0
    """Further films of one clip, in one portion."""

    def plan(self) -> list[Portion]:
        portions = [*self.names, *([tuple(f"short-{number}" for number in range(self.more))] if self.more else [])]
        return [Portion({"names": list(names)}, len(names)) for names in portions]

    def read(self, portion: Portion) -> Iterator[Incoming]:
        for name in portion.content["names"]:
            yield Incoming(name, ext="avi" if name == "again" else "mp4", data=video(name))


STAGES: dict[str, tuple[str, Any, dict[str, Any], dict[str, str]]] = {
    "inspect": ("video.inspect", "pool", {}, {}),
    "look": ("video.look", "pool", {}, {}),
    "divide": ("video.divide", "look", {"min_seconds": 1.5, "max_seconds": 4, "trim_seconds": 0.1}, {}),
    "clips": ("video.clips", "divide", {"namespace": "clips"}, {}),
    "windows": ("video.windows", "clips", {"namespace": "windows", "max_seconds": 1}, {}),
    "frames": ("video.frames", "clips", {"namespace": "frames", "frames": 2}, {}),
    "seen": ("image.inspect", "frames", {}, {}),
    "prints": ("image.fingerprint", "seen", {}, {}),
    "vectors": ("image.embed", "prints", {}, {}),
    "alike": ("duplicates.find", "vectors", {"max_distance": 16}, {}),
    "keepers": ("duplicates.members", "vectors", {}, {"sets": "alike"}),
    "groups": ("cluster.fit", "vectors", {"levels": [2], "rounds": 1, "iterations": 3}, {}),
    "group": ("cluster.assign", "keepers", {"levels": 1}, {"tree": "groups"}),
    "widths": (
        "derive.roll_up", "clips", {"column": "width", "how": "max", "into": "frame_width"}, {"children": "seen"}
    ),
    "number": ("derive.roll_up", "divide", {"how": "count", "into": "clips"}, {"children": "clips"}),
    "sum": (
        "derive.roll_up", "number", {"column": "duration_ms", "how": "sum", "into": "clips_ms_sum"},
        {"children": "clips"},
    ),
    "mean": (
        "derive.roll_up", "sum", {"column": "duration_ms", "how": "mean", "into": "clips_ms_mean"},
        {"children": "clips"},
    ),
    "embed": ("video.embed", "look", {"frames": 3}, {}),
    "embedded": ("video.embed", "clips", {"frames": 2}, {}),
    "sets": ("duplicates.videos", "look", {}, {}),
    "members": ("duplicates.members", "look", {}, {"sets": "sets"}),
    "unique": ("duplicates.drop", "members", {}, {}),
    "tree": ("cluster.fit", "embed", {"levels": [2], "rounds": 1, "iterations": 3}, {}),
    "meanings": ("duplicates.semantic", "embed", {"eps": 0.02, "level": 1}, {"tree": "tree"}),
    "meant": ("duplicates.members", "embed", {"column": "semantic"}, {"sets": "meanings"}),
    "every": ("select.all", "group", {}, {}),
    "dataset": ("pack.webdataset", "every", {"name": "frames", "shard_rows": 9, "carry": ["span", "parent"]}, {}),
    "every_window": ("select.all", "windows", {}, {}),
}  # fmt: skip


def pipeline(more: int = 0, names: Any = None, drop: Sequence[str] = (), **changes: dict[str, Any]) -> Pipeline:
    """changes: parameters by stage. drop: stages to leave out, whose input the next ones read."""
    films = Films(namespace="films", more=more, **({} if names is None else {"names": names}))
    made = Pipeline().add("pool", films)
    for name, (op, inputs, parameters, ports) in STAGES.items():
        while inputs in drop:
            inputs = STAGES[inputs][1]
        if name not in drop:
            made.add(name, registry.resolve(op)(**parameters | changes.get(name, {})), inputs, **ports)
    return made.check()
