from __future__ import annotations

import gc
import hashlib
import json
import os
import struct
import subprocess
import sys
import threading
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import fsspec
import pytest
import s3fs
from fsspec.implementations.http import HTTPFile

from curate.codec.media import MEDIA
from curate.codec.members import read_members
from curate.codec.readers import MEMORY_BYTES, FileReader, identity
from curate.core import reader as core_reader
from curate.core.errors import StorageError, Undecodable
from curate.core.nouns.pools import EDGES, Shard
from curate.core.reader import LostError, Reader
from curate.core.store.storage import open_storage
from tests.core.store.object_store import forget_connections

LARGE = 5 << 30


@contextmanager
def served(size: int, ranges: bool = True, head: bytes = b"") -> Iterator[tuple[str, list[int]]]:
    """URL of a server with one object of zeros after its first bytes, and the bytes that it has sent."""
    sent: list[int] = []

    class Answer(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.answer(body=False)

        def do_GET(self) -> None:
            self.answer(body=True)

        def answer(self, body: bool) -> None:
            start, stop = 0, size
            asked = self.headers.get("Range")
            if asked and ranges:
                first, _, last = asked.removeprefix("bytes=").partition("-")
                start, stop = int(first), min(size, int(last or size - 1) + 1)
            self.send_response(206 if asked and ranges else 200)
            self.send_header("Content-Length", str(stop - start))
            self.send_header("Accept-Ranges", "bytes" if ranges else "none")
            if asked and ranges:
                self.send_header("Content-Range", f"bytes {start}-{stop - 1}/{size}")
            self.end_headers()
            try:
                for at in range(start, stop if body else start, 1 << 20):
                    block = head[at : min(at + (1 << 20), stop)]
                    self.wfile.write(block + bytes(min(1 << 20, stop - at) - len(block)))
                    sent.append(min(1 << 20, stop - at))
            except OSError:
                self.close_connection = True

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}", sent
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("place", ["local", "http"])
def test_edges_of_5_gb_cost_few_bytes_and_little_memory(tmp_path: Path, place: str) -> None:
    with served(LARGE) as (url, sent), open(tmp_path / "large", "wb") as file:
        file.truncate(LARGE)
        tracemalloc.start()
        reader = FileReader(open_storage(str(tmp_path) if place == "local" else url), "large")
        assert reader.size == LARGE
        assert reader.read_at(0, 1 << 20) == reader.read_at(LARGE - (1 << 20), 1 << 21) == bytes(1 << 20)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < 200 << 20
    assert sum(sent) < LARGE // 100


def bmp(size: int) -> bytes:
    """The header of an image with the given number of bytes and 24 bits a pixel."""
    height = size // (3 * 30_000)
    return struct.pack("<2sIIIIiiHHIIiiII", b"BM", size % 2**32, 0, 54, 40, 30_000, height, 1, 24, 0, 0, 0, 0, 0, 0)


def tiff(size: int) -> bytes:
    """The header of an image of 16 bits a pixel in one strip, right after its only directory."""
    height, fields = size // 60_000, []
    for tag, value in {256: 30_000, 257: height, 258: 16, 259: 1, 262: 1, 273: 256, 277: 1, 278: height}.items():
        fields.append(struct.pack("<HHII", tag, 4, 1, value))
    return struct.pack("<2sHIH", b"II", 42, 8, len(fields)) + b"".join(fields) + bytes(4)


PROBE = """
import json, sys
from curate.codec import media
from curate.codec.readers import FileReader
from curate.core.store.storage import open_storage
found = media.of("image").probe(FileReader(open_storage(sys.argv[1]), "large"))
peak = next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(json.dumps([found.format, found.width, found.height, int(peak) << 10]))
"""


@pytest.mark.parametrize(
    "head",
    [
        bmp(LARGE),
        pytest.param(tiff(LARGE - (1 << 20)), marks=pytest.mark.long),
    ],
    ids=["bmp", "tiff"],
)
def test_an_image_of_5_gb_is_probed_by_its_header(head: bytes) -> None:
    """Less than 1 % of its bytes are read, by a process that has less than 200 MB of memory, its modules included."""
    with served(LARGE, head=head) as (url, sent):
        made = subprocess.run([sys.executable, "-c", PROBE, url], capture_output=True, text=True, check=True)
    format, width, height, peak = json.loads(made.stdout)
    assert (format, width) == ("tiff" if head.startswith(b"II") else "bmp", 30_000) and height > 50_000
    assert peak < 200_000_000
    assert 0 < sum(sent) < LARGE // 100


def test_a_large_file_with_a_corrupt_header_is_not_read_whole() -> None:
    with served(LARGE, head=b"\x89PNG\r\n\x1a\n" + bytes(100)) as (url, sent), pytest.raises(Undecodable) as caught:
        MEDIA["image"].probe(FileReader(open_storage(url), "large"))
    assert caught.value.reason == "truncated"  # no end mark
    assert sum(sent) < LARGE // 100


@pytest.mark.parametrize("place", ["http", "s3"])
def test_a_store_that_does_not_answer_raises_a_storage_error(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not `vanished`, which loses the row, and not `corrupt`."""
    with served(1000, head=bmp(1000)) as (url, _):
        pass  # the port is free again
    if place == "s3":
        for name, value in {"ACCESS_KEY_ID": "x", "SECRET_ACCESS_KEY": "x", "ENDPOINT_URL": url}.items():
            monkeypatch.setenv(f"AWS_{name}", value)
        monkeypatch.setitem(fsspec.config.conf, "s3", {"config_kwargs": {"retries": {"max_attempts": 0}}})
        monkeypatch.setattr(s3fs.S3FileSystem, "retries", 1)
        forget_connections()
        url = "s3://bucket"
    for make in (FileReader, partial(FileReader, whole=(1000, "etag"))):
        with pytest.raises(StorageError, match=f"{url}/a: reading failed .*; check the store") as caught:
            MEDIA["image"].probe(make(open_storage(url), "a"))
        assert "\n" not in str(caught.value)
    forget_connections()


@pytest.mark.long
def test_readers_that_have_read_to_the_end_hold_nothing() -> None:
    """A thousand may wait for a place in a dataset; each would hold an open file with what it has read ahead."""
    with served(10 << 20) as (url, _):
        many = [FileReader(open_storage(url), "a") for _ in range(10)]
        assert len({identity("key", reader) for reader in many}) == 1
        gc.collect()
        assert sum(type(one) is HTTPFile for one in gc.get_objects()) < len(many) / 2
        assert many[0].sha256() == hashlib.sha256(bytes(10 << 20)).hexdigest()


def test_a_truncated_tar_ends_the_shard_and_not_one_member(tmp_path: Path) -> None:
    with open(tmp_path / "a.tar", "wb") as file:
        file.truncate(2 * MEMORY_BYTES)
    root, rows = open_storage(str(tmp_path)), {"offset": [512], "size": [MEMORY_BYTES + 1]}
    shard = Shard("", 1, "a.tar", 2 * MEMORY_BYTES, "")
    (found,) = read_members(root, shard, rows)
    assert isinstance(found, FileReader) and found.size == MEMORY_BYTES + 1
    os.truncate(tmp_path / "a.tar", MEMORY_BYTES)
    with pytest.raises(LostError, match=r"changed: a\.tar"):
        found.read_at(0, 1)
    with pytest.raises(
        StorageError, match=r"changed: .*a\.tar: \d+ bytes, expected \d+; restore the tar, or import it"
    ):
        list(read_members(root, shard, rows))
    (tmp_path / "a.tar").unlink()
    with pytest.raises(StorageError, match=r"vanished: a\.tar; restore the tar, or import it again"):
        list(read_members(root, shard, rows))


def test_a_server_that_ignores_ranges_is_named_without_downloading(tmp_path: Path) -> None:
    with served(LARGE, ranges=False) as (url, sent):
        reader = FileReader(open_storage(url), "large")
        with pytest.raises(StorageError, match="large: the server ignores ranges"):
            reader.read_at(LARGE - 1000, 1000)
    assert sum(sent) < LARGE // 100


def test_a_member_ends_where_its_span_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core_reader, "BLOCK_BYTES", 3)
    data = bytes(range(100))
    (tmp_path / "a").write_bytes(data)
    root = open_storage(str(tmp_path))
    for offset, size in [(0, 100), (10, 50), (99, 1), (50, 0), (100, 0)]:
        member = FileReader(root, "a", size, offset)
        alike: Reader = Reader(data[offset : offset + size])
        for read in (member, alike):
            assert read.size == size and read.bytes() == alike.bytes() and read.sha256() == alike.sha256()
            assert b"".join(read.blocks()) == alike.bytes()
            assert all(read.read_at(at, 7) == alike.bytes()[at : at + 7] for at in range(120))
            with read.open() as file:
                assert file.seek(0, os.SEEK_END) == size and file.read() == b""
                file.seek(size // 2)
                assert file.read(4) == alike.bytes()[size // 2 :][:4]
    (tmp_path / "a").write_bytes(b"")
    with pytest.raises(Undecodable, match="empty"):
        MEDIA["image"].probe(FileReader(root, "a"))


def test_a_file_that_changes_or_vanishes_while_it_is_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"1234")
    reader = FileReader(open_storage(str(tmp_path)), "a")
    assert reader.open().read() == b"1234"
    (tmp_path / "a").write_bytes(b"12345")
    with pytest.raises(LostError, match="changed: a: another size or time"):
        reader.read_at(0, 2)
    (tmp_path / "a").unlink()
    with pytest.raises(LostError, match="vanished: a"):
        reader.read_at(0, 2)


def test_an_object_that_is_written_again_while_it_is_read_is_named(object_store: Any) -> None:
    object_store.create_bucket(Bucket="bucket")
    s3 = s3fs.S3FileSystem()
    s3.pipe_file("bucket/a", b"1234" * 100)
    reader = FileReader(open_storage("s3://bucket"), "a")
    assert reader.read_at(4, 4) == b"1234"
    s3.pipe_file("bucket/a", b"4321" * 100)
    with pytest.raises(LostError, match="changed: a"):
        reader.read_at(0, 4)


def test_large_files_in_place_are_known_by_edges_and_time(tmp_path: Path) -> None:
    root, size = open_storage(str(tmp_path)), MEMORY_BYTES + 1
    with open(tmp_path / "v", "wb") as file:
        file.truncate(size)
    known = identity("key", FileReader(root, "v"))
    assert known.startswith(EDGES) and known != identity("other", FileReader(root, "v"))

    def found(sha256: str) -> Any:
        rows = {"offset": [0], "size": [size], "key": ["key"], "source_id": ["v"], "sha256": [sha256]}
        return next(read_members(root, Shard("", 1, f"{tmp_path}/", size, ""), rows))

    whole = hashlib.sha256(bytes(size)).hexdigest()  # of a pool without the record, or with `digest: full`
    assert isinstance(found(known), Reader) and isinstance(found(whole), Reader)
    os.utime(tmp_path / "v", ns=(0, 0))
    assert found(known).reason == "changed" and "v" in str(found(known))
    assert isinstance(found(whole), Reader)
