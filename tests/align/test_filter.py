import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from curate.align.filter import ScoreFilter
from curate.core.errors import CurateError

SCORE = st.none() | st.floats(-1, 1, width=32) | st.just(np.nan)
LISTS = pa.list_(pa.float32())


def kept(scores, kind=LISTS, **parameters):
    stage = ScoreFilter(**parameters)
    found = stage.keep(pa.table({stage.score: pa.array(scores, kind)}))
    assert found.type == pa.list_(pa.string()) and (stage.reads(), stage.places()) == ((stage.score,), stage.score)
    return found.to_pylist()


@given(st.lists(st.none() | st.lists(SCORE, max_size=4), max_size=8), st.floats(-1, 1))
def test_it_keeps_what_numpy_would(rows, least):
    def reason(score):
        return None if score is not None and np.float32(score) >= np.float32(least) else "dissimilar"

    assert kept(rows, threshold=least) == [None if row is None else [reason(score) for score in row] for row in rows]


def test_scores_are_compared_as_float32():
    just_below = np.nextafter(np.float32(0.3), np.float32(0))
    assert kept([[np.float32(0.3), just_below]], threshold=0.3) == [[None, "dissimilar"]]
    assert kept([[0.3, 0.29, np.inf]], pa.list_(pa.float64()), threshold=0.3, score="other") == [
        [None, "dissimilar", None]
    ]
    assert kept([[1.0, -1.0]], threshold=1e300) == [["dissimilar"] * 2]


def test_slices_and_chunks():
    whole = pa.chunked_array([pa.array([[0.5], None, [0.1, 0.9]], LISTS), pa.array([[None], []], LISTS)])
    stage = ScoreFilter(threshold=0.5)
    expected = [[None], None, ["dissimilar", None], ["dissimilar"], []]
    assert stage.keep(pa.table({"similarity": whole})).to_pylist() == expected
    assert stage.keep(pa.table({"similarity": whole.slice(2, 2)})).to_pylist() == expected[2:4]
    assert stage.keep(pa.table({"similarity": pa.chunked_array([], LISTS)})).to_pylist() == []


def test_a_column_without_scores_is_one_line():
    with pytest.raises(
        CurateError, match=r"align.filter.score: 'width' holds int64, .*; for a number per row use filter"
    ):
        kept([3], pa.int64(), threshold=1, score="width")
    with pytest.raises(CurateError, match=r"align.filter.score: 'text' holds string; name a column of numbers"):
        kept([["a"]], pa.list_(pa.string()), threshold=1, score="text")


def test_the_threshold_is_a_number():
    with pytest.raises(ValidationError, match="finite number"):
        ScoreFilter(threshold=float("nan"))
    with pytest.raises(ValidationError, match="threshold\n  Field required"):
        ScoreFilter()
    assert all(info.description for info in ScoreFilter.model_fields.values())
