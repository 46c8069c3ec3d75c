import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distill.samples.batches.packing import first_fit_decreasing, grids

equal = st.builds(lambda length, count: [length] * count, st.integers(1, 40), st.integers(0, 60))
tokens = st.lists(st.integers(1, 40), max_size=60) | equal


@given(tokens, st.integers(40, 90), st.integers(1, 8))
def test_bins_hold_every_image_once_within_bounds(lengths, capacity, images):
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
def test_each_image_is_in_the_first_bin_that_had_room_for_it(lengths, capacity, images):
    """Against the definition, bin by bin."""
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


def test_too_long_an_image_is_refused():
    with pytest.raises(ValueError, match="41 tokens does not fit"):
        first_fit_decreasing([3, 41], 40, 4)


sides = st.integers(1, 20_000)


@given(st.lists(st.tuples(sides, sides), min_size=1, max_size=20), st.sampled_from([8, 14, 16]), st.integers(1, 1024))
def test_grids_fit_and_turn_with_the_picture(sizes, patch, max_tokens):
    width, height = np.array(sizes).T
    columns, rows = grids(width, height, patch=patch, max_tokens=max_tokens)
    assert (columns >= 1).all()
    assert (rows >= 1).all()
    assert (columns * rows <= max_tokens).all()
    turned_columns, turned_rows = grids(height, width, patch=patch, max_tokens=max_tokens)
    square = width == height
    assert np.array_equal(turned_rows[~square], columns[~square])
    assert np.array_equal(turned_columns[~square], rows[~square])


@given(sides, sides)
def test_aspect_is_kept_to_the_rounding_of_the_shorter_side(width, height):
    columns, rows = (int(x[0]) for x in grids(np.array([width]), np.array([height]), patch=16, max_tokens=256))
    scale = min(1.0, (256 * 16**2 / (width * height)) ** 0.5) / 16
    (short, exact_short), (long, exact_long) = sorted([(columns, width * scale), (rows, height * scale)], key=max)
    assert short == 1 or abs(short - exact_short) <= 0.5
    assert exact_long * min(1, exact_short / short) - 1 <= long <= max(1, exact_long + 0.5)


def test_small_pictures_are_not_enlarged_and_unknown_sizes_get_room():
    columns, rows = grids(np.array([40, 0, -1]), np.array([8, 10, -1]), patch=16, max_tokens=64)
    assert (columns.tolist(), rows.tolist()) == ([2, 8, 8], [1, 8, 8])
