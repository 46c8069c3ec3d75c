"""A file appears complete under its name or not at all; at most one of many writers creates it."""

from __future__ import annotations

import os
import pickle
import signal
import stat
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from curate.core.errors import AlreadyExistsError, StorageError
from curate.core.store.storage import FORMAT, Storage, open_storage, open_workspace

MIB = 1 << 20


def test_published_files_are_read_back(storage: Storage) -> None:
    storage.publish_bytes("a/b/one.bin", b"one")
    storage.publish_bytes("a/b/one.bin", b"two")
    storage.create_json("a/two.json", {"z": [1, None]})
    table = pa.table({"x": [1, 2, 3], "y": ["a", None, "c"]})
    storage.publish_table("a/three.parquet", table)
    assert storage.read("a/b/one.bin") == b"two"
    with storage.open("a/b/one.bin") as file:
        assert file.read() == b"two"
    assert storage.read_json("a/two.json") == {"z": [1, None]}
    assert storage.read_table("a/three.parquet") == table
    assert storage.read_table("a/three.parquet", columns=["y"]).column_names == ["y"]
    assert storage.read_table("a/three.parquet", filters=pc.field("x") > 1).num_rows == 2
    sizes = storage.list("a")
    assert sorted(sizes) == ["b/one.bin", "three.parquet", "two.json"] and sizes["b/one.bin"] == 3
    assert storage.exists("a/two.json") and not storage.exists("a/four.json")


def test_an_exception_leaves_nothing(storage: Storage) -> None:
    def half(path: Path) -> None:
        path.write_bytes(b"half of")
        raise RuntimeError("no more")

    with pytest.raises(RuntimeError, match="no more"), storage.publish("folder/file") as path:
        half(path)
    with pytest.raises(RuntimeError, match="no more"), storage.scratch("folder") as path:
        half(path)
    assert not path.exists()
    assert storage.list("") == {} and not storage.exists("folder/file")
    if storage.local:
        assert [p for p in Path(storage.root).rglob("*") if p.is_file()] == []


def test_an_exception_keeps_the_existing_file(storage: Storage) -> None:
    storage.publish_bytes("file", b"old")
    with pytest.raises(ZeroDivisionError), storage.publish("file") as path:
        path.write_bytes(b"new"[: 1 // 0])
    assert storage.read("file") == b"old"


def test_create_needs_a_free_name(storage: Storage) -> None:
    storage.create("noun/manifest.json", b"first")
    with pytest.raises(AlreadyExistsError, match=r"noun/manifest.json: exists already$"):
        storage.create("noun/manifest.json", b"second")
    assert storage.read("noun/manifest.json") == b"first"
    assert sorted(storage.list("")) == ["noun/manifest.json"]


def wins(storage: Storage, name: str, number: int) -> bool:
    try:
        storage.create(name, f"{number}".encode())
    except AlreadyExistsError:
        return False
    return True


def test_one_of_many_threads_creates(storage: Storage) -> None:
    with ThreadPoolExecutor(8) as threads:
        for turn in range(3 if storage.local else 2):
            won = list(threads.map(lambda n, turn=turn: wins(storage, f"turn-{turn}", n), range(16)))
            assert won.count(True) == 1
            assert storage.read(f"turn-{turn}") == str(won.index(True)).encode()


def test_one_of_many_processes_creates(tmp_path: Path) -> None:
    storage = Storage(str(tmp_path))
    ready, go = os.pipe()
    children = []
    for number in range(8):
        if not (child := os.fork()):
            os.close(go)
            os.read(ready, 1)  # returns when the parent closes its end
            os._exit(wins(storage, "name", number))
        children.append(child)
    os.close(go)
    assert sum(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children) == 1
    os.close(ready)
    assert sorted(storage.list("")) == ["name"]


def test_scratch_files_of_killed_processes_are_removed(tmp_path: Path) -> None:
    storage = Storage(str(tmp_path))
    with storage.scratch("pools/shards") as path:
        path.write_bytes(b"partial")
        storage.publish_bytes("pools/shards/one.tar", b"whole")
        storage.remove_scratch("pools/shards")
        assert [one.name for one in (tmp_path / "pools/shards").iterdir()] == ["one.tar"]
    storage.remove_scratch("pools/none")


def test_a_scratch_file_is_named_by_its_content(storage: Storage) -> None:
    with storage.scratch("pools/shards") as path:
        path.write_bytes(b"content")
        storage.adopt(path, "pools/shards/hash.tar")
    assert storage.read("pools/shards/hash.tar") == b"content"
    assert sorted(storage.list("pools")) == ["shards/hash.tar"]


def test_removing_files_folders_and_missing_names(storage: Storage) -> None:
    for name in ("a/one", "a/b/two", "ab/three"):
        storage.publish_bytes(name, b"x")
    storage.remove("a")
    storage.remove("a")
    storage.remove("nothing/there")
    assert sorted(storage.list("")) == ["ab/three"]
    storage.remove("ab/three")
    assert storage.list("") == {} and storage.list("ab") == {}


def test_listings_are_not_cached(storage: Storage) -> None:
    """A listing shows what other processes have published or removed since the previous one."""
    storage.publish_bytes("folder/one", b"1")
    assert sorted(storage.list("folder")) == ["one"] and not storage.exists("folder/two")
    other(storage, "folder/two", b"22")
    assert storage.exists("folder/two") and storage.list("folder") == {"one": 1, "two": 2}
    other(storage, "folder/one", b"longer")
    with storage.open("folder/one") as file:
        assert file.read() == b"longer"


def other(storage: Storage, name: str, data: bytes) -> None:
    """Write like another process, bypassing the caches of this one."""
    if storage.local:
        Path(storage.path(name)).write_bytes(data)
    else:
        import boto3

        bucket, _, key = storage.path(name).partition("/")
        boto3.client("s3").put_object(Bucket=bucket, Key=key, Body=data)


def test_names_directly_below_a_prefix(storage: Storage) -> None:
    assert storage.entries("runs") == {}
    before = time.time()
    for name in ("runs/b/run.json", "runs/a/logs/1", "runs/note"):
        storage.publish_bytes(name, b"x")
    found = storage.entries("runs")
    assert sorted(found) == ["a", "b", "note"] and found["a"] is None and found["b"] is None
    assert abs((found["note"] or 0.0) - before) < 60
    assert storage.entries("runs/a/logs/1/none") == {}


def test_a_storage_is_picklable(storage: Storage) -> None:
    storage.publish_bytes("file", b"data")
    again = pickle.loads(pickle.dumps(storage))
    assert again.url == storage.url and again.read("file") == b"data"
    assert again is open_storage(storage.url)


def test_a_workspace_is_marked_with_its_format(storage: Storage) -> None:
    with pytest.raises(StorageError, match="not a workspace; check the path, or create one with `curate run`"):
        open_workspace(storage.url, create=False)
    assert open_workspace(storage.url).url == open_workspace(storage.url, create=False).url


def test_a_workspace_does_not_begin_among_other_files(storage: Storage) -> None:
    """An object store is asked for one key, by one listing."""
    photos = ("june/1.jpg", "june/2.jpg", "july/3.jpg", "4.jpg")
    for photo in photos:
        storage.publish_bytes(photo, b"")
    asked = listings(storage)
    with pytest.raises(StorageError, match="neither a workspace nor empty, since it has ") as raised:
        open_workspace(storage.url)
    named = str(raised.value).split(" has ")[1].partition(";")[0].split(", ")
    assert set(named) <= set(photos) and len(named) == (3 if storage.local else 1)
    assert asked == ([] if storage.local else [1])
    assert set(storage.list("")) == set(photos)


def listings(storage: Storage) -> list[int | None]:
    """Most keys of each listing from now on, if it is an object store."""
    asked: list[int | None] = []

    def note(params: dict[str, Any], **_: Any) -> None:
        asked.append(params.get("MaxKeys"))

    if not storage.local:
        storage.fs.s3.meta.events.register("provide-client-params.s3.ListObjectsV2", note)
    return asked


def test_a_workspace_of_the_commit_before_opens(storage: Storage) -> None:
    """It may have begun among other files, and its first run may have been killed."""
    storage.publish_bytes("1.jpg", b"")
    storage.publish_bytes("format.json", b'{\n "format": 2\n}')
    storage.publish_bytes("runs/one/run.json", b"{}")
    for create in (False, True):
        assert open_workspace(storage.url, create=create).url == storage.url


def test_what_a_killed_process_or_a_new_disk_has_left_does_not_count(tmp_path: Path) -> None:
    (tmp_path / "lost+found").mkdir(mode=0)
    (tmp_path / ".format.json.0123.tmp").touch()
    assert open_workspace(str(tmp_path)).read_json("format.json") == {"format": FORMAT}


@pytest.mark.parametrize(("found", "written"), [(1, "an older"), (99, "another")])
def test_a_workspace_of_another_format_is_one_line(storage: Storage, found: int, written: str) -> None:
    storage.publish_bytes("format.json", f'{{"format": {found}}}'.encode())
    told = (
        f"{storage.url}: this workspace has format {found}, written by {written} version; this version reads format "
        f"{FORMAT}: choose another workspace and run the recipe there"
    )
    for create in (False, True):
        with pytest.raises(StorageError) as raised:
            open_workspace(storage.url, create=create)
        assert str(raised.value) == told


# --- this machine's disk ----------------------------------------------------------------------------------------------


def test_killed_while_writing_leaves_no_name(tmp_path: Path) -> None:
    storage = Storage(str(tmp_path))
    if not (child := os.fork()):
        with storage.publish("folder/file") as path:
            path.write_bytes(b"half")
            os.kill(os.getpid(), signal.SIGKILL)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
    assert storage.list("") == {} and not storage.exists("folder/file")


def test_a_relative_path_does_not_follow_the_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    storage = Storage("here")
    storage.publish_bytes("file", b"x")
    monkeypatch.chdir("/")
    assert storage.read("file") == b"x" and storage.url == str(tmp_path / "here")


def test_errors_that_a_user_can_fix_are_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = Storage(str(tmp_path))

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StorageError, match=r"/file: no space left; free some, or choose another workspace$"):
        storage.publish_bytes("file", b"x")
    with pytest.raises(StorageError, match="no space left"):
        storage.create("file", b"x")
    assert storage.list("") == {}


def test_a_path_that_is_not_a_folder_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StorageError, match=r"cannot use this as a workspace \(.*Error.*check URL and credentials$"):
        open_workspace(str(tmp_path / "file"))


def test_published_files_obey_the_umask(tmp_path: Path) -> None:
    """Other users of the group can read a run's files; Python's temporary files would be private."""
    storage = Storage(str(tmp_path))
    before = os.umask(0o022)
    try:
        storage.publish_bytes("file", b"x")
        storage.create("made", b"x")
    finally:
        os.umask(before)
    assert {stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("file", "made")} == {0o644}


# --- the object store -------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_a_failed_multipart_upload_is_aborted(object_store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts of an unfinished upload would cost storage without being visible."""
    import s3fs

    object_store.create_bucket(Bucket="parts")
    storage = Storage("s3://parts/here")
    sent: list[int] = []

    async def failing(self: Any, method: str, *args: Any, **kwargs: Any) -> Any:
        if method == "upload_part":
            sent.append(kwargs["PartNumber"])
            if len(sent) == 2:
                raise OSError("connection lost")
        return await whole(self, method, *args, **kwargs)

    whole = s3fs.S3FileSystem._call_s3
    monkeypatch.setattr(s3fs.S3FileSystem, "_call_s3", failing)
    with pytest.raises(OSError, match="connection lost"), storage.publish("big") as path, path.open("wb") as file:
        file.truncate(110 * MIB)
    assert len(sent) >= 2
    assert object_store.list_multipart_uploads(Bucket="parts").get("Uploads", []) == []
    assert storage.list("") == {}
    monkeypatch.setattr(s3fs.S3FileSystem, "_call_s3", whole)
    with storage.publish("big") as path, path.open("wb") as file:
        file.truncate(110 * MIB)
    assert storage.list("") == {"big": 110 * MIB}


def test_a_missing_bucket_is_one_line(object_store: Any) -> None:
    with pytest.raises(StorageError, match="s3://nowhere/x: cannot use this as a workspace"):
        open_workspace("s3://nowhere/x")
