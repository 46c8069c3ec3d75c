"""Quotas of 200M out of a simulated pool of 2.3B rows: time, and peak memory of the process that computes them.

python -m bench.select.sampling            20M leaves under 500k, 50k and 20k clusters, AMoE's tree
python -m bench.select.sampling quotas     the same in this process, as JSON

Sizes only, no points: leaf sizes follow a power law (Pareto, exponent 1.2), so that the largest of 20M leaves holds 1 %
of the pool; the parent of a leaf is drawn uniformly. The aim is 60 s and 8 GB.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.kit.measure import line
from curate.select.sampling import level_quotas, level_rows

POOL, TARGET = 2_300_000_000, 200_000_000
LEVELS = (20_000_000, 500_000, 50_000, 20_000)
EXPONENT = 1.2
LIMIT_SECONDS, LIMIT_BYTES = 60, 8e9


def tree(levels: tuple[int, ...], pool: int, seed: int = 0) -> tuple[NDArray[np.int64], list[NDArray[np.int64]]]:
    """Rows (K_1,) of each leaf, about `pool` in all, some of them 0; parents (K_t,) of every level but the last."""
    rng = np.random.default_rng(seed)
    weight = rng.pareto(EXPONENT, levels[0])
    rows = (weight * (pool / weight.sum())).astype(np.int64)
    return rows, [rng.integers(0, above, below) for below, above in pairwise(levels)]


def quotas() -> dict[str, Any]:
    """Quotas of the tree: seconds without making it, peak memory of the process, and figures per level."""
    rows, parents = tree(LEVELS, POOL)
    began, cpu = time.perf_counter(), time.process_time()
    found = level_quotas(rows, parents, TARGET)
    took, cpu = time.perf_counter() - began, time.process_time() - cpu
    sizes = level_rows(rows, parents)
    return {
        "seconds": took,
        "cpu_seconds": cpu,
        "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "rows": int(rows.sum()),
        "levels": [_level_figures(*pair) for pair in zip(sizes, found, strict=True)],
    }


def _level_figures(sizes: NDArray[np.int64], given: NDArray[np.int64]) -> dict[str, Any]:
    filled = sizes > 0
    return {
        "clusters": len(sizes),
        "empty": int((~filled).sum()),
        "exhausted": float((given == sizes)[filled].mean()),
        "median_fill": float(np.median(given[filled] / sizes[filled])),
        "largest_quota": int(given.max()),
        "quota": int(given.sum()),
    }


def main() -> None:
    if sys.argv[1:] == ["quotas"]:
        print(json.dumps(quotas()))
        return
    command = [sys.executable, "-m", "bench.select.sampling", "quotas"]
    found = json.loads(subprocess.run(command, capture_output=True, check=True, text=True).stdout)
    aim = f"aim under {LIMIT_SECONDS} s"
    line("quotas: wall time", f"{found['seconds']:.1f} s", f"{aim}; {found['cpu_seconds']:.1f} s of CPU, one thread")
    line("quotas: peak of the process", f"{found['peak_bytes'] / 1e9:.2f} GB", f"aim under {LIMIT_BYTES / 1e9:.0f} GB")
    for number, level in enumerate(found["levels"], 1):
        note = (
            f"{100 * level['exhausted']:.1f} % give all they have, median fill {100 * level['median_fill']:.1f} %, "
            f"largest quota {level['largest_quota']:,}, {level['empty']:,} empty"
        )
        line(f"level {number}: {level['clusters']:,} clusters", f"{level['quota']:,}", note)


if __name__ == "__main__":
    main()
