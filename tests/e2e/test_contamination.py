"""Evaluation images next to the pool in one recipe: neither they nor their copies reach the dataset."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from curate.core.nouns.pools import read_shards
from curate.core.store.storage import open_storage
from tests.codec.make_images import encoded
from tests.e2e.commands import curate
from tests.e2e.image_files import blocks, write_good
from tests.e2e.recipes import stages


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    """20 images, and 4 of the evaluation set among them: unchanged, as PNG instead of BMP, recompressed, half size."""
    images, evaluation = write_good(tmp_path / "images", 20), tmp_path / "evaluation"
    evaluation.mkdir()
    pictures = [blocks(100 + number, 96) for number in range(6)]
    for number, image in enumerate(pictures):
        (evaluation / f"test-{number}.bmp").write_bytes(encoded(image, "bmp"))
    (images / "same.bmp").write_bytes(encoded(pictures[0], "bmp"))
    (images / "pixels.png").write_bytes(encoded(pictures[1], "png"))
    (images / "worse.jpg").write_bytes(encoded(pictures[2], "jpeg", quality=70))
    (images / "small.png").write_bytes(encoded(pictures[3].resize((48, 48)), "png"))
    return images, evaluation


def recipe(folders: tuple[Path, Path], **theirs: Any) -> dict[str, Any]:
    """The e2e recipe with an evaluation set; `theirs` goes to the encoder of that."""
    images, evaluation = map(str, folders)
    made = stages({"op": "acquire.folder", "path": images})
    before = {
        "tests": {"op": "acquire.folder", "namespace": "tests", "path": evaluation},
        "tests_prints": {"op": "image.fingerprint", "from": "tests", "threads": 1},
        "tests_embed": {"op": "image.embed", "from": "tests", **theirs},
        "reference": {"op": "duplicates.reference", "from": ["tests_prints", "tests_embed"]},
        "matched": {"op": "duplicates.match", "from": ["unique", "embed"], "against": "reference", "eps": 0.02},
        "clean": {"op": "duplicates.decontaminate", "from": "matched"},
    }
    made["tree"]["from"] = made["clusters"]["from"] = ["clean", "embed"]
    return {"stages": {**before, **made}}


def test_rows_of_an_evaluation_set_are_rejected_by_its_name(folders: tuple[Path, Path], tmp_path: Path) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text(yaml.safe_dump(recipe(folders), sort_keys=False))
    printed = curate("run", path, "-w", tmp_path / "workspace", "--run-id", "one", "--json", tmp_path / "one.json")
    assert printed.code == 0, printed.err
    storage, result = open_storage(str(tmp_path / "workspace")), json.loads((tmp_path / "one.json").read_text())
    bases = {name: url.removeprefix(f"{storage.url}/") for name, url in result["outputs"].items()}
    found = {}
    for shard in read_shards(storage, bases["pool"]):
        names = storage.read_table(shard.table, columns=["source_id"])["source_id"].to_pylist()
        folder = f"{bases['matched'].split('/versions/')[0]}/{shard.id}"
        columns = storage.read_table(f"{folder}/{max(storage.list(folder))}").to_pylist()
        found |= {names[row["_row"]]: row for row in columns}
    matched = {name: row for name, row in found.items() if row["contamination_kind"]}
    assert result["ledger"]["clean"]["rejected"] == {"contaminated": len(matched)}
    assert {name: (row["contamination"], row["contamination_kind"]) for name, row in matched.items()} == {
        "same.bmp": ("test-0.bmp", "exact"),
        "pixels.png": ("test-1.bmp", "exact"),
        "worse.jpg": ("test-2.bmp", "near"),
        "small.png": ("test-3.bmp", "near"),
    }
    page = storage.read(f"{bases['report']}/index.html").decode()
    assert "contaminated" in page and "test-2.bmp" in page
    assert "test-2.bmp" in curate("explain", "worse.jpg", "-w", tmp_path / "workspace", "--run", "one").out


def test_an_evaluation_embedded_otherwise_is_one_line(folders: tuple[Path, Path], tmp_path: Path) -> None:
    path = tmp_path / "recipe.yaml"
    other = recipe(folders, encoder="timm:test_vit.r160_in1k?random=0")
    for name in ("tree", "clusters", "sample", "dataset", "report"):
        del other["stages"][name]
    path.write_text(yaml.safe_dump(other, sort_keys=False))
    printed = curate("run", path, "-w", tmp_path / "workspace")
    assert "'embedding' has encoder descriptor, but its `against` has encoder timm:test_vit" in printed.error, printed
    assert "embed both pools with the same encoder" in printed.error
