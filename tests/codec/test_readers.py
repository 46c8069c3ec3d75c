from __future__ import annotations

import hashlib
import os
import threading
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import s3fs

from curate.codec.members import read_members
from curate.codec.readers import MEMORY_BYTES, FileReader, identity
from curate.core.errors import StorageError
from curate.core.nouns.pools import EDGES, Shard
from curate.core.reader import LostError, Reader
from curate.core.store.storage import open_storage

LARGE = 5 << 30


@contextmanager
def served(size: int, ranges: bool = True) -> Iterator[tuple[str, list[int]]]:
    """URL of a server with one object of zeros, and the bytes that it has sent."""
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
                    self.wfile.write(bytes(min(1 << 20, stop - at)))
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


def test_a_server_that_ignores_ranges_is_named_without_downloading(tmp_path: Path) -> None:
    with served(LARGE, ranges=False) as (url, sent):
        reader = FileReader(open_storage(url), "large")
        with pytest.raises(StorageError, match="large: the server ignores ranges"):
            reader.read_at(LARGE - 1000, 1000)
    assert sum(sent) < LARGE // 100


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
