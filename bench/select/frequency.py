"""Balance by entries of texts: 100M pairs of text and entry through the stages; concepts of the quickstart's corpus.

python -m bench.select.frequency                  both
python -m bench.select.frequency pairs [PAIRS]    100M pairs (or PAIRS): seconds, peak memory, draws
python -m bench.select.frequency balance PAIRS    the same in this process, as JSON
python -m bench.select.frequency corpus [IMAGES]  entropy, top-10 share and tail of concepts, before and after

100,000 entries are drawn by Zipf's law (share ~ 1 / rank) for texts of 1 to 6, one to three texts a row, in shards of
1M pairs: Arrow lists of lists of strings, and keys. Seconds do not include making the pairs: counts, then deal, plan
and pick of each selection. The aim is 60 s and 4 GB on one core.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from bench.kit.measure import line
from curate.acquire.folder import AcquireFolder
from curate.core.contracts import Artifact
from curate.core.nouns.artifacts import StoredArtifact
from curate.core.recipe import registry
from curate.core.recipe.pipeline import Pipeline
from curate.engine.run import run
from curate.kernels.evenness import entropy_bits
from curate.report.survey.entries import head_and_tail, tail_of
from curate.select.frequency import SelectFrequency
from curate.select.items import SelectItems
from curate.select.metaclip import SelectMetaClip
from curate.text.counts import TextCounts
from tests.conftest import ROOT
from tests.engine.output import Output

PAIRS, SHARD_PAIRS, ENTRIES, LONGEST = 100_000_000, 1_000_000, 100_000, 6
LIMIT_SECONDS, LIMIT_BYTES = 60, 4e9
LEAST_VARIANCE = 10
"""Least variance of an entry's copies for an approximately normal distribution."""

Integers = NDArray[np.int64]


# --- Invented pairs ---------------------------------------------------------------------------------------------------


@dataclass
class Shard:
    table: pa.Table
    """Key and concepts."""
    entry: Integers
    """(P,): entries of its texts, in order of texts."""
    text: Integers
    """(P,): text of each entry."""


class Pool:
    """Shards of about SHARD_PAIRS distinct pairs, drawn once and kept as numbers; each iteration builds strings."""

    def __init__(self, pairs: int) -> None:
        share = 1 / np.arange(1, ENTRIES + 1)
        self.edges = np.cumsum(share / share.sum())
        self.names = pa.array([f"entry {number:06d}" for number in range(ENTRIES)])
        self.drawn = [self._draw(number) for number in range(max(1, pairs // SHARD_PAIRS))]

    def _draw(self, number: int) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int32]]:
        """Entries (P,) of texts, edges of texts among them, edges of rows among texts."""
        rng = np.random.default_rng(number)
        texts = 2 * SHARD_PAIRS // (1 + LONGEST)
        text = np.repeat(np.arange(texts), rng.integers(1, LONGEST + 1, texts))
        entry = np.minimum(np.searchsorted(self.edges, rng.random(len(text))), ENTRIES - 1)
        pair = np.sort(text * ENTRIES + entry)
        text, entry = np.divmod(pair[np.append(True, pair[1:] != pair[:-1])], ENTRIES)
        rows = np.minimum(np.cumsum(rng.integers(1, 4, texts)), texts)
        rows = np.append(0, rows[: 1 + int(np.searchsorted(rows, texts))])
        edges = np.searchsorted(text, np.arange(texts + 1))
        return entry.astype(np.int32), edges.astype(np.int32), rows.astype(np.int32)

    def __iter__(self) -> Iterator[Shard]:
        for number, (entry, edges, rows) in enumerate(self.drawn):
            lists = pa.ListArray.from_arrays(edges, self.names.take(pa.array(entry)))
            key = keys(np.random.default_rng([1, number]), len(rows) - 1)
            table = pa.table({"key": key, "concepts": pa.ListArray.from_arrays(rows, lists)})
            yield Shard(table, entry.astype(np.int64), np.repeat(np.arange(len(edges) - 1), np.diff(edges)))


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
    selections = [selected(one, pool, counts) for one in (SelectMetaClip(), SelectFrequency())]
    return {
        "pairs": counts["summary"]["matches"],
        "texts": counts["summary"]["texts"],
        "counting": clock.seconds,
        "counting_cpu": clock.cpu,
        "state_bytes": size,
        "selections": selections,
        "seconds": time.perf_counter() - began,
        "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }


def selected(stage: SelectItems, pool: Pool, counts: Artifact) -> dict[str, Any]:
    """One selection as the engine runs it, a bucket per shard; and the copies of entries against the expected ones."""
    clock = Clock()
    clock("set up", lambda: stage.setup({"counts": counts}))
    tally = np.zeros(counts["counts"].num_rows + 2, dtype=np.int64)
    dealt = []
    for shard in pool:
        lines = clock("deal", lambda shard=shard: stage.deal(shard.table))
        tally += np.bincount(lines.column("unit").drop_null().to_numpy(), minlength=len(tally))
        dealt.append(lines.append_column("key", shard.table.column("key").take(lines.column("row"))))
    quotas = clock("plan", lambda: stage.plan(tally))
    given, due, spread = np.zeros(ENTRIES), np.zeros(ENTRIES), np.zeros(ENTRIES)
    rows = texts = 0
    for shard, lines in zip(pool, dealt, strict=True):
        picked = clock("pick", lambda lines=lines: stage.pick(lines, tally, quotas))
        rows, texts = rows + shard.table.num_rows, texts + int((picked["copies"] > 0).sum())
        expected = picked["expected"].astype(np.float64)
        part = expected % 1
        sums = ((given, picked["copies"]), (due, expected), (spread, part * (1 - part)))
        for total, values in sums:
            total += np.bincount(shard.entry, values[shard.text], minlength=ENTRIES)
    return {"op": stage.op, "rows": rows, "kept": texts, "seconds": clock.seconds, "cpu": clock.cpu} | draws(
        given, due, spread, counts
    )


def draws(given: Any, due: Any, spread: Any, counts: Artifact) -> dict[str, float]:
    """Copies of entries against expectation, in standard deviations; shares of the commonest and the rarest entries."""
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
    command = [sys.executable, "-m", "bench.select.frequency", "balance", str(number)]
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
        if one["sure"]:
            line("  entries that are certain, their copies of those due", f"{one['sure']:,}", f"{one['sure_kept']:.0%}")
        line("  ten commonest entries", f"{one['top_before']:.1%}", f"-> {one['top_after']:.1%} of all matches")
        line("  rarer half of the entries", f"{one['rare_before']:.1%}", f"-> {one['rare_after']:.1%}")
    line("peak memory of the process", f"{found['peak_bytes'] / 1e9:.2f} GB", f"limit {LIMIT_BYTES / 1e9:.0f} GB")
    line("wall time, including making the pairs and the comparison", f"{found['seconds']:.1f} s")


def _steps(name: str, seconds: dict[str, float], cpu: float) -> None:
    parts = ", ".join(f"{step} {took:.1f}" for step, took in seconds.items())
    line(name, f"{sum(seconds.values()):.1f} s", f"{parts}; CPU {cpu:.1f} s")


# --- Concepts of the corpus -------------------------------------------------------------------------------------------

SELECTIONS: dict[str, SelectItems] = {
    "MetaCLIP, tail of 6 %": SelectMetaClip(),
    "ViSE, as many as before": SelectFrequency(),
    "ViSE, half as many": SelectFrequency(share=0.5),
    "ViSE, exponent 1": SelectFrequency(exponent=1),
}


def corpus(images: Path) -> None:
    """Concepts before and after, in the cleaned titles and descriptions of the corpus, by sentence."""
    if not images.is_dir():
        print(f"corpus: skipped, {images} does not exist; python -m pipelines.openclipart {images.parent}")
        return
    pipeline = Pipeline().add("pool", AcquireFolder(path=str(images), namespace="openclipart"))
    steps = {"text": {}, "sentences": {}, "concepts": {"column": "sentences"}}
    last = "pool"
    for name, parameters in steps.items():
        op = "text.clean" if name == "text" else f"text.{name}"
        pipeline.add(name, registry.resolve(op)(**parameters), last)
        last = name
    pipeline.add("counts", TextCounts(), "concepts")
    for name, stage in SELECTIONS.items():
        pipeline.add(name, stage, "concepts", counts="counts")
    with tempfile.TemporaryDirectory() as folder:
        output = Output(folder, run(pipeline.check(), folder))
        tables = [columns.append_column("key", pool["key"]) for pool, columns in output.tables("concepts")]
        concepts_of = {row["key"]: row["concepts"] or [] for table in tables for row in table.to_pylist()}
        [summary] = [StoredArtifact(output.storage, output.bases["counts"])["summary"]]
        picked = {name: output.selection(name) for name in SELECTIONS}
    print(
        f"{len(concepts_of):,} images, {summary['texts']:,} sentences, {summary['matched']:,} with a concept, "
        f"{summary['entries']:,} concepts, {summary['matches']:,} matches"
    )
    for number, (name, rows) in enumerate(picked.items()):
        print_balance(name, rows, concepts_of, first=number == 0)


def print_balance(
    name: str, rows: list[dict[str, Any]], concepts_of: dict[str, list[list[str] | None]], first: bool
) -> None:
    counts: list[Counter[str]] = [Counter(), Counter()]
    for row in rows:
        texts = concepts_of[row["key"]]
        for entry in set(texts[int(row["item"])] or []) if int(row["item"]) < len(texts) else ():
            counts[0][entry] += 1
            counts[1][entry] += row["copies"]
    before, after = (np.array([count[entry] for entry in sorted(counts[0])]) for count in counts)
    figures, tails = head_and_tail(before, after, {}), tail_of(before, after, {})
    notes = [
        f"{100 * even:.1f} % of the most it could be; top 10 {100 * top:.1f} %; tail {100 * tail:.1f} % of matches"
        for even, top, tail in zip(figures.evenness, figures.top, tails.share, strict=True)
    ]
    if first:
        line("before: entropy of concepts", f"{entropy_bits(before):.2f} bits", notes[0])
    line(name, f"{entropy_bits(after):.2f} bits", notes[1])
    kept = f"{tails.kept:,} of {tails.entries:,} tail concepts (under {tails.threshold:g} texts) kept"
    copies = sum(row["copies"] for row in rows)
    line("", f"{copies:,} samples", f"{sum(row['expected'] for row in rows):,.0f} expected; {kept}")


def main() -> None:
    what, rest = (sys.argv[1:2] or ["all"])[0], sys.argv[2:]
    if what == "balance":
        print(json.dumps(balance(int(rest[0]))))
        return
    if what in ("all", "pairs"):
        pairs(int(rest[0]) if rest and what == "pairs" else PAIRS)
    if what in ("all", "corpus"):
        corpus(Path(rest[0]) if rest and what == "corpus" else ROOT / ".cache" / "openclipart" / "images")


if __name__ == "__main__":
    main()
