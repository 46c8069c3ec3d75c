"""Sets found by bucket and cell equal the sets found over all rows at once."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from curate.core.group import MemoryGroup
from curate.duplicates.near import edges as duplicate_edges
from curate.duplicates.near.edges import find_edges
from curate.duplicates.near.hamming import components, group_edges
from curate.duplicates.near.sets import EXACT, KEEPER, NEAR, component_stars, store_members
from tests.core.stored import Stored
from tests.duplicates.near.test_hamming import brute, flipped


@pytest.fixture(autouse=True, scope="module")
def small_buckets() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(duplicate_edges, "BUCKET_ROWS", 4)
        patch.setattr(duplicate_edges, "CELL_ROWS", 7)
        yield


def parts(count: int, **arrays: np.ndarray) -> list[dict[str, Any]]:
    cuts = np.linspace(0, len(next(iter(arrays.values()))), count + 1).astype(int)
    return [{n: a[x:y] for n, a in arrays.items()} for x, y in pairwise(cuts)]


def pool(rows: int, seed: int, **given: np.ndarray) -> dict[str, np.ndarray]:
    """Rows with keys and few different merits; digests and hashes are unknown unless given."""
    rng = np.random.default_rng(seed)
    keys = np.stack([rng.permutation(rows), rng.integers(0, 1 << 40, rows)], axis=1).astype(np.uint64)
    blank = {"digests": np.zeros((rows, 2, 4), np.uint64), "known": np.zeros((rows, 2), bool)}
    hashes = {"hash": np.zeros((rows, 32), np.uint8), "comparable": np.zeros(rows, bool)}
    return {"key": keys, "merit": rng.integers(0, 3, rows), **blank, **hashes, **given}


def found(
    count: int, distance: int, arrays: dict[str, np.ndarray]
) -> tuple[dict[int, tuple[int, int]], dict[str, int]]:
    """Row -> (keeper's row, kind) for all members; and the counts."""
    group = MemoryGroup(parts(count, **arrays))
    stars, counts = component_stars(find_edges(group, distance))
    store_members(stars, group, "members")
    place = {key.tobytes(): row for row, key in enumerate(arrays["key"].astype(">u8"))}
    artifact, rows = Stored({}, group), {}
    for index in artifact.parts("members"):
        part = artifact.part("members", index)
        assert part["key"].tolist() == sorted(part["key"].tolist())
        for key, keeper, kind in zip(*(part[name] for name in ("key", "keeper", "kind")), strict=True):
            rows[place[key.ljust(16, b"\0")]] = place[keeper.ljust(16, b"\0")], int(kind)
    assert artifact.parts("members") == list(range(count))
    return rows, counts


def expected(arrays: dict[str, np.ndarray], labels: np.ndarray, exact: np.ndarray) -> dict[int, tuple[int, int]]:
    """The result of `found`, from component labels (n,) over all edges (`labels`) and over exact ones (`exact`)."""
    order = np.lexsort((arrays["key"][:, 1], arrays["key"][:, 0], -arrays["merit"]))
    sets: dict[int, tuple[int, int]] = {}
    for label in np.unique(labels):
        members = [int(row) for row in order if labels[row] == label]
        seen = set()
        for row in members if len(members) > 1 else ():
            kind = KEEPER if row == members[0] else EXACT if exact[row] in seen else NEAR
            sets[row] = members[0], kind
            seen.add(exact[row])
    return sets


@given(
    st.integers(0, 40),
    st.integers(1, 4),
    st.integers(-1, 20),
    st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 255)), max_size=120),
)
def test_near_duplicates_do_not_depend_on_parts_and_buckets(
    rows: int, count: int, distance: int, flips: list[tuple[int, int]]
) -> None:
    rng = np.random.default_rng(rows)
    centres = rng.integers(0, 256, (3, 32), dtype=np.uint8)
    hashes = centres[rng.integers(0, 3, rows)]
    hashes = flipped(hashes, flips) if rows else hashes
    comparable = rng.random(rows) < 0.9
    arrays = pool(rows, rows, hash=hashes, comparable=comparable)
    where = np.flatnonzero(comparable)
    labels = np.arange(rows)
    near = brute(hashes[where], distance) if distance >= 0 else np.arange(len(where))
    for label in np.unique(near):
        labels[where[near == label]] = where[near == label][0]
    assert found(count, distance, arrays)[0] == expected(arrays, labels, np.arange(rows))


@given(st.lists(st.integers(-1, 4), max_size=30), st.integers(1, 4), st.integers(0, 2), st.integers(0, 5))
def test_exact_duplicates_do_not_depend_on_parts_and_buckets(
    codes: list[int], count: int, sort: int, seed: int
) -> None:
    """Digests of different sorts never match. Rows with equal bytes also have equal pixels."""
    values = np.array(codes, dtype=np.int64)
    both = np.stack([np.where(values == sort, -1, values), values], axis=1)
    digests = np.repeat((both.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15))[..., None], 4, axis=2)
    rng = np.random.default_rng(seed)
    near, comparable = rng.integers(0, 4, len(values)), rng.random(len(values)) < 0.5
    hashes = np.repeat(near[:, None] * 85, 32, axis=1).astype(np.uint8)  # all far apart
    arrays = pool(len(values), seed, digests=digests, known=both >= 0, hash=hashes, comparable=comparable)
    exact = components(len(values), [group_edges(values)])
    labels = components(len(values), [group_edges(values), group_edges(np.where(comparable, near, -1))])
    rows, counts = found(count, 3, arrays)
    assert rows == expected(arrays, labels, exact)
    keepers = [keeper for keeper, _ in rows.values()]
    kinds = [kind for _, kind in rows.values()]
    assert counts == {
        "largest_set": max((keepers.count(keeper) for keeper in keepers), default=0),
        "sets": len(set(keepers)),
        "exact_duplicates": kinds.count(EXACT),
        "near_duplicates": kinds.count(NEAR),
    }
