"""Water-filling, worked by hand and against a reference that distributes one row at a time."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from curate.core.errors import TargetError
from curate.core.hashing import ranks
from curate.select.sampling import _NODE_KEY, _first, fill, leaf_quotas, level_quotas


def by_hand(rows: list[int], parents: list[list[int]], target: int, multiplier: int, seed: int) -> list[int]:
    """Top-down, node by node: every child that still has rows gets one more, as long as there is one for each."""
    sizes = [[size * multiplier for size in rows]]
    for parent in parents:
        above = [0] * (max(parent) + 1)
        for child, size in enumerate(sizes[-1]):
            above[parent[child]] += size
        sizes.append(above)
    quotas = [target]
    for level in range(len(sizes), 0, -1):
        parent = parents[level - 1] if level < len(sizes) else [0] * len(sizes[-1])
        order = ranks(seed, [_NODE_KEY], level, np.arange(len(parent)))
        given_out = [0] * len(parent)
        for node, left in enumerate(quotas):
            children = [c for c in range(len(parent)) if parent[c] == node]
            while left:
                able = [c for c in children if given_out[c] < sizes[level - 1][c]]
                for child in able if len(able) <= left else sorted(able, key=lambda c: order[c])[:left]:
                    given_out[child] += 1
                    left -= 1
        quotas = given_out
    return quotas


@st.composite
def trees(draw: st.DrawFn) -> tuple[list[int], list[list[int]], int, int, int]:
    """rows per leaf, parents per level, target, multiplier, seed; including clusters without rows or children."""
    leaves = draw(st.integers(1, 12))
    rows = draw(st.lists(st.one_of(st.integers(0, 4), st.integers(0, 30)), min_size=leaves, max_size=leaves))
    parents, width = [], leaves
    for _ in range(draw(st.integers(0, 3))):
        above = draw(st.integers(1, width))
        parents.append(draw(st.lists(st.integers(0, above - 1), min_size=width, max_size=width)))
        width = max(parents[-1]) + 1
    multiplier = draw(st.integers(1, 3))
    return rows, parents, draw(st.integers(0, sum(rows) * multiplier)), multiplier, draw(st.integers(0, 2**63))


def quotas_of(tree: tuple[list[int], list[list[int]], int, int, int]) -> np.ndarray:
    rows, parents, target, multiplier, seed = tree
    return leaf_quotas(np.array(rows), [np.array(p) for p in parents], target, multiplier, seed)


def test_worked_example() -> None:
    quotas = leaf_quotas(np.array([100, 5, 2]), [np.array([0, 1, 1])], 20)
    assert quotas.tolist() == [13, 5, 2]


def test_worked_example_twice_over() -> None:
    assert leaf_quotas(np.array([100, 5, 2]), [np.array([0, 1, 1])], 40, multiplier=2).tolist() == [26, 10, 4]


@settings(max_examples=300)
@given(trees())
def test_as_by_hand(tree: tuple[list[int], list[list[int]], int, int, int]) -> None:
    assert quotas_of(tree).tolist() == by_hand(*tree)


@settings(max_examples=200)
@given(trees())
def test_adds_up_within_bounds_and_balanced(tree: tuple[list[int], list[list[int]], int, int, int]) -> None:
    rows, parents, target, multiplier, _ = tree
    quotas, most = quotas_of(tree), np.array(rows) * multiplier
    assert quotas.dtype == np.int64 and quotas.sum() == target
    assert ((quotas >= 0) & (quotas <= most)).all()
    for level in range(len(parents) + 1):  # siblings differ by at most 1, unless the smaller one is exhausted
        parent = np.array(parents[level]) if level < len(parents) else np.zeros(len(quotas), dtype=int)
        for node in np.unique(parent):
            mine = parent == node
            assert (quotas[mine][quotas[mine] < most[mine]] >= quotas[mine].max() - 1).all()
        width = parent.max() + 1
        quotas = np.bincount(parent, quotas, width).astype(int)
        most = np.bincount(parent, most, width).astype(int)


@settings(max_examples=200)
@given(trees(), st.floats(0, 1))
def test_a_part_is_dealt_evenly_and_the_rest_by_size(
    tree: tuple[list[int], list[list[int]], int, int, int], even: float
) -> None:
    rows, parents, target, multiplier, seed = tree
    arrays, most = [np.array(parent) for parent in parents], np.array(rows) * multiplier
    quotas = leaf_quotas(np.array(rows), arrays, target, multiplier, seed, even)
    assert quotas.dtype == np.int64 and quotas.sum() == target
    assert ((quotas >= 0) & (quotas <= most)).all()
    evenly = leaf_quotas(np.array(rows), arrays, round(even * target), multiplier, seed)
    left = most - evenly
    assert (np.abs(quotas - evenly - left * (target - evenly.sum()) / max(1, left.sum())) < 1 + 1e-9).all()


@given(trees(), st.integers(0, 2**32 - 1))
def test_names_of_leaves_decide_only_the_remainder(
    tree: tuple[list[int], list[list[int]], int, int, int], shuffle: int
) -> None:
    rows, parents, target, multiplier, seed = tree
    order = np.random.default_rng(shuffle).permutation(len(rows))
    moved = (np.array(rows)[order].tolist(), [np.array(p)[order].tolist() for p in parents[:1]] + parents[1:])
    before = quotas_of(tree)[order]
    after = quotas_of((*moved, target, multiplier, seed))
    assert np.abs(before - after).max() <= 1


@given(trees(), st.integers(0, 2**32 - 1))
def test_the_order_of_children_does_not_matter(
    tree: tuple[list[int], list[list[int]], int, int, int], shuffle: int
) -> None:
    """With one level, relabelled leaves get the same multiset of quotas; only the +1s move."""
    rows, _, _, multiplier, seed = tree
    target = int(np.random.default_rng(shuffle).integers(sum(rows) * multiplier + 1))
    moved = np.random.default_rng(shuffle).permutation(rows)
    before, after = (leaf_quotas(np.array(given), [], target, multiplier, seed) for given in (rows, moved))
    assert sorted(before) == sorted(after)


@settings(max_examples=200)
@given(trees(), st.integers(1, 5))
def test_monotone_in_the_target(tree: tuple[list[int], list[list[int]], int, int, int], more: int) -> None:
    """A larger sample of the same tree contains the smaller one, at every level."""
    rows, parents, target, multiplier, seed = tree
    larger = min(target + more, sum(rows) * multiplier)
    arrays = (np.array(rows), [np.array(p) for p in parents])
    few, many = (level_quotas(*arrays, wanted, multiplier, seed) for wanted in (target, larger))
    for below, above in zip(few, many, strict=True):
        assert (below <= above).all()


@given(trees())
def test_levels_add_up_to_their_parents(tree: tuple[list[int], list[list[int]], int, int, int]) -> None:
    rows, parents, target, multiplier, seed = tree
    levels = level_quotas(np.array(rows), [np.array(p) for p in parents], target, multiplier, seed)
    assert len(levels) == len(parents) + 1 and levels[-1].sum() == target
    for quotas, parent, above in zip(levels, parents, levels[1:], strict=False):
        np.testing.assert_array_equal(np.bincount(parent, quotas, len(above)), above)


@settings(max_examples=200)
@given(st.data())
def test_the_first_of_each_parent_in_spite_of_ties(data: st.DataObject) -> None:
    """`order` in the lowest bits, which the parent's bits displace, so that the full sort decides."""
    parents = data.draw(st.integers(1, 6))
    parent = np.array(data.draw(st.lists(st.integers(0, parents - 1), max_size=30)), dtype=np.int64)
    high = data.draw(st.sampled_from([0, 2**63]))
    low = st.lists(st.integers(0, 5), min_size=len(parent), max_size=len(parent))
    order = np.array(data.draw(low), dtype=np.uint64) + np.uint64(high)
    number = np.array(data.draw(st.lists(st.integers(0, 8), min_size=parents, max_size=parents)))
    chosen = _first(parent, order, number)
    for node in range(parents):
        mine = np.flatnonzero(parent == node)
        assert set(mine[chosen[mine]]) == set(mine[np.lexsort((mine, order[mine]))][: number[node]])


def test_the_remainder_is_chosen_by_seed() -> None:
    rows = np.full(7, 10)
    found = {tuple(leaf_quotas(rows, [], 10, seed=seed)) for seed in range(40)}
    assert len(found) > 10 and all(sorted(quotas) == [1, 1, 1, 1, 2, 2, 2] for quotas in found)
    lucky = np.mean([leaf_quotas(rows, [], 10, seed=seed) - 1 for seed in range(2000)], axis=0)
    np.testing.assert_allclose(lucky, 3 / 7, atol=0.05)


@pytest.mark.parametrize(("target", "multiplier"), [(17, 1), (49, 3)])
def test_a_target_beyond_the_rows_names_the_maximum(target: int, multiplier: int) -> None:
    with pytest.raises(TargetError, match=rf"{target} rows.*at most {16 * multiplier} .*raise `multiplier`"):
        leaf_quotas(np.array([9, 0, 7]), [np.array([0, 0, 1])], target, multiplier)
    most = leaf_quotas(np.array([9, 0, 7]), [np.array([0, 0, 1])], 16 * multiplier, multiplier)
    assert most.tolist() == [9 * multiplier, 0, 7 * multiplier]


def test_an_empty_pool_and_a_target_of_0() -> None:
    assert leaf_quotas(np.zeros(4, dtype=np.int64), [np.array([1, 1, 3, 3])], 0).tolist() == [0, 0, 0, 0]


def test_a_level_of_a_million_is_filled_at_once() -> None:
    rng = np.random.default_rng(0)
    parent, sizes = rng.integers(0, 20_000, 1_000_000), rng.zipf(1.5, 1_000_000).clip(max=10**6)
    targets = np.bincount(parent, sizes).astype(np.int64) // 3
    quotas = fill(targets, parent, sizes)
    np.testing.assert_array_equal(np.bincount(parent, quotas), targets)
    assert (quotas <= sizes).all()


def test_a_large_multiplier_does_not_overflow() -> None:
    rows, parents = np.full(1000, 10**9), [np.arange(1000) % 500]
    assert leaf_quotas(rows, parents, 1000, multiplier=10**10).tolist() == [1] * 1000
    halves = leaf_quotas(rows, parents, 1000, multiplier=10**10, even=0.5)
    assert halves.sum() == 1000 and halves.min() >= 0 and halves.max() <= 2
    with pytest.raises(TargetError, match=f"at most {10**22} "):
        leaf_quotas(rows, parents, 10**22 + 1, multiplier=10**10)
