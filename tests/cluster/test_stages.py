"""`cluster.fit`, `cluster.assign` and `select.hierarchical` on small tables, called as the engine calls them."""

import pickle
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pydantic import ValidationError

from curate.cluster.assign import Assign
from curate.cluster.fit import FitTree
from curate.core.contracts import Artifact, Batch
from curate.core.errors import CurateError, InputError, TargetError
from curate.core.group import MemoryGroup
from curate.core.hashing import make_key, ranks
from curate.core.vectors import to_binary
from curate.select.all import SelectAll
from curate.select.hierarchical import SelectHierarchical


def pool(vectors: np.ndarray) -> pa.Table:
    column, norms = to_binary(vectors)
    keys = [make_key("test", str(row)) for row in range(len(vectors))]
    return pa.table({"key": keys, "embedding": column, "embedding_norm": norms})


def disc(n: int = 12_000) -> np.ndarray:
    """Points (n, 2): 60 % in a tight blob, 30 % in a wider one, 10 % uniform on the unit disc."""
    rng = np.random.default_rng(5)
    blobs = [rng.normal((-0.3, 0.1), 0.07, (6 * n // 10, 2)), rng.normal((0.4, -0.3), 0.15, (3 * n // 10, 2))]
    angle, radius = rng.uniform(0, 2 * np.pi, n // 10), np.sqrt(rng.uniform(0, 1, n // 10))
    points = np.concatenate([*blobs, np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1)])
    return points[(points**2).sum(axis=1) < 1].astype(np.float32)


def kl_to_uniform(points: np.ndarray, bins: int = 12) -> float:
    """KL(points || uniform) in nats, over the grid cells whose centre is in the unit disc."""
    edges = np.linspace(-1, 1, bins + 1)
    counts, _, _ = np.histogram2d(*points.T, bins=[edges, edges])
    centre = (edges[:-1] + edges[1:]) / 2
    share = counts[centre[:, None] ** 2 + centre[None] ** 2 < 1]
    cells, share = len(share), share[share > 0] / share.sum()
    return float((share * np.log(share * cells)).sum())


def fit(stage: FitTree, table: pa.Table, shards: int = 3, threads: int = 1) -> Artifact:
    cuts = np.linspace(0, table.num_rows, shards + 1).astype(int)
    parts = [table.select(["key", *stage.reads()]).slice(a, b - a) for a, b in pairwise(cuts)]
    return stage.fit(MemoryGroup([stage.load(part) for part in parts], threads))


def assign(stage: Assign, tree: Artifact, table: pa.Table) -> pa.Table:
    before = stage.schema()
    stage.setup({"tree": tree})
    batch = Batch(table)
    columns = stage.process(batch)
    assert stage.schema().equals(before, check_metadata=True) and list(columns) == before.names
    assert set(batch.unfit.values()) <= {"bad_embedding"}
    return pa.table(columns, schema=before).append_column(
        "unusable", [[row in batch.unfit for row in range(len(batch))]]
    )


def selected(stage: SelectHierarchical, tree: Artifact, keys: pa.ChunkedArray, clusters: pa.Table) -> pa.Table:
    """Columns `copies` and `reject` of all rows, picked in two buckets of units."""
    stage.setup({"tree": tree})
    table = clusters.select(list(stage.reads())).append_column("key", keys)
    lines = stage.deal(table)
    units = lines.column("unit").to_numpy()
    counts = np.bincount(units)
    quotas = stage.plan(counts)
    copies, reject = np.full(len(units), -1), np.full(len(units), "", dtype=object)
    for bucket in (0, 1):
        rows = np.flatnonzero(units % 2 == bucket)
        picked = stage.pick(lines.take(rows), counts, quotas)
        copies[rows], reject[rows] = picked["copies"], picked["reject"].to_pylist()
    return pa.table({"copies": copies, "reject": pa.array(reject, pa.string())})


@pytest.fixture(scope="module")
def points() -> np.ndarray:
    return disc()


@pytest.fixture(scope="module")
def tree(points: np.ndarray) -> Artifact:
    return fit(FitTree(levels=[400, 40, 5], rounds=3, unit_norm=False), pool(points))


@pytest.fixture(scope="module")
def clusters(points: np.ndarray, tree: Artifact) -> pa.Table:
    return assign(Assign(levels=3, unit_norm=False), tree, pool(points))


def test_the_artifact_describes_the_tree(tree: Artifact, points: np.ndarray) -> None:
    arrays = ["centroids_1", "centroids_2", "centroids_3", "parents_1", "parents_2", "sizes_1", "sizes_2", "sizes_3"]
    assert list(tree) == [*arrays, "distance_quantiles", "shards", "levels"]
    assert [tree[f"sizes_{t}"].sum() for t in (1, 2, 3)] == 3 * [len(points)]
    assert np.all(np.diff(tree["distance_quantiles"]) >= 0) and tree["distance_quantiles"].shape == (101,)
    assert tree["centroids_1"].shape == (400, 2) and tree["centroids_1"].dtype == np.float32
    assert tree["parents_1"].shape == (400,) and tree["parents_1"].dtype == np.int64
    summary = tree["levels"]
    expected = {"rows": len(points), "dim": 2, "unit_norm": False, "embedding": "embedding"}
    assert {name: summary[name] for name in expected} == expected
    assert [level["clusters"] for level in summary["levels"]] == [400, 40, 5]
    assert all(0 < level["entropy"] <= 1 and 0 <= level["gini"] < 1 for level in summary["levels"])


@pytest.mark.parametrize("schedule", ["short", "published"])
def test_any_number_of_threads(points: np.ndarray, schedule: str) -> None:
    stage = FitTree(levels=[30, 4], rounds=1, schedule=schedule, unit_norm=False)
    table = pool(points[:2000])
    one, other = fit(stage, table, 3, threads=1), fit(stage, table, 3, threads=2)
    assert one["levels"] == other["levels"]
    assert one["levels"]["rows"] == 2000
    for name in ("centroids_1", "centroids_2", "parents_1", "distance_quantiles"):
        assert one[name].tobytes() == other[name].tobytes()


def test_rows_get_the_clusters_and_the_distance(points: np.ndarray, tree: Artifact, clusters: pa.Table) -> None:
    leaf = clusters["cluster_1"].to_numpy()
    np.testing.assert_array_equal(clusters["cluster_2"].to_numpy(), tree["parents_1"][leaf])
    np.testing.assert_array_equal(clusters["cluster_3"].to_numpy(), tree["parents_2"][tree["parents_1"][leaf]])
    distance = ((points - tree["centroids_1"][leaf]) ** 2).sum(axis=1)
    np.testing.assert_allclose(clusters["centroid_distance"].to_numpy(), distance, atol=1e-3)
    assert not any(clusters["unusable"].to_pylist())


def test_a_balanced_sample_is_nearer_to_uniform(points: np.ndarray, tree: Artifact, clusters: pa.Table) -> None:
    keys = pool(points)["key"]
    taken = selected(SelectHierarchical(target=1500, seed=3), tree, keys, clusters)
    copies = taken["copies"].to_numpy()
    assert copies.sum() == 1500 and copies.max() == 1
    assert taken["reject"].to_pylist() == [None if copy else "not_sampled" for copy in copies]
    at_random = points[np.argsort(ranks(3, keys.to_pylist()))[:1500]]
    assert kl_to_uniform(points[copies > 0]) < kl_to_uniform(at_random) / 3


def test_a_share_is_a_target_relative_to_the_pool(points: np.ndarray, tree: Artifact, clusters: pa.Table) -> None:
    keys = pool(points)["key"]
    by_share = selected(SelectHierarchical(share=0.25, seed=3), tree, keys, clusters)
    assert by_share == selected(SelectHierarchical(target=len(points) // 4, seed=3), tree, keys, clusters)
    assert SelectHierarchical(share=0.25).scaled(0.1).share == 0.25
    for values in ({}, {"share": 0.5, "target": 3}):
        with pytest.raises(ValidationError, match="give one of the two"):
            SelectHierarchical(**values)


SPREAD = np.random.default_rng(1).standard_normal((300, 8)).astype(np.float32)
POOLS = {
    "equal vectors": np.ones((300, 8), np.float32),
    "two clusters": np.repeat(np.eye(2, 8, dtype=np.float32), [290, 10], axis=0),
    "a third of zero vectors": SPREAD * (np.arange(300) % 3 > 0)[:, None],
    "half in one leaf": np.where((np.arange(300) < 150)[:, None], np.float32(1.0), SPREAD),
}


@pytest.mark.parametrize("level", [1, 2])
@pytest.mark.parametrize("share", [0.1, 0.5, 1.0])
@pytest.mark.parametrize("name", POOLS)
def test_a_cover_of_odd_pools(name: str, share: float, level: int) -> None:
    """Every row that is assigned can be chosen, and as many are as were asked for."""
    given = pool(POOLS[name])
    tree = fit(FitTree(levels=[30, 5], rounds=0), given.filter(pc.greater(given["embedding_norm"], 0)))
    clusters = assign(Assign(levels=2), tree, given)
    usable = pc.invert(clusters["unusable"].cast(pa.bool_()))
    table = pa.concat_tables([clusters]).append_column("embedding", given["embedding"]).filter(usable)
    stage = SelectHierarchical(share=share, strategy="cover", level=level)
    copies = selected(stage, tree, given["key"].filter(usable), table)["copies"].to_numpy()
    assert copies.sum() == int(share * table.num_rows) and copies.max() == 1
    with pytest.raises(TargetError, match=f"at most {table.num_rows} "):
        selected(stage.model_copy(update={"share": 1.1}), tree, given["key"].filter(usable), table)


def test_copies_up_to_the_multiplier(points: np.ndarray, tree: Artifact, clusters: pa.Table) -> None:
    target = 2 * len(points)
    copies = selected(SelectHierarchical(target=target, multiplier=3), tree, pool(points)["key"], clusters)["copies"]
    assert copies.to_numpy().sum() == target and copies.to_numpy().max() == 3
    with pytest.raises(TargetError, match=f"at most {3 * len(points)} "):
        selected(SelectHierarchical(target=3 * len(points) + 1, multiplier=3), tree, pool(points)["key"], clusters)


def test_leaves_may_be_empty_after_the_fit(points: np.ndarray, tree: Artifact, clusters: pa.Table) -> None:
    few = np.flatnonzero(clusters["cluster_1"].to_numpy() < 7)
    keys = pool(points)["key"].take(few)
    taken = selected(SelectHierarchical(target=10), tree, keys, clusters.take(few))
    assert taken["copies"].to_numpy().sum() == 10


def test_directions_by_default() -> None:
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(400, 12)).astype(np.float32)
    tree = fit(FitTree(levels=[20, 3], rounds=1), pool(vectors))
    np.testing.assert_allclose(np.linalg.norm(tree["centroids_1"], axis=1), 1, atol=1e-6)
    longer = pool(vectors * rng.uniform(0.1, 10, (400, 1)).astype(np.float32))
    one, other = (assign(Assign(levels=2), tree, table) for table in (pool(vectors), longer))
    assert one["cluster_1"].equals(other["cluster_1"])
    assert one["centroid_distance"].to_numpy().max() < 2


def test_bad_embeddings() -> None:
    vectors = np.random.default_rng(0).normal(size=(50, 4)).astype(np.float32)
    tree = fit(FitTree(levels=[5]), pool(vectors))
    vectors[[3, 7]] = [[np.nan] * 4, [0] * 4]
    table = pool(vectors)
    with pytest.raises(InputError, match=f"2 rows of 'embedding' are null.*first key {table['key'][3]}"):
        fit(FitTree(levels=[5]), table, shards=1)
    found = assign(Assign(levels=1), tree, table)
    assert np.flatnonzero(found["unusable"]).tolist() == [3, 7]
    others = assign(Assign(levels=1), tree, table.filter(pc.invert(found["unusable"])))
    assert others == found.filter(pc.invert(found["unusable"])), "bad rows do not affect the others"
    with pytest.raises(InputError, match="expected fixed_size_binary of 2 bytes per dimension, not"):
        FitTree(levels=[5]).load(pa.table({"key": table["key"], "embedding": [[1.0]] * 50}))


def test_empty_shards(tree: Artifact, points: np.ndarray) -> None:
    empty = pool(points[:0])
    stage = FitTree(levels=[3], unit_norm=False)
    assert {name: value.shape for name, value in stage.load(empty).items()} == {"vectors": (0, 2), "norms": (0,)}
    assert assign(Assign(levels=3, unit_norm=False), tree, empty).num_rows == 0
    with pytest.raises(CurateError, match="no rows to fit on"):
        fit(stage, empty)


def test_mismatches_are_errors(tree: Artifact, points: np.ndarray) -> None:
    with pytest.raises(CurateError, match=r"levels: 90 clusters for 40 rows; lower"):
        fit(FitTree(levels=[90, 3]), pool(points[:40]))
    with pytest.raises(CurateError, match=r"cluster.assign.levels: 2, .* fitted with 3"):
        Assign(levels=2, unit_norm=False).setup({"tree": tree})
    with pytest.raises(CurateError, match=r"unit_norm: True, .* fitted with False"):
        Assign(levels=3).setup({"tree": tree})
    with pytest.raises(CurateError, match="7 dimensions, but its `tree` has 2"):
        assign(Assign(levels=3, unit_norm=False), tree, pool(np.ones((3, 7), np.float32)))
    stage = SelectHierarchical(target=1)
    stage.setup({"tree": tree})
    for leaves in ([400], [None]):
        with pytest.raises(CurateError, match="has 400 clusters there"):
            stage.deal(pa.table({"cluster_1": pa.array(leaves, pa.int64())}))


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"levels": [10, 10]}, "decrease strictly"),
        ({"levels": []}, "at least 1 item"),
        ({"levels": [5, 0]}, "greater than or equal to 1"),
        ({"levels": [5, 2], "resample": [3]}, "1 values for 2 levels"),
    ],
)
def test_parameters_are_checked(parameters: dict[str, object], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        FitTree.model_validate(parameters)


@pytest.mark.parametrize(("fraction", "levels"), [(1, [400, 60, 12]), (0.1, [40, 6, 1]), (0.001, [3, 2, 1])])
def test_a_canary_has_fewer_clusters_and_a_lower_target(fraction: float, levels: list[int]) -> None:
    assert FitTree(levels=[400, 60, 12]).scaled(fraction).levels == levels
    assert SelectHierarchical(target=500).scaled(fraction).target == max(1, int(500 * fraction))


def test_runtime_settings_are_not_in_the_fingerprint_and_stages_pickle() -> None:
    assert FitTree(levels=[3], threads=7).parameters() == FitTree(levels=[3]).parameters()
    assert Assign(levels=1, threads=7).parameters() == Assign(levels=1).parameters()
    assert FitTree(levels=[3], threads=7).resources().cpus == 7
    for stage in (FitTree(levels=[4, 2]), Assign(levels=2), SelectHierarchical(target=3), SelectAll()):
        assert pickle.loads(pickle.dumps(stage)) == stage
        assert all(info.description for info in type(stage).model_fields.values())


def test_workers_get_gpus_if_the_cluster_has_any() -> None:
    for stage in (FitTree(levels=[4]), Assign(levels=1)):
        assert [stage.placed(gpus).resources().gpus for gpus in (True, False)] == [1, 0]
    assert FitTree(levels=[4], gpus=0.5).placed(True).resources().gpus == 0.5
    assert "gpus" not in FitTree(levels=[4]).parameters()


def test_all_rows_once() -> None:
    stage, table = SelectAll(), pool(np.ones((300, 2), np.float32)).select(["key"])
    counts = np.array([300])
    picked = stage.pick(stage.deal(table), counts, stage.plan(counts))
    assert picked["copies"].tolist() == [1] * 300 and picked["reject"].null_count == 300
    with pytest.raises(ValidationError):
        SelectAll.model_validate({"multiplier": 2})
