from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import s3fs
from hypothesis import given
from hypothesis import strategies as st

from curate.codec import files
from curate.codec.files import BATCH_BYTES, BATCH_FILES, batches, read_files
from curate.codec.listing import FileInfo, list_files
from curate.core.errors import Reject
from curate.core.store.storage import Storage, open_storage

NAMES = ("a.png", "b[1].png", "b*.png", "c d/é#?.png", "empty.png")
"""Some are patterns to fsspec, or parts of a URL."""


@pytest.fixture(params=["file", "memory", "s3"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    if request.param == "s3":
        request.getfixturevalue("object_store").create_bucket(Bucket="files")
        s3fs.S3FileSystem.clear_instance_cache()
    place = {"file": str(tmp_path / "root"), "memory": f"memory://{tmp_path.name}", "s3": "s3://files/root"}
    found = open_storage(place[request.param])
    for name in NAMES:
        put(found, name, b"" if name == "empty.png" else name.encode() * 99)
    return found


def put(root: Storage, name: str, data: bytes) -> None:
    if root.local:
        Path(root.path(name)).parent.mkdir(parents=True, exist_ok=True)
        Path(root.path(name)).write_bytes(data)
    else:
        root.fs.pipe_file(root.path(name), data)


def test_files_with_any_names_are_read_in_the_given_order(root: Storage) -> None:
    listed = list_files(root, "path")
    assert {file.path for file in listed} == set(NAMES)
    for order in (listed, listed[::-1], listed[1:2], []):
        wanted = [b"" if file.path == "empty.png" else file.path.encode() * 99 for file in order]
        assert read_files(root, order) == wanted


def test_each_file_that_changed_is_a_reject(root: Storage) -> None:
    listed = list_files(root, "path")
    by_path = {file.path: place for place, file in enumerate(listed)}
    put(root, "a.png", b"longer" * 1000)
    put(root, "b[1].png", b"shorter")
    put(root, "b*.png", b"")
    root.fs.rm_file(root.path("c d/é#?.png"))
    found = read_files(root, listed)
    reasons = {name: getattr(found[place], "reason", None) for name, place in by_path.items()}
    assert reasons == {
        "a.png": "changed", "b[1].png": "changed", "b*.png": "changed", "c d/é#?.png": "vanished", "empty.png": None,
    }  # fmt: skip
    assert set(reasons.values()) - {None} <= set(files.REASONS)


def test_a_local_file_with_another_time_is_a_reject(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"abc")
    root = open_storage(str(tmp_path))
    [listed] = list_files(root, "path")
    os.utime(tmp_path / "a", ns=(1, 1))
    [found] = read_files(root, [listed])
    assert isinstance(found, Reject) and found.reason == "changed"
    assert read_files(root, [FileInfo("a", 3)]) == [b"abc"]


def test_an_object_that_grew_is_not_read_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    root = open_storage("memory://grown")
    root.fs.pipe_file(root.path("a"), b"x" * 1000)
    read: list[int] = []

    def cat_file(path: str, start: Any, end: Any, **_: Any) -> bytes:
        read.append(end)
        return b"x" * end

    monkeypatch.setattr(root.fs, "cat_file", cat_file)
    [found] = read_files(root, [FileInfo("a", 10)])
    assert isinstance(found, Reject) and read == [11]


def test_an_error_of_the_store_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    root = open_storage("memory://broken")

    def cat_file(*_: Any, **__: Any) -> bytes:
        raise TimeoutError("no answer")

    monkeypatch.setattr(root.fs, "cat_file", cat_file)
    with pytest.raises(TimeoutError):
        read_files(root, [FileInfo("a", 10)])


@given(st.lists(st.integers(0, 2 * BATCH_BYTES), max_size=60))
def test_batches_are_bounded_and_in_order(sizes: list[int]) -> None:
    wanted = [FileInfo(str(number), size) for number, size in enumerate(sizes)]
    found = list(batches(wanted))
    assert [file for batch in found for file in batch] == wanted
    for batch in found:
        assert 0 < len(batch) <= BATCH_FILES
        assert len(batch) == 1 or sum(file.size for file in batch) <= BATCH_BYTES
