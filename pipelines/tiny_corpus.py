"""The corpus of the encoder `tiny`: images with several texts each, all from Debian packages.

`python -m pipelines.tiny_corpus CACHE` downloads missing packages and writes an image folder with metadata:

    CACHE/images/openclipart/…      OpenClipart 0.18, public domain (pipelines/openclipart.py)
    CACHE/images/stamps/…           Tux Paint's stamps, photographs and drawings, GPL-2
    CACHE/images/emoji/…            Noto Color Emoji, OFL-1.1, with names from Unicode's CLDR
    CACHE/images/metadata.jsonl     a line per image: file_name, caption, texts, category

`texts` are possible captions: the title, the description, some of the keywords, the folder. Training draws one per
epoch. `caption` is the first. The result depends only on the packages: a second build is identical.
"""

from __future__ import annotations

import argparse
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
from curate.kernels.debian import unpack
from pipelines.openclipart import INSTEAD, build_once, openclipart

PACKAGES = ("tuxpaint-stamps-default", "fonts-noto-color-emoji", "unicode-cldr-core")
EMOJI_PIXELS = 109
"""The only size of Noto's bitmaps."""
KEYWORDS = 4
"""Maximum keywords per text."""
MAX_CHARACTERS = 160
SHARED = 12
"""A title of more than this many OpenClipart images is replaced by the file name."""
_SPACES = re.compile(r"[\s_]+")
_FOOTNOTE = re.compile(r"\s*(\b\d+|\(\d+\))$")


def corpus(cache: Path) -> Path:
    """The image folder, built if it does not exist. Raises InputError if Debian's tools or mirror are not available."""
    return build_once(cache, _build)


def _build(cache: Path, images: Path) -> None:
    clipart = openclipart(cache.parent / "openclipart")
    aside = cache / "building"
    shutil.rmtree(aside, ignore_errors=True)
    (aside / "images").mkdir(parents=True)
    _say(f"downloading {', '.join(PACKAGES)} with apt-get (188 MB)")
    root = unpack(PACKAGES, aside, what="the corpus of tiny", instead=INSTEAD, say=_say)
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
    _say(f"{len(lines):,} images in {images}")


def clipart_lines(source: Path, images: Path) -> Iterator[dict[str, Any]]:
    """Link OpenClipart's images and yield their texts. A title of many images ("Part of the Flat Icon Collection") is
    replaced by the file name."""
    works = [json.loads(line) for line in (source / "metadata.jsonl").read_text(encoding="utf-8").splitlines()]
    common = Counter(plain(work["title"]) for work in works)
    for work in works:
        name = f"openclipart/{work['file_name']}"
        _link(source / work["file_name"], images / name)
        shared = common[plain(work["title"])] > SHARED
        title = Path(name).stem if shared else work["title"]
        yield {"file_name": name, **texts(name, title, work["category"], work["keywords"], work["description"])}


def stamp_lines(source: Path, images: Path) -> Iterator[dict[str, Any]]:
    """Link stamps and yield their texts; the first line of a stamp's text file is the English sentence."""
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
    """Draw emoji of one code point over white, and yield their short names and keywords."""
    face = ImageFont.truetype(str(font), EMOJI_PIXELS, layout_engine=ImageFont.Layout.BASIC)
    missing = _draw(face, "\U000e0fff")  # an unassigned code point
    (images / "emoji").mkdir(parents=True)
    for character, (title, keywords) in sorted(_annotations(annotations).items()):
        image = _draw(face, character)
        if image is None or (missing is not None and image.tobytes() == missing.tobytes()):
            continue
        name = f"emoji/{ord(character):05x}.png"
        image.save(images / name)
        yield {"file_name": name, **texts(name, title, "emoji", keywords, "")}


def _annotations(path: Path) -> dict[str, tuple[str, list[str]]]:
    """(short name, keywords) by character."""
    names: dict[str, str] = {}
    words: dict[str, list[str]] = {}
    for node in ElementTree.parse(path).iter("annotation"):
        character, text = node.get("cp", ""), node.text or ""
        if (
            len(character) == 1 and ord(character) >= 0x2190
        ):  # arrows and symbols; lower code points are letters and marks
            if node.get("type") == "tts":
                names[character] = text
            else:
                words[character] = [word.strip() for word in text.split("|")]
    return {character: (title, words.get(character, [])) for character, title in names.items()}


def _draw(face: ImageFont.FreeTypeFont, character: str) -> Image.Image | None:
    """None if the font has no bitmap of the character."""
    image = Image.new("RGB", (136, 128), "white")
    ImageDraw.Draw(image).text((0, 0), character, font=face, embedded_color=True)
    box = image.convert("L").point(lambda value: 255 - value).getbbox()
    return image if box is not None else None


def texts(name: str, title: str, category: str, keywords: list[str], description: str) -> dict[str, Any]:
    """caption, texts and category of an image; hash(name, number) chooses the keywords of each text."""
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
    """One line with single spaces, without a variant's number at the end."""
    return _FOOTNOTE.sub("", _SPACES.sub(" ", text).strip()).strip()


def _link(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    os.link(source.resolve(), target)


def _say(line: str) -> None:
    print(f"tiny: {line}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="the corpus of the encoder tiny, as a folder of images with texts")
    parser.add_argument("cache", type=Path, help="folder for images/; OpenClipart is stored next to it")
    try:
        print(corpus(parser.parse_args().cache))
    except CurateError as error:
        sys.exit(f"tiny: {error}")


if __name__ == "__main__":
    main()
