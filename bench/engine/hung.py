"""What requests that never answer cost: seconds of some requests to an endpoint that leaves a share of them without an
answer, over the arithmetic.

    python -m bench.engine.hung [ROWS] [SHARE ...]

As many requests are in flight as the endpoint has slots. The arithmetic: each answer holds a slot for its latency, each
hung request for the limit that follows from the answers (twice the longest), and the slots are always busy. `bare`
is the ratio to answers alone, without what hung requests cost. Rows whose attempts all hang are errors.
"""

from __future__ import annotations

import math
import sys
import threading
import time

from curate.engine.requests.client import Requester
from tests.engine.asks import ask
from tests.servers.scripted import Endpoint, started

SLOTS, LATENCY, SIGMA = 32, 1.0, 0.2
TIMEOUT = 120.0
SEEDS = (1, 2, 3)


def measured(endpoint: Endpoint, rows: int, share: float, seed: int) -> str:
    """A line of the table."""
    speed = {"latency_seconds": LATENCY, "latency_sigma": SIGMA, "slots": SLOTS}
    script = endpoint.script(**speed, hangs=share, hangs_seed=seed)
    requester = Requester(ask(script.base_url, max_in_flight=SLOTS, timeout_seconds=TIMEOUT))
    ahead, sent = threading.BoundedSemaphore(2 * SLOTS), []
    began = time.perf_counter()
    for number in range(rows):  # as a unit does it: some requests ahead of those in flight
        ahead.acquire()
        sent.append(requester.send(f"row {number}"))
        sent[-1].add_done_callback(lambda _: ahead.release())
    errors = sum(found.result().columns is None for found in sent)
    seconds, pool = time.perf_counter() - began, requester._session.pool("local")
    limit = requester._session.deadline("local").seconds
    requester.close()
    told = script.stats()
    answers = rows * LATENCY * math.exp(SIGMA**2 / 2) / SLOTS
    arithmetic = answers + rows * share / (1 - share) * limit / SLOTS
    ratios = f"{arithmetic:.1f} | {seconds / arithmetic:.2f} | {seconds / answers:.2f}"
    seen = f"{told['hung']} | {errors} | {limit:.1f} | {pool.window.limit}"
    return f"| {share:.0%} | {seed} | {seen} | {seconds:.1f} | {ratios} |"


def main(rows: int = 1000, *shares: float) -> None:
    print(f"{rows:,} requests, {SLOTS} slots of {LATENCY:g} s, a time-out of {TIMEOUT:g} s")
    print("| hung | seed | requests hung | errors | limit, s | window | seconds | arithmetic | ratio | bare |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    with started() as endpoint:
        for share in shares or (0.0, 0.05, 0.2):
            for seed in SEEDS:
                print(measured(endpoint, rows, share, seed), flush=True)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:2]), *map(float, sys.argv[2:]))
