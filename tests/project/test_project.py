"""Projections: every row has a place, the same one twice and beside any other rows; regions keep what is inside."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from curate.core.contracts import Batch
from curate.core.errors import CurateError, InputError
from curate.kernels.region import inside
from curate.project.fit import FitProjection, principal_axes
from curate.project.place import Place
from curate.project.region import InRegion
from tests.search.test_index import group, table

GROUPS, EACH, DIM = 6, 60, 24


@pytest.fixture(scope="module")
def vectors() -> np.ndarray:
    """Rows (n, d) in groups that are far apart."""
    rng = np.random.default_rng(4)
    centres = rng.standard_normal((GROUPS, DIM)) * 3
    return (np.repeat(centres, EACH, axis=0) + rng.standard_normal((GROUPS * EACH, DIM)) * 0.4).astype(np.float32)


def fitted(stage: FitProjection, rows: pa.Table, parts: int = 3, threads: int = 1) -> Any:
    return stage.fit(group(stage, rows, parts, threads))


def placed(artifact: Any, rows: pa.Table, stage: Place | None = None) -> np.ndarray:
    stage = stage or Place()
    stage.setup({"projection": artifact})
    batch = Batch(rows)
    made = stage.process(batch)
    return np.stack([made[field.name] for field in stage.schema()], axis=1)


@pytest.mark.parametrize("method", ["pca", "neighbours"])
def test_rows_of_a_group_are_neighbours_on_the_map(vectors: np.ndarray, method: str) -> None:
    points = placed(fitted(FitProjection(method=method, sample=200, epochs=60), table(vectors)), table(vectors))
    of = np.repeat(np.arange(GROUPS), EACH)
    apart = np.square(points[:, None] - points).sum(axis=2)
    np.fill_diagonal(apart, np.inf)
    same = (of[apart.argsort(axis=1)[:, :10]] == of[:, None]).mean()
    assert same > (0.97 if method == "neighbours" else 0.5)


def version(artifact: Any) -> str:
    stage = Place()
    stage.setup({"projection": artifact})
    return stage.schema().field("map_x").metadata[b"map"].decode()


@pytest.mark.parametrize("method", ["pca", "neighbours"])
def test_the_map_is_the_same_twice_and_for_any_threads(vectors: np.ndarray, method: str) -> None:
    stage = FitProjection(method=method, epochs=20)
    one, two = (fitted(stage, table(vectors), threads=threads) for threads in (1, 3))
    other = fitted(stage.model_copy(update={"seed": 1, "sample": 100}), table(vectors))
    assert version(one) == version(two) != version(other)


@pytest.mark.parametrize("method", ["pca", "neighbours"])
def test_a_place_does_not_depend_on_the_other_rows(vectors: np.ndarray, method: str) -> None:
    rows = table(vectors)
    artifact = fitted(FitProjection(method=method, sample=150, epochs=20), rows)
    whole = placed(artifact, rows)
    for start, size in ((0, 1), (7, 5), (40, 64)):
        assert np.array_equal(placed(artifact, rows.slice(start, size)), whole[start : start + size])


def test_sampled_rows_stay_where_they_were_fitted(vectors: np.ndarray) -> None:
    artifact = fitted(FitProjection(method="neighbours", epochs=20), table(vectors), parts=1)
    found = placed(artifact, table(vectors))
    assert np.abs(found - artifact["points"]).max() < 1e-2 * np.ptp(artifact["points"])


def test_pca_takes_the_directions_of_most_variance() -> None:
    rng = np.random.default_rng(0)
    rows = (rng.standard_normal((500, 6)) * [5, 3, 0.1, 0.1, 0.1, 0.1]).astype(np.float32)
    _, axes, explained = principal_axes(rows)
    assert explained > 0.99
    assert np.allclose(np.abs(axes[:2]), np.eye(2), atol=0.05)
    assert axes[np.abs(axes).argmax(axis=0), [0, 1]].min() > 0


@pytest.mark.parametrize("rows", [1, 2, 3])
@pytest.mark.parametrize("method", ["pca", "neighbours"])
def test_few_and_equal_rows_have_places(rows: int, method: str) -> None:
    same = np.ones((rows, 3), np.float32)
    points = placed(fitted(FitProjection(method=method, epochs=3), table(same), parts=1), table(same))
    assert points.shape == (rows, 2)
    assert np.isfinite(points).all()


def test_bad_vectors(vectors: np.ndarray) -> None:
    artifact = fitted(FitProjection(), table(vectors))
    bad = vectors[:4].copy()
    bad[1] = 0
    column = table(vectors[:4]).column("embedding").to_pylist()
    column[1], column[2] = bytes(len(column[0])), None
    rows = table(vectors[:4])
    at = rows.schema.get_field_index("embedding")
    rows = rows.set_column(at, rows.schema.field(at), pa.array(column, rows.schema.field(at).type))
    stage = Place()
    stage.setup({"projection": artifact})
    batch = Batch(rows)
    stage.process(batch)
    assert batch.unfit == {1: "bad_embedding", 2: "bad_embedding"}
    with pytest.raises(InputError, match=r"project\.fit\.embedding: 2 rows"):
        FitProjection().load(rows)
    with pytest.raises(CurateError, match="no rows to project"):
        fitted(FitProjection(), rows.slice(0, 0))
    with pytest.raises(CurateError, match="dim"):
        placed(artifact, table(vectors[:, :7]))


# --- regions ----------------------------------------------------------------------------------------------------------


def on_map(x: list[float | None], version: str = "v1") -> pa.Table:
    fields = [pa.field(name, pa.float32(), metadata={"map": version}) for name in ("map_x", "map_y")]
    return pa.table([pa.array(x, pa.float32()), pa.array([0.5] * len(x), pa.float32())], schema=pa.schema(fields))


SQUARE = [(0.0, 0.0), (1.0, 0.0), (1.0, 1.0), (0.0, 1.0)]


def test_a_region_keeps_the_rows_inside_or_outside() -> None:
    rows = on_map([0.5, 2.0, None, float("nan")])
    assert InRegion(polygon=SQUARE).keep(rows).to_pylist() == [None, "region", "region_null", "region"]
    never = InRegion(polygon=SQUARE, side="outside", reason="seen_it")
    assert never.keep(rows).to_pylist() == ["seen_it", None, "seen_it_null", None]


def test_a_region_of_another_map_is_an_error() -> None:
    assert InRegion(polygon=SQUARE, map="v1").keep(on_map([0.5])).to_pylist() == [None]
    with pytest.raises(CurateError, match="drawn on map v0, but the rows are placed on v1; draw the region again"):
        InRegion(polygon=SQUARE, map="v0").keep(on_map([0.5]))


@pytest.mark.parametrize("polygon", [[(0, 0), (1, 1)], [(0, 0), (1, 0), (float("nan"), 1)], [(0, 0)] * 201])
def test_a_polygon_has_corners(polygon: Any) -> None:
    with pytest.raises(ValidationError, match="expected 3 to 200 corners"):
        InRegion(polygon=polygon)


@given(st.lists(st.tuples(st.floats(-3, 3), st.floats(-3, 3)), min_size=1, max_size=30))
def test_inside_a_triangle(points: list[tuple[float, float]]) -> None:
    x, y = np.array(points).T
    found = inside([(-2, -2), (2, -2), (0, 2)], x, y)
    edge = np.abs(np.minimum(np.minimum(y + 2, 2 * x - y + 2), 2 - y - 2 * x)) < 1e-9
    wanted = (y > -2) & (2 * x - y + 2 > 0) & (-2 * x - y + 2 > 0)
    assert np.array_equal(found[~edge], wanted[~edge])
