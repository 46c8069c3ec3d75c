"""Three datasets: images in three formats with several captions; videos beside images, as frames and with mp4s."""

from __future__ import annotations

import json
from pathlib import Path

from curate.acquire.folder import AcquireFolder
from curate.caption.mix import Mix
from curate.core.recipe.pipeline import Pipeline
from curate.engine.run import run
from curate.pack.webdataset import PackWebDataset
from curate.select.all import SelectAll
from curate.text.clean.clean import Clean
from curate.text.hashtags.tags import Tags
from tests.codec.make_images import encoded, noise
from tests.video.packed import written

FORMATS = (("png", "png"), ("jpg", "jpeg"), ("webp", "webp"))
IMAGES, FRAMES = 60, 8
ODD = (
    '{"deep": ' + "[" * 90 + "1" + "]" * 90 + "}",
    '{"deep": ' + '{"of": ' * 90 + "{}" + "}" * 91,
    '{"big": 18446744073709551615, "small": -9223372036854775808, "rating": 9e307}',
    '{"big": 1180591620717411303424, "small": -1e999, "rating": NaN}',
    '{"half": "\\ud800", "\\udc00": 1, "zero": "\\u0000", "": {"": []}, "rating": [null, {}]}',
    '{"big": 1, "big": {"twice": true}, "half": [1, "two", [3.0]], "__key__": "mine", "a.b": 1e-320}',
)
"""JSON that a source may hold; what is packed, every reader reads."""


def write_images(folder: Path) -> None:
    """Every seventh image has no text; every fourth has tags, and fields of metadata that others lack; every ninth has
    ODD metadata."""
    folder.mkdir(parents=True)
    for number in range(IMAGES):
        ext, format = FORMATS[number % 3]
        (folder / f"{number:03d}.{ext}").write_bytes(encoded(noise(40 + number, 32, seed=number), format))
        about: dict[str, object] = {"rating": number} if number % 2 else {"rating": f"{number} stars"}
        if number % 4 == 0:
            about |= {"keywords": ["dogs", "cranes"], "author": {"name": "Zoë"}}
        if number % 7:
            (folder / f"{number:03d}.txt").write_text(f"The photo № {number} of a crane. #photo{number}")
        odd = ODD[number // 9 % len(ODD)] if number % 9 == 5 else None
        (folder / f"{number:03d}.json").write_text(odd or json.dumps(about))


def datasets(place: Path) -> dict[str, Path]:
    write_images(place / "images")
    written(place / "films")
    kinds = {"original": "caption", "clean": "text", "tags": "tags"}
    found = {}
    for name, folder, video in (("images", "images", ""), ("frames", "films", "frames"), ("clips", "films", "both")):
        media = ("image", "video") if video else ("image",)
        source = AcquireFolder(path=str(place / folder), namespace=folder, shard_rows=16, media=media)
        made = Pipeline().add("pool", source).add("text", Clean(), "pool").add("tags", Tags(caption=None), "text")
        made.add("mix", Mix(texts=kinds), "tags").add("all", SelectAll(), "mix")
        more = {"video": video, "frames": FRAMES, "shard_rows": 4} if video else {"shard_rows": 16}
        pack = PackWebDataset.model_validate({"name": name, "texts": "texts"} | more)
        made.add("dataset", pack, "all")
        found[name] = Path(run(made.check(), str(place / "workspace")).outputs["dataset"])
    return found
