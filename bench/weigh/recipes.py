"""What `bench.weigh` runs: a recipe per subject, its variants, the pools, and the figures that compare two outputs."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from bench.weigh import variants

Figures = dict[str, float]


@dataclass(frozen=True)
class Comparison:
    """Variants of one recipe; the first is ours."""

    recipe: str
    variants: dict[str, Callable[[], None]]
    settings: Callable[[int, int], list[str]]
    """(repeat, number of images) -> settings of the recipe."""
    judge: Callable[[Path, Path], Figures]
    """(workspace, workspace of the first variant in the same repeat) -> figures."""
    texts: bool = False
    """Whether to run on alt texts too."""


def levels(rows: int) -> list[int]:
    return [max(4, rows // 20), max(3, rows // 135), max(2, rows // 675)]


def tree_settings(repeat: int, rows: int) -> list[str]:
    return [f"tree.seed={repeat}", f"sample.seed={repeat}", f"levels={levels(rows)}", f"target={rows * 3 // 8}"]


# --- figures ----------------------------------------------------------------------------------------------------------


def same_samples(space: Path, ours: Path) -> Figures:
    own, reference = (index(place).select(["name"]).column(0).to_pylist() for place in (space, ours))
    common = len(set(own) & set(reference)) / max(1, len(set(reference)))
    return {"samples": len(own), "samples in common": common}


def same_languages(space: Path, ours: Path) -> Figures:
    own, reference = (facts(place, "text.language", ["language", "language_score"]) for place in (space, ours))
    gaps = [abs(own[key][1] - reference[key][1]) for key in reference if own[key][1] and reference[key][1]]
    return same_samples(space, ours) | {
        "same language": float(np.mean([own[key][0] == reference[key][0] for key in reference])),
        "same score to the bit": float(np.mean([own[key][1] == reference[key][1] for key in reference])),
        "largest gap of scores": max(gaps, default=0.0),
    }


def same_facts(op: str, *columns: str) -> Callable[[Path, Path], Figures]:
    """A judge: share of rows for which the stage wrote the same values."""

    def judge(space: Path, ours: Path) -> Figures:
        own, reference = (facts(place, op, columns) for place in (space, ours))
        same = float(np.mean([own[key] == reference[key] for key in reference]))
        return same_samples(space, ours) | {f"same {columns[0]}": same}

    return judge


def sample_balance(space: Path, ours: Path) -> Figures:
    """Inertia of the leaves; entropy of the folders' categories in the sample (1: even); mean distance of a sampled
    image to its nearest neighbour in the sample."""
    [tree] = space.glob("artifacts/cluster.fit/*/levels.json")
    table = index(space)
    counts = np.unique([label.split("/")[0] for label in table.column("label").to_pylist()], return_counts=True)[1]
    share = counts / counts.sum()
    found = facts(space, "image.embed", ["embedding"])
    rows = np.stack([np.frombuffer(found[key][0], np.float16) for key in table.column("key").to_pylist()])
    cosine = cosines(rows.astype(np.float32))
    return same_samples(space, ours) | {
        "inertia": json.loads(tree.read_text())["levels"][0]["inertia"],
        "entropy of categories": float(-(share * np.log(share)).sum() / np.log(len(counts))),
        "spacing": float(np.sqrt(np.maximum(2 - 2 * cosine.max(1), 0)).mean()),
    }


def neighbours_by_folder(space: Path, ours: Path) -> Figures:
    """Share of images whose nearest other image is in the same folder, without copies."""
    folders: dict[str, str] = {}
    for file in space.glob("pools/*/shards/*.parquet"):
        table = pq.read_table(file, columns=["key", "source_id"])
        for key, name in zip(*(part.to_pylist() for part in table.columns), strict=True):
            folders[key] = name.rpartition("/")[0]
    found = facts(space, "image.embed", ["embedding"])
    keys = [key for key in found if found[key][0] is not None]
    rows = np.stack([np.frombuffer(found[key][0], np.float16) for key in keys]).astype(np.float32)
    first = np.sort(np.unique(rows, axis=0, return_index=True)[1])
    keys, nearest = [keys[at] for at in first], cosines(rows[first]).argmax(1).tolist()
    same = [folders[keys[at]] == folders[key] for key, at in zip(keys, nearest, strict=True)]
    return same_samples(space, ours) | {"images": len(keys), "nearest has its folder": float(np.mean(same))}


def cosines(rows: np.ndarray) -> np.ndarray:
    """rows (n, d) -> cosines (n, n), with -1 on the diagonal."""
    unit = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-9)
    cosine = unit @ unit.T
    np.fill_diagonal(cosine, -1)
    return cosine


def index(space: Path) -> pa.Table:
    [file] = space.glob("datasets/*/*/index.parquet")
    return pq.read_table(file)


def facts(space: Path, op: str, names: Sequence[str]) -> dict[str, tuple[Any, ...]]:
    """Key -> values of a stage's columns."""
    keys = {
        file.stem: pq.read_table(file, columns=["key"]).column(0).to_pylist()
        for file in space.glob("pools/*/shards/*.parquet")
    }
    found: dict[str, tuple[Any, ...]] = {}
    for file in sorted((space / "facts" / op).glob("*/*/*/*.parquet")):
        if file.parent.name in keys:
            table = pq.read_table(file)
            rows = [keys[file.parent.name][row] for row in table.column("_row").to_pylist()]
            values = [table.column(name).to_pylist() for name in names]
            found |= dict(zip(rows, zip(*values, strict=True), strict=True))
    return found


# --- pools ------------------------------------------------------------------------------------------------------------


def some_images(folder: Path, rows: int, to: Path) -> tuple[Path, int]:
    """About `rows` images at equal steps (all for 0), with their metadata, and their number."""
    lines = [json.loads(line) for line in (folder / "metadata.jsonl").read_text().splitlines()]
    lines = lines[:: max(1, len(lines) // rows)] if rows else lines
    for line in lines:
        place = to / line["file_name"]
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(folder / line["file_name"], place)
    (to / "metadata.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return to, len(lines)


def alt_text_pool(count: int, to: Path) -> tuple[Path, int]:
    """`count` alt texts (altered copies beyond 10,000), each with a noise image 32 pixels wide; and their number."""
    from PIL import Image

    from bench.kit.texts import alt_texts, altered

    texts = alt_texts()[:count] if count <= 10_000 else altered(count)
    if not texts:
        return to, 0
    (to / "web").mkdir(parents=True)
    rng, lines = np.random.default_rng(0), []
    for number, text in enumerate(texts):
        name = f"web/{number:05d}.png"
        Image.fromarray(rng.integers(0, 256, (32, 32, 3), dtype=np.uint8)).save(to / name)
        lines.append(json.dumps({"file_name": name, "caption": text, "category": "web"}) + "\n")
    (to / "metadata.jsonl").write_text("".join(lines))
    return to, len(texts)


COMPARISONS = {
    "language": Comparison(
        "datacomp_basic",
        {"ours": variants.ours, "fasttext-predict": variants.fasttext_library},
        lambda repeat, rows: ["size.min_side=32"],
        same_languages,
        texts=True,
    ),
    "wordnet": Comparison(
        "vise",
        {
            "ours, compiled": variants.ours,
            "ours, no table yet": variants.wordnet_cold,
            "nltk at run time": variants.wordnet_nltk,
        },
        lambda repeat, rows: ["concepts.ambiguous=both", f"target={rows // 2}"],
        same_facts("text.concepts", "concepts", "actions"),
        texts=True,
    ),
    "clusters": Comparison(
        "quickstart",
        {"with exchange": variants.ours, "Lloyd's alone": variants.lloyd, "faiss.Kmeans": variants.faiss_kmeans},
        tree_settings,
        sample_balance,
    ),
    "descriptor": Comparison(
        "quickstart",
        {"ours": variants.ours, "skimage.feature.hog": variants.skimage_hog},
        lambda repeat, rows: ["encoder=descriptor", f"levels={levels(rows)}", "sample.target=null", "sample.share=0.7"],
        neighbours_by_folder,
    ),
}
