"""`cluster.drift` on pools that grow by similar rows, by new kinds of rows, or by other shares."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from curate.cluster.profile import drift as module
from curate.cluster.profile.drift import Drift, divergences, far_limit, leave_one_out, share_divergence
from curate.core.contracts import Artifact
from curate.core.errors import CurateError
from curate.kernels.nearest.search import nearest

LEAVES, TOP, MODES = 60, 6, 12
CENTRES = np.random.default_rng(3).normal(size=(MODES + 1, 8))
"""Only new rows have the last mode."""
SHARES = np.arange(1, MODES + 1) / np.arange(1, MODES + 1).sum()


def draw(rows: int, seed: int, shares: np.ndarray = SHARES) -> np.ndarray:
    rng = np.random.default_rng(seed)
    mode = rng.choice(len(shares), rows, p=shares)
    return (CENTRES[mode] + 0.3 * rng.normal(size=(rows, 8))).astype(np.float32)


def shard(name: str, points: np.ndarray, tree: Artifact) -> pa.Table:
    leaf, distance = nearest(points, tree["centroids_1"])
    table = pa.table({"cluster_1": leaf, "centroid_distance": distance})
    return table.replace_schema_metadata({b"shard": name.encode()})


@pytest.fixture(scope="module")
def tree() -> Artifact:
    """Tree with the same number of centroids in each mode, and the sizes from the points of shards a and b."""
    points = np.concatenate([draw(3000, 1), draw(3000, 2)])
    centroids = np.concatenate([draw(LEAVES // MODES, 30 + mode, np.eye(MODES)[mode]) for mode in range(MODES)])
    parents = np.arange(LEAVES) // (LEAVES // TOP)
    leaf, distance = nearest(points, centroids)
    sizes = np.bincount(leaf, minlength=LEAVES)
    return {
        "centroids_1": centroids,
        "parents_1": parents,
        "sizes_1": sizes,
        "sizes_2": np.bincount(parents, weights=sizes, minlength=TOP).astype(np.int64),
        "distance_quantiles": np.quantile(distance, np.linspace(0, 1, 101)),
        "shards": pa.table({"shard": ["a", "b"]}),
        "levels": {"levels": [{"clusters": LEAVES}, {"clusters": TOP}]},
    }


def drift(tree: Artifact, shards: dict[str, np.ndarray], stage: Drift | None = None) -> Artifact:
    stage = stage or Drift()
    stage.setup({"tree": tree})
    return stage.finish(stage.merge(stage.partial(shard(name, points, tree)) for name, points in shards.items()))


OLD = {"a": draw(3000, 1), "b": draw(3000, 2)}


def test_a_pool_that_has_not_grown_needs_no_refit(tree: Artifact) -> None:
    found = drift(tree, OLD)["drift"]
    assert (found["due"], found["enough"], found["new_rows"], found["rows"]) == (False, False, 0, 6000)
    assert found["far"]["share"] is None and "shift_bits" not in found["levels"][0]


@pytest.mark.parametrize("seed", range(5))
def test_more_of_the_same_needs_no_refit(tree: Artifact, seed: int) -> None:
    found = drift(tree, OLD | {"c": draw(700, 10 + seed), "d": draw(900, 20 + seed)})["drift"]
    assert (found["due"], found["reasons"], found["new_rows"]) == (False, [], 1600)
    assert found["far"]["share"] < 0.03 and 0.01 <= found["far"]["expected"] < 0.03
    assert all(level["excess_bits"] < 0.01 for level in found["levels"])


def test_a_new_mode_is_far_from_every_centroid(tree: Artifact) -> None:
    shares = np.r_[SHARES * 0.8, 0.2]
    made = drift(tree, OLD | {"c": draw(1500, 7, shares)})
    found = made["drift"]
    assert found["due"] and "farther from every centroid" in found["reasons"][0]
    assert 0.1 < found["far"]["share"] < 0.3
    assert made["clusters"].column("far").to_numpy()[:10].sum() > 0.7 * found["far"]["rows"]


def test_other_shares_of_the_same_modes_are_a_shift_but_not_far(tree: Artifact) -> None:
    made = drift(tree, OLD | {"c": draw(1500, 8, SHARES[::-1])})
    found = made["drift"]
    assert found["due"] and all("another way" in reason for reason in found["reasons"])
    assert found["far"]["share"] < 0.03
    assert [level["excess_bits"] > 0.045 for level in found["levels"]] == [True, True]
    first = made["clusters"].to_pylist()[0]
    assert first["shift_bits"] == max(made["clusters"].column("shift_bits").to_pylist()[:50])
    assert first["share_new"] == first["new"] / 1500 and first["share_fitted"] == first["fitted"] / 6000


def test_a_few_new_rows_need_no_refit(tree: Artifact) -> None:
    few = draw(50, 7, np.eye(MODES + 1)[MODES])
    assert not drift(tree, OLD | {"c": few})["drift"]["due"]
    assert drift(tree, OLD | {"c": few}, Drift(least_rows=20))["drift"]["due"]


def test_limits_are_parameters(tree: Artifact) -> None:
    shards = OLD | {"c": draw(1500, 8, SHARES[::-1])}
    assert not drift(tree, shards, Drift(shift=0.9))["drift"]["due"]
    assert drift(tree, shards, Drift(shown=3))["clusters"].num_rows == 6


def test_the_order_of_shards_does_not_matter(tree: Artifact, monkeypatch: pytest.MonkeyPatch) -> None:
    new = draw(900, 8, SHARES[::-1])
    one = drift(tree, OLD | {"c": new})
    monkeypatch.setattr("curate.cluster.profile.drift._MERGED_ROWS", 10)
    other = drift(tree, {"d": new[:500], "e": new[500:], "f": new[:0]} | OLD)
    assert one["drift"] == other["drift"] and one["clusters"].equals(other["clusters"])


@given(
    st.lists(st.lists(st.tuples(st.integers(0, 9), st.booleans()), max_size=12), min_size=1, max_size=6),
    st.integers(1, 20),
    st.randoms(),
)
def test_states_merge_as_a_tree(shards: list[list[tuple[int, bool]]], at_once: int, random: Any) -> None:
    def state_of(rows: list[tuple[int, bool]], new: int) -> pa.Table:
        leaf, far = (np.array([row[at] for row in rows], dtype=np.int64) for at in (0, 1))
        return module._sum_pairs(leaf, np.full(len(rows), new), np.ones(len(rows), np.int64), far)

    states = [state_of(rows, number % 2) for number, rows in enumerate(shards)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_MERGED_ROWS", at_once)
        flat = Drift().merge(iter(states))
        while len(states) > 1:
            first = random.randrange(len(states) - 1)
            states[first : first + 2] = [Drift().merge(iter(states[first : first + 2]))]
    assert states[0].equals(flat)
    assert sum(flat.column("rows").to_pylist()) == sum(map(len, shards))
    assert sum(flat.column("far").to_pylist()) == sum(far for rows in shards for _, far in rows)


def test_rows_of_another_tree_are_an_error(tree: Artifact) -> None:
    stage = Drift()
    stage.setup({"tree": tree})
    table = pa.table({"cluster_1": [LEAVES], "centroid_distance": [0.5]}).replace_schema_metadata({b"shard": b"c"})
    with pytest.raises(CurateError, match=r"cluster.drift: cluster_1 holds 60..60 .* has 60 leaves"):
        stage.partial(table)


sizes = st.lists(st.integers(0, 50), min_size=3, max_size=3).map(np.array)


@given(sizes, sizes)
def test_the_divergence_is_symmetric_and_between_0_and_1(one: np.ndarray, other: np.ndarray) -> None:
    bits = divergences(one, other)
    np.testing.assert_allclose(bits, divergences(other, one))
    assert (bits >= -1e-12).all() and bits.sum() <= 1 + 1e-12
    if one.any():
        assert divergences(one, one * 3).sum() == pytest.approx(0, abs=1e-12)


def test_nothing_in_common_is_one_bit() -> None:
    assert divergences(np.array([5, 0]), np.array([0, 2])).sum() == pytest.approx(1)


@pytest.mark.parametrize("clusters", [5, 500])
def test_two_samples_of_one_distribution_differ_by_chance_only(clusters: int) -> None:
    rng: Any = np.random.default_rng(1)
    share = rng.dirichlet(np.ones(clusters))
    found = share_divergence(rng.multinomial(5000, share), rng.multinomial(1000, share), seed=0)
    assert found.bits == pytest.approx(found.chance_bits, rel=0.8) and found.excess_bits < 0.01


def test_the_limit_is_higher_for_few_rows() -> None:
    assert far_limit(0.03, 0.01, 10_000) == 0.03
    assert far_limit(0.03, 0.01, 100) == pytest.approx(0.0398, abs=1e-4)


def test_leave_one_out_measures_to_the_mean_of_the_other_rows() -> None:
    points = np.random.default_rng(0).normal(size=(7, 3))
    distance = ((points - points.mean(axis=0)) ** 2).sum(axis=1)
    others = np.stack([np.delete(points, row, axis=0).mean(axis=0) for row in range(7)])
    np.testing.assert_allclose(leave_one_out(distance, np.full(7, 7)), ((points - others) ** 2).sum(axis=1))
    assert leave_one_out(np.array([0.0, 0.5]), np.array([1, 0])).tolist() == [np.inf, 0.5]


def test_a_pool_without_old_rows_is_compared_with_the_percentile(tree: Artifact) -> None:
    assert drift(tree, {"c": draw(300, 7)})["drift"]["far"]["expected"] == pytest.approx(0.01)
