"""The quickstart's corpus: OpenClipart 0.18, 8,121 public-domain pictures that people drew, titled and sorted.

`python -m pipelines.openclipart CACHE` fetches Debian's packages, unpacks them (nothing is installed) and leaves an
image folder in the Hugging Face convention:

    CACHE/images/<category>/<name>.png
    CACHE/images/metadata.jsonl         a line per picture: file_name, caption, title, description, keywords, category

Captions are what the drawers wrote, uncleaned. A picture that Debian ships twice (a symbolic link) stays two pictures.
The folder appears under its name only when it is complete; a second call returns at once.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import shutil
import sys
import time
from collections import Counter
from pathlib import Path

from curate.core.errors import CurateError, InputError
from curate.kernels.debian import unpacked
from pipelines.svg_metadata import UnreadableSvgError, Work, read_work

PACKAGES = ("openclipart-png", "openclipart-svg")
INSTEAD = "or use pictures of your own: make quickstart IMAGES=dir"


def openclipart(cache: Path) -> Path:
    """The image folder, built when it is not there. Raises InputError where Debian's tools or mirror are missing."""
    images = cache / "images"
    if images.is_dir():
        return images
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another quickstart may be building the same folder
        if not images.is_dir():
            _build(cache, images)
    return images


def _build(cache: Path, images: Path) -> None:
    started = time.monotonic()
    aside = cache / "building"
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir()
    _say(f"fetching {' and '.join(PACKAGES)} with apt-get (156 MB)")
    root = unpacked(PACKAGES, aside, what="OpenClipart", instead=INSTEAD, say=_say)
    _say("reading titles, descriptions and keywords out of the SVGs")
    make_image_folder(root / "usr/share/openclipart", aside / "images")
    (aside / "images").rename(images)
    shutil.rmtree(aside)
    _say(f"{images} ready after {time.monotonic() - started:.0f} s")


def make_image_folder(root: Path, images: Path) -> None:
    """root/png and root/svg, as unpacked, -> `images`. PNGs are linked, not copied; SVGs give only their metadata."""
    found: Counter[str] = Counter()
    lines = []
    for png in sorted((root / "png").rglob("*.png")):
        name = png.relative_to(root / "png")
        target = images / name
        target.parent.mkdir(parents=True, exist_ok=True)
        os.link(png.resolve(), target)
        work = _work((root / "svg" / name).with_suffix(".svg"), found)
        lines.append(json.dumps({"file_name": name.as_posix(), **_fields(work, name)}, ensure_ascii=False))
    if not lines:
        raise InputError(f"{root / 'png'}: no pictures in the unpacked packages; remove the cache folder, {INSTEAD}")
    (images / "metadata.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    categories = len({path.parent for path in images.rglob("*.png")})
    counts = ", ".join(f"{found[what]:,} {what}" for what in sorted(found))
    _say(f"{len(lines):,} pictures in {categories} categories; SVGs: {counts}")


def _work(svg: Path, found: Counter[str]) -> Work:
    try:
        work = read_work(svg.read_bytes())
    except FileNotFoundError:
        found["missing"] += 1
    except UnreadableSvgError as error:
        found[f"unreadable ({error})"] += 1
    else:
        found["with a title" if work.title.strip() else "without a title"] += 1
        return work
    return Work()


def _fields(work: Work, name: Path) -> dict[str, object]:
    return {
        "caption": "\n".join(text for text in (work.title, work.description) if text.strip()),
        "title": work.title,
        "description": work.description,
        "keywords": work.keywords,
        "category": name.parent.as_posix(),
    }


def _say(line: str) -> None:
    print(f"openclipart: {line}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="OpenClipart 0.18 as a folder of images with metadata.jsonl")
    parser.add_argument("cache", type=Path, help="folder that will hold images/")
    try:
        print(openclipart(parser.parse_args().cache))
    except CurateError as error:
        sys.exit(f"openclipart: {error}")


if __name__ == "__main__":
    main()
