"""Exports to formats that need no other library; `make test-interop` has the others, and their readers."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import s3fs

from curate.acquire.folder import AcquireFolder
from curate.core.errors import CorruptError, InputError
from curate.core.recipe.pipeline import Pipeline
from curate.engine.run import run
from curate.pack import export as module
from curate.pack.export import Sample, Shape, export
from curate.pack.webdataset import PackWebDataset
from curate.select.all import SelectAll
from tests.codec.make_images import encoded, noise
from tests.compat.make import ARCHIVE
from tests.conftest import ROOT
from tests.e2e.commands import curate
from tests.interop.made import datasets
from tests.interop.readers import tars


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return datasets(tmp_path_factory.mktemp("made"))


def of_parquet(folder: Path) -> list[tuple[Any, ...]]:
    rows = [row for path in sorted(folder.iterdir()) for row in pq.read_table(path).to_pylist()]
    found = []
    for row in rows:
        media = [one["bytes"] for one in (row["frames"] if "frames" in row else [row["image"]])]
        media += [row["video"]] if row.get("video") else []
        found.append((row["key"], media, row["text"], json.loads(row["json"]).get("texts", {})))
    return found


@pytest.mark.parametrize("name", ["images", "frames", "clips"])
def test_parquet_has_every_sample_in_order(
    name: str, made: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CHUNK_BYTES", 20_000)
    expected = list(tars(made[name], tmp_path))
    assert export(str(made[name]), "parquet", str(tmp_path / "out")) == len(expected)
    assert of_parquet(tmp_path / "out") == expected
    assert max(pq.ParquetFile(path).num_row_groups for path in (tmp_path / "out").iterdir()) > 1


def test_an_image_folder_has_every_file(made: dict[str, Path], tmp_path: Path) -> None:
    for name, column in (("images", "file_name"), ("frames", "frames_file_names")):
        out = tmp_path / name
        said = curate("export", made[name], "--to", "imagefolder", out)
        expected = list(tars(made[name], tmp_path))
        assert said.words.startswith(f"{len(expected)} samples in") and said.code == 0
        lines = [json.loads(line) for line in (out / "metadata.jsonl").read_text().splitlines()]
        places = [line[column] if name == "frames" else [line[column]] for line in lines]
        found = [[(out / file).read_bytes() for file in files] for files in places]
        assert found == [media for _, media, _, _ in expected]
        assert [(line["key"], line["text"]) for line in lines] == [(key, text) for key, _, text, _ in expected]
        assert len([path for path in out.rglob("*") if path.is_file()]) == sum(map(len, found)) + 1


def test_labels_are_a_column_or_class_folders(tmp_path: Path) -> None:
    labels = ["cat", "café/owl", "..", None]
    for number, label in enumerate(labels):
        (tmp_path / "photos").mkdir(exist_ok=True)
        (tmp_path / "photos" / f"{number}.png").write_bytes(encoded(noise(8, 8, seed=number), "png"))
        (tmp_path / "photos" / f"{number}.json").write_text(json.dumps({"kind": label} if label else {}))
    made = Pipeline().add("pool", AcquireFolder(path=str(tmp_path / "photos"), namespace="labels"))
    made.add("all", SelectAll(), "pool")
    made.add("dataset", PackWebDataset(name="labels", carry={"label": "meta.kind"}), "all")
    dataset = run(made.check(), str(tmp_path / "workspace")).outputs["dataset"]
    export(dataset, "parquet", str(tmp_path / "table"))
    [table] = [pq.read_table(path) for path in (tmp_path / "table").iterdir()]
    assert Counter(table.column("label").to_pylist()) == Counter(labels)
    export(dataset, "imagefolder", str(tmp_path / "classes"))
    lines = [json.loads(line) for line in (tmp_path / "classes" / "metadata.jsonl").read_text().splitlines()]
    assert Counter(line["label"] for line in lines) == Counter(labels)
    folders = {line["label"]: line["file_name"].rpartition("/")[0] for line in lines}
    assert folders == {"cat": "cat", "café/owl": "café%2Fowl", "..": "%2E.", None: ""}
    assert all((tmp_path / "classes" / line["file_name"]).is_file() for line in lines)
    sample = Sample("0-0-0", 0, {"png": b"", "json": b'{"label": 3}'})
    assert sample.flat(Shape(videos=False, labels=True))["label"] == "3"


def test_a_dataset_of_the_commit_before_is_exported(tmp_path: Path) -> None:
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(tmp_path, filter="data")
    [dataset] = (tmp_path / "workspace" / "datasets" / "compat").iterdir()
    assert (dataset / "shards.parquet").exists() and not (dataset / ".nv-meta").exists()
    export(str(dataset), "parquet", str(tmp_path / "out"))
    assert of_parquet(tmp_path / "out") == list(tars(dataset, tmp_path))


@pytest.mark.long
def test_a_dataset_in_an_object_store_is_exported(made: dict[str, Path], object_store: Any, tmp_path: Path) -> None:
    object_store.create_bucket(Bucket="bucket")
    store = s3fs.S3FileSystem()
    for path in made["images"].iterdir():
        if path.is_file():
            store.pipe_file(f"bucket/images/{path.name}", path.read_bytes())
    export("s3://bucket/images", "parquet", str(tmp_path / "out"))
    assert of_parquet(tmp_path / "out") == list(tars(made["images"], tmp_path))


def test_an_empty_folder_is_used_and_another_is_left_alone(made: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    export(str(made["images"]), "parquet", str(tmp_path / "empty"))
    assert len(list((tmp_path / "empty").iterdir())) == 4
    (tmp_path / "file").write_text("mine")
    for name in ("empty", "file"):
        said = curate("export", made["images"], "--to", "imagefolder", tmp_path / name).error
        assert f"{tmp_path / name} is not empty; give a new or empty folder" in said
    assert (tmp_path / "file").read_text() == "mine"


def test_a_library_that_is_missing_is_one_line(made: dict[str, Path], tmp_path: Path) -> None:
    for to, package in (("mds", "mosaicml-streaming"), ("litdata", "litdata")):
        said = curate("export", made["images"], "--to", to, tmp_path / "out").error
        assert said == f"curate: export: --to {to} needs the package {package}, which is missing; install {package}"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("dataset", "to", "folder", "message"),
    [
        ("IMAGES", "mdss", "out", r"--to mdss: not a format; did you mean 'mds'\?"),
        ("IMAGES", "lance", "out", "--to lance: not a format; give one of mds, litdata, imagefolder, parquet"),
        ("IMAGES", "parquet", "s3://bucket/out", "is a URL; give a local folder, and copy it"),
        (
            "nowhere",
            "parquet",
            "out",
            r"nowhere: not a complete dataset \(no such file\); give the folder that `curate d",
        ),
        ("POOL", "parquet", "out", "not a complete dataset"),
    ],
)
def test_what_cannot_be_exported_is_one_line(
    dataset: str,
    to: str,
    folder: str,
    message: str,
    made: dict[str, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    [pool, *_] = made["images"].parents[2].glob("pools/*/versions/*")
    with pytest.raises(InputError, match=message):
        export({"IMAGES": str(made["images"]), "POOL": str(pool)}.get(dataset, dataset), to, folder)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("damage", ["truncated", "missing", "short"])
def test_a_damaged_dataset_leaves_nothing(damage: str, made: dict[str, Path], tmp_path: Path) -> None:
    place = shutil.copytree(made["images"], tmp_path / "dataset")
    tar = sorted(place.glob("*.tar"))[2]
    if damage == "truncated":
        os.truncate(tar, tar.stat().st_size // 2)
    elif damage == "missing":
        tar.unlink()
    else:
        sizes = json.loads((place / "sizes.json").read_text())
        (place / "sizes.json").write_text(json.dumps(sizes | {tar.name: 99}))
    with pytest.raises(CorruptError, match=rf"{tar.name}: .*; copy the dataset again, or pack it again"):
        export(str(place), "parquet", str(tmp_path / "out"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["dataset"]


def test_an_export_that_is_killed_leaves_no_folder_of_this_name(made: dict[str, Path], tmp_path: Path) -> None:
    code = "import os, signal; from curate.pack import export as e; write = e.pq.ParquetWriter.write_table\n"
    code += "e.pq.ParquetWriter.write_table = lambda *given: (write(*given), os.kill(os.getpid(), signal.SIGKILL))\n"
    code += f"e.export({str(made['images'])!r}, 'parquet', {str(tmp_path / 'out')!r})"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False)
    assert done.returncode == -signal.SIGKILL
    assert not (tmp_path / "out").exists() and list(tmp_path.iterdir())
    count = export(str(made["images"]), "parquet", str(tmp_path / "out"))
    assert [path.name for path in tmp_path.iterdir()] == ["out"]  # what the killed one left is gone too
    assert count == len(list(tars(made["images"], tmp_path)))
