import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from curate.core.hashing import make_key
from distill.samples.sources.split import held_out

KEYS = [make_key("t", str(number)) for number in range(2000)]


@given(st.lists(st.integers(0, 15), min_size=1, max_size=80), st.integers(0, 5))
def test_a_duplicate_set_is_on_one_side(sets, seed):
    names = [KEYS[1000 + number] for number in sets]
    test = held_out(KEYS[: len(sets)], names, seed=seed, fraction=0.5)
    for number in set(sets):
        assert len({bool(side) for side, other in zip(test, sets, strict=True) if other == number}) == 1


def test_a_sample_without_a_set_is_its_own_set():
    alone = held_out(KEYS, None, seed=3, fraction=0.3)
    assert np.array_equal(alone, held_out(KEYS, KEYS, seed=3, fraction=0.3))
    assert np.array_equal(alone, held_out(KEYS, [None] * len(KEYS), seed=3, fraction=0.3))
    assert 0.25 < alone.mean() < 0.35


def test_the_side_of_a_set_does_not_depend_on_other_sets():
    test = held_out(KEYS, None, seed=3, fraction=0.3)
    assert np.array_equal(test[::2], held_out(KEYS[::2], None, seed=3, fraction=0.3))
    assert not held_out(KEYS, None, seed=3, fraction=0.0).any()
