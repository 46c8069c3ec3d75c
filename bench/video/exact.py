"""Frames at times against those of a pass over the whole video, bit for bit, on thousands of damaged files.

    python -m bench.video.exact [10000] [--results FILE]

Each file is one of tests/codec/video/hostile.py, in turn of all containers and codecs of make_videos.py, and is
compared in a separate process. Results are appended to FILE; a second run resumes after them.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from bench.kit.measure import line, load, machine
from tests.codec.video.exactness import check
from tests.codec.video.hostile import damaged
from tests.codec.video.make_videos import KINDS, video
from tests.conftest import ROOT

RESULTS = ROOT / ".cache" / "bench-video-exact.tsv"
FILES, SAY_SECONDS, CPU_SECONDS = 10_000, 10.0, 5.0
WRONG, CRASH = "WRONG", "CRASH"


def compared(number: int) -> tuple[str, str, float]:
    """(kind, outcome, CPU seconds) of a file, from a process that may crash."""
    kind = list(KINDS)[number % len(KINDS)]
    data = damaged(kind, number)
    reads, writes = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            outcome = check(data, number) or "equal"
        except AssertionError as error:
            outcome = f"{WRONG} {error}".split("\n")[0]
        except BaseException as error:  # noqa: BLE001 - what a user would see as a traceback
            outcome = f"{CRASH} {type(error).__name__}: {error}".split("\n")[0]
        os.write(writes, outcome.encode()[:1000])
        os._exit(0)
    os.close(writes)
    with os.fdopen(reads) as answer:
        outcome = answer.read()
    _, status, used = os.wait4(child, 0)
    code = os.waitstatus_to_exitcode(status)
    outcome = outcome if code == 0 else f"{CRASH} {signal.Signals(-code).name if code < 0 else code}"
    return kind, outcome, used.ru_utime + used.ru_stime


def main(arguments: Sequence[str] = ()) -> int:
    parser = argparse.ArgumentParser(description="frames at times of damaged videos")
    parser.add_argument("files", nargs="?", type=int, default=FILES)
    parser.add_argument("--results", type=Path, default=RESULTS)
    asked = parser.parse_args(arguments)
    print(f"{machine()}; {load()}")
    asked.results.parent.mkdir(parents=True, exist_ok=True)
    done = len(asked.results.read_text().splitlines()) if asked.results.exists() else 0
    for kind in KINDS:
        video(kind)  # not in each process
    began = said = time.monotonic()
    with asked.results.open("a") as results:
        for number in range(done, asked.files):
            kind, outcome, cpu_seconds = compared(number)
            print(number, kind, f"{cpu_seconds:.2f}", outcome, sep="\t", file=results, flush=True)
            if (now := time.monotonic()) - said >= SAY_SECONDS:
                said, rate = now, (number + 1 - done) / (now - began)
                left = (asked.files - number - 1) / rate
                print(f"{number + 1:,} of {asked.files:,}; {rate:.1f} a second; {left / 60:.0f} min left", flush=True)
    return summary(asked.results)


def summary(results: Path) -> int:
    """Print what was found; 1 if a frame was wrong, or a process crashed or took too long."""
    rows = [row.split("\t") for row in results.read_text().splitlines()]
    outcomes = Counter(outcome.split()[0] for _, _, _, outcome in rows)
    slowest = max((float(seconds) for _, _, seconds, _ in rows), default=0.0)
    line("files", f"{len(rows):,}")
    line("equal to a pass", f"{outcomes['equal']:,}")
    line("wrong frames (at most 0)", f"{outcomes[WRONG]:,}")
    line("crashes (at most 0)", f"{outcomes[CRASH]:,}")
    line(f"slowest, CPU seconds of both ways (at most {CPU_SECONDS:g})", f"{slowest:.2f}")
    for reason, count in outcomes.most_common():
        if reason not in ("equal", WRONG, CRASH):
            line(f"  {reason}", f"{count:,}")
    for row in rows:
        if row[3].startswith((WRONG, CRASH)):
            print(*row)
    return int(outcomes[WRONG] + outcomes[CRASH] > 0 or slowest > CPU_SECONDS)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
