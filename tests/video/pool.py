"""A pool of videos for runs: two films, copies of the first, a text, and an empty file."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import ClassVar

from curate.core.contracts import Incoming, Portion, Source
from tests.video.make_shots import encoded, shot


@cache
def files() -> dict[str, bytes]:
    frames = [*shot(1, "pan", 3, 0.1, (160, 90)), *shot(2, "zoom", 3, 0.2, (160, 90))]
    return {
        "film": encoded(frames, qscale="3", flags="+qscale"),
        "again": encoded(frames, "mjpeg", "avi", pix_fmt="yuvj420p"),
        "smaller": encoded(frames, size=(96, 54)),
        "trimmed": encoded(frames[17:-20], qscale="6", flags="+qscale"),
        "other": encoded([*shot(4, "pan", 3, 0.1, (160, 90)), *shot(5, "zoom", 3, 0.2, (160, 90))]),
        "text": b"no video" * 50,
        "empty": b"",
    }


class Films(Source):
    op: ClassVar[str] = "tests.films"
    media: ClassVar[tuple[str, ...]] = ("video",)

    def plan(self) -> list[Portion]:
        return [Portion({"names": names}, len(names)) for names in (list(files())[:3], list(files())[3:])]

    def read(self, portion: Portion) -> Iterator[Incoming]:
        for name in portion.content["names"]:
            yield Incoming(name, ext="avi" if name == "again" else "mp4", data=files()[name])
