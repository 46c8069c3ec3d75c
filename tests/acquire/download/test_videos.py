"""acquire.download of videos, with a real runner and real servers."""

from __future__ import annotations

import hashlib
import os
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from curate.acquire.download.download import AcquireDownload
from curate.acquire.download.runner import Runner, SpoolReader
from curate.acquire.lists.list import AcquireList
from curate.core.errors import StorageError
from curate.core.recipe.pipeline import Pipeline
from curate.engine.run import run
from pipelines.serve import ImageServer
from tests.acquire.download.large import downloaded, parts
from tests.acquire.download.site import SECONDS, ends, runners, write_list
from tests.acquire.download.test_download import Pool
from tests.acquire.fetch.scripted import Scripted, path_of, response
from tests.acquire.runner.portions import settings
from tests.codec.make_images import encoded, noise
from tests.codec.video.make_videos import video
from tests.conftest import ROOT

pytestmark = pytest.mark.usefixtures("runner_python")
FILM = video("mp4 h264")
FILES = {
    "a.mp4": FILM,
    "b.webm": video("webm vp9"),
    "c.jpg": encoded(noise(), "jpeg"),
    "page.mp4": b"<!doctype html>" * 500,
}


def pool_of(folder: Path, server: ImageServer, media: tuple[str, ...], **changes: Any) -> Pool:
    rows: list[dict[str, Any]] = [{"url": server.url(name), "caption": None} for name in FILES]
    path = write_list(folder / "list.jsonl", [*rows, {"url": server.url("a.mp4"), "caption": "A film"}])
    here = {"allow_networks": ("127.0.0.0/8",), "allow_ports": (server.port,)} | changes
    stage = AcquireDownload(namespace="_".join(media), contact="tests@example.org", media=media, **here)
    pipeline = Pipeline().add("urls", AcquireList(path=str(path))).add("pool", stage, list="urls")
    return Pool.of(run(pipeline.check(), str(folder / "workspace")))


@pytest.mark.long
def test_videos_and_images_of_a_list(tmp_path: Path) -> None:
    with ImageServer(mounted=FILES) as server:
        both = pool_of(tmp_path, server, ("image", "video"), resize_mode="keep_ratio", image_size=8)
        only = pool_of(tmp_path, server, ("video",), max_video_bytes=len(FILM) - 1)
        row, shared = (both.rows[server.url("a.mp4") + end] for end in ("", "\tA film"))
        films = {name: both.members[server.url(name)] for name in ("a.mp4", "b.webm")}
        image = both.rows[server.url("c.jpg")]
        assert both.reasons() == {server.url("page.mp4"): "not_a_video"}
        assert only.reasons() == {
            server.url("page.mp4"): "not_a_video", server.url("c.jpg"): "not_a_video", server.url("a.mp4"): "too_large",
        }  # fmt: skip
    assert films == {name: FILES[name] for name in films}  # as they come
    assert (row["sha256"], row["ext"]) == (hashlib.sha256(FILM).hexdigest(), "mp4")
    assert (row["media"], row["format"], row["duration_ms"], row["width"]) == ("video", "mp4", 2400, 96)
    assert shared["offset"] == row["offset"] and len(only.members) == 1
    assert (image["media"], image["format"], image["width"]) == (None, "jpeg", 8)  # resized


class Held:
    """A server whose bodies stop in the middle until `go` is set."""

    def __init__(self, size: int) -> None:
        self.size, self.go, self.middle = size, threading.Event(), threading.Event()

    def __call__(self, _: bytes) -> Iterator[bytes]:
        for number, part in enumerate(parts(self.size)):
            if number == 5:
                self.middle.set()
                assert self.go.wait(SECONDS)
            yield part


def content(reader: Any) -> str:
    assert isinstance(reader, SpoolReader)
    digest = hashlib.sha256(b"".join(reader.blocks())).hexdigest()
    assert reader.sha256() == digest
    return digest


def expected(size: int) -> str:
    _, *body = parts(size)
    return hashlib.sha256(b"".join(body)).hexdigest()


@pytest.mark.long
def test_a_runner_killed_in_the_middle_of_a_video(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    held = Held(20 << 20)
    with Scripted(held) as server, Runner(settings(server, media=["video"])) as runner:

        def kill() -> None:
            assert held.middle.wait(SECONDS) and runner._child
            os.kill(runner._child.pid, signal.SIGKILL)
            held.go.set()

        threading.Thread(target=kill).start()
        (answer,) = runner.run([{"row": 7, "url": server.url()}], SECONDS)
        assert (answer.row, answer.code, len(server.requests)) == (7, "done", 2)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.long
def test_a_disk_that_is_full_in_the_middle_of_a_video() -> None:
    with Scripted(response(FILM)) as server, Runner(settings(server, media=["video"])) as runner:
        rows = [{"row": 0, "url": server.url()}]
        list(runner.run(rows, SECONDS))
        assert runner._child
        resource.prlimit(runner._child.pid, resource.RLIMIT_FSIZE, (1 << 14, 1 << 14))
        with pytest.raises(StorageError, match=r"File too large; expected room for what a portion fetches"):
            list(runner.run(rows, SECONDS))
        for answer in runner.run(rows, SECONDS):
            assert content(runner.read(answer)) == hashlib.sha256(FILM).hexdigest()


def test_what_a_reader_of_the_spool_gives() -> None:
    server = Scripted(lambda head: parts(30_000_000 if path_of(head) == "/0" else 20_000_000))
    with server, Runner(settings(server, media=["video"])) as runner:
        rows = [{"row": row, "url": server.url(f"/{row}")} for row in range(3)]
        for answer in runner.run(rows, SECONDS):
            size = 20_000_000 if answer.row else 30_000_000
            reader = runner.read(answer)
            assert isinstance(reader, SpoolReader) and reader.size == answer.size == size
            assert content(reader) == expected(size)
            assert reader.read_at(0, 8) == reader.bytes()[:8] and reader.read_at(size - 1, 9) == b"\0"
            assert reader.read_at(len(FILM), 8)[4:] == b"free" and reader.open().read(12)[4:8] == b"ftyp"


@pytest.mark.long
def test_a_large_video_needs_little_memory(tmp_path: Path) -> None:
    size = 300 << 20
    found = downloaded(size, tmp_path)
    assert found["worker"] < 400 << 20 and found["runner"] < 400 << 20
    (tar,) = (tmp_path / "workspace/pools/web/shards").glob("*.tar")
    with tar.open("rb") as file:
        file.seek(512)
        digest = hashlib.sha256()
        for _ in range(300):
            digest.update(file.read(1 << 20))
    assert digest.hexdigest() == expected(size)


@pytest.mark.long
def test_a_driver_killed_in_the_middle_of_a_video(tmp_path: Path) -> None:
    held, temporary, size = Held(20 << 20), tmp_path / "tmp", 20 << 20
    temporary.mkdir()
    with Scripted(held) as server:
        command = [sys.executable, "-m", "tests.acquire.download.large", str(tmp_path), server.url("/a.mp4")]
        variables = os.environ | {"TMPDIR": str(temporary)}
        with subprocess.Popen(command, cwd=ROOT, env=variables, stdout=subprocess.DEVNULL) as driver:
            assert held.middle.wait(SECONDS)
            (runner,) = runners(driver.pid)
            driver.kill()
            assert ends(psutil.Process(runner.pid))
        assert [path for path in temporary.iterdir() if path.is_file()] == []
        held.go.set()
        subprocess.run(command, cwd=ROOT, env=variables, stdout=subprocess.DEVNULL, check=True)
    shards = tmp_path / "workspace/pools/web/shards"
    (tar,) = (path for path in shards.iterdir() if path.suffix != ".parquet")
    assert hashlib.sha256(tar.read_bytes()[512:][:size]).hexdigest() == expected(size)
