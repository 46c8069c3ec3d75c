"""A uniform sample: exact, the same however rows are divided, and nested."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from curate.core.errors import TargetError
from curate.core.hashing import make_key
from curate.core.recipe.pipeline import Pipeline
from curate.select.hierarchical import SelectHierarchical
from curate.select.uniform import SelectUniform
from tests.engine import toys


def keys_of(number: int, name: str = "pool") -> list[str]:
    return [make_key(name, str(row)) for row in range(number)]


def drawn(stage: SelectUniform, keys: list[str], buckets: int = 3) -> set[str]:
    """Keys that the stage takes, with units distributed over buckets as in the engine."""
    lines = stage.deal(pa.table({"key": pa.array(keys, pa.string())}))
    units = lines.column("unit").to_numpy()
    counts = np.bincount(units)
    quotas = stage.plan(counts)
    assert (quotas <= counts).all()
    taken: set[str] = set()
    for bucket in range(buckets):
        mine = np.flatnonzero(units % buckets == bucket)
        picked = stage.pick(lines.take(mine), counts, quotas)
        assert [reason is None for reason in picked["reject"].to_pylist()] == (picked["copies"] > 0).tolist()
        taken |= {keys[row] for row in mine[picked["copies"] > 0]}
    return taken


@given(st.integers(1, 300), st.data(), st.integers(0, 9), st.integers(1, 5))
def test_the_count_is_exact_and_neither_order_nor_buckets_matter(
    rows: int, data: st.DataObject, seed: int, buckets: int
) -> None:
    keys, count = keys_of(rows), data.draw(st.integers(1, rows))
    stage = SelectUniform(count=count, seed=seed)
    found = drawn(stage, keys, buckets)
    assert len(found) == count
    assert drawn(stage, data.draw(st.permutations(keys))) == found


@given(st.integers(1, 200), st.integers(0, 100), st.data())
def test_samples_are_nested(rows: int, new: int, data: st.DataObject) -> None:
    keys, count = keys_of(rows), data.draw(st.integers(1, rows))
    larger = data.draw(st.integers(count, rows))
    found = drawn(SelectUniform(count=count), keys)
    assert found <= drawn(SelectUniform(count=larger), keys)
    grown = drawn(SelectUniform(count=count), keys + keys_of(new, "new"))
    assert grown & set(keys) <= found


@pytest.mark.parametrize(("share", "rows", "count"), [(0.5, 101, 50), (1.0, 7, 7), (0.001, 10, 1)])
def test_a_share_of_the_rows(share: float, rows: int, count: int) -> None:
    assert len(drawn(SelectUniform(share=share), keys_of(rows))) == count


def test_every_row_is_equally_likely_and_units_do_not_show() -> None:
    keys = keys_of(40)
    times = np.zeros(40)
    for seed in range(500):
        found = drawn(SelectUniform(count=10, seed=seed), keys)
        times += [key in found for key in keys]
    assert abs(times / 500 - 0.25).max() < 6 * (0.25 * 0.75 / 500) ** 0.5


def test_it_is_independent_of_a_hierarchical_sample_with_the_same_seed() -> None:
    keys = keys_of(4000)
    stage = SelectHierarchical(target=1000)
    stage.setup({"tree": {"levels": {"levels": [{"clusters": 1}]}}})
    zeros = np.zeros(4000)
    lines = stage.deal(pa.table({"key": keys, "cluster_1": zeros.astype(np.int64), "centroid_distance": zeros}))
    copies = stage.pick(lines, np.array([4000]), stage.plan(np.array([4000])))["copies"]
    both = drawn(SelectUniform(count=1000), keys) & {key for key, of in zip(keys, copies, strict=True) if of}
    assert abs(len(both) - 250) < 80  # six standard deviations


def test_more_than_the_pool_has() -> None:
    with pytest.raises(TargetError) as caught:
        drawn(SelectUniform(count=1200), keys_of(1000))
    assert str(caught.value) == (
        "select.uniform.count: 1,200 rows, but only 1,000 reach it; lower it, or give `share` instead"
    )
    with pytest.raises(TargetError, match="no rows reach it"):
        SelectUniform(share=0.5).plan(np.zeros(0, np.int64))
    with pytest.raises(ValidationError, match="count: None with share: None; give one of the two"):
        SelectUniform()


def test_a_canary_run_scales_the_count() -> None:
    assert SelectUniform(count=1000).scaled(0.01).count == 10
    assert SelectUniform(share=0.2).scaled(0.01).share == 0.2


def test_two_samples_of_one_seed_are_a_caution() -> None:
    def cautions(seed: int) -> list[str]:
        pipeline = Pipeline().add("pool", toys.Numbers(namespace="toys"))
        pipeline.add("fit_on", SelectUniform(count=10), "pool").add("random", SelectUniform(count=5, seed=seed), "pool")
        assert pipeline.check().cautions("fit_on") == pipeline.cautions("pool") == []
        return pipeline.cautions("random")

    assert cautions(1) == []
    assert cautions(0) == [
        "select.uniform with seed 0, as fit_on: the larger sample contains the smaller one; give another seed for "
        "independent samples"
    ]
