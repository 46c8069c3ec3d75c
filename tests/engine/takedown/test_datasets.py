"""A dataset without some samples has the other ones as they were, wherever the removed ones lay."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from curate.core.hashing import digest
from curate.core.nouns.manifest import Manifest
from curate.core.store.storage import Storage
from curate.engine.takedown.bytes import mark_of
from curate.engine.takedown.datasets import without
from curate.engine.takedown.find import _in_datasets, _marks_of_datasets
from distill.samples.sources.dataset import open_dataset
from distill.samples.sources.members import MemberReader
from tests.distill.clips import clip, write_clips
from tests.distill.datasets import drawn_items, write_dataset

ITEMS = drawn_items(25)


@pytest.fixture(scope="module")
def storage(tmp_path_factory: pytest.TempPathFactory) -> Storage:
    """A workspace with a dataset of 25 samples in 3 tars, with texts of every other one, and a nullable offset."""
    root = tmp_path_factory.mktemp("workspace")
    texts = [None if number % 2 else f"text {number}".encode() for number in range(25)]
    folder = write_dataset(root / "datasets/toy/old", ITEMS, texts=texts)
    table = pq.read_table(folder / "index.parquet")
    clips = pc.if_else(pc.greater_equal(table["text_offset"], 0), table["offset"], pa.scalar(None, pa.int64()))
    pq.write_table(table.append_column("clip_offset", clips), folder / "index.parquet", row_group_size=7)
    (folder / "manifest.json").unlink()
    tars = [{"file": tar.name, "bytes": tar.stat().st_size} for tar in sorted(folder.glob("*.tar"))]
    found = Storage(str(root))
    Manifest("dataset", "pack.webdataset", 2, "old", {"name": "toy"}, rows=25).commit(found, "datasets/toy/old", tars)
    return found


def contents(folder: Path) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    for path in sorted(folder.glob("*.tar")):
        with tarfile.open(path) as tar:
            found |= {member.name: tar.extractfile(member).read() for member in tar}
    return found


@pytest.mark.parametrize("gone", [[0], [9], [3, 4, 5], [0, 9, 10], [*range(10, 20)], [24, 2, 11], [*range(25)]])
def test_the_rest_is_as_it_was(storage: Storage, gone: list[int]) -> None:
    keys = sorted(ITEMS[number].key for number in gone)
    made = without(storage, "datasets/toy/old", [*keys, "0" * 32])
    assert made == f"datasets/toy/{digest({'predecessor': 'old', 'removed': keys})}"
    old, new = Path(storage.path("datasets/toy/old")), Path(storage.path(made))
    kept = {name: data for name, data in contents(old).items() if name.partition("-")[0] not in keys}
    assert contents(new) == kept
    same = {tar.name for tar in new.glob("*.tar") if tar.stat().st_ino == (old / tar.name).stat().st_ino}
    assert same == {f"toy-{shard:06d}.tar" for shard in range(3)} - {f"toy-{number // 10:06d}.tar" for number in gone}
    manifest = Manifest.load(storage, made)
    assert manifest is not None and manifest.rows == 25 - len(gone) == pq.read_metadata(new / "index.parquet").num_rows
    assert without(storage, "datasets/toy/old", keys) == made  # and changes nothing
    table = pq.read_table(new / "index.parquet")
    assert table.schema.equals(pq.read_schema(old / "index.parquet"))
    for line in table.to_pylist():
        assert line["clip_offset"] == (line["offset"] if line["text_offset"] >= 0 else None)
    if not kept:
        return
    dataset = open_dataset(str(new))
    members = MemberReader(dataset)
    for row, line in enumerate(table.to_pylist()):
        assert members.read(row) == kept[f"{line['name']}.png"]
        assert members.member(row, "txt") == kept.get(f"{line['name']}.txt")


def test_a_clip_is_known_by_the_frame_in_its_middle(tmp_path: Path) -> None:
    """Between frames lie headers of the tar, which no other copy of them has."""
    frames = clip(1, 5)
    folder = write_clips(tmp_path / "datasets/clips/one", [frames], with_mp4=True)
    (folder / "manifest.json").unlink()
    storage = Storage(str(tmp_path))
    Manifest("dataset", "pack.webdataset", 2, "one", {"name": "clips"}, rows=1).commit(storage, "datasets/clips/one")
    [key] = pq.read_table(folder / "index.parquet")["key"].to_pylist()
    found = list(_in_datasets(storage, [key]))
    assert list(_marks_of_datasets(storage, found)) == [(key, mark_of(frames[2])), (key, mark_of(b"not decoded" * 99))]
