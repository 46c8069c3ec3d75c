"""The quickstart's corpus: OpenClipart 0.18, 8,121 public-domain drawings with titles and categories.

`python -m pipelines.openclipart CACHE` downloads Debian packages, unpacks them without installing them and writes an
image folder with the metadata of Hugging Face's imagefolder:

    CACHE/images/<category>/<name>.png
    CACHE/images/metadata.jsonl         a line per image: file_name, caption, title, description, keywords, category

Captions are the artists' own words, not cleaned. An image that Debian ships twice (a symbolic link) stays two images.
The folder is renamed to `images` when it is complete; a second call returns at once.
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
from collections.abc import Callable
from pathlib import Path

from curate.core.errors import CurateError, InputError
from curate.kernels.debian import unpack
from pipelines.svg_metadata import UnreadableSvgError, Work, read_work

PACKAGES = ("openclipart-png", "openclipart-svg")
INSTEAD = "or use your own images: make quickstart IMAGES=dir"


def openclipart(cache: Path) -> Path:
    """The image folder, built if it does not exist. Raises InputError if Debian's tools or mirror are not available."""
    return build_once(cache, _build)


def build_once(cache: Path, build: Callable[[Path, Path], None], name: str = "images") -> Path:
    """The folder cache/NAME; if it does not exist, one process builds it and others wait."""
    folder = cache / name
    if folder.is_dir():
        return folder
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.is_dir():
            build(cache, folder)
    return folder


def _build(cache: Path, images: Path) -> None:
    started = time.monotonic()
    aside = cache / "building"
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir()
    _say(f"downloading {' and '.join(PACKAGES)} with apt-get (156 MB)")
    root = unpack(PACKAGES, aside, what="OpenClipart", instead=INSTEAD, say=_say)
    _say("reading titles, descriptions and keywords from the SVGs")
    make_image_folder(root / "usr/share/openclipart", aside / "images")
    (aside / "images").rename(images)
    shutil.rmtree(aside)
    _say(f"{images} ready after {time.monotonic() - started:.0f} s")


def make_image_folder(root: Path, images: Path) -> None:
    """Write `images` from root/png and root/svg. PNGs are linked, not copied; SVGs only provide metadata."""
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
        raise InputError(f"{root / 'png'}: no images in the unpacked packages; remove the cache folder, {INSTEAD}")
    (images / "metadata.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    categories = len({path.parent for path in images.rglob("*.png")})
    counts = ", ".join(f"{found[what]:,} {what}" for what in sorted(found))
    _say(f"{len(lines):,} images in {categories} categories; SVGs: {counts}")


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
    parser.add_argument("cache", type=Path, help="folder for images/")
    try:
        print(openclipart(parser.parse_args().cache))
    except CurateError as error:
        sys.exit(f"openclipart: {error}")


if __name__ == "__main__":
    main()
