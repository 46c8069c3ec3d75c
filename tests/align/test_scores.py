import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from curate.align.scores import cosines, numbers_of
from curate.core.errors import CurateError
from curate.core.items import texts_of


def test_columns_without_numbers_are_one_line():
    with pytest.raises(CurateError, match=r"op.score: 'text' holds string; name a column of numbers"):
        numbers_of("op", pa.chunked_array([[["a"], ["a", "b"]]]), "text", "score")
    with pytest.raises(CurateError, match=r"op.column: 'n' holds int64; give a column of texts"):
        texts_of("op", pa.chunked_array([[1, 2]]), "n")


_WILD = st.floats(width=32, allow_nan=True, allow_infinity=True) | st.sampled_from([0.0, 1.0])


@given(arrays(np.float32, (3, 4), elements=_WILD), arrays(np.float32, (2, 4), elements=_WILD))
def test_cosines_are_numpys_and_within_bounds(images, texts):
    row, text = np.repeat(np.arange(3), 2), np.tile(np.arange(2), 3)
    found = cosines(images, texts, row, text)
    for value, i, j in zip(found, row, text, strict=True):
        a, b = images[i].astype(float), texts[j].astype(float)
        if np.isfinite(a).all() and np.isfinite(b).all() and a.any() and b.any():
            lengths = np.linalg.norm(a) * np.linalg.norm(b)
            assert -1 <= value <= 1 and (value == pytest.approx(a @ b / lengths, abs=1e-6) or lengths < 1e-150)
        else:
            assert np.isnan(value)


def test_thousands_of_pairs_have_the_same_bits_as_one():
    random = np.random.default_rng(0)
    images, texts = random.normal(size=(7, 33)).astype(np.float32), random.normal(size=(9, 33)).astype(np.float32)
    row, text = random.integers(0, 7, 10_000), random.integers(0, 9, 10_000)
    alone = np.array([cosines(images, texts, row[i : i + 1], text[i : i + 1])[0] for i in range(0, 10_000, 97)])
    assert np.array_equal(cosines(images, texts, row, text)[::97], alone)
