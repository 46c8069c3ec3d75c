"""What other libraries read of a dataset: `make test-interop`.

Runs in a separate environment, with these libraries above the locked packages. Nothing is mocked or skipped.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import shutil
import sqlite3
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from importlib.metadata import distributions, version
from pathlib import Path
from typing import Any

import pytest
import yaml
from braceexpand import braceexpand
from PIL import Image
from rich.console import Console
from rich.table import Table

from curate.core.errors import InputError
from curate.pack.export import export
from tests.conftest import ROOT
from tests.interop.made import FRAMES, IMAGES, datasets

OLD = Path(sys.prefix) / "webdataset-0.2.86"
[_old] = distributions(name="webdataset", path=[str(OLD)])
READERS = {
    f"webdataset {version('webdataset')}": ("webdataset", {}),
    f"webdataset {_old.version}": ("webdataset", {"PYTHONPATH": str(OLD)}),
    f"wids {version('wids')}": ("wids", {}),
    f"datasets {version('datasets')}": ("datasets", {}),
    "datasets, streaming=True": ("datasets_streaming", {}),
    f"Energon {version('megatron-energon')}": ("energon", {}),
    f"streaming {version('mosaicml-streaming')}, export mds": ("mds", {}),
    f"litData {version('litdata')}, export litdata": ("litdata", {}),
    "datasets, export parquet": ("parquet", {}),
    "datasets, export imagefolder": ("imagefolder", {}),
}
"""Row of the matrix -> reader, and its environment."""
NO_MP4 = "imagefolder"
OPEN_CLIP = f"open_clip {version('open-clip-torch')}, an epoch"


def process(*words: str | Path, cwd: Path = ROOT, **environment: str) -> None:
    command = [sys.executable, *map(str, words)]
    env = os.environ | {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"} | environment
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}: {done.stdout[-1000:]}{done.stderr[-3000:]}"


def tree(folder: Path) -> dict[str, tuple[str, int]]:
    """Every file and folder below a folder -> digest and time."""
    return {
        str(path.relative_to(folder)): (
            hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "", path.stat().st_mtime_ns
        )
        for path in [folder, *folder.rglob("*")]
    }  # fmt: skip


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return datasets(tmp_path_factory.mktemp("made"))


@pytest.fixture(scope="module")
def read(made: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """What each reader gives of each dataset, two readers at a time; they leave the datasets as they were."""
    place, before = tmp_path_factory.mktemp("read"), {name: tree(folder) for name, folder in made.items()}

    def one(row: str, reader: str, environment: dict[str, str]) -> tuple[str, Any]:
        folders, work, out = list(made.values()), place / row.replace(" ", "-"), place / f"{row}.json"
        words = [work, out, *(folders[:2] if reader == NO_MP4 else folders)]
        if row == OPEN_CLIP:
            process("-m", reader, work, out, made["images"], **environment)
        else:
            process("-m", "tests.interop.readers", reader, *words, **environment)
        return row, json.loads(out.read_text())

    rows = {"truth": ("tars", {}), **READERS, OPEN_CLIP: ("tests.interop.trainer", {"PYTHONPATH": str(OLD)})}
    with ThreadPoolExecutor(2) as pool:
        found = dict(pool.map(lambda row: one(row, *rows[row]), rows))
    assert {name: tree(folder) for name, folder in made.items()} == before
    yield found
    show(found, decoded(made["images"]))


def digest(datasets: list[Any]) -> str:
    """Digest: all (key, digests of the members that are not texts, texts), in any order."""
    lines = sorted(json.dumps(sample, ensure_ascii=False, sort_keys=True) for one in datasets for sample in one)
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


def decoded(folder: Path) -> list[list[str]]:
    """Digest of the pixels, and text, of every sample with a text."""
    expected = []
    for path in sorted(folder.glob("*.tar")):
        with tarfile.open(path) as tar:
            data = {info.name: tar.extractfile(info).read() for info in tar}  # type: ignore[union-attr]
        for name in (name for name in data if not name.endswith((".txt", ".json"))):
            text = data.get(name.replace(name.rpartition(".")[2], "txt"))
            pixels = Image.open(io.BytesIO(data[name])).convert("RGB").tobytes()
            expected += [[hashlib.sha256(pixels).hexdigest(), text.decode()]] if text else []
    return sorted(expected)


def show(found: dict[str, Any], pixels: list[list[str]]) -> None:
    """Print the matrix: a digest of the images and the videos as frames, and what else the reader gives."""
    truth, console = found["truth"], Console(width=150, file=sys.__stdout__)
    table = Table("reader", "samples", "digest", "order", "keys", "several captions", "frames", "mp4", box=None)
    for row in READERS:
        images, frames, *clips = found[row]
        same = [*map(str, (sum(map(len, (images, frames))), digest([images, frames])))]
        order = "the tars'" if [images, frames] == truth[:2] else "its own"
        captions = max(len(sample[3]) for sample in images)
        most = max(len(sample[1]) for sample in frames)
        table.add_row(row, *same, order, "yes", f"{captions}", f"{most}", "yes" if clips == truth[2:] else "no")
    read = found[OPEN_CLIP]["read"]
    equal = "pixels equal" if sorted(read) == pixels else "pixels differ"
    table.add_row(OPEN_CLIP, f"{len(read)}, with a text", equal, "its own", "no", "1", "no", "no")
    console.print()
    console.print(table)


def test_the_truth_has_all_that_is_compared(read: dict[str, Any]) -> None:
    images, frames, clips = read["truth"]
    assert len(images) == IMAGES and {len(sample[3]) for sample in images} == {0, 1, 2, 3}
    assert 0 < sum(not sample[2] for sample in images) < IMAGES
    assert {len(sample[1]) for sample in frames} == {1, 3, FRAMES}
    assert {len(sample[1]) for sample in clips} == {1, 4, FRAMES + 1}


@pytest.mark.parametrize("row", READERS)
def test_every_reader_gives_the_same_samples(row: str, read: dict[str, Any]) -> None:
    truth = read["truth"][:2] if READERS[row][0] == NO_MP4 else read["truth"]
    assert [digest([one]) for one in read[row]] == [digest([one]) for one in truth]


def test_open_clip_trains_on_the_pixels_and_texts(read: dict[str, Any], made: dict[str, Path]) -> None:
    """Its reader leaves out samples without a text; an epoch has as many as `sizes.json` says."""
    found = read[OPEN_CLIP]
    assert sorted(found["read"]) == decoded(made["images"])
    assert found["trained"][-1][0] == IMAGES and all(0 < loss < 10 for _, loss in found["trained"])


@pytest.mark.parametrize("name", ["images", "frames", "clips"])
def test_the_index_is_the_one_that_energon_prepares(name: str, made: dict[str, Path], tmp_path: Path) -> None:
    theirs, ours = tmp_path / "prepared", made[name]
    shutil.copytree(ours, theirs, ignore=shutil.ignore_patterns(".nv-meta", "*.idx"))
    command = [Path(sys.prefix) / "bin" / "energon", "prepare", "--non-interactive", "--split-ratio", "1,0,0"]
    command += ["--sample-type", "CrudeWebdataset", "--num-workers", "1", theirs]
    subprocess.run(command, check=True, capture_output=True)
    for path in ours.glob("*.tar"):
        assert path.with_suffix(".tar.idx").read_bytes() == (theirs / f"{path.name}.idx").read_bytes()
    for table in ("samples", "sample_parts"):
        rows = [_rows(folder, f"SELECT * FROM {table}") for folder in (ours, theirs)]
        assert rows[0] == rows[1] and rows[0]
    schemas = [_rows(folder, "SELECT name, tbl_name, type FROM sqlite_master") for folder in (ours, theirs)]
    assert schemas[0] == schemas[1]
    info, split, kind = (
        [_loaded(folder, file) for folder in (ours, theirs)] for file in (".info.json", "split.yaml", "dataset.yaml")
    )
    assert info[0] == info[1] and kind[0] == kind[1]
    assert _expanded(split[0]) == _expanded(split[1])


def _rows(folder: Path, query: str) -> list[Any]:
    with closing(sqlite3.connect(folder / ".nv-meta" / "index.sqlite")) as base:
        return sorted(base.execute(query).fetchall())


def _loaded(folder: Path, name: str) -> Any:
    return yaml.safe_load((folder / ".nv-meta" / name).read_text())


def _expanded(split: dict[str, Any]) -> dict[str, list[str]]:
    return {part: [tar for name in names for tar in braceexpand(name)] for part, names in split["split_parts"].items()}


def test_an_imagefolder_holds_no_mp4(made: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(InputError, match="has an mp4, which --to imagefolder cannot hold; give parquet"):
        export(str(made["clips"]), "imagefolder", str(tmp_path / "out"))
    assert list(tmp_path.iterdir()) == []


PAGE = (ROOT / "docs" / "how-to" / "other-readers.md").read_text()


@pytest.mark.parametrize("number", range(len(re.findall("```python", PAGE))))
def test_the_lines_of_the_page_read_every_sample(number: int, made: dict[str, Path], tmp_path: Path) -> None:
    code = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)[number]
    script = tmp_path / "page.py"
    script.write_text(f"folder = {str(made['images'])!r}\n{code}\nassert sum(1 for _ in samples) == {IMAGES}\n")
    before = tree(made["images"])
    process(script, cwd=tmp_path, HF_HOME=str(tmp_path))
    assert tree(made["images"]) == before


def test_litdata_indexes_the_parquet_of_a_dataset(made: dict[str, Path], tmp_path: Path) -> None:
    """One table per folder: a second one with other columns ends it."""
    script, before = tmp_path / "index.py", tree(made["images"])
    script.write_text(f"import litdata\nlitdata.index_parquet_dataset({str(made['images'])!r}, {str(tmp_path)!r})\n")
    process(script, cwd=tmp_path)
    index = json.loads((tmp_path / "index.json").read_text())
    assert [chunk["chunk_size"] for chunk in index["chunks"]] == [IMAGES] and tree(made["images"]) == before
