"""Images and workspace on an object store (moto's server on loopback): the same dataset as on a disk."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import s3fs

from distill.samples.sources.dataset import open_dataset
from distill.samples.sources.members import MemberReader
from tests.e2e import image_files
from tests.e2e.commands import curate
from tests.e2e.recipes import ORDER, write_recipe

COUNT = 24
WORKSPACE = "s3://e2e/deep/workspace"


@pytest.fixture
def bucket(object_store: Any) -> s3fs.S3FileSystem:
    object_store.create_bucket(Bucket="e2e")
    return s3fs.S3FileSystem()


def test_the_dataset_is_the_one_a_disk_gives(bucket: s3fs.S3FileSystem, tmp_path: Path) -> None:
    root = image_files.write_good(tmp_path / "images", COUNT)
    (root / "bad").mkdir()
    for name, (data, _) in image_files.BAD.items():
        (root / "bad" / name).write_bytes(data)
    for path in root.rglob("*"):
        if path.is_file():
            bucket.pipe_file(f"e2e/deep/images/{path.relative_to(root)}", path.read_bytes())

    here = _run(tmp_path / "here", str(root), str(tmp_path / "workspace"))
    there = _run(tmp_path / "there", "s3://e2e/deep/images", WORKSPACE)
    assert here["ledger"] == there["ledger"]
    assert [place.removeprefix(f"{WORKSPACE}/") for place in there["outputs"].values()] == [
        place.removeprefix(f"{tmp_path}/workspace/") for place in here["outputs"].values()
    ]
    local, remote = Path(here["outputs"]["dataset"]), there["outputs"]["dataset"]
    files = [path for path in local.rglob("*") if path.is_file() and path.name != "manifest.json"]
    for path in files:
        assert bucket.cat_file(f"{remote}/{path.relative_to(local)}") == path.read_bytes(), path
    assert local / ".nv-meta" / "index.sqlite" in files
    assert bucket.exists(f"{there['outputs']['report']}/index.html")

    again = _run(tmp_path / "again", "s3://e2e/deep/images", WORKSPACE)
    assert again["outputs"] == there["outputs"]
    assert f"{len(ORDER)} of {len(ORDER)}" in curate("status", "-w", WORKSPACE).words
    assert "status unusable reason truncated" in curate("explain", "bad/truncated.jpg", "-w", WORKSPACE).words
    assert "would remove 0 outputs" in curate("gc", "-w", WORKSPACE).words
    assert not bucket.find("e2e/deep/workspace/leases")
    _distill_reads_the_same(str(local), remote)


def _run(folder: Path, images: str, workspace: str) -> dict[str, Any]:
    folder.mkdir()
    recipe = write_recipe(folder / "recipe.yaml", {"op": "acquire.folder", "path": images, "shard_rows": 20})
    printed = curate("run", recipe, "-w", workspace, "-q", "--json", folder / "result.json")
    assert (printed.code, printed.err) == (0, ""), printed
    return json.loads((folder / "result.json").read_text())


def _distill_reads_the_same(local: str, remote: str) -> None:
    here, there = open_dataset(local), open_dataset(remote)
    assert here.fingerprint == there.fingerprint and len(here) == 12
    for share in (1.0, 0.01):
        one, other = MemberReader(here, share=share), MemberReader(there, share=share)
        assert [one.read(row) for row in range(12)] == [other.read(row) for row in range(12)]
