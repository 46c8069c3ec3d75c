import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from curate.align.scores import cosines, encoded, numbers_of, scores_of
from curate.core.errors import CurateError
from curate.core.items import texts_of

ITEM = st.none() | st.tuples(st.sampled_from("ab"), st.none() | st.floats(-1, 1, width=32) | st.just(np.nan))
ROWS = st.lists(st.none() | st.lists(ITEM, max_size=4), max_size=6)


@given(ROWS)
def test_every_text_has_the_score_of_its_place(rows):
    texts = [None if row is None else [item and item[0] for item in row] for row in rows]
    scores = [None if row is None else [item and item[1] for item in row] for row in rows]
    items = texts_of("op", pa.chunked_array([texts], pa.list_(pa.string())), "text")
    keys = pa.chunked_array([[str(i) for i in range(len(rows))]], pa.string())
    found = scores_of("op", items, pa.chunked_array([scores], pa.list_(pa.float32())), "score", keys)
    expected = [rows[row][place][1] for row, place in zip(items.row, items.place, strict=True)]
    assert np.array_equal(found, np.array([np.nan if v is None else v for v in expected], np.float32), equal_nan=True)


def test_a_score_of_the_row_is_one_for_all_its_texts():
    items = texts_of("op", pa.chunked_array([[["a", "b"], ["c"], None, ["d"]]]), "text")
    keys = pa.chunked_array([list("wxyz")])
    assert scores_of("op", items, pa.chunked_array([[3, None, 4, 5]]), "s", keys).tolist()[:2] == [3, 3]
    assert np.isnan(scores_of("op", items, pa.chunked_array([[3, None, 4, 5]]), "s", keys)[2])


def test_rows_of_other_lengths_and_other_types_are_refused():
    texts = pa.chunked_array([[["a"], ["a", "b"]]])
    items, keys = texts_of("op", texts, "text"), pa.chunked_array([["first", "second"]])
    with pytest.raises(CurateError, match=r"op.score: 's' has 1 scores for 2 texts \(key second\); name the scores of"):
        scores_of("op", items, pa.chunked_array([[[0.5], [0.5]]]), "s", keys)
    with pytest.raises(CurateError, match=r"op.score: 'text' holds string; name a column of numbers"):
        numbers_of("op", texts, "text", "score")
    with pytest.raises(CurateError, match=r"op.column: 'n' holds int64; name a column of texts"):
        texts_of("op", pa.chunked_array([[1, 2]]), "n")


@given(st.integers(0, 40), st.sampled_from([1, 2, 16]))
def test_every_pass_has_the_same_size(count, at_once):
    sizes = []

    def encode(texts):
        sizes.append(len(texts))
        return np.array([[float(text or -1)] for text in texts], np.float32)

    assert encoded(encode, [str(i) for i in range(count)], 1, at_once)[:, 0].tolist() == list(range(count))
    assert set(sizes) <= {at_once} and len(sizes) == -(-count // at_once)


_WILD = st.floats(width=32, allow_nan=True, allow_infinity=True) | st.sampled_from([0.0, 1.0])


@given(arrays(np.float32, (3, 4), elements=_WILD), arrays(np.float32, (2, 4), elements=_WILD))
def test_cosines_are_numpys_and_within_bounds(pictures, texts):
    row, text = np.repeat(np.arange(3), 2), np.tile(np.arange(2), 3)
    found = cosines(pictures, texts, row, text)
    for value, i, j in zip(found, row, text, strict=True):
        a, b = pictures[i].astype(float), texts[j].astype(float)
        if np.isfinite(a).all() and np.isfinite(b).all() and a.any() and b.any():
            lengths = np.linalg.norm(a) * np.linalg.norm(b)
            assert -1 <= value <= 1 and (value == pytest.approx(a @ b / lengths, abs=1e-6) or lengths < 1e-150)
        else:
            assert np.isnan(value)


def test_thousands_of_pairs_are_no_other_than_one():
    random = np.random.default_rng(0)
    pictures, texts = random.normal(size=(7, 33)).astype(np.float32), random.normal(size=(9, 33)).astype(np.float32)
    row, text = random.integers(0, 7, 10_000), random.integers(0, 9, 10_000)
    alone = np.array([cosines(pictures, texts, row[i : i + 1], text[i : i + 1])[0] for i in range(0, 10_000, 97)])
    assert np.array_equal(cosines(pictures, texts, row, text)[::97], alone)
