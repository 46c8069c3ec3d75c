"""The corpus of the encoder `tiny`: pictures with several texts each, all out of Debian packages.

`python -m pipelines.tiny_corpus CACHE` fetches what is missing and leaves an image folder with metadata:

    CACHE/images/openclipart/…      OpenClipart 0.18, public domain (pipelines/openclipart.py)
    CACHE/images/stamps/…           Tux Paint's stamps, photographs and drawings, GPL-2
    CACHE/images/emoji/…            Noto Color Emoji, OFL-1.1, with the words of Unicode's CLDR
    CACHE/images/metadata.jsonl     a line per picture: file_name, caption, texts, category

`texts` are what the picture may be called: its title, its description, some of its keywords, its folder. Training draws
one of them for each epoch. `caption` is the first. Everything follows from the packages: a second build is the same.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import re
import shutil
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from PIL import Image, ImageDraw, ImageFont

from curate.core.errors import CurateError
from curate.core.hashing import make_key, ranks
from curate.kernels.debian import unpacked
from pipelines.openclipart import INSTEAD, openclipart

PACKAGES = ("tuxpaint-stamps-default", "fonts-noto-color-emoji", "unicode-cldr-core")
EMOJI_PIXELS = 109
"""The one size that Noto's bitmaps have."""
KEYWORDS = 4
"""Of a text that is made of keywords."""
MAX_CHARACTERS = 160
SHARED = 12
"""Pictures of OpenClipart with the same title, above which it is no title."""
_SPACES = re.compile(r"[\s_]+")
_FOOTNOTE = re.compile(r"\s*(\b\d+|\(\d+\))$")


def corpus(cache: Path) -> Path:
    """The image folder, built when it is not there. Raises InputError where Debian's tools or mirror are missing."""
    images = cache / "images"
    if images.is_dir():
        return images
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not images.is_dir():
            _build(cache, images)
    return images


def _build(cache: Path, images: Path) -> None:
    clipart = openclipart(cache.parent / "openclipart")
    aside = cache / "building"
    shutil.rmtree(aside, ignore_errors=True)
    (aside / "images").mkdir(parents=True)
    _say(f"fetching {', '.join(PACKAGES)} with apt-get (188 MB)")
    root = unpacked(PACKAGES, aside, what="the corpus of tiny", instead=INSTEAD, say=_say)
    lines = [
        *clipart_lines(clipart, aside / "images"),
        *stamp_lines(root / "usr/share/tuxpaint/stamps", aside / "images"),
        *emoji_lines(
            root / "usr/share/fonts/truetype/noto/NotoColorEmoji.ttf",
            root / "usr/share/unicode/cldr/common/annotations/en.xml",
            aside / "images",
        ),
    ]
    text = "\n".join(json.dumps(line, ensure_ascii=False) for line in lines)
    (aside / "images/metadata.jsonl").write_text(text + "\n", encoding="utf-8")
    (aside / "images").rename(images)
    shutil.rmtree(aside)
    _say(f"{len(lines):,} pictures in {images}")


def clipart_lines(source: Path, images: Path) -> Iterator[dict[str, Any]]:
    """OpenClipart's pictures, linked, and their texts. A title of many pictures ("Part of the Flat Icon Collection")
    says less than the file's name."""
    works = [json.loads(line) for line in (source / "metadata.jsonl").read_text(encoding="utf-8").splitlines()]
    common = Counter(plain(work["title"]) for work in works)
    for work in works:
        name = f"openclipart/{work['file_name']}"
        _link(source / work["file_name"], images / name)
        shared = common[plain(work["title"])] > SHARED
        title = Path(name).stem if shared else work["title"]
        yield {"file_name": name, **texts(name, title, work["category"], work["keywords"], work["description"])}


def stamp_lines(source: Path, images: Path) -> Iterator[dict[str, Any]]:
    """Stamps with an English sentence; its first line is the English one."""
    for png in sorted(source.rglob("*.png")):
        sidecar = png.with_suffix(".txt")
        if png.stem.endswith(("_mirror", "_flip")) or not sidecar.is_file():
            continue
        sentence = sidecar.read_text(encoding="utf-8").partition("\n")[0].strip().rstrip(".")
        path = png.relative_to(source)
        name = f"stamps/{path.as_posix()}"
        _link(png, images / name)
        yield {"file_name": name, **texts(name, sentence, path.parent.as_posix(), [path.stem], "")}


def emoji_lines(font: Path, annotations: Path, images: Path) -> Iterator[dict[str, Any]]:
    """Emoji of one code point, drawn over white, with their short name and keywords."""
    face = ImageFont.truetype(str(font), EMOJI_PIXELS, layout_engine=ImageFont.Layout.BASIC)
    nothing = _drawn(face, "\U000e0fff")
    (images / "emoji").mkdir(parents=True)
    for character, (title, keywords) in sorted(_annotations(annotations).items()):
        picture = _drawn(face, character)
        if picture is None or (nothing is not None and picture.tobytes() == nothing.tobytes()):
            continue
        name = f"emoji/{ord(character):05x}.png"
        picture.save(images / name)
        yield {"file_name": name, **texts(name, title, "emoji", keywords, "")}


def _annotations(path: Path) -> dict[str, tuple[str, list[str]]]:
    """(short name, keywords) by character."""
    names: dict[str, str] = {}
    words: dict[str, list[str]] = {}
    for node in ElementTree.parse(path).iter("annotation"):
        character, text = node.get("cp", ""), node.text or ""
        if len(character) == 1 and ord(character) >= 0x2190:  # arrows and what follows; letters and marks come before
            if node.get("type") == "tts":
                names[character] = text
            else:
                words[character] = [word.strip() for word in text.split("|")]
    return {character: (title, words.get(character, [])) for character, title in names.items()}


def _drawn(face: ImageFont.FreeTypeFont, character: str) -> Image.Image | None:
    """None where the font has no colours for it."""
    picture = Image.new("RGB", (136, 128), "white")
    ImageDraw.Draw(picture).text((0, 0), character, font=face, embedded_color=True)
    box = picture.convert("L").point(lambda value: 255 - value).getbbox()
    return picture if box is not None else None


def texts(name: str, title: str, category: str, keywords: list[str], description: str) -> dict[str, Any]:
    """caption, texts, category of a picture. Which keywords go together follows from hash(name, number)."""
    title, description = plain(title), plain(description)
    folder = plain(" ".join(reversed(category.split("/")[-2:])))
    words = list(dict.fromkeys(word for word in map(plain, keywords) if word))
    found = [title, ", ".join(part for part in (title, folder) if part)]
    if description and description != title:
        found += [description, f"{title}: {description}"]
    for number in range(3 if len(words) > 1 else len(words)):
        order = ranks(number, [make_key(name, word) for word in words]).argsort()
        found.append(", ".join(words[place] for place in order[:KEYWORDS]))
    kept = list(dict.fromkeys(text[:MAX_CHARACTERS] for text in found if text))
    return {"caption": kept[0] if kept else "", "texts": kept, "category": category}


def plain(text: str) -> str:
    """One line, words apart, without the number of a variant at its end."""
    return _FOOTNOTE.sub("", _SPACES.sub(" ", text).strip()).strip()


def _link(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    os.link(source.resolve(), target)


def _say(line: str) -> None:
    print(f"tiny: {line}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="the corpus of the encoder tiny, as a folder of images with texts")
    parser.add_argument("cache", type=Path, help="folder that will hold images/; OpenClipart goes beside it")
    try:
        print(corpus(parser.parse_args().cache))
    except CurateError as error:
        sys.exit(f"tiny: {error}")


if __name__ == "__main__":
    main()
