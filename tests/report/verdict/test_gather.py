"""Rows that the comparison takes, shard by shard."""

import numpy as np
import pyarrow as pa

from curate.core.hashing import make_key
from curate.core.vectors import to_binary
from curate.report.survey.rows import LabelCounts
from curate.report.survey.scope import Scope
from curate.report.verdict.compare import KNN
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
