"""Balance by what texts say: 100M pairs of a text and an entry through the stages; concepts of the quickstart's corpus.

python -m tests.bench.bench_text_balance                  both
python -m tests.bench.bench_text_balance pairs [PAIRS]    100M pairs (or PAIRS): seconds, peak memory, draws
python -m tests.bench.bench_text_balance balance PAIRS    the same in this very process, as JSON
python -m tests.bench.bench_text_balance corpus [IMAGES]  entropy, top-10 share and tail of concepts, before and after

100,000 entries are drawn by Zipf's law (share ~ 1 / rank) for texts of 1 to 6, one to three texts a row, in shards of
1M pairs as the stages get them: Arrow lists of lists of strings, and keys. Seconds are the stages' own, making the
pairs aside: counts, then units, plan and pick of each selection. The aim is 60 s and 4 GB on one core.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from curate.core.stage import Artifact
from curate.text.counts import TextCounts
from curate.text.select_frequency import SelectFrequency
from curate.text.select_items import SelectItems
from curate.text.select_metaclip import SelectMetaClip
from tests.bench.measure import line
from tests.conftest import ROOT

PAIRS, SHARD_PAIRS, ENTRIES, LONGEST = 100_000_000, 1_000_000, 100_000, 6
LIMIT_SECONDS, LIMIT_BYTES = 60, 4e9
LEAST_VARIANCE = 10
"""Of an entry's copies, for its draws to be near a normal distribution."""

Integers = NDArray[np.int64]


# --- Made-up pairs ----------------------------------------------------------------------------------------------------


@dataclass
class Shard:
    table: pa.Table
    """Key and concepts."""
    entry: Integers
    """(P,): entries of its texts, one text after the other."""
    text: Integers
    """(P,): the text of each."""


class Pool:
    """Shards of about SHARD_PAIRS distinct pairs, made anew each time: none is kept."""

    def __init__(self, pairs: int) -> None:
        self.shards = max(1, pairs // SHARD_PAIRS)
        share = 1 / np.arange(1, ENTRIES + 1)
        self.edges = np.cumsum(share / share.sum())
        self.names = pa.array([f"entry {number:06d}" for number in range(ENTRIES)])

    def __iter__(self) -> Iterator[Shard]:
        return (self.shard(number) for number in range(self.shards))

    def shard(self, number: int) -> Shard:
        rng = np.random.default_rng(number)
        texts = 2 * SHARD_PAIRS // (1 + LONGEST)
        text = np.repeat(np.arange(texts), rng.integers(1, LONGEST + 1, texts))
        entry = np.minimum(np.searchsorted(self.edges, rng.random(len(text))), ENTRIES - 1)
        text, entry = np.divmod(np.unique(text * ENTRIES + entry), ENTRIES)
        of_text = np.searchsorted(text, np.arange(texts + 1)).astype(np.int32)
        flat = pa.ListArray.from_arrays(of_text, self.names.take(pa.array(entry)))
        rows = np.minimum(np.cumsum(rng.integers(1, 4, texts)), texts)
        rows = np.concatenate([[0], rows[: 1 + int(np.searchsorted(rows, texts))]]).astype(np.int32)
        table = pa.table({"key": keys(rng, len(rows) - 1), "concepts": pa.ListArray.from_arrays(rows, flat)})
        return Shard(table, entry, text)


def keys(rng: np.random.Generator, number: int) -> pa.Array:
    text = rng.bytes(16 * number).hex().encode()
    offsets = np.arange(0, 32 * number + 1, 32, dtype=np.int32)
    return pa.StringArray.from_buffers(number, pa.py_buffer(offsets), pa.py_buffer(text))


# --- Seconds, memory, draws -------------------------------------------------------------------------------------------


class Clock:
    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.cpu = 0.0

    def __call__(self, step: str, work: Callable[[], Any]) -> Any:
        began, cpu = time.perf_counter(), time.process_time()
        result = work()
        self.seconds[step] = self.seconds.get(step, 0.0) + time.perf_counter() - began
        self.cpu += time.process_time() - cpu
        return result


def balance(pairs: int) -> dict[str, Any]:
    """Counts, and two selections by them."""
    began = time.perf_counter()
    pool, clock, stage = Pool(pairs), Clock(), TextCounts()
    states = [clock("partial", lambda shard=shard: stage.partial(shard.table)) for shard in pool]
    size = sum(state.nbytes for state in states)
    counts = clock("merge", lambda: stage.finish(stage.merge(iter(states))))
    states.clear()
    told = [selected(one, pool, counts) for one in (SelectMetaClip(), SelectFrequency())]
    return {
        "pairs": counts["summary"]["matches"],
        "texts": counts["summary"]["texts"],
        "counting": clock.seconds,
        "counting_cpu": clock.cpu,
        "state_bytes": size,
        "selections": told,
        "seconds": time.perf_counter() - began,
        "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }


def selected(stage: SelectItems, pool: Pool, counts: Artifact) -> dict[str, Any]:
    """One selection as the engine runs it, each shard a bucket; and what it gave each entry against what was due."""
    clock = Clock()
    clock("units", lambda: stage.setup({"counts": counts}))
    tally = np.zeros(counts["counts"].num_rows + 2, dtype=np.int64)
    for shard in pool:
        counted = clock(
            "units", lambda shard=shard: stage.counted(shard.table, np.zeros(shard.table.num_rows, np.int64))
        )
        tally += np.bincount(counted, minlength=len(tally))
    quotas = clock("plan", lambda: stage.plan(tally))
    given, due, spread = np.zeros(ENTRIES), np.zeros(ENTRIES), np.zeros(ENTRIES)
    rows = texts = 0
    for shard in pool:
        clock("plan", lambda: stage.planned(tally, quotas))
        units = np.zeros(shard.table.num_rows, dtype=np.int64)
        picked = clock("pick", lambda shard=shard, units=units: stage.pick(shard.table, units, quotas))
        rows, texts = rows + shard.table.num_rows, texts + int((picked["copies"] > 0).sum())
        expected = picked["expected"].astype(np.float64)
        part = expected % 1
        sums = ((given, picked["copies"]), (due, expected), (spread, part * (1 - part)))
        for total, values in sums:
            total += np.bincount(shard.entry, values[shard.text], minlength=ENTRIES)
    return {"op": stage.op, "rows": rows, "kept": texts, "seconds": clock.seconds, "cpu": clock.cpu} | judged(
        given, due, spread, counts
    )


def judged(given: Any, due: Any, spread: Any, counts: Artifact) -> dict[str, float]:
    """Draws of entries against expectation, in standard deviations; the ten commonest entries, and the rarest."""
    sure = (spread < 1e-6) & (due > 0)
    many = spread > LEAST_VARIANCE
    z = (given - due)[many] / np.sqrt(spread[many])
    before = np.zeros(ENTRIES)
    index = [int(name[6:]) for name in counts["counts"].column("entry").to_pylist()]
    before[index] = counts["counts"].column("count").to_numpy()
    order = np.argsort(-before)
    rare = order[ENTRIES // 2 :]
    return {
        "given": float(given.sum()),
        "due": float(due.sum()),
        "z_rms": float(np.sqrt((z**2).mean())),
        "z_max": float(np.abs(z).max()),
        "z_above_3": float((np.abs(z) > 3).mean()),
        "sure": int(sure.sum()),
        "sure_kept": float(given[sure].sum() / max(1.0, due[sure].sum())),
        "top_before": float(before[order[:10]].sum() / before.sum()),
        "top_after": float(given[order[:10]].sum() / given.sum()),
        "rare_before": float(before[rare].sum() / before.sum()),
        "rare_after": float(given[rare].sum() / given.sum()),
    }


def pairs(number: int) -> None:
    command = [sys.executable, "-m", "tests.bench.bench_text_balance", "balance", str(number)]
    threads = {"OMP_NUM_THREADS": "1", "ARROW_NUM_THREADS": "1"}
    out = subprocess.run(command, cwd=ROOT, env=os.environ | threads, check=True, stdout=subprocess.PIPE).stdout
    found = json.loads(out)
    print(f"{found['pairs']:,} distinct pairs of {found['texts']:,} texts and {ENTRIES:,} entries, on one core")
    counting = sum(found["counting"].values())
    _steps("counts", found["counting"], found["counting_cpu"])
    for one in found["selections"]:
        _steps(one["op"], one["seconds"], one["cpu"])
        both = counting + sum(one["seconds"].values())
        verdict = f"limit {LIMIT_SECONDS} s at {PAIRS:,}; {found['pairs'] / both / 1e6:.2f}M pairs/s"
        line("  with the counts", f"{both:.1f} s", verdict)
        line("  copies, expected", f"{one['given']:,.0f}", f"{one['due']:,.0f}")
        note = f"largest {one['z_max']:.2f}; {one['z_above_3']:.2%} above 3 (0.27 % of normal ones)"
        line("  entries' draws in standard deviations, root mean square", f"{one['z_rms']:.3f}", note)
        line("  entries that are certain, their copies of those due", f"{one['sure']:,}", f"{one['sure_kept']:.0%}")
        line("  ten commonest entries", f"{one['top_before']:.1%}", f"-> {one['top_after']:.1%} of all matches")
        line("  rarer half of the entries", f"{one['rare_before']:.1%}", f"-> {one['rare_after']:.1%}")
    line("peak memory of the process", f"{found['peak_bytes'] / 1e9:.2f} GB", f"limit {LIMIT_BYTES / 1e9:.0f} GB")
    line("wall time, making the pairs five times over", f"{found['seconds']:.1f} s")


def _steps(name: str, seconds: dict[str, float], cpu: float) -> None:
    parts = ", ".join(f"{step} {took:.1f}" for step, took in seconds.items())
    line(name, f"{sum(seconds.values()):.1f} s", f"{parts}; CPU {cpu:.1f} s")


def main() -> None:
    what, rest = (sys.argv[1:2] or ["all"])[0], sys.argv[2:]
    if what == "balance":
        print(json.dumps(balance(int(rest[0]))))
        return
    if what in ("all", "pairs"):
        pairs(int(rest[0]) if rest and what == "pairs" else PAIRS)


if __name__ == "__main__":
    main()
