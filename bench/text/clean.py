"""Texts on one core: cleaning, language, sentences and concepts, each and together, and slower alternatives.

python -m bench.text.clean [TEXTS]

TEXTS is the number of distinct altered alt texts (default: 1,000,000). Stages run as in the engine, on Arrow batches of
each stage's size and on the rows that the stage before kept. Figures are processor time. The last line is the growth of
cleaning: time for doubled text, the largest ratio over mixtures of the tests' worst pieces (2 is linear, 4 quadratic).
"""

from __future__ import annotations

import os

os.environ |= dict.fromkeys(("OMP_NUM_THREADS", "POLARS_MAX_THREADS", "RAYON_NUM_THREADS"), "1")  # before the libraries

import random
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
"""Texts per column in memory."""
PEER_TEXTS = 5_000


def main(count: int = 1_000_000) -> None:
    pa.set_cpu_count(1)
    texts = altered(count)
    if not texts:
        return
    stages = loaded_stages()
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
    growth()


def loaded_stages() -> dict[str, Map]:
    """The stages that can run here, after setup."""
    found = {}
    for name, (op, parameters) in STAGES.items():
        try:
            stage = registry.resolve(op)(**parameters)
            problems = stage.preflight()
            if problems:
                raise CurateError(problems[0])
            stage.setup({})
        except CurateError as error:
            print(f"{op}: skipped: {error}")
            continue
        assert isinstance(stage, Map)
        list(cut(stage, pa.table({"key": ["0"] * 8, **dict.fromkeys(stage.reads(), warm(name))})))
        found[name] = stage
    return found


def warm(name: str) -> pa.Array:
    """Texts for which a stage loads everything that it loads on first use."""
    texts = ["A dog. CafÃ©"] * 8
    return pa.array([[text] for text in texts] if name == "concepts" else texts)


def cut(stage: Map, table: pa.Table) -> Iterator[tuple[pa.Table, dict[str, object], Counter[str]]]:
    for start in range(0, table.num_rows, stage.batch_rows):
        part = table.slice(start, stage.batch_rows)
        batch = Batch(part.select(["key", *stage.reads()]))
        yield part, stage.process(batch), batch.counters


def applied(stage: Map, table: pa.Table, counters: Counter[str]) -> tuple[pa.Table, float]:
    """The rows that a stage keeps, with its columns, and the processor time of its work."""
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
    """The same work in the obvious way, text by text."""
    from curate.kernels.sentences import split_sentences
    from curate.text.clean.rules import DEFAULT, clean, rules_named

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


def growth(mixtures: int = 200, characters: int = 50_000) -> None:
    """The largest ratio of processor time for a text of twice the length, over mixtures of worst pieces."""
    from curate.text.clean.rules import NAMES, clean, rules_named
    from tests.text.clean.test_rules import PIECES

    rng, rules, ratios = random.Random(0), rules_named(NAMES), {}
    for _ in range(mixtures):
        piece = "".join(rng.choices(PIECES, k=rng.randint(1, 4)))
        once, twice = (
            min(per_text(lambda text: clean(text, rules), [piece * (size // len(piece))]) for _ in range(3))
            for size in (characters, 2 * characters)
        )
        ratios[piece] = twice / once
    worst = max(ratios, key=lambda piece: ratios[piece])
    line("text.clean: time for doubled text", f"{ratios[worst]:.1f} x", f"largest of {mixtures} mixtures, {worst!r}")


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
