"""Rows that the comparison takes, shard by shard."""

import numpy as np
import pyarrow as pa
import pytest

from curate.core.hashing import make_key
from curate.core.vectors import to_binary
from curate.report.survey.rows import LabelCounts
from curate.report.survey.scope import Scope
from curate.report.verdict.compare import ENTROPY, KNN, SMALL, Comparison
from curate.report.verdict.gather import Contenders


def test_copies_of_a_test_row_are_not_references() -> None:
    """The labels here are random: only a copy could predict them."""
    rng = np.random.default_rng(0)
    image = np.repeat(np.arange(1000), 3)
    keys = np.array([make_key("images", str(number)) for number in range(len(image))])
    keepers = [None if number % 3 == 0 else keys[number - number % 3] for number in range(len(image))]
    label = rng.integers(0, 4, 1000)[image].astype(str)
    vectors, _ = to_binary(rng.standard_normal((1000, 16))[image])
    columns = {"key": keys, "duplicate_of": pa.array(keepers, pa.string()), "kind": label, "vector": vectors}
    scope = Scope(frozenset(columns), 0, "sample", (), None, "kind", embedding="vector")
    contenders, counts = Contenders(scope, 0), LabelCounts()
    copies = (rng.random(len(image)) < 0.5).astype(np.int64)
    contenders.add(pa.table(columns), copies)
    counts.add(pa.array(label), copies)
    found = contenders.compare(counts)
    assert found is not None
    assert 0.1 < found.figures[KNN].selection < 0.4 and 0.1 < found.figures[KNN].random < 0.4


def test_photos_of_a_burst_are_not_references_of_each_other() -> None:
    """The labels here are random: only a photo of the same burst could predict them."""
    rng = np.random.default_rng(0)
    scene = np.repeat(np.arange(500), 4)
    keys = [make_key("images", str(number)) for number in range(len(scene))]
    label = rng.integers(0, 4, 500)[scene].astype(str)
    vectors = rng.standard_normal((500, 16))[scene] + 0.1 * rng.standard_normal((len(scene), 16))
    columns = {"key": keys, "kind": label, "vector": to_binary(vectors)[0]}
    scope = Scope(frozenset(columns), 0, "sample", (), None, "kind", embedding="vector")
    found = compared(scope, columns, (rng.random(len(scene)) < 0.5).astype(np.int64))
    assert found is not None
    assert 0.1 < found.figures[KNN].selection < 0.4 and 0.1 < found.figures[KNN].random < 0.4


def labelled(rows: int, every: int, rates: np.ndarray | None) -> tuple[Scope, dict, np.ndarray]:
    """Rows in two leaves, the second with a tenth of them; the leaf is the label. One of `every` has it in a file."""
    leaf = (np.random.default_rng(0).random(rows) < 0.1).astype(np.int64)
    keys = [make_key("images", str(number)) for number in range(rows)]
    known = {keys[row]: f"label {leaf[row]}" for row in range(0, rows, every)}
    columns = {"key": keys, "cluster_1": leaf}
    scope = Scope(frozenset(columns), 1, "sample", (), None, None, known, None if rates is None else (1, rates))
    return scope, columns, leaf


def compared(scope: Scope, columns: dict, copies: np.ndarray) -> Comparison | None:
    contenders, counts = Contenders(scope, 0), LabelCounts()
    for part in range(0, len(copies), 4000):
        some = slice(part, part + 4000)
        table = pa.table({name: values[some] for name, values in columns.items()})
        contenders.add(table, copies[some])
        counts.add(scope.labels(table), copies[some])
    return contenders.compare(counts)


def test_a_few_labelled_rows_stand_for_their_clusters() -> None:
    """A selection that is even over the leaves. Hardly any row with a label is selected."""
    rates = np.array([0.011, 0.1])
    scope, columns, leaf = labelled(20_000, 50, rates)
    found = compared(scope, columns, (np.random.default_rng(1).random(len(leaf)) < rates[leaf]).astype(np.int64))
    assert found is not None and SMALL not in found.figures and found.estimated_from == 400
    figure = found.figures[ENTROPY]
    assert figure.verdict == "better" and figure.selection > 0.95 and 0.3 < figure.random < 0.6
    scope, columns, _ = labelled(20_000, 5000, rates)
    few = compared(scope, columns, np.ones(20_000, np.int64) * (leaf == 1))
    assert few is not None and ENTROPY not in few.figures


@pytest.mark.long
def test_labels_of_a_file_count_as_others_if_no_quotas_decided() -> None:
    """20 random selections: those called better or worse are few."""
    scope, columns, leaf = labelled(6000, 10, None)
    decided = []
    for seed in range(20):
        copies = np.random.default_rng(100 + seed).permutation(np.arange(len(leaf)) < 1200).astype(np.int64)
        found = compared(scope, columns, copies)
        assert found is not None and found.estimated_from is None
        decided.append(found.figures[ENTROPY].verdict != "undecided")
    assert sum(decided) <= 3
    one = compared(scope, columns, (leaf == 0).astype(np.int64))
    assert one is not None and one.figures[ENTROPY].verdict == "worse"
