"""Languages of short texts: confusion, English by threshold, speed against the library; duplicates and boilerplate.

python -m bench.text.language [TEXTS]

TEXTS: number of altered alt texts to time (default: 100,000). Times are processor time of one thread.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import fasttext
import numpy as np
import pyarrow as pa

from bench.kit.measure import line
from bench.kit.texts import alt_texts, altered
from curate.core.contracts import Batch
from curate.core.group import MemoryGroup
from curate.core.hashing import make_key
from curate.text.boilerplate.find import Boilerplate
from curate.text.boilerplate.strip import Strip
from curate.text.duplicates.copies import TextCopies
from curate.text.duplicates.find import FindTextDuplicates
from curate.text.language.language import Language, built_in
from tests.core.stored import Stored
from tests.text.phrases import Phrase, phrases

THRESHOLDS = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
LENGTHS = ((1, 2), (3, 4), (5, 6), (7, 8), (9, 12))
NONE, OTHER = "none", "other"

Answer = tuple[str, float]


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 and sys.argv[1].isdigit() else 100_000
    rows = phrases()
    answers = predicted([row.text for row in rows])
    confusion([(row, code) for row, (code, _) in zip(rows, answers, strict=True) if row.kind == "phrase"])
    by_length(rows, answers)
    english(rows, answers)
    as_given = library([row.text for row in rows])
    accuracy("library, case unchanged", rows, as_given)
    accuracy("upper case converted to lower case", rows, answers)
    texts = altered(count)
    if texts:
        speed(texts)
        learned(list(alt_texts()))


def stage() -> Language:
    made = Language()
    made.setup({})
    return made


def predicted(texts: list[str]) -> list[Answer]:
    columns = stage().process(Batch(pa.table({"text": texts})))
    pairs = zip(columns["language"].to_pylist(), columns["language_score"].to_pylist(), strict=True)
    return [(code or NONE, score or 0.0) for code, score in pairs]


def library(texts: list[str]) -> list[Answer]:
    model = fasttext.load_model(built_in()).f
    found = (model.predict(text.replace("\n", " ") + "\n", 1, 0.0, "strict")[0] for text in texts)
    return [(label.removeprefix("__label__"), score) for score, label in found]


def confusion(pairs: list[tuple[Phrase, str]]) -> None:
    """Confusion matrix: rows are true languages, columns predictions."""
    codes = list(dict.fromkeys(row.language for row, _ in pairs))
    counts = Counter((row.language, code if code in (*codes, NONE) else OTHER) for row, code in pairs)
    print(f"{'phrases':<10}" + "".join(f"{code:>7}" for code in (*codes, OTHER, NONE)))
    for true in codes:
        print(f"{true:<10}" + "".join(f"{counts[true, code] or '.':>7}" for code in (*codes, OTHER, NONE)))


def by_length(rows: list[Phrase], answers: list[Answer]) -> None:
    for least, most in LENGTHS:
        right = [
            code == row.language
            for row, (code, _) in zip(rows, answers, strict=True)
            if least <= len(row.text.split()) <= most and row.language not in ("zh", "ja")
        ]
        line(f"accuracy for {least} to {most} words (not zh, ja)", f"{np.mean(right):.3f}", f"{len(right)} texts")


def accuracy(name: str, rows: list[Phrase], answers: list[Answer]) -> None:
    for kind in ("phrase", "alt"):
        right = [code == row.language for row, (code, _) in zip(rows, answers, strict=True) if row.kind == kind]
        line(f"{name}: accuracy, kind {kind}", f"{np.mean(right):.3f}", f"{len(right)} texts")


def english(rows: list[Phrase], answers: list[Answer]) -> None:
    """Precision, and recall on phrases and on alt texts, of English by threshold."""
    true = np.array([row.language == "en" for row in rows])
    alt = np.array([row.kind == "alt" for row in rows])
    predicted_english, score = (
        np.array([code == "en" for code, _ in answers]),
        np.array([score for _, score in answers]),
    )
    print(f"{'English':<10}{'precision':>12}{'recall':>12}{'of phrases':>12}{'of alt texts':>14}{'others passed':>15}")
    for threshold in THRESHOLDS:
        passed = predicted_english & (score >= threshold)
        precision, recall = (passed & true).sum() / max(1, passed.sum()), passed[true].mean()
        print(
            f"{threshold:<10}{precision:>12.3f}{recall:>12.3f}{passed[true & ~alt].mean():>12.3f}"
            f"{passed[true & alt].mean():>14.3f}{passed[~true].mean():>15.4f}"
        )


def speed(texts: list[str]) -> None:
    made = stage()
    batches = [
        Batch(pa.table({"text": texts[at : at + made.batch_rows]})) for at in range(0, len(texts), made.batch_rows)
    ]
    ours = cpu(lambda: [made.process(batch) for batch in batches]) / len(texts)
    peer = cpu(lambda: library(texts)) / len(texts)
    line("text.language, texts/s", f"{1 / ours:,.0f}", f"{peer / ours:.1f} x fasttext.predict, {1 / peer:,.0f}")


def learned(texts: list[str]) -> None:
    keys = [make_key("bench", str(place)) for place in range(len(texts))]
    table = pa.table({"key": keys, "text": pa.array(texts, pa.string())})
    find, copies, boilerplate, strip = FindTextDuplicates(), TextCopies(), Boilerplate(), Strip()
    group = MemoryGroup([find.load(table)])
    sets = Stored({}, group)
    found: dict[str, Any] = {}
    steps: Iterator[tuple[str, Callable[[], Any]]] = iter(
        (
            ("text.duplicates", lambda: sets.update(find.fit(group))),
            ("text.copies", lambda: (copies.setup({"sets": sets}), copies.process(Batch(table)))),
            ("text.boilerplate", lambda: found.update(boilerplate.finish(boilerplate.partial(table)))),
            ("text.strip", lambda: (strip.setup({"boilerplate": found}), strip.process(Batch(table)))),
        )
    )
    for name, work in steps:
        line(f"{name} of the alt texts, texts/s", f"{len(texts) / cpu(work):,.0f}")
    summary = sets["summary"]
    line("surplus alt texts", f"{summary['surplus']}", f"of {summary['rows']}, {summary['repeated']} repeated")
    for row in found["phrases"].to_pylist():
        line(f"{row['place']}: {row['phrase']}", f"{row['count']}", row["example"][:60])


def cpu(work: Callable[[], Any]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


if __name__ == "__main__":
    main()
