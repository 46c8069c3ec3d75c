"""Faults of an object store, each on its own: what a storage does comes out as it would without them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import pytest
import s3fs

from curate.acquire import folder
from curate.codec import members, readers
from curate.core.errors import AlreadyExistsError, StorageError
from curate.core.recipe.pipeline import Pipeline
from curate.core.store.storage import Storage
from curate.engine.run import run
from curate.image.inspect import Inspect
from tests.core.store.object_store import forget_connections, new_bucket
from tests.engine.mixed import image_bytes
from tests.engine.object_store_faults.proxy import Fault, Proxy

pytestmark = pytest.mark.long
ALL = ("slow_down", "stall", "cut_reply")


@pytest.fixture
def storage(proxy: Proxy, object_store: Any) -> Storage:
    return Storage(f"s3://{new_bucket(object_store)}/workspace")


def test_a_creator_recognises_what_it_has_created(proxy: Proxy, storage: Storage) -> None:
    proxy.faults.append(Fault("cut_reply", "PUT", times=1))
    storage.create("manifest.json", b"mine")
    assert proxy.done["cut_reply"] == 1
    with pytest.raises(AlreadyExistsError):
        storage.create("manifest.json", b"mine")
    assert storage.read("manifest.json") == b"mine"


@pytest.mark.parametrize("fault", [*ALL, "cut_download"])
def test_reads_are_repeated(proxy: Proxy, storage: Storage, fault: str) -> None:
    data = bytes(range(256)) * 400
    storage.publish_bytes("a/file", data)
    for method in ("HEAD", "GET"):
        proxy.faults.append(Fault(fault, method, times=2))
    assert storage.read("a/file") == data
    assert storage.read_range("a/file", 10, 20) == data[10:20]
    assert storage.read_range("a/file", -5, None) == data[-5:]
    with storage.open("a/file") as file:
        assert file.read() == data
    assert storage.exists("a/file") and not storage.exists("b")
    proxy.faults.append(Fault(fault, "GET", times=2))
    assert storage.list("") == {"a/file": len(data)}


@pytest.mark.parametrize("fault", [*ALL, "cut_upload"])
def test_writes_are_repeated(proxy: Proxy, storage: Storage, fault: str) -> None:
    for method in ("PUT", "POST"):
        proxy.faults.append(Fault(fault, method, times=2))
    storage.publish_bytes("file", b"data")
    storage.mark("mark")
    storage.remove("mark")
    assert storage.list("") == {"file": 4} and storage.read("file") == b"data"
    storage.create("other", b"data")
    assert proxy.done[fault] >= 2


def test_an_empty_object_and_a_large_one_are_read(storage: Storage) -> None:
    large = bytes(range(256)) * (40 << 10)
    storage.publish_bytes("large", large)
    storage.mark("empty")
    assert storage.read("empty") == b"" and storage.read("large") == large
    with pytest.raises(FileNotFoundError):
        storage.read("missing")


@pytest.mark.parametrize(("fault", "said"), [("slow_down", "limits requests"), ("cut_reply", "not answer")])
def test_a_store_that_stays_away_is_named_in_one_line(
    proxy: Proxy, storage: Storage, fault: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage.fs, "retries", 1)
    storage.publish_bytes("file", b"data")
    proxy.faults.append(Fault(fault))
    actions: list[Callable[[], Any]] = [
        lambda: storage.read("file"),
        lambda: storage.read_range("file", 0, 2),
        lambda: storage.publish_bytes("other", b"data"),
        lambda: storage.list(""),
    ]
    for act in actions:
        with pytest.raises(StorageError, match=said) as raised:
            act()
        assert storage.url in str(raised.value) and "\n" not in str(raised.value)


@pytest.mark.usefixtures("at_once")
def test_a_large_object_whose_connection_is_cut_is_tried_again(
    proxy: Proxy, object_store: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is an error of the store, which names the object; no image is taken for corrupt."""
    monkeypatch.setitem(fsspec.config.conf, "s3", {"config_kwargs": {"retries": {"max_attempts": 0}}})
    monkeypatch.setattr(s3fs.S3FileSystem, "retries", 1)
    forget_connections()
    for module in (folder, members, readers):
        monkeypatch.setattr(module, "MEMORY_BYTES", 100)
    bucket = new_bucket(object_store)
    for number in range(4):
        object_store.put_object(Bucket=bucket, Key=f"photos/{number}.bmp", Body=image_bytes(number))
    source = folder.AcquireFolder(namespace="mine", path=f"s3://{bucket}/photos", in_place=True)
    made = Pipeline().add("pool", source)
    run(made.check(), str(tmp_path))
    proxy.faults.append(Fault("cut_reply", "GET", path="photos/2.bmp", times=2))  # the client itself repeats one
    result = run(made.add("inspect", Inspect(), "pool").check(), str(tmp_path))
    assert proxy.done["cut_reply"] == 2
    assert result.ledger["inspect"].after == 4 and not result.ledger["inspect"].lost
    assert "attempt 1 of" in caplog.text and f"{bucket}/photos/2.bmp: reading failed" in caplog.text
