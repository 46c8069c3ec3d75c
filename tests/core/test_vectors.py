import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from curate.core.vectors import from_binary, has_direction, to_binary, vector_dim, vector_type


@given(n=st.integers(0, 20), dim=st.integers(1, 33), scale=st.floats(1e-3, 1e6), seed=st.integers(0, 2**32 - 1))
def test_round_trip_within_the_precision_of_a_half(n: int, dim: int, scale: float, seed: int) -> None:
    raw = (np.random.default_rng(seed).normal(size=(n, dim)) * scale).astype(np.float32)
    column, norms = to_binary(raw)
    assert column.type == vector_type(dim) and vector_dim(column.type) == dim
    unit = from_binary(column)
    assert unit.shape == (n, dim) and unit.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(unit, axis=1), np.ones(n), atol=2**-10)
    length = np.linalg.norm(raw, axis=1, keepdims=True)
    assert (np.abs(from_binary(column, norms) - raw) <= 2**-10 * length).all()


def test_slices_chunks_and_nulls() -> None:
    raw = np.eye(5, dtype=np.float64)
    column, norms = to_binary(raw)
    chunked = pa.chunked_array([column.slice(3, 2), column.slice(0, 0), column.slice(1, 1)])
    np.testing.assert_array_equal(from_binary(chunked), raw[[3, 4, 1]])
    np.testing.assert_array_equal(from_binary(chunked, pa.array([2.0, 1.0, 3.0])), raw[[3, 4, 1]] * [[2], [1], [3]])
    holes = pa.array([column[0].as_py(), None], vector_type(5))
    assert np.isnan(from_binary(holes)[1]).all() and (from_binary(holes)[0] == raw[0]).all()
    assert from_binary(pa.chunked_array([], vector_type(7))).shape == (0, 7)
    assert norms.dtype == np.float32


def test_rows_without_direction_are_found() -> None:
    column, norms = to_binary(np.array([[0, 0], [np.nan, 1], [np.inf, 1], [3, 4], [1e-30, 0]], dtype=np.float32))
    assert has_direction(norms).tolist() == [False, False, False, True, True]
    assert from_binary(column)[0].tolist() == [0, 0]
    assert np.isnan(from_binary(column)[1:3]).any(axis=1).all()
    np.testing.assert_allclose(from_binary(column)[3], [0.6, 0.8], atol=1e-3)
    assert from_binary(column)[4].tolist() == [1, 0]


def test_other_columns_are_rejected() -> None:
    with pytest.raises(TypeError, match="expected fixed_size_binary of 2 bytes per dimension, not"):
        from_binary(pa.array([[1.0]]))
