from __future__ import annotations

import hashlib
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from curate.codec.members import member_columns, read_members
from curate.codec.tars import TarWriter
from curate.core.errors import Reject, StorageError
from curate.core.nouns.pools import Shard, in_folder, in_place, place_url
from curate.core.store.storage import Storage, open_storage

DATA = {"b/2.png": b"two" * 50, "1.png": b"one" * 70, "empty.png": b""}


def shard(tar: str, tar_bytes: int = 1) -> Shard:
    return Shard("", 3, tar, tar_bytes, "")


@pytest.fixture
def workspace(tmp_path: Path) -> Storage:
    return open_storage(str(tmp_path / "workspace"))


@pytest.fixture
def images(tmp_path: Path) -> Path:
    for name, data in DATA.items():
        path = tmp_path / "images" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return tmp_path / "images"


def rows_of_folder() -> dict[str, list[Any]]:
    digests = [hashlib.sha256(data).hexdigest() for data in DATA.values()]
    sizes = [len(data) for data in DATA.values()]
    return {"key": ["a", "b", "c"], "source_id": list(DATA), "offset": [0, 0, 0], "size": sizes, "sha256": digests}


def test_members_of_a_folder_are_its_files(workspace: Storage, images: Path) -> None:
    found = shard(f"{images}/")
    assert in_folder(found) and in_place(found)
    rows = rows_of_folder()
    assert {name: rows[name] for name in member_columns([found])} == rows
    assert [one.bytes() for one in read_members(workspace, found, rows)] == list(DATA.values())


def test_members_of_a_tar_are_spans(workspace: Storage, tmp_path: Path) -> None:
    with workspace.publish("a.tar") as path, open(path, "wb") as file, TarWriter(file) as tar:
        offsets = [tar.add(name, data) for name, data in DATA.items()]
    rows = {"offset": offsets, "size": [len(data) for data in DATA.values()]}
    for place in ("a.tar", str(Path(workspace.root, "a.tar"))):
        found = shard(place, tar.offset)
        assert not in_folder(found) and set(member_columns([found])) == set(rows)
        assert [one.bytes() for one in read_members(workspace, found, rows)] == list(DATA.values())
    with pytest.raises(StorageError, match="import it again"):
        list(read_members(workspace, shard("a.tar", 1 << 20), {"offset": [1 << 20], "size": [5]}))


def test_a_file_with_other_bytes_is_a_reject_that_names_it(workspace: Storage, images: Path) -> None:
    (images / "b/2.png").write_bytes(b"owt" * 50)
    (images / "1.png").write_bytes(b"one")
    (images / "empty.png").unlink()
    found = [
        data for data in read_members(workspace, shard(f"{images}/"), rows_of_folder()) if isinstance(data, Reject)
    ]
    assert [one.reason for one in found] == ["changed", "changed", "vanished"]
    assert all(name in str(one) for name, one in zip(DATA, found, strict=True))


def test_a_link_that_appeared_later_leads_nowhere(workspace: Storage, images: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"s" * len(DATA["1.png"]))
    (images / "1.png").unlink()
    (images / "1.png").symlink_to(tmp_path / "secret")
    found = list(read_members(workspace, shard(f"{images}/"), rows_of_folder()))
    assert isinstance(found[1], Reject) and found[1].reason == "changed"


def test_memory_does_not_grow_with_the_folder(workspace: Storage, images: Path) -> None:
    size, many = 4 << 20, 40
    (images / "big").write_bytes(bytes(size))
    rows = {
        "key": ["k"] * many, "source_id": ["big"] * many, "offset": [0] * many, "size": [size] * many,
        "sha256": [hashlib.sha256(bytes(size)).hexdigest()] * many,
    }  # fmt: skip
    tracemalloc.start()
    assert sum(data.size for data in read_members(workspace, shard(f"{images}/"), rows)) == size * many
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 48 << 20


@pytest.mark.parametrize(
    ("place", "url"),
    [
        ("/a/b/", "/a/b/"),
        ("/a/b", "/a/b"),
        ("/", "/"),
        ("memory://a/b/", "memory:///a/b/"),
        ("memory://a", "memory:///a"),
    ],
)
def test_places_keep_the_slash_of_a_folder(place: str, url: str) -> None:
    assert place_url(place).replace("memory:///", "memory://") == url.replace("memory:///", "memory://")
    assert place_url("a/b/") == f"{Path.cwd()}/a/b/"
