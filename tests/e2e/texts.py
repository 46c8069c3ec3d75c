"""Images with captions and keywords for the text recipes, and the recipes adapted to them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from curate.core.recipe.load import load
from curate.core.recipe.pipeline import Pipeline
from tests.conftest import ROOT
from tests.e2e.image_files import blocks

_SUBJECTS = ("dog", "sofa", "crane", "goose", "t-shirt", "hot dog")
_OTHERS = ("a dog with a ball", "the sofa in a room", "a man on the left", "nothing else to be seen")


def subject_of(number: int) -> str:
    return _SUBJECTS[5 if number % 30 == 17 else int("000001112234"[number % 12])]


def caption(number: int) -> str:
    """Dogs are common, hot dogs rare; every third has a second sentence, every tenth is German."""
    if number % 10 == 9:
        return "Ein kleines Haus mit einem Garten und einem Baum"
    subject = subject_of(number)
    second = f" There is also {_OTHERS[number % 4]}." if number % 3 == 0 else ""
    return f"This is a picture of the {subject}.{second} #photo{number}"


def keywords(number: int) -> list[str]:
    """Keywords of most images: `dogs`, the caption's subject, and an unknown word."""
    subject = subject_of(number)
    return [] if number % 12 == 7 else ["dogs", f"{subject}s", "runningMan" if number % 5 else "qzx"]


def write_images(root: Path, count: int = 60) -> Path:
    """`count` PNGs of 32 to 256 pixels with a metadata.jsonl: caption, keywords, category."""
    root.mkdir(parents=True)
    rows = []
    for number in range(count):
        blocks(number, size=(32, 64, 224, 256)[number % 4]).save(root / f"{number:03d}.png", compress_level=1)
        row: dict[str, Any] = {"file_name": f"{number:03d}.png", "caption": caption(number)}
        rows.append(row | {"keywords": keywords(number), "category": f"kind{number % 3}"})
    (root / "metadata.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return root


def over(images: Path) -> list[str]:
    """Settings of a recipe over a folder of images, in shards of 16."""
    return [f"images={images}", "namespace=texts", "pool.shard_rows=16", "dataset.shard_rows=20"]


def recipe(name: str, images: Path, *settings: str) -> Pipeline:
    """A recipe of the folder `pipelines`."""
    return load(ROOT / f"pipelines/{name}.yaml", overrides=[*over(images), *settings])


def chain(source: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """All text stages in a chain."""
    return {
        "pool": {"namespace": "bad", "shard_rows": 5, **source},
        "text": {"op": "text.clean", "from": "pool"},
        "captioned": {"op": "text.filter", "from": "text"},
        "sets": {"op": "text.duplicates", "from": "captioned"},
        "copies": {"op": "text.copies", "from": "captioned", "sets": "sets"},
        "unique": {"op": "text.drop_duplicates", "from": "copies"},
        "phrases": {"op": "text.boilerplate", "from": "unique", "least_count": 2},
        "strip": {"op": "text.strip", "from": "unique", "boilerplate": "phrases", "also": ["stock photo"]},
        "left": {"op": "text.filter", "from": "strip", "column": "stripped"},
        "language": {"op": "text.language", "from": "left", "column": "stripped"},
        "english": {"op": "text.language_filter", "from": "language", "languages": ["en"], "threshold": 0},
        "sentences": {"op": "text.sentences", "from": "english", "column": "stripped"},
        "pairs": {"op": "text.filter", "from": "sentences", "column": "sentences", "items": True},
        "concepts": {"op": "text.concepts", "from": "pairs", "column": "sentences"},
        "vocabulary": {"op": "text.vocabulary", "from": "pairs", "column": "sentences", "unigrams": 1},
        "entries": {"op": "text.match", "from": "concepts", "column": "sentences", "vocabulary": "vocabulary"},
        "tags": {"op": "text.tags", "from": "entries"},
        "map": {"op": "text.hashtag_map", "from": "tags"},
        "hashtags": {"op": "text.hashtags", "from": "tags", "map": "map"},
        "counts": {"op": "text.counts", "from": "hashtags", "columns": ["concepts", "entries"]},
        "sample": {
            "op": "select.frequency",
            "from": "hashtags",
            "columns": ["concepts", "entries"],
            "counts": "counts",
            "target": 60,
        },
        "dataset": {
            "op": "pack.webdataset",
            "from": "sample",
            "name": "bad",
            "text": "sentences",
            "carry": {"concepts": "concepts"},
        },
        "report": {"op": "report.html", "from": "dataset"},
    }
