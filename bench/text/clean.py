"""Texts on one core: cleaning, language, sentences and concepts, stage by stage and together, with slower ways beside.

python -m bench.text.clean [TEXTS]

TEXTS is how many altered alt texts go through, no two of them alike; 1,000,000 when left out. Stages run as the engine
runs them, on Arrow batches of their own size, each on what the one before has kept; figures are processor time.
"""

from __future__ import annotations

import os

os.environ |= dict.fromkeys(("OMP_NUM_THREADS", "POLARS_MAX_THREADS", "RAYON_NUM_THREADS"), "1")  # before the libraries

import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator

import pyarrow as pa
import pyarrow.compute as pc

from bench.kit.measure import line
from bench.kit.texts import altered
from curate.core.contracts import Batch, Map
from curate.core.errors import CurateError
from curate.core.recipe import registry

STAGES = {
    "clean": ("text.clean", {}),
    "language": ("text.language", {}),
    "sentences": ("text.sentences", {}),
    "concepts": ("text.concepts", {"column": "sentences"}),
}
PIECE = 50_000
"""Texts that are held as columns at a time."""
PEER_TEXTS = 5_000


def main(count: int = 1_000_000) -> None:
    pa.set_cpu_count(1)
    texts = altered(count)
    if not texts:
        return
    stages = made()
    spent, rows, counters = Counter[str](), Counter[str](), Counter[str]()
    began = time.perf_counter()
    for start in range(0, len(texts), PIECE):
        table = pa.table({"caption": pa.array(texts[start : start + PIECE], pa.string())})
        table = table.append_column("key", pa.array([f"{start + row:032x}" for row in range(table.num_rows)]))
        for name, stage in stages.items():
            rows[name] += table.num_rows
            table, seconds = applied(stage, table, counters)
            spent[name] += seconds
    print(f"{len(texts):,} texts, {sum(map(len, texts)) / len(texts):.0f} characters on average")
    for name in stages:
        line(STAGES[name][0], rate(rows[name], spent[name]), micro(rows[name], spent[name]))
    total = sum(spent.values())
    line("all of them", rate(len(texts), total), micro(len(texts), total))
    print(f"{table.num_rows / len(texts[start:]):.1%} of the last texts were kept; {time.perf_counter() - began:.0f} s")
    print("counted: " + ", ".join(f"{name} {hits / len(texts):.2%}" for name, hits in counters.most_common()))
    peers(texts[:PEER_TEXTS], spent, rows)


def made() -> dict[str, Map]:
    """The stages that can run here, ready."""
    found = {}
    for name, (op, parameters) in STAGES.items():
        try:
            stage = registry.resolve(op)(**parameters)
            problems = stage.preflight()
            if problems:
                raise CurateError(problems[0])
            stage.setup({})
        except CurateError as error:
            print(f"{op}: left out, since {error}")
            continue
        assert isinstance(stage, Map)
        list(cut(stage, pa.table({"key": ["0"] * 8, **dict.fromkeys(stage.reads(), warm(name))})))
        found[name] = stage
    return found


def warm(name: str) -> pa.Array:
    """What makes a stage load what it loads at its first text."""
    texts = ["A dog. CafÃ©"] * 8
    return pa.array([[text] for text in texts] if name == "concepts" else texts)


def cut(stage: Map, table: pa.Table) -> Iterator[tuple[pa.Table, dict[str, object], Counter[str]]]:
    for start in range(0, table.num_rows, stage.batch_rows):
        part = table.slice(start, stage.batch_rows)
        batch = Batch(part.select(["key", *stage.reads()]))
        yield part, stage.process(batch), batch.counters


def applied(stage: Map, table: pa.Table, counters: Counter[str]) -> tuple[pa.Table, float]:
    """The rows that a stage keeps, with its columns, and the processor time that its work alone took."""
    began = time.process_time()
    done = list(cut(stage, table))
    seconds = time.process_time() - began
    parts = []
    for part, columns, counted in done:
        counters.update(counted)
        for field in stage.schema():
            values = columns[field.name]
            array = values if isinstance(values, (pa.Array, pa.ChunkedArray)) else pa.array(values, field.type)
            part = part.append_column(field, array.cast(field.type))
        reject = columns.get("reject")
        if reject is not None:
            part = part.filter(pc.is_null(pa.array(reject, pa.string())))
        parts.append(part)
    return pa.concat_tables(parts), seconds


def peers(texts: list[str], spent: Counter[str], rows: Counter[str]) -> None:
    """The same work text by text, as one would write it first."""
    from curate.text.clean.rules import DEFAULT, clean, rules_named
    from curate.text.sentences import split_sentences

    rules = rules_named(DEFAULT)
    cleaned = [clean(text, rules)[0] for text in texts]
    slower = {"clean": ("the table of rules over each text", lambda text: clean(text, rules), texts)}
    slower["sentences"] = ("the splitter over each text", split_sentences, cleaned)
    if "concepts" in spent:
        from bench.text.concepts import Peer

        slower["concepts"] = ("nltk's morphy and lookup over each text", Peer().matches, cleaned[:1000])
    for name, (what, work, over) in slower.items():
        each = per_text(work, over)
        line(f"{STAGES[name][0]}: {what}", rate(1, each), f"{each / (spent[name] / rows[name]):.1f} x our time")


def per_text(work: Callable[[str], object], texts: list[str]) -> float:
    began = time.process_time()
    for text in texts:
        work(text)
    return (time.process_time() - began) / len(texts)


def rate(texts: int, seconds: float) -> str:
    return f"{texts / seconds:,.0f} texts/s"


def micro(texts: int, seconds: float) -> str:
    return f"{seconds / texts * 1e6:.1f} µs a text"


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
