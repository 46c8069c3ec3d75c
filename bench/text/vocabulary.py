"""`text.match`: 500,000 entries in a million altered alt texts, one core, against a plain loop over the entries.

`python -m bench.text.vocabulary [texts]`. The loop searches a few texts for every entry; its answer is the same.
"""

from __future__ import annotations

import os
import sys
import time

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("POLARS_MAX_THREADS", "1")

import numpy as np
import psutil
import pyarrow as pa

from bench.kit.measure import line
from bench.kit.texts import alt_texts, altered
from curate.core.contracts import Artifact, Batch
from curate.kernels.wordnet import database
from curate.text.phrases import normalised_all
from curate.text.vocabulary.build import BuildVocabulary
from curate.text.vocabulary.match import Match

ENTRIES, TEXTS, POOL_TEXTS, LOOP_TEXTS = 500_000, 1_000_000, 200_000, 40


def vocabulary(entries: int = ENTRIES, seed: int = 1) -> Artifact:
    """WordNet's lemmas (if available), the words and pairs of a pool, and random pairs of its words up to `entries`."""
    stage = BuildVocabulary(wordnet=not database.problems(), unigrams=1, bigrams={"count": 2, "pmi": 0})
    texts = altered(POOL_TEXTS, seed)
    began = time.process_time()
    states = [
        stage.partial(pa.table({"text": texts[start : start + 10_000]})) for start in range(0, len(texts), 10_000)
    ]
    made = stage.finish(stage.merge(iter(states)))
    line("vocabulary of WordNet and the pool", f"{made['entries'].num_rows:,}", "entries")
    line("  built from 200,000 texts", f"{(time.process_time() - began) / len(texts) * 1e6:.1f} µs/text")
    known = set(made["entries"].column("entry").to_pylist())
    words = np.array(sorted(entry for entry in known if " " not in entry), dtype=object)
    rng = np.random.default_rng(seed)
    while len(known) < entries:
        first, second = rng.choice(words, (2, entries - len(known)))
        known.update(first + " " + second)
    return {"entries": pa.table({"entry": sorted(known)[:entries] if len(known) > entries else sorted(known)})}


def matched(stage: Match, texts: list[str]) -> tuple[float, int]:
    """CPU seconds and matches of the stage's `process` over Arrow batches."""
    column, matches = pa.array(texts), 0
    began = time.process_time()
    for start in range(0, len(column), stage.batch_rows):
        batch = Batch(pa.table({"text": column.slice(start, stage.batch_rows)}))
        stage.process(batch)
        matches += batch.counters["matches"]
    return time.process_time() - began, matches


def main() -> None:
    if not alt_texts():
        return
    count = int(sys.argv[1]) if sys.argv[1:] else TEXTS
    artifact = vocabulary()
    texts = altered(count)
    process = psutil.Process()
    before, began = process.memory_info().rss, time.process_time()
    stage = Match()
    stage.setup({"vocabulary": artifact})
    line("automaton: built in", f"{time.process_time() - began:.1f} s", "once per process")
    line("  memory", f"{(process.memory_info().rss - before) / 2**20:.0f} MiB")
    matched(stage, texts[:10_000])
    seconds, matches = matched(stage, texts)
    line("text.match", f"{count / seconds:,.0f} texts/s", f"{seconds / count * 1e6:.2f} µs, {matches / count:.1f} each")
    against_loop(artifact["entries"].column("entry").to_pylist(), stage, texts, seconds / count)


def against_loop(entries: list[str], stage: Match, texts: list[str], ours: float) -> None:
    few = texts[:LOOP_TEXTS]
    padded = [f" {entry} " for entry in entries]
    began = time.process_time()
    looped = [[place for place, entry in enumerate(padded) if entry in f" {text} "] for text in normalised_all(few)]
    each = (time.process_time() - began) / len(few)
    line(
        "a loop over the entries",
        f"{1 / each:,.0f} texts/s",
        f"of {len(few)} texts; text.match is {each / ours:,.0f}x as fast",
    )
    found = stage.process(Batch(pa.table({"text": few})))["entries"].flatten()
    assert [[entries[place] for place in places] for places in looped] == found.to_pylist(), "the loop finds others"


if __name__ == "__main__":
    main()
