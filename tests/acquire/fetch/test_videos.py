"""Videos are written to a sink while they come; what is not a video is left early."""

from __future__ import annotations

import gzip
import hashlib
import os
import tempfile
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from curate.acquire.fetch.fetch import Fetched
from curate.acquire.runner.spool import BLOCK_BYTES, Spool, SpoolSink
from tests.acquire.fetch.scripted import IMAGE, Scripted, redirect, response

MP4 = b"\0\0\0\x18ftypisom\0\0\2\0isommp41" + bytes(range(256)) * 40
MKV = b"\x1a\x45\xdf\xa3" + bytes(5000)
HTML = b"<!doctype html>" + b"<p>Sign in to watch" * 1000
VIDEO: dict[str, Any] = {"media": ("video",), "retries": 0}


@pytest.fixture
def sink() -> Iterator[SpoolSink]:
    def fail(reason: str, errno: int | None) -> None:
        raise AssertionError(reason)

    with tempfile.TemporaryFile() as file:
        yield SpoolSink(Spool(file.fileno(), fail), ("md5",))


def content(sink: SpoolSink) -> bytes:
    return b"".join(os.pread(sink._spool.file, size, offset) for offset, size in sink.extents())


def fetched(body: Any, sink: SpoolSink, sha256: str | None = None, md5: str | None = None, **changes: Any) -> Fetched:
    with Scripted(body if callable(body) else (lambda _: body)) as server:
        return server.fetcher(**(VIDEO | changes)).fetch(server.url(), sha256, md5, sink=sink)


@pytest.mark.parametrize(("data", "ext"), [(MP4, "mp4"), (MKV, "mkv")])
def test_a_video_goes_to_the_sink(sink: SpoolSink, data: bytes, ext: str) -> None:
    digests = [hashlib.new(name, data).hexdigest() for name in ("sha256", "md5")]
    found = fetched(response(data), sink, *digests)
    assert (found.code, found.ext, found.stored, found.data) == ("done", ext, True, b"")
    assert content(sink) == data and [sink.digest("sha256"), sink.digest("md5")] == digests
    assert found.bytes > len(data)


def ending(data: bytes) -> Iterator[bytes]:
    """Sends it and closes the connection."""
    yield data
    raise ConnectionAbortedError


def chunked(data: bytes, step: int = 1000) -> bytes:
    parts = [data[at : at + step] for at in range(0, len(data), step)]
    body = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts)
    return b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + body + b"0\r\n\r\n"


def test_a_body_without_a_length(sink: SpoolSink) -> None:
    assert fetched(chunked(MP4), sink).code == "done" and content(sink) == MP4


@pytest.mark.parametrize(
    ("body", "changes", "code"),
    [
        (response(HTML), {}, "not_a_video"),
        (response(IMAGE), {}, "not_a_video"),
        (response(b""), {}, "not_a_video"),
        (response(HTML), {"media": ("image", "video")}, "not_a_video"),
        (response(gzip.compress(HTML), "Content-Encoding: gzip"), {}, "not_a_video"),
        (response(MP4), {"media": ("image",)}, "not_image"),
        (response(MP4), {"max_video_bytes": len(MP4) - 1}, "too_large"),
        (chunked(MP4), {"max_video_bytes": len(MP4) - 1}, "too_large"),
        (lambda _: ending(response(MP4)[:-1]), {}, "truncated"),
        (lambda _: ending(response(MP4)[:200]), {}, "truncated"),
        (lambda _: ending(chunked(MP4)[:-40]), {}, "truncated"),
        (response(MP4, "X-Robots-Tag: noai"), {}, "opt_out_x_robots_tag"),
        (redirect("http://10.0.0.1/a.mp4"), {}, "private_address"),
    ],
)
def test_what_is_not_stored(sink: SpoolSink, body: Any, changes: dict[str, Any], code: str) -> None:
    found = fetched(body, sink, **changes)
    assert (found.code, found.stored) == (code, False)
    assert sink.extents() == [] and sink.size == 0


def test_other_bytes_than_the_list_names_are_not_stored(sink: SpoolSink) -> None:
    assert fetched(response(MP4), sink, "0" * 64).code == "changed" and sink.extents() == []


def test_images_and_videos_of_one_list(sink: SpoolSink) -> None:
    both = {"media": ("image", "video"), "max_bytes": 100}
    found = fetched(response(IMAGE), sink, **both)
    assert (found.code, found.data, found.stored, sink.size) == ("done", IMAGE, False, 0)
    assert fetched(response(IMAGE + bytes(90)), sink, **both).code == "too_large"
    assert fetched(response(MP4), sink, **both).stored  # its limit is another


def test_a_video_that_was_encoded_unasked(sink: SpoolSink) -> None:
    found = fetched(response(gzip.compress(MP4), "Content-Encoding: gzip"), sink)
    assert (found.code, found.stored) == ("done", True) and content(sink) == MP4
    assert fetched(response(MP4, "Content-Encoding: gzip"), sink).code == "done"  # announced, but not encoded


def test_a_page_is_left_before_its_end(sink: SpoolSink) -> None:
    sent = []

    def endless(_: bytes) -> Iterator[bytes]:
        yield b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000\r\n\r\n" + HTML
        while len(sent) < 1000:
            sent.append(1)
            yield HTML * 10

    found = fetched(endless, sink, max_video_bytes=2 << 30)
    assert found.code == "not_a_video" and "sent as" in found.detail and found.bytes < 1 << 20
    assert len(sent) < 1000


def test_a_retry_begins_again(sink: SpoolSink) -> None:
    answers = iter([ending(response(MP4)[:-2000]), response(MP4)])
    assert fetched(lambda _: next(answers), sink, retries=1).tries == 2
    assert content(sink) == MP4 and sink.digest("sha256") == hashlib.sha256(MP4).hexdigest()


@pytest.fixture
def ahead(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """How many seconds the clock is ahead: what takes long here takes no time."""
    seconds, now = [0.0], time.monotonic
    monkeypatch.setattr(time, "monotonic", lambda: now() + seconds[0])
    return seconds


def test_a_body_that_stalls_ends(sink: SpoolSink) -> None:
    def stalling(_: bytes) -> Iterator[bytes]:
        yield response(MP4)[:6000]
        threading.Event().wait(60)

    assert fetched(stalling, sink, timeout=0.3).code == "timeout"
    assert sink.extents() == []


def test_a_body_that_drips_ends(sink: SpoolSink, ahead: list[float]) -> None:
    """At the deadline of a video, by a clock in which each byte takes ten seconds."""

    def dripping(_: bytes) -> Iterator[bytes]:
        yield response(MP4)[:6000]
        for at in range(6000, len(response(MP4))):
            time.sleep(0.01)
            ahead[0] += 10.0
            yield response(MP4)[at : at + 1]

    found = fetched(dripping, sink, deadline_seconds=60.0, video_deadline_seconds=200.0)
    assert found.code == "deadline" and found.seconds >= 200
    assert sink.extents() == []


def test_a_video_has_a_separate_deadline(sink: SpoolSink, ahead: list[float]) -> None:
    def slow(_: bytes) -> Iterator[bytes]:
        yield response(MP4)[:6000]
        while not sink.size:  # it is not known yet that this is a video
            time.sleep(0.001)
        ahead[0] = 1000.0
        yield response(MP4)[6000:]

    assert fetched(slow, sink, deadline_seconds=60.0, video_deadline_seconds=3600.0).code == "done"


def test_blocks_of_failed_fetches_are_used_again(sink: SpoolSink) -> None:
    other = SpoolSink(sink._spool, ())
    data = os.urandom(BLOCK_BYTES + 5)
    sink.write(b"x" * (2 * BLOCK_BYTES))
    other.write(b"kept")
    sink.clear()
    sink.write(data[:7])
    other.write(b" too")
    sink.write(data[7:])
    assert sink._spool.append(b"image") == 3 * BLOCK_BYTES
    assert content(sink) == data and content(other) == b"kept too"
    assert sum(size for _, size in sink.extents()) == sink.size == len(data)


def test_a_full_disk_is_nobodys_fault() -> None:
    failed = []
    with open("/dev/full", "wb") as file:
        sink = SpoolSink(Spool(file.fileno(), lambda reason, errno: failed.append(errno)), ())
        with pytest.raises(OSError, match="No space"):
            sink.write(b"x")
    assert failed == [28]
