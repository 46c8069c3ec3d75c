"""A large video on its way into a pool: memory of the processes, and time beside a plain copy of the same bytes.

    python -m bench.video.download [GIB ...]

A server on this machine sends a valid mp4 that is filled up with zeros. `worker` is the process of the run with its
local engine, `runner` the process that fetches. The plain way is http.client in one process, which writes the body to a
file in pieces of 1 MiB: no check of addresses, no digest, no shard.
"""

from __future__ import annotations

import argparse
import http.client
import shutil
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from bench.kit.measure import line, load, machine
from tests.acquire.download.large import downloaded, parts
from tests.acquire.fetch.scripted import Scripted

LIMIT_BYTES = 400 << 20


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="memory and time of the download of a large video")
    parser.add_argument("gib", nargs="*", type=float, default=[1.0])
    for gib in parser.parse_args(arguments).gib:
        size = int(gib * 2**30)
        print(f"{machine()}; {load()}; {gib:g} GiB")
        with tempfile.TemporaryDirectory(prefix="bench-") as folder:
            plain = plainly(size, Path(folder, "plain"))
            found = downloaded(size, Path(folder))
        for name in ("worker", "runner"):
            line(f"peak of the {name}", f"{found[name] / 2**20:.0f} MiB", f"aim: below {LIMIT_BYTES >> 20} MiB")
        line("seconds / those of a plain copy", f"{found['seconds'] / plain:.1f}", f"{found['seconds']:.1f} s")


def plainly(size: int, path: Path) -> float:
    """Seconds of a copy of the body to a file."""
    with Scripted(lambda _: parts(size)) as server:
        began = time.perf_counter()
        connection = http.client.HTTPConnection("127.0.0.1", server.port)
        connection.request("GET", "/a.mp4")
        with path.open("wb") as file:
            shutil.copyfileobj(connection.getresponse(), file, 1 << 20)
        connection.close()
        seconds = time.perf_counter() - began
    assert path.stat().st_size == size
    path.unlink()
    return seconds


if __name__ == "__main__":
    main()
