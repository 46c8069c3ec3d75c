"""How busy an AsyncMap keeps an endpoint, and what a request costs: a scripted server of 200 ms and 32 slots, 50 kB
images sent as data URLs.

    python -m bench.engine.async_map [ROWS]
"""

from __future__ import annotations

import resource
import sys
import tempfile
import time

from curate.engine.run import run
from tests.engine import toys
from tests.engine.asks import Say, See
from tests.engine.endpoint import started

SIDE = 128
"""Pixels: a BMP of 49 kB."""


def main(rows: int = 1280) -> None:
    with started() as endpoint:
        for what, stage, side in (("texts", Say, 8), ("images of 50 kB", See, SIDE)):
            script = endpoint.script(latency_seconds=0.2, slots=32)
            with tempfile.TemporaryDirectory() as workspace:
                source = {"rows": rows, "shard_rows": 320, "side": side}
                run(toys.chain(**source), workspace)  # the pool, which is not measured
                began, cpu = time.perf_counter(), _cpu()
                run(toys.chain(stage(url=script.url), **source), workspace)
                seconds, used = time.perf_counter() - began, _cpu() - cpu
            told = script.stats()
            print(
                f"{what}: {rows / seconds:.0f} requests/s, slots {told['busy']:.1%} busy while there was work, "
                f"at most {told['most']} in flight, {used / rows * 1e3:.2f} ms of CPU a request"
            )


def _cpu() -> float:
    """Seconds of this process; the endpoint is another."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
