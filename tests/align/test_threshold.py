import json
import math
from fractions import Fraction

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from curate.align import threshold as module
from curate.align.threshold import Threshold, numbers, ordered
from curate.core.errors import CurateError

FINITE = st.floats(width=32, allow_nan=False, allow_infinity=False)
SHARES = st.sampled_from([0.001, 0.1, 0.29, 0.3, 0.55, 0.7, 1.0])


def found(shards, share=0.3, column="similarity"):
    stage = Threshold(share=share, column=column)
    states = [stage.partial(pa.table({column: shard})) for shard in shards]
    artifact = stage.finish(stage.merge(iter(states)))
    json.dumps(artifact["threshold"], allow_nan=False)
    return artifact


@given(arrays(np.float32, st.integers(1, 60), elements=FINITE | st.sampled_from([0.0, -0.0, 0.25])), SHARES)
def test_it_is_the_sorted_scores(values, share):
    told = found([pa.array(values[:7]), pa.array(values[7:])], share)["threshold"]
    k = math.ceil(Fraction(str(share)) * len(values))
    assert told["value"] == np.sort(values)[::-1][k - 1]
    assert told["share_realised"] == (values >= np.float32(told["value"])).mean() >= share
    assert (told["items"], told["left_out"], told["exact"]) == (len(values), 0, True)


@given(arrays(np.float32, st.integers(2, 60), elements=FINITE))
def test_bits_are_in_the_order_of_values(values):
    order = ordered(values)
    assert np.array_equal(numbers(order), values)
    assert np.array_equal(order[:-1] < order[1:], values[:-1] < values[1:])


@given(arrays(np.float32, st.integers(5, 60), elements=st.floats(-2, 2, width=32)), SHARES, st.integers(0, 60))
def test_many_different_scores_are_binned_however_they_come(values, share, cut):
    exact = found([pa.array(values)], share)["threshold"]
    before = module.EXACT_VALUES
    module.EXACT_VALUES = 3
    try:
        whole, apart = (
            found(parts, share) for parts in ([pa.array(values)], np.split(values, [min(cut, len(values))]))
        )
    finally:
        module.EXACT_VALUES = before
    assert whole["threshold"] == apart["threshold"] and whole["histogram"].equals(apart["histogram"])
    told = whole["threshold"]
    if told["exact"]:
        assert told == exact and len(np.unique(values)) <= 3
    value, right = told["value"], exact["value"]
    assert value <= right and right - value <= max(abs(right) / 65536, 1e-37)
    assert told["share_realised"] == pytest.approx((values >= np.float32(value)).mean()) and told["items"] == len(
        values
    )


def test_items_and_missing_scores():
    column = pa.array([[0.1, None, 0.5], [], None, [float("nan"), 0.3, float("inf")]], pa.list_(pa.float32()))
    artifact = found([column, column.slice(1, 2)], 0.5)
    told = artifact["threshold"]
    assert told["value"] == np.float32(0.3) and (told["items"], told["left_out"]) == (3, 3)
    assert told["share_realised"] == 2 / 3
    assert sum(artifact["histogram"].column("count").to_pylist()) == 3


def test_any_column_of_numbers():
    assert found([pa.array([1, 5, None, 3])], 0.5, "width")["threshold"]["value"] == 3
    with pytest.raises(CurateError, match=r"align.threshold.column: 'text' holds string; name a column of numbers"):
        found([pa.array(["a"])], column="text")


@pytest.mark.parametrize("shards", [[], [pa.array([], pa.float32())], [pa.array([None, np.nan], pa.float32())]])
def test_no_score_is_one_line(shards):
    with pytest.raises(CurateError, match=r"^align.threshold.column: no score in 'similarity' \(\d null"):
        found(shards)


def test_a_state_of_many_rows_stays_small():
    """More distinct scores than are counted exactly."""
    values = np.random.default_rng(0).normal(0.2, 0.05, 5 << 18).astype(np.float32)
    stage = Threshold()
    state = stage.partial(pa.table({"similarity": values}))
    assert state.num_rows < 1 << 19
    told = stage.finish(stage.merge(iter([state])))["threshold"]
    right = np.sort(values)[::-1][math.ceil(0.3 * len(values)) - 1]
    assert not told["exact"] and 0 <= right - told["value"] <= right / 65536
