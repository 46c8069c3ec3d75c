import pickle

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from curate.align.filter import ScoreFilter
from curate.align.margin import Margin
from curate.align.threshold import Threshold
from curate.core.contracts import Batch
from curate.core.errors import CurateError
from curate.core.items import family_of, per_item

SCORE = st.none() | st.floats(width=32) | st.sampled_from([0.0, -0.0, 1e-45, 0.25])
LISTS = pa.list_(pa.float32())


def margins(scores, least, score="similarity"):
    """The batch's table with the margins."""
    stage = Margin(score=score)
    assert pickle.loads(pickle.dumps(stage)) == stage
    [field] = stage.schema()
    assert per_item(field) and family_of(field.name, {field.name: field}) == score
    stage.setup({"threshold": {"threshold": {"column": score, "value": float(np.float32(least))}}})
    table = pa.table({score: scores})
    return table.append_column(field, stage.process(Batch(table))[field.name])


@given(
    st.lists(st.none() | st.lists(SCORE, max_size=4), max_size=6),
    st.floats(width=32, allow_nan=False, allow_infinity=False) | st.sampled_from([1e-45, 0.25]),
)
def test_a_margin_passes_0_where_its_score_passes_the_threshold(rows, least):
    table = margins(pa.array(rows, LISTS), least)
    direct = ScoreFilter(threshold=least).keep(table)
    assert ScoreFilter(threshold=0, score="similarity_margin").keep(table).equals(direct)


def test_margins_are_differences_in_their_places():
    table = margins(pa.array([[0.5, None, 0.25], [], None], LISTS), 0.25)
    assert table["similarity_margin"].to_pylist() == [[0.25, None, 0.0], [], None]


def test_a_number_per_row_is_a_list_of_one():
    table = margins(pa.array([300, None, 100]), 200, "width")
    assert table["width_margin"].to_pylist() == [[100], None, [-100]]


def test_the_threshold_of_other_scores():
    stage = Threshold(column="other")
    found = stage.finish(stage.merge(iter([stage.partial(pa.table({"other": [0.5]}))])))
    with pytest.raises(CurateError, match="computed from 'other', but `score` is 'similarity'; name a threshold"):
        Margin().setup({"threshold": found})
    Margin(score="other").setup({"threshold": found})
    assert all(info.description for info in Margin.model_fields.values())
