"""Downloads one large video, and measures the memory of the processes that do it."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

from curate.acquire.download.download import AcquireDownload
from curate.acquire.lists.list import AcquireList
from curate.core.recipe.pipeline import Pipeline
from curate.engine.run import run
from tests.acquire.download.site import runners, write_list
from tests.acquire.fetch.scripted import Scripted
from tests.codec.video.make_videos import video
from tests.conftest import ROOT

PIECE = bytes(1 << 20)


def parts(size: int) -> Iterator[bytes]:
    """A valid mp4 with a box at its end that is never read, of `size` bytes in all, with the header of a response."""
    film = video("mp4 h264")
    left = size - len(film)
    yield f"HTTP/1.1 200 OK\r\nContent-Length: {size}\r\n\r\n".encode()
    yield film + (1).to_bytes(4, "big") + b"free" + left.to_bytes(8, "big")
    left -= 16
    while left > 0:
        yield PIECE[:left]
        left -= len(PIECE)


def downloaded(size: int, folder: Path) -> dict[str, int | float]:
    """Peaks of resident memory, of the worker and of its runner, and seconds; the pool is in `folder`."""
    with Scripted(lambda _: parts(size)) as server:
        command = [sys.executable, "-m", "tests.acquire.download.large", str(folder), server.url("/a.mp4")]
        done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, int | float] = json.loads(done.stdout.splitlines()[-1])
    return found


def main(folder: str, url: str) -> None:
    path = write_list(Path(folder, "list.jsonl"), [{"url": url, "caption": None}])
    port = int(url.split(":")[2].partition("/")[0])
    here = {"allow_networks": ("127.0.0.0/8",), "allow_ports": (port,), "deadline_seconds": 5.0}
    stage = AcquireDownload(namespace="web", contact="tests@example.org", media=("video",), **here)  # type: ignore[arg-type]
    pipeline = Pipeline().add("urls", AcquireList(path=str(path))).add("pool", stage, list="urls").check()
    peaks, over = dict[int, int](), threading.Event()

    def watch() -> None:
        while not over.wait(0.05):
            peaks.update({one.pid: peak_bytes(one.pid) for one in runners(psutil.Process().pid)})

    threading.Thread(target=watch, daemon=True).start()
    began = time.monotonic()
    run(pipeline, f"{folder}/workspace")
    seconds = time.monotonic() - began
    over.set()
    sys.stdout.write(json.dumps({"worker": peak_bytes(), "runner": max(peaks.values()), "seconds": seconds}) + "\n")


def peak_bytes(process: int | str = "self") -> int:
    """The most resident memory that it has had; 0 if it is gone."""
    try:
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return next((int(one.split()[1]) for one in lines if one.startswith("VmHWM")), 0) << 10


if __name__ == "__main__":
    main(*sys.argv[1:])
