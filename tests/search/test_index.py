"""`search.fit` and its index: the same rows as brute force, mapped from files, whatever held them."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from curate.cluster.assign import Assign
from curate.cluster.fit import FitTree
from curate.core.contracts import Batch
from curate.core.errors import CurateError, InputError
from curate.core.group import MemoryGroup
from curate.core.hashing import make_key
from curate.core.nouns.artifacts import StoredArtifact, save_artifact
from curate.core.store.arrays import write_arrays
from curate.core.store.storage import open_storage
from curate.core.vectors import to_binary
from curate.kernels.vectors import dots
from curate.search import fit, index
from curate.search.fit import FitSearch, first_leaves
from curate.search.index import SearchIndex
from tests.core.store.object_store import new_bucket

ROWS, DIM = 3000, 24


def points(rows: int = ROWS, dim: int = DIM) -> np.ndarray:
    """Rows (n, d) whose variance falls from one dimension to the next, as that of embeddings does."""
    rng = np.random.default_rng(3)
    return (rng.standard_normal((rows, dim)) / np.arange(1, dim + 1)).astype(np.float32)


def table(vectors: np.ndarray, **columns: Any) -> pa.Table:
    column, norms = to_binary(vectors)
    keys = [make_key("test", str(row)) for row in range(len(vectors))]
    return pa.table({"key": keys, "embedding": column, "embedding_norm": norms, **columns})


def group(stage: Any, rows: pa.Table, parts: int = 3, threads: int = 1) -> MemoryGroup:
    cuts = np.linspace(0, rows.num_rows, parts + 1).astype(int)
    return MemoryGroup([stage.load(rows.slice(a, b - a)) for a, b in pairwise(cuts)], threads)


def stored(place: Path | str, artifact: Any, made: MemoryGroup, *names: str) -> StoredArtifact:
    """An artifact in files, with what the parts of its group stored."""
    storage = open_storage(str(place))
    save_artifact(storage, "made", artifact)
    for name in names:
        for number, arrays in made._stored[name].items():
            write_arrays(storage, f"made/{name}/{number:06d}.npz", arrays)
    return StoredArtifact(storage, "made")


def built(place: Path | str, stage: FitSearch, rows: pa.Table, tree: Any = None, parts: int = 3) -> StoredArtifact:
    stage.setup({} if tree is None else {"tree": tree})
    held = group(stage, rows, parts)
    return stored(place, stage.fit(held), held, "rows")


def brute(vectors: np.ndarray, query: np.ndarray, count: int) -> tuple[list[str], np.ndarray]:
    unit = to_halves(vectors).astype(np.float64)
    unit /= np.linalg.norm(unit, axis=1, keepdims=True)
    cosine = unit @ (query.astype(np.float64) / np.linalg.norm(query.astype(np.float64)))
    best = np.argsort(-cosine, kind="stable")[:count]
    return [make_key("test", str(row)) for row in best.tolist()], cosine[best]


def to_halves(vectors: np.ndarray) -> np.ndarray:
    return (vectors / np.linalg.norm(vectors.astype(np.float64), axis=1, keepdims=True)).astype(np.float16)


def test_products_of_halves_are_exact_for_every_finite_half() -> None:
    bits = np.arange(1 << 16, dtype=np.uint16)
    halves = bits[(bits & 0x7C00) != 0x7C00].view(np.float16)
    assert np.array_equal(dots(halves[:, None], np.ones(1, np.float32)), halves.astype(np.float32))
    many = np.random.default_rng(0).standard_normal((1500, 40)).astype(np.float16)
    query = many[7].astype(np.float32) / np.linalg.norm(many[7].astype(np.float32))
    assert np.allclose(dots(many, query), many.astype(np.float64) @ query, atol=1e-5)


def test_all_leaves_scanned_give_the_rows_of_brute_force(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fit, "FILE_ROWS", 500)
    vectors = points()
    found = built(tmp_path, FitSearch(), table(vectors))
    assert len(found.parts("rows")) > 3  # several files
    search = SearchIndex(found)
    for query in (vectors[11], -vectors[5], points(1)[0] + 1):
        keys, cosines = search.nearest(query, 10, scanned=ROWS)
        expected, exact = brute(vectors, query, 10)
        assert keys == expected and np.allclose(cosines, exact, atol=1e-7)


def test_a_part_of_the_leaves_gives_nearly_all_of_them(tmp_path: Path) -> None:
    vectors = points()
    search = SearchIndex(built(tmp_path, FitSearch(), table(vectors)))
    shares = []
    for row in range(0, ROWS, 100):
        keys, _ = search.nearest(vectors[row], 10, scanned=ROWS // 5)
        shares.append(len(set(keys) & set(brute(vectors, vectors[row], 10)[0])) / 10)
    assert np.mean(shares) > 0.9
    few, _ = search.nearest(vectors[0], 10, scanned=1)
    assert len(few) == 10  # at least as many rows as asked for


@pytest.mark.parametrize("cells", [1, 5])
def test_the_leaves_of_a_tree_serve_as_well(tmp_path: Path, cells: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fitted in one piece, or by cells, with centroids in files."""
    monkeypatch.setattr(fit, "FILE_ROWS", 500)
    monkeypatch.setattr(index, "MORE_LEAVES", 2)
    vectors = points()
    stage = FitTree(levels=[60, 6], rounds=1, iterations=4, cells=cells, unit_norm=cells == 1)
    held = group(stage, table(vectors))
    tree = stored(tmp_path / "tree", stage.fit(held), held, *(["leaves"] if cells > 1 else []))
    assign = Assign(levels=2, unit_norm=cells == 1)
    assign.setup({"tree": tree})
    leaf = assign.process(Batch(table(vectors)))["cluster_1"]
    rows = table(vectors, cluster_1=pa.array(leaf))
    found = built(tmp_path / "index", FitSearch(cluster="cluster_1"), rows, tree)
    assert "centroids" not in found and found["summary"]["leaves"] == 60
    search = SearchIndex(found, tree)
    keys, _ = search.nearest(vectors[4], 10, scanned=ROWS)
    assert keys == brute(vectors, vectors[4], 10)[0]
    shares = []
    for row in range(0, ROWS, 150):
        keys, _ = search.nearest(vectors[row], 10, scanned=ROWS // 4)
        shares.append(len(set(keys) & set(brute(vectors, vectors[row], 10)[0])) / 10)
    assert np.mean(shares) > 0.85


def test_the_index_depends_on_the_rows_alone(tmp_path: Path) -> None:
    """Neither on threads, nor on who held which part."""
    vectors, stage = points(400), FitSearch(cells=6)
    stage.setup({})
    made = [group(stage, table(vectors), threads=threads) for threads in (1, 3)]
    one, other = (stage.fit(held) for held in made)
    assert all(np.array_equal(one[name], other[name]) for name in ("centroids", "edges", "first_leaves"))
    for number, arrays in made[0]._stored["rows"].items():
        assert all(np.array_equal(array, made[1]._stored["rows"][number][name]) for name, array in arrays.items())


def test_an_object_store_gives_the_same_rows(tmp_path: Path, object_store: Any) -> None:
    vectors, query = points(600), points(2)[1]
    here = SearchIndex(built(tmp_path, FitSearch(), table(vectors)))
    there = SearchIndex(built(f"s3://{new_bucket(object_store)}/deep", FitSearch(), table(vectors)))
    assert here.nearest(query, 10)[0] == there.nearest(query, 10)[0] == brute(vectors, query, 10)[0]


def test_only_the_files_of_near_leaves_are_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fit, "FILE_ROWS", 100)
    found = built(tmp_path, FitSearch(), table(points()))
    opened: list[int] = []
    part = found.part
    monkeypatch.setattr(found, "part", lambda name, file: (opened.append(file), part(name, file))[1])
    search = SearchIndex(found)
    for _ in range(2):
        search.nearest(points(1)[0], 5, scanned=150)
    assert 1 <= len(opened) == len(set(opened)) < len(found.parts("rows")) / 2  # each file once


def test_equal_vectors_come_by_key(tmp_path: Path) -> None:
    vectors = np.ones((50, 4), np.float32)
    keys, cosines = SearchIndex(built(tmp_path, FitSearch(), table(vectors))).nearest(vectors[0], 50)
    assert keys == sorted(make_key("test", str(row)) for row in range(50)) and np.allclose(cosines, 1)


def test_files_hold_whole_leaves_and_all_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fit, "FILE_ROWS", 10)
    for counts in ([3], [0, 0, 25, 0], [4, 6, 1, 9, 0, 0], [10, 10], [30, 1, 1]):
        edges = np.concatenate([[0], np.cumsum(counts)])
        firsts = first_leaves(edges)
        assert firsts[0] == 0 and firsts[-1] == len(counts) and (np.diff(firsts) > 0).all()
        assert (np.diff(edges[firsts])[:-1] >= 10).all() and np.diff(edges[firsts])[-1] > 0


@pytest.mark.parametrize(
    ("stage", "tree", "message"),
    [
        (FitSearch(cluster="cluster_1"), None, "search.fit.cluster: 'cluster_1' without a `tree`; give both"),
        (FitSearch(), {}, "search.fit.cluster: None with a `tree`; give both"),
        (FitSearch(cluster="cluster_2"), {}, "search.fit.cluster: 'cluster_2' is not the level of the leaves; give"),
    ],
)
def test_a_tree_and_the_column_of_its_leaves_go_together(stage: FitSearch, tree: Any, message: str) -> None:
    with pytest.raises(CurateError, match=message):
        stage.setup({} if tree is None else {"tree": tree})


def test_what_cannot_be_searched_is_one_line() -> None:
    stage, vectors = FitSearch(), points(20)
    stage.setup({})
    with pytest.raises(CurateError, match="no rows to search: every row was rejected upstream"):
        stage.fit(group(stage, table(vectors).slice(0, 0), 1))
    vectors[3] = 0
    with pytest.raises(InputError, match="1 rows of 'embedding' are null, zero, NaN or infinite"):
        stage.load(table(vectors))
    leaf = FitSearch(cluster="cluster_1")
    leaf.setup({"tree": {"levels": {"encoder": {}, "dim": DIM, "levels": [{"clusters": 2}]}}})
    with pytest.raises(CurateError, match=r"cluster_1 holds 0\.\.7 .* but its `tree` has 2 leaves"):
        leaf.load(table(points(2), cluster_1=pa.array([0, 7])))
    leaf.setup({"tree": {"levels": {"encoder": {}, "dim": 5, "levels": [{"clusters": 9}]}}})
    with pytest.raises(CurateError, match="24 dimensions, but its `tree` has 5 dimensions"):
        leaf.load(table(points(2), cluster_1=pa.array([0, 7])))
