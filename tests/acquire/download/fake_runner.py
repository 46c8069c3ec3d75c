"""Stands in for curate/acquire/runner/main.py: no packages, and each URL says what happens.

`ok`: an answer. `fail`: an answer without an image. `die`, `die-once`: the process dies. `hang`: it lives, but its work
stops. `silent`: all of it stops. `decode-…`: the same while it decodes the row's image. `full`: its disk is full.
`gone`: its limiter is gone. `forge …`: an answer with other fields, in JSON. The setting `folder` is where it remembers
what it did once.
"""

from __future__ import annotations

import json
import os
import signal
import struct
import sys
import threading
import time
from pathlib import Path
from typing import Any

DECODING: list[float] = []


def send(message: dict[str, Any]) -> None:
    os.write(1, json.dumps(message).encode() + b"\n")


def beat(seconds: float) -> None:
    while True:
        time.sleep(seconds)
        send({"alive": time.monotonic() - DECODING[0] if DECODING else None})


def first_time(folder: str, what: str) -> bool:
    try:
        (Path(folder) / what).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def act(url: str, row: int, folder: str, spool: int) -> None:
    what = url.removeprefix("decode-")
    if what != url:
        os.pwrite(spool, struct.pack("<q", row), 0)
        DECODING.append(time.monotonic())
    if what == "die" or (what == "die-once" and first_time(folder, f"{row}")):
        os.write(2, b"Traceback\nValueError: of no use\n")
        os.kill(os.getpid(), signal.SIGKILL)
    elif what == "hang":
        (Path(folder) / "hangs").touch()
        time.sleep(1000)
    elif what == "silent":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif what == "full":
        send({"failed": "the spool", "errno": 28})
        sys.exit(1)
    elif what == "gone":
        send({"failed": "LimiterGoneError: the limiter does not answer", "errno": None})
        sys.exit(1)
    if what != url:
        os.pwrite(spool, struct.pack("<q", -1), 0)
        DECODING.clear()


def main() -> None:
    hello = json.loads(sys.stdin.readline())
    spool, folder = hello["spool"], hello["settings"]["folder"]
    if hello["settings"].get("start") == "fail":
        send({"failed": "RuntimeError: img2dataset 1.0; expected 1.47.0", "errno": None})
        sys.exit(1)
    threading.Thread(target=beat, args=(hello["beat_seconds"],), daemon=True).start()
    send({"ready": {}})
    for line in sys.stdin:
        order = json.loads(line)
        for row in map(json.loads, os.pread(spool, order["size"], order["offset"]).splitlines()):
            act(row["url"], row["row"], folder, spool)
            answer = {
                "row": row["row"],
                "status": "unusable",
                "code": "http_404",
                "detail": "it says so",
                "fetch": None,
            }
            if row["url"] != "fail":
                image = f"image {row['row']}".encode()
                offset = os.fstat(spool).st_size
                os.pwrite(spool, image, offset)
                answer |= {"status": "done", "code": "done", "detail": "", "ext": "jpg", "meta": {"pid": os.getpid()}}
                answer |= {"offset": offset, "size": len(image)}
                answer["fetch"] = {"host": "a.org", "tries": 2, "seconds": 0.5, "bytes": 7}
            if row["url"].startswith("forge "):
                answer |= json.loads(row["url"].removeprefix("forge "))
            send(answer)


main()
