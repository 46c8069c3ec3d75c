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
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

from curate.core.errors import CurateError, InputError
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
    for tool in ("apt-get", "dpkg-deb"):
        if shutil.which(tool) is None:
            raise InputError(f"{tool} is not here, and OpenClipart comes as Debian packages; use Debian, {INSTEAD}")
    aside = cache / "building"
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir()
    debs = fetch(aside)
    _say("unpacking")
    for deb in debs:
        _run("dpkg-deb", "-x", str(deb), str(aside / "root"))
    _say("reading titles, descriptions and keywords out of the SVGs")
    make_image_folder(aside / "root/usr/share/openclipart", aside / "images")
    (aside / "images").rename(images)
    shutil.rmtree(aside)
    _say(f"{images} ready after {time.monotonic() - started:.0f} s")


def fetch(folder: Path) -> list[Path]:
    """The two packages, in `folder`. Package lists of our own are fetched when the system's are missing or stale."""
    as_we_are = ["-o", "APT::Sandbox::User=root"] if os.geteuid() == 0 else []
    lists = folder / "apt"
    (lists / "lists/partial").mkdir(parents=True)
    (lists / "cache/archives/partial").mkdir(parents=True)
    own = ["-o", f"Dir::State::Lists={(lists / 'lists').resolve()}", "-o", f"Dir::Cache={(lists / 'cache').resolve()}"]
    _say(f"fetching {' and '.join(PACKAGES)} with apt-get (156 MB)")
    try:
        _run("apt-get", *as_we_are, "download", *PACKAGES, cwd=folder)
    except InputError:
        _say("not in the system's package lists: fetching lists of our own")
        _run("apt-get", *as_we_are, *own, "update", cwd=folder)
        _run("apt-get", *as_we_are, *own, "download", *PACKAGES, cwd=folder)
    return sorted(folder.glob("*.deb"))


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


def _run(*command: str, cwd: Path | None = None) -> None:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True)
    if done.returncode:
        said = (done.stderr.strip() or done.stdout.strip() or f"exit status {done.returncode}").splitlines()[-1]
        raise InputError(f"{command[0]} failed: {said}; check the network and free disk, {INSTEAD}")


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
