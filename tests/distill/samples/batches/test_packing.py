import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from curate.encoders.student.patches import grids
from distill.samples.batches.packing import first_fit_decreasing

equal = st.builds(lambda length, count: [length] * count, st.integers(1, 40), st.integers(0, 60))
tokens = st.lists(st.integers(1, 40), max_size=60) | equal


@given(tokens, st.integers(40, 90), st.integers(1, 8))
def test_bins_have_every_image_once_within_bounds(lengths, capacity, images):
    bins = first_fit_decreasing(lengths, capacity, images)
    assert sorted(place for bin in bins for place in bin) == list(range(len(lengths)))
    assert all(sum(lengths[place] for place in bin) <= capacity and len(bin) <= images for bin in bins)


@given(tokens)
def test_first_fit_decreasing_is_near_the_optimum(lengths):
    """At most 11/9 OPT + 6/9 bins (Dósa 2007); the sum of lengths bounds OPT from below."""
    bins = first_fit_decreasing(lengths, 40, 1000)
    assert len(bins) <= 2 * -(-sum(lengths) // 40) + 1
    assert sum(sum(lengths[place] for place in bin) * 2 <= 40 for bin in bins) <= 1


def test_worked_example():
    assert first_fit_decreasing([4, 7, 3, 6, 5], 10, 16) == [[0, 3], [1, 2], [4]]


@given(tokens, st.integers(40, 90), st.integers(1, 8))
def test_each_image_is_in_the_first_bin_with_room(lengths, capacity, images):
    """Compares with the definition, bin by bin."""
    bins: list[list[int]] = []
    for place in sorted(range(len(lengths)), key=lambda place: (-lengths[place], place)):
        for bin in bins:
            if len(bin) < images and sum(lengths[i] for i in bin) + lengths[place] <= capacity:
                bin.append(place)
                break
        else:
            bins.append([place])
    assert first_fit_decreasing(lengths, capacity, images) == sorted(sorted(bin) for bin in bins)


@pytest.mark.parametrize("limits", [{256: 1.0}, {256: 0.4, 576: 0.3, 1024: 0.2, 2304: 0.1}])
def test_realistic_sizes_fill_the_sequences(limits):
    """Photographs of web pools: sides log-normal about 600 pixels, aspects about 4:3 either way."""
    rng = np.random.default_rng(0)
    width = rng.lognormal(np.log(600), 0.5, 4096)
    height = width * np.exp(rng.normal(0, 0.3, 4096))
    limit = rng.choice(list(limits), 4096, p=list(limits.values()))
    columns, rows = np.empty(4096, dtype=int), np.empty(4096, dtype=int)
    for value in limits:
        mine = limit == value
        sizes = width[mine].astype(int), height[mine].astype(int)
        columns[mine], rows[mine] = grids(*sizes, patch=16, max_tokens=value)
    tokens = columns * rows + 5
    bins = first_fit_decreasing(tokens.tolist(), 4096, 16)
    assert tokens.sum() / (4096 * len(bins)) > 0.97


def test_equal_lengths_keep_their_order():
    assert first_fit_decreasing([5] * 5, 10, 16) == [[0, 1], [2, 3], [4]]


def test_an_image_that_is_too_long_is_an_error():
    with pytest.raises(ValueError, match="41 tokens does not fit"):
        first_fit_decreasing([3, 41], 40, 4)
