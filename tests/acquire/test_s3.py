"""The same sources on an object store (moto)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import s3fs

from curate.acquire import folder
from curate.acquire.folder import AcquireFolder
from curate.acquire.parquet import AcquireParquet
from curate.acquire.webdataset import AcquireWebDataset
from curate.codec import members, readers
from curate.core.errors import InputError
from curate.core.recipe import registry
from curate.core.recipe.pipeline import Pipeline
from curate.core.store.storage import open_storage
from curate.engine.run import run
from curate.engine.state import Options
from tests.acquire.helpers import encoded_image, read_all, write_tar

URL = "s3://bucket/deep/photos"
STAGES: list[tuple[str, str, str, dict[str, Any]]] = [
    ("inspect", "image.inspect", "pool", {}),
    ("all", "select.all", "inspect", {}),
    ("dataset", "pack.webdataset", "all", {"name": "photos", "shard_rows": 7}),
]


@pytest.fixture
def bucket(object_store: Any) -> s3fs.S3FileSystem:
    object_store.create_bucket(Bucket="bucket")
    return s3fs.S3FileSystem()


def test_a_folder_of_images(bucket: s3fs.S3FileSystem) -> None:
    for i in range(20):
        bucket.pipe_file(f"{URL}/{i % 2}/{i:02d}.png", encoded_image(i))
    bucket.pipe_file(f"{URL}/0/00.txt", b"zero")
    bucket.pipe_file(f"{URL}/.hidden/1.png", b"")
    bucket.pipe_file(f"{URL}/metadata.jsonl", b'{"file_name": "1/01.png", "text": "one"}\n')
    source = AcquireFolder(namespace="test", path=URL, shard_rows=15)
    samples = read_all(source)
    order = [*range(0, 20, 2), *range(1, 20, 2)]
    assert [s.source_id for s in samples] == [f"{i % 2}/{i:02d}.png" for i in order]
    assert [s.data for s in samples] == [encoded_image(i) for i in order]
    assert (samples[0].caption, samples[10].caption) == ("zero", "one")
    assert "bucket" not in str([portion.content for portion in source.plan()])


@pytest.mark.long
def test_a_folder_in_place(bucket: s3fs.S3FileSystem, tmp_path: Path) -> None:
    """From objects to a dataset, with the same tars as from copies; names may look like patterns."""
    for i in range(20):
        bucket.pipe_file(f"{URL}/{i % 2}/[{i:02d}]*.png", encoded_image(i))
    found = []
    for in_place in (True, False):
        made = Pipeline()
        made.add("pool", AcquireFolder(namespace="test", path=URL, shard_rows=6, in_place=in_place))
        for name, op, source, parameters in STAGES:
            made.add(name, registry.resolve(op)(**parameters), source)
        result = run(made.check(), str(tmp_path / str(in_place)))
        assert result.ledger["inspect"].after == 20
        dataset = open_storage(result.outputs["dataset"])
        found.append({name: dataset.read(name) for name in dataset.list("") if name.endswith(".tar")})
        assert bool(list(tmp_path.glob(f"{in_place}/pools/test/shards/*.tar"))) != in_place
    assert found[0] == found[1] and len(found[0]) == 3


@pytest.mark.long
def test_large_objects_are_read_by_ranges(
    bucket: s3fs.S3FileSystem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every request for bytes has a range; the dataset is that of copies; an object that was written again is an
    error of its row."""
    for i in range(4):
        bucket.pipe_file(f"{URL}/{i}.png", encoded_image(i))
    asked: list[str] = []
    call = s3fs.S3FileSystem._call_s3

    async def spied(self: Any, method: str, *given: Any, **more: Any) -> Any:
        if method == "get_object":
            asked.append(more.get("Range", "all"))
        return await call(self, method, *given, **more)

    monkeypatch.setattr(s3fs.S3FileSystem, "_call_s3", spied)
    sources = {
        in_place: AcquireFolder(namespace="test", path=URL, shard_rows=3, in_place=in_place)
        for in_place in (False, True)
    }
    (portion, other), found = sources[True].plan(), []
    for in_place, source in sources.items():
        if in_place:
            for module in (folder, members, readers):
                monkeypatch.setattr(module, "MEMORY_BYTES", 100)
            asked.clear()
        made = Pipeline().add("pool", source)
        for name, op, above, parameters in STAGES:
            made.add(name, registry.resolve(op)(**parameters), above)
        result = run(made.check(), str(tmp_path / str(in_place)))
        dataset = open_storage(result.outputs["dataset"])
        found.append({name: dataset.read(name) for name in dataset.list("") if name.endswith(".tar")})
    assert found[0] == found[1] and len(found[0]) == 1
    assert len(asked) >= 4 and all(one.startswith("bytes=") for one in asked)

    monkeypatch.setattr(AcquireFolder, "plan", lambda _: [portion, other])
    bucket.pipe_file(f"{URL}/3.png", encoded_image(3)[::-1])
    made = Pipeline().add("pool", sources[True]).add("prints", registry.resolve("image.fingerprint")(), "pool")
    result = run(made.check(), str(tmp_path / "True"), options=Options(failure_budget=1.0))
    assert result.reused["pool"] and result.ledger["prints"].error == {"changed": 1}


def test_objects_that_changed_since_the_plan_are_rejects(bucket: s3fs.S3FileSystem) -> None:
    for i in range(3):
        bucket.pipe_file(f"{URL}/{i}.png", encoded_image(i))
    source = AcquireFolder(namespace="test", path=URL)
    (portion,) = source.plan()
    bucket.rm_file(f"{URL}/0.png")
    bucket.pipe_file(f"{URL}/1.png", b"shorter")
    assert [sample.reject for sample in source.read(portion)] == ["vanished", "changed", None]
    assert source.plan() != [portion]


@pytest.mark.parametrize("pattern", ["", "/*.tar", "/{00..01}.tar"])
def test_tars_in_place(bucket: s3fs.S3FileSystem, tmp_path: Path, pattern: str) -> None:
    for i in range(2):
        tar = write_tar(tmp_path / "a.tar", {f"{i}.png": encoded_image(i), f"{i}.txt": f"caption {i}"})
        bucket.put_file(str(tar), f"{URL}/{i:02d}.tar")
    source = AcquireWebDataset(namespace="test", path=URL + pattern)
    samples = read_all(source)
    places = [source.tar(portion) for portion in source.plan()]
    assert places == [f"{URL}/00.tar", f"{URL}/01.tar"]
    found = [
        bucket.cat_file(url, start=s.offset, end=s.offset + s.size) for url, s in zip(places, samples, strict=True)
    ]
    assert found == [encoded_image(0), encoded_image(1)]
    assert [s.caption for s in samples] == ["caption 0", "caption 1"]


def test_parquet_files(bucket: s3fs.S3FileSystem) -> None:
    with bucket.open(f"{URL}/a.parquet", "wb") as file:
        pq.write_table(pa.table({"image": [encoded_image(i) for i in range(9)]}), file, row_group_size=3)
    samples = read_all(AcquireParquet(namespace="test", path=URL, shard_rows=4))
    assert [s.data for s in samples] == [encoded_image(i) for i in range(9)]


@pytest.mark.parametrize("path", ["s3://bucket/nowhere", "s3://nobucket/x"])
def test_a_missing_folder_is_a_one_line_error(bucket: s3fs.S3FileSystem, path: str) -> None:
    for source in (AcquireFolder, AcquireWebDataset, AcquireParquet):
        with pytest.raises(InputError) as caught:
            source(namespace="test", path=path).plan()
        assert path.rpartition("/")[2] in str(caught.value)
        assert "\n" not in str(caught.value)
