from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from curate.image.duplicate_sets import EXACT, KEEPER, NEAR, duplicate_sets
from curate.image.hamming import Edges, group_edges
from tests.image.test_hamming import near_edges

ROWS = st.lists(st.tuples(st.integers(0, 4), st.integers(-1, 3), st.integers(0, 3), st.booleans()), max_size=25)


def arrays(rows: list[tuple[int, int, int, bool]]) -> tuple[np.ndarray, ...]:
    count = len(rows)
    keys = np.array([f"{(i * 37) % 101:032x}" for i in range(count)], dtype="S32")
    pixels, codes, near, comparable = (np.array([row[k] for row in rows], dtype=np.int64) for k in range(4))
    hashes = np.zeros((count, 32), dtype=np.uint8)
    hashes[:, 0] = near * 85  # 4 bits apart from one another
    return keys, pixels, codes, hashes, comparable.astype(bool)


def reached(hashes: np.ndarray, comparable: np.ndarray, max_distance: int) -> list[Edges]:
    where = np.flatnonzero(comparable)
    return [(where[a], where[b]) for a, b in near_edges(hashes[where], max_distance)]


@given(ROWS, st.integers(-1, 3))
def test_sets_keep_their_promises(rows: list[tuple[int, int, int, bool]], max_distance: int) -> None:
    keys, pixels, codes, hashes, comparable = arrays(rows)
    found = duplicate_sets(keys, pixels, [group_edges(codes)], reached(hashes, comparable, max_distance))
    assert (keys[found.row] == np.sort(keys[found.row])).all()
    kinds = dict(zip(found.row.tolist(), found.kind.tolist(), strict=True))
    keepers = dict(zip(found.row.tolist(), found.keeper.tolist(), strict=True))

    def same_set(i: int, j: int) -> bool:
        return i == j or (i in keepers and keepers[i] == keepers.get(j))

    def rank(i: int) -> tuple[int, bytes]:
        return -int(pixels[i]), bytes(keys[i])

    for i, (_, code, near, alike) in enumerate(rows):
        for j, (_, code_j, near_j, alike_j) in enumerate(rows):
            if code == code_j >= 0 or (max_distance >= 0 and alike and alike_j and near == near_j):
                assert same_set(i, j)
        if i not in keepers:
            continue
        members = [j for j in keepers if same_set(i, j)]
        assert len(members) > 1
        assert keepers[i] == min(members, key=rank)
        equals = [j for j in members if code == rows[j][1] >= 0 or j == i]
        first = min(equals, key=rank)
        assert kinds[i] == (KEEPER if keepers[i] == i else NEAR if first == i else EXACT)


def test_sets_are_transitive_over_both_kinds() -> None:
    keys = np.array([c * 32 for c in "abcd"], dtype="S32")
    hashes = np.zeros((4, 32), dtype=np.uint8)
    hashes[1, 0], hashes[2, 0], hashes[3] = 0b1, 0b11, 255
    codes = np.array([-1, -1, 5, 5])
    everywhere = reached(hashes, np.ones(4, dtype=bool), 1)
    found = duplicate_sets(keys, np.array([1, 1, 1, 9]), [group_edges(codes)], everywhere)
    assert found.row.tolist() == [0, 1, 2, 3]
    assert found.keeper.tolist() == [3] * 4
    assert found.kind.tolist() == [NEAR, NEAR, EXACT, KEEPER]


def test_no_rows() -> None:
    none = np.empty(0, np.int64)
    found = duplicate_sets(none.astype("S32"), none, [(none, none)], [])
    assert found.row.tolist() == []
