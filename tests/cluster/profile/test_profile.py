"""`cluster.profile` on a small synthetic tree: every figure of a cluster."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from curate.cluster.profile import state
from curate.cluster.profile.figures import explained, sources
from curate.cluster.profile.profile import PoolCounts, Profile
from curate.core.contracts import Artifact
from curate.core.errors import CurateError
from curate.core.hashing import make_key
from curate.kernels.cluster_names import Terms, cluster_names

LEVELS = {"variance": 1.0, "levels": [{"clusters": 6}, {"clusters": 2}]}
TREE: Artifact = {"levels": LEVELS, "parents_1": np.array([0, 0, 0, 1, 1, 1])}
"""Six leaves under two clusters."""


def rows_of(
    leaf: int, count: int, distance: float, caption: str, host: str | Sequence[str | None]
) -> list[dict[str, Any]]:
    hosts = [host] * count if isinstance(host, str) else [host[i % len(host)] for i in range(count)]
    return [
        {
            "cluster_1": leaf,
            "centroid_distance": distance,
            "caption": caption,
            "url": f"https://www.{host}/{i}.png" if host else None,
            "meta": json.dumps({"site": {"name": host}}),
        }
        for i, host in enumerate(hosts)
    ]


SITES = ("a.org", "b.org", "c.org", "d.org")
ROWS = [
    *rows_of(0, 40, 0.1, "a red apple", SITES),
    *rows_of(1, 20, 0.2, "a green apple tree", SITES),
    *rows_of(2, 3, 0.2, "some pear", SITES),
    *rows_of(3, 40, 0.3, "fire engine of the city", "b.org"),
    *rows_of(4, 40, 0.99, "holiday", SITES),
]
"""Leaf 2 is tiny, leaf 3 comes from one site, leaf 4 is as scattered as the pool, leaf 5 is empty."""


def table(rows: Sequence[dict[str, Any]]) -> pa.Table:
    keys = [make_key("profile", str(number)) for number in range(len(rows))]
    made = pa.Table.from_pylist([{"key": key} | row for key, row in zip(keys, rows, strict=True)])
    return made.set_column(2, "centroid_distance", made.column("centroid_distance").cast(pa.float32()))


def profile(stage: Profile, pool: pa.Table, shards: int = 3, tree: Artifact = TREE) -> Artifact:
    stage.setup({"tree": tree})
    cuts = np.linspace(0, pool.num_rows, shards + 1).astype(int)
    parts = (pool.select(["key", *stage.reads()]).slice(a, b - a) for a, b in pairwise(cuts))
    return stage.finish(stage.merge(stage.partial(part) for part in parts))


@pytest.fixture(scope="module")
def found() -> list[dict[str, Any]]:
    return profile(Profile(), table(ROWS))["clusters"].to_pylist()


def test_the_tree_as_a_table(found: list[dict[str, Any]]) -> None:
    assert [(row["level"], row["cluster"]) for row in found] == [(1, n) for n in range(6)] + [(2, 0), (2, 1)]
    assert [row["parent"] for row in found] == [0, 0, 0, 1, 1, 1, None, None]
    assert [row["rows"] for row in found] == [40, 20, 3, 40, 40, 0, 63, 80]
    assert [row["leaves"] for row in found] == [1] * 6 + [3, 3]


def test_it_tells_what_equal_parts_of_the_clusters_would_do_to_sources() -> None:
    """One site has a tenth of the rows, in a separate leaf, and a larger share of them is sampled."""
    pool = table([*rows_of(0, 900, 0.1, "a", "a.org"), *rows_of(3, 100, 0.1, "b", "b.org")])
    even = profile(Profile(sample=50), pool)["profile"]["even"]
    for level in even:
        assert level["verdict"] == "better" and level["selection"] == pytest.approx(1)
        assert level["random"] == pytest.approx(-0.9 * np.log2(0.9) - 0.1 * np.log2(0.1), abs=1e-6)
    assert profile(Profile(source=None), pool)["profile"]["even"] == [None, None]
    assert profile(Profile(), table(rows_of(0, 40, 0.1, "a", "a.org")))["profile"]["even"] == [None, None]


def test_distances_and_what_they_explain(found: list[dict[str, Any]]) -> None:
    means = [row["mean_distance"] for row in found]
    expected = [0.1, 0.2, 0.2, 0.3, 0.99, np.nan, (4 + 4 + 0.6) / 63, (12 + 39.6) / 80]
    np.testing.assert_allclose([np.nan if mean is None else mean for mean in means], expected, rtol=1e-6)
    for row in found[:5]:
        assert row["median_distance"] == pytest.approx(row["mean_distance"], rel=0.13)
    assert found[0]["explained"] == pytest.approx(1 - 4 / 39)
    assert found[7]["explained"] == pytest.approx(1 - 51.6 / 78)
    assert found[5]["explained"] is None
    whole = profile(Profile(), table(ROWS))["profile"]
    assert whole["mean_distance"] == pytest.approx((4 + 4 + 0.6 + 12 + 39.6) / 143)


def test_flags(found: list[dict[str, Any]]) -> None:
    assert [row["flags"] for row in found] == [[], [], ["tiny"], ["single_source"], ["noise"], ["empty"], [], []]


def test_sources(found: list[dict[str, Any]]) -> None:
    assert [row["sources"] for row in found] == [4, 4, 3, 1, 4, 0, 4, 4]
    assert found[0]["source_entropy"] == pytest.approx(2) and found[3]["source_entropy"] == 0
    assert (found[3]["top_source"], found[3]["top_source_share"]) == ("b.org", 1)
    assert (found[7]["top_source"], found[7]["top_source_share"]) == ("b.org", pytest.approx(50 / 80))
    assert found[5]["top_source"] is found[5]["source_entropy"] is None


def test_names(found: list[dict[str, Any]]) -> None:
    leaves = ["red apple", "apple tree, green", "pear", "engine city, fire", "holiday", ""]
    assert [row["name"] for row in found] == [*leaves, "apple, red, green", "engine city, fire, holiday"]


def test_a_pool_of_one_source_flags_no_cluster_for_it() -> None:
    made = profile(Profile(), table([*rows_of(0, 30, 0.1, "x", "a.org"), *rows_of(4, 30, 0.1, "x", "a.org")]))
    assert not any("single_source" in flags for flags in made["clusters"].column("flags").to_pylist())
    assert (made["profile"]["top_source"], made["profile"]["top_source_share"]) == ("a.org", 1)


@pytest.mark.parametrize("source", ["url", "meta.site.name", None])
def test_sources_from_a_url_a_field_or_none(source: str | None) -> None:
    made = profile(Profile(source=source), table(ROWS))
    top = made["clusters"].column("top_source")[3].as_py()
    assert top == (None if source is None else "b.org")


def test_urls_and_meta_without_a_source() -> None:
    urls, metas = [None, "", "http://[bad", "nowhere", "http:///x"], [None, "{", "[1]", "{}", '{"site": null}']
    rows = rows_of(0, 5, 0.1, "x", "a.org")
    for row, url, meta in zip(rows, urls, metas, strict=True):
        row |= {"url": url, "meta": meta}
    for source in ("url", "meta.site.name"):
        made = profile(Profile(source=source), table(rows))
        assert made["profile"]["top_source"] is made["profile"]["top_source_share"] is None


def test_the_result_does_not_depend_on_shards_or_their_order() -> None:
    shuffled = table(ROWS).take(np.random.default_rng(0).permutation(len(ROWS)))
    for stage in (Profile(), Profile(sample=3, seed=5)):
        one, other = profile(stage, table(ROWS), 1), profile(stage, shuffled, 7)
        assert one["clusters"].equals(other["clusters"]) and one["profile"] == other["profile"]


def test_sampled_rows_are_weighted_by_the_size_of_their_leaf() -> None:
    """10 sampled rows of a leaf of 1000 rows, and all 10 of a leaf of 10."""
    rows = [*rows_of(3, 1000, 0.1, "x", "a.org"), *rows_of(4, 10, 0.1, "x", "b.org")]
    made = profile(Profile(sample=10), table(rows))
    assert made["profile"]["sampled_rows"] == 20
    assert made["profile"]["top_source_share"] == pytest.approx(1000 / 1010)


def test_an_empty_pool() -> None:
    made = profile(Profile(), table(ROWS).slice(0, 0))
    assert made["clusters"].column("rows").to_pylist() == [0] * 8
    assert made["profile"]["mean_distance"] is None


def test_rows_of_another_tree_are_an_error() -> None:
    with pytest.raises(CurateError, match=r"cluster_1 holds 3..9 .* has 6 leaves"):
        profile(Profile(), table([*rows_of(3, 1, 0.1, "x", "a.org"), *rows_of(9, 1, 0.1, "x", "a.org")]), 1)


# --- kernels ----------------------------------------------------------------------------------------------------------

distances = st.floats(0, 2.0**100, width=32)


@given(
    st.lists(st.tuples(st.integers(0, 3), distances), max_size=60), st.integers(1, 5), st.integers(0, state.WIDEST),
    st.integers(1, 40), st.randoms(),
)  # fmt: skip
def test_sums_and_quantiles_of_any_distances(
    rows: list[tuple[int, float]], shards: int, width: int, at_once: int, random: Any
) -> None:
    leaf = np.array([row[0] for row in rows], dtype=np.int64)
    distance = np.array([row[1] for row in rows], dtype=np.float32)
    whole = state.Histogram.of(leaf, distance, width)
    parts = [state.Histogram.of(leaf[i::shards], distance[i::shards], width) for i in range(shards)]
    random.shuffle(parts)
    merged = state.Histogram.merged(parts, width, at_once)
    for name in ("leaf", "bin", "count", "low"):
        np.testing.assert_array_equal(getattr(whole, name), getattr(merged, name))
    np.testing.assert_array_equal(merged.rows(4), np.bincount(leaf, minlength=4))
    np.testing.assert_allclose(merged.sums(4), np.bincount(leaf, distance.astype(np.float64), 4), rtol=1e-9)
    medians = merged.quantiles(0.5, 4)
    for cluster in range(4):
        mine = np.sort(distance[leaf == cluster].astype(np.float64))
        if not len(mine):
            assert np.isnan(medians[cluster])
        else:
            middle = mine[(len(mine) - 1) // 2]
            wide = (1 + 2.0 ** (width - 3)) * 1.005  # the first bin of an octave is the widest
            assert middle / wide <= medians[cluster] + 1e-37 and medians[cluster] <= middle * wide + 1e-37


@given(
    st.lists(st.tuples(st.integers(0, 5), distances), max_size=50), st.integers(1, 8), st.integers(1, 30),
    st.integers(1, 6), st.randoms(),
)  # fmt: skip
def test_states_merge_in_any_order_and_as_a_tree(
    rows: list[tuple[int, float]], kept: int, most: int, shards: int, random: Any
) -> None:
    leaf = np.array([row[0] for row in rows], dtype=np.int64)
    distance = np.array([row[1] for row in rows], dtype=np.float32)
    rank = np.random.default_rng(len(rows)).permutation(len(rows)).astype(np.uint64)
    resolution = state.Resolution.of(6, kept, most)

    def state_of(mine: np.ndarray) -> pa.Table:
        texts = pa.table({"caption": pa.array([str(r) for r in mine]), "source": pa.nulls(len(mine), pa.string())})
        sample = state.Sample(leaf[mine], rank[mine], texts).limited_to(resolution)
        return state.to_table(state.Histogram.of(leaf[mine], distance[mine], resolution.width), sample)

    flat = state.merge([state_of(np.arange(len(leaf)))], resolution)
    states = [state_of(mine) for mine in np.array_split(np.arange(len(leaf)), shards)]
    random.shuffle(states)
    while len(states) > 1:
        first = random.randrange(len(states) - 1)
        states[first : first + 2] = [state.merge(states[first : first + 2], resolution)]
    assert states[0].equals(flat) and state.merge(states, resolution).equals(flat)
    assert flat.column("rank").drop_null().length() <= max(most, 2 * len(set(leaf)))


@pytest.mark.parametrize(
    ("leaves", "resolution"),
    [
        (1, state.Resolution(64)),
        (31_250, state.Resolution(64)),
        (31_251, state.Resolution(32)),
        (500_000, state.Resolution(4, 0, 1)),
        (2_000_000, state.Resolution(1, 0, 3)),
        (20_000_000, state.Resolution(1, 4, 3)),
    ],
)
def test_the_resolution_depends_on_the_tree(leaves: int, resolution: state.Resolution) -> None:
    assert state.Resolution.of(leaves, 64) == resolution
    share = resolution.sampled(np.arange(min(leaves, 200_000))).mean()
    assert share == pytest.approx(2.0**-resolution.leaf_bits, rel=0.05)


@pytest.mark.parametrize("at_once", [1, 2, 5])
def test_the_table_does_not_depend_on_the_ranges(at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = profile(Profile(), table(ROWS))["clusters"]
    monkeypatch.setattr(PoolCounts.level, "__defaults__", (at_once,))
    assert profile(Profile(), table(ROWS))["clusters"].equals(whole)


def test_unrelated_rows_explain_nothing() -> None:
    """Points of one ball, assigned to clusters at random and measured to the means of their clusters."""
    points = np.random.default_rng(0).normal(size=(3000, 16))
    cluster = np.arange(3000) % 300
    means = np.stack([points[cluster == c].mean(axis=0) for c in range(300)])
    squared = ((points - means[cluster]) ** 2).sum(axis=1)
    variance = ((points - points.mean(axis=0)) ** 2).sum(axis=1).mean()
    sums = np.bincount(cluster, weights=squared)
    found = explained(sums, np.full(300, 10), np.ones(300, dtype=np.int64), float(variance))
    assert abs(found.mean()) < 0.01
    assert explained(np.zeros(1), np.array([3]), np.array([1]), 0.0) == [1]


def test_the_first_of_equal_sources_by_name_is_the_top_source() -> None:
    found = sources(pa.array(["b", "a", None, "c"]), np.array([1.0, 1, 5, 1]), np.array([0, 0, 0, 1]), 3)
    assert found.top.to_pylist() == ["a", "c", None] and found.count.tolist() == [2, 1, 0]
    np.testing.assert_array_equal(found.entropy_bits, [1, 0, np.nan])


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 2)), max_size=30))
def test_names_do_not_depend_on_the_order_of_captions(rows: list[tuple[str, int]]) -> None:
    texts = [{"a": "golden gate bridge", "b": "a bridge of steel", "c": ""}[kind] for kind, _ in rows]
    cluster = np.array([number for _, number in rows], dtype=np.int64)
    one = cluster_names(Terms.of(texts), cluster, 3)
    assert one == cluster_names(Terms.of(texts[::-1]), cluster[::-1], 3)
    assert len(one) == 3


def test_distances_to_centroids_of_length_1_give_the_scatter_about_the_mean() -> None:
    """Unit vectors far from each other explain nothing, and not less than that."""
    rows = np.random.default_rng(0).standard_normal((400, 64)) + 0.5
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    leaf = np.arange(400) % 2
    means = np.stack([rows[leaf == number].mean(axis=0) for number in range(2)])
    centroids = means / np.linalg.norm(means, axis=1, keepdims=True)
    distance = np.square(rows - centroids[leaf]).sum(axis=1)
    variance = np.square(rows - rows.mean(axis=0)).sum() / 400
    levels = {"levels": [{"clusters": 2}], "variance": variance}
    pool = table(
        [one for row, number in enumerate(leaf) for one in rows_of(int(number), 1, distance[row], "", "a.org")]
    )
    for unit in (True, False):
        found = profile(Profile(), pool, tree={"levels": levels | {"unit_norm": unit}})["clusters"].to_pylist()
        for number, row in enumerate(found):
            sums = np.square(rows[leaf == number] - (means if unit else centroids)[number]).sum()
            assert row["explained"] == pytest.approx(1 - sums / (199 * variance), abs=1e-6)
            assert (row["explained"] > -0.02) == unit
