import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from curate.encoders.student.patches import grids, patchify, unpatchify

sides = st.integers(1, 20_000)


@given(st.integers(1, 5), st.integers(1, 5), st.sampled_from([1, 2, 4]))
def test_unpatchify_inverts_patchify(columns, rows, patch):
    pixels = np.random.default_rng(0).integers(0, 256, (rows * patch, columns * patch, 3), dtype=np.uint8)
    patches = patchify(pixels, patch)
    assert patches.shape == (rows * columns, patch * patch * 3)
    assert np.array_equal(unpatchify(patches, columns, rows, patch), pixels)
    four = np.concatenate([pixels, pixels[..., :1]], axis=2)
    assert np.array_equal(patchify(four, patch), patches)


def test_patches_go_row_by_row():
    pixels = np.zeros((4, 6, 3), dtype=np.uint8)
    pixels[0:2, 2:4] = 7
    assert np.flatnonzero(patchify(pixels, 2).any(1)).tolist() == [1]


@given(st.lists(st.tuples(sides, sides), min_size=1, max_size=20), st.sampled_from([8, 14, 16]), st.integers(1, 1024))
def test_grids_fit_and_rotate_with_the_image(sizes, patch, max_tokens):
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


def test_small_images_are_not_enlarged_and_unknown_sizes_get_the_largest_grid():
    columns, rows = grids(np.array([40, 0, -1]), np.array([8, 10, -1]), patch=16, max_tokens=64)
    assert (columns.tolist(), rows.tolist()) == ([2, 8, 8], [1, 8, 8])
