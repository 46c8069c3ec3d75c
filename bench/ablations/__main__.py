"""The papers' ablations at small scale: paired differences over seeds, with intervals.

python -m bench.ablations.__main__ [NAME …] [--seeds 0 1 2]      all of them by default

Takes hours the first time: up to 6 CPU-minutes per run, one run at a time. Results are stored in .cache/ablations (or
in CURATE_ABLATIONS), so it may be interrupted at any time: the table then lists the rows that were not reached.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections.abc import Sequence

from bench.ablations import (
    balanced,
    curated,
    filtered,
    objectives,
    packing,
    pe_ladder,
    phi_s,
    relations,
    resolutions,
    sampled,
    text_side,
    texts,
    xray_ladder,
)
from bench.ablations.folders import CommandError, InterruptedCommandError
from bench.ablations.runs import Ablation, Done, run
from bench.ablations.table import table
from curate.core.errors import CurateError

MODULES = (
    curated, relations, phi_s, packing, balanced, filtered, texts, objectives, pe_ladder, xray_ladder, text_side,
    resolutions, sampled,
)  # fmt: skip
ABLATIONS = {module.__name__.rpartition(".")[2]: module for module in MODULES}
SEEDS = (0, 1, 2)


def carry_out(ablation: Ablation, seeds: Sequence[int], ready: list[float], done: list[Done]) -> None:
    """Run every arm with every seed, into `done`. ready: seconds of new runs so far, to estimate the remaining time."""
    todo = [(seed, arm) for seed in seeds for arm in ablation.arms]
    for number, (seed, arm) in enumerate(todo, 1):
        began = time.monotonic()
        done.append(run(ablation, arm, seed))
        minutes = sum(done[-1].record["cpu_seconds"].values()) / 60
        line = f"{ablation.name} {number}/{len(todo)}: {arm.name}, seed {seed}, {minutes:.1f} CPU-minutes"
        if time.monotonic() - began > 10:
            ready.append(time.monotonic() - began)
        if ready:
            line += f"; {(len(todo) - number) * sum(ready) / len(ready) / 60:.0f} min left of {ablation.name}"
        print(line, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", help=f"of {', '.join(ABLATIONS)}; all by default")
    parser.add_argument("--seeds", nargs="+", type=int, default=list(SEEDS))
    arguments = parser.parse_args()
    unknown = [name for name in arguments.names if name not in ABLATIONS]
    if unknown:
        parser.error(f"unknown ablation {unknown[0]!r}; choose from {', '.join(ABLATIONS)}")
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    ready: list[float] = []
    done: list[Done] = []
    try:
        for name in arguments.names or ABLATIONS:
            done, ablation = [], ABLATIONS[name].ablation()
            carry_out(ablation, arguments.seeds, ready, done)
            print(table(ablation, done, arguments.seeds), flush=True)
    except (KeyboardInterrupt, InterruptedCommandError):
        if done:
            print(table(ablation, done, arguments.seeds), flush=True)
        print("bench.ablations: interrupted; run the same command to resume", file=sys.stderr)
        sys.exit(130)
    except (CurateError, CommandError) as error:
        sys.exit(f"bench.ablations: {error}")


if __name__ == "__main__":
    main()
