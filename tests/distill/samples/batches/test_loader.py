import io
from itertools import islice

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from curate.core.errors import Undecodable
from distill.samples.batches.loader import Loader, collate, read_in_order
from distill.samples.batches.stream import Packing, Stream
from distill.samples.images.reader import CacheBudget, ImageReader, PatchedImage, Skipped
from distill.samples.sources.dataset import Dataset, open_dataset
from tests.distill.datasets import drawn_items, write_dataset

SIZES = {"patch": 8, "max_tokens": 16}


def loader(dataset: Dataset, images: ImageReader, rank: int = 0, world: int = 1, workers: int = 2) -> Loader:
    packing = Packing(capacity=40, images=4, lookahead=20, lanes=2, window_shards=2)
    tokens = images.tokens(np.arange(len(dataset))) + 1
    stream = Stream(dataset, np.arange(len(dataset)), seed=5, sequences=3, tokens=tokens, packing=packing)
    return Loader(stream, images, rank=rank, world=world, workers=workers)


def rows_of(shares) -> list[list[tuple[int, int]]]:
    """(sequence, row) of every image, per step."""
    return [[(number, item.row) for number, item in zip(s.sequence, s.images, strict=True)] for s in shares]


def all_ranks(dataset, images, world: int, workers: int, steps: int) -> list[list[tuple[int, int]]]:
    ranks = [rows_of(islice(loader(dataset, images, rank, world, workers), steps)) for rank in range(world)]
    assert {len(rank) for rank in ranks} == {steps}
    return [sorted(item for rank in ranks for item in rank[step]) for step in range(steps)]


@pytest.mark.parametrize("world", [1, 2, 3, 5])
@pytest.mark.parametrize("workers", [1, 3])
def test_the_same_samples_in_each_step_for_any_ranks_and_workers(dataset, world, workers):
    images = ImageReader(dataset, **SIZES, allowance=CacheBudget(1 << 24))
    steps = 12  # more than an epoch; with five ranks for three sequences, some ranks are idle
    expected = [sorted(step) for step in rows_of(islice(loader(dataset, images), steps))]
    assert all_ranks(dataset, images, world, workers, steps) == expected


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(taken=st.integers(0, 14), before=st.integers(1, 3), after=st.integers(1, 3), workers=st.integers(1, 3))
def test_resuming_within_an_epoch_with_other_ranks(dataset, taken, before, after, workers):
    images = ImageReader(dataset, **SIZES, allowance=CacheBudget(1 << 24))
    undisturbed = [sorted(step) for step in rows_of(islice(loader(dataset, images), taken + 6))]
    stopped = loader(dataset, images, before - 1, before, workers)
    for _ in islice(stopped, taken):
        pass
    state = stopped.state_dict()
    parts = []
    for rank in range(after):
        resumed = loader(dataset, images, rank, after, workers)
        resumed.load_state_dict(state)
        parts.append(rows_of(islice(resumed, 6)))
    again = [sorted(item for part in parts for item in part[step]) for step in range(6)]
    assert again == undisturbed[taken:]


def test_bad_samples_are_skipped_with_their_reason(tmp_path):
    items = drawn_items(20)
    items[3].data = items[3].data[:60]
    items[7].data = b"these are words"
    folder = write_dataset(tmp_path / "d", items, shard_rows=5)
    (folder / "toy-000002.tar").unlink()
    with (folder / "toy-000003.tar").open("r+b") as tar:
        tar.truncate(600)
    dataset = open_dataset(str(folder))
    images = ImageReader(dataset, **SIZES)
    batches = list(read_in_order(images, range(20), batch=7, workers=3))
    skipped = {item.row: item.reason for _, bad in batches for item in bad}
    lost = dict.fromkeys(range(10, 15), "shard_missing") | dict.fromkeys(range(15, 20), "truncated_member")
    assert skipped == {3: "truncated", 7: "not_an_image", **lost}
    assert [item.row for good, _ in batches for item in good] == [0, 1, 2, 4, 5, 6, 8, 9]
    shares = list(islice(loader(dataset, images), 3))
    assert sum(len(share.skipped) for share in shares) == sum(share.reasons().total() for share in shares) > 0


def test_a_failing_teacher_input_skips_only_the_sample(dataset):
    class Teacher:
        prepares = True

        def missing(self, row):
            return True

        def prepare(self, row, image, *, augmented=False):
            if row == 1:
                raise Undecodable("too_dark")
            if row == 2:
                raise ZeroDivisionError("teacher")
            return {"teacher": image.size}

    images = ImageReader(dataset, **SIZES, teachers=Teacher())
    assert images.get(0).prepared == {"teacher": (48, 48)}
    assert [images.get(row).reason for row in (1, 2)] == ["too_dark", "preparation_failed"]


def test_images_are_decoded_once_while_there_is_room(dataset):
    reads = []
    real = ImageReader(dataset, **SIZES)

    def read(row):
        reads.append(row)
        return real._read(row)

    one = 16 * 8 * 8 * 3
    images = ImageReader(dataset, **SIZES, allowance=CacheBudget(3 * one), read=read)
    for _ in range(3):
        for row in range(6):
            assert isinstance(images.get(row), PatchedImage)
    kept = {row for row in range(6) if reads.count(row) == 1}
    assert kept
    assert set(reads) - kept
    assert all(reads.count(row) == 3 for row in set(reads) - kept)


def test_pixels_depend_on_the_recipe_not_on_the_cache(tmp_path):
    """A JPEG is decoded at a reduced size unless teachers need it; its grid always follows the true size."""

    class Teacher:
        prepares = True

        def missing(self, row):
            return not teacher_is_content

        def prepare(self, row, image, *, augmented=False):
            return {"teacher": image.size}

    items = drawn_items(2, sides=[(403, 301)])
    for item in items:
        stream = io.BytesIO()
        with Image.open(io.BytesIO(item.data)) as image:
            image.save(stream, "JPEG")
        item.data = stream.getvalue()
    dataset = open_dataset(str(write_dataset(tmp_path / "d", items)))
    teacher_is_content = False
    alone, kept, watched = (
        ImageReader(dataset, **SIZES, allowance=CacheBudget(room), teachers=teachers)
        for room, teachers in ((0, None), (1 << 20, None), (1 << 20, Teacher()))
    )
    first = watched.get(0)
    assert first.prepared == {"teacher": (403, 301)}
    assert first.grid == alone.get(0).grid == (3, 5)
    for _ in range(2):
        assert np.array_equal(alone.get(0).patches, kept.get(0).patches)
        teacher_is_content = True
        assert np.array_equal(watched.get(0).patches, first.patches)
    difference = np.abs(first.patches.astype(int) - alone.get(0).patches)
    assert 0 < difference.mean() < 8


@pytest.mark.parametrize("size", [(64, 32), (None, None), (32, 64), (9, 9)])
def test_the_grid_follows_the_image_and_fits_the_plan(tmp_path, size):
    """Sizes in the index may be wrong, but an image never has more patches than planned from them."""
    items = drawn_items(1, sides=[(64, 32)])
    items[0].width, items[0].height = size
    images = ImageReader(open_dataset(str(write_dataset(tmp_path / "d", items))), patch=8, max_tokens=18)
    picture = images.get(0)
    assert not isinstance(picture, Skipped)
    rows, columns = picture.grid
    assert rows <= columns
    assert rows * columns == len(picture.patches) <= images.tokens(np.array([0]))[0]
    if size == (64, 32):
        assert picture.grid == (3, 6)


def test_batches_put_equal_lengths_all_ranks(dataset):
    images = ImageReader(dataset, **SIZES)
    batch = collate([images.get(row) for row in range(12)])
    lengths = [rows * columns for rows, columns in batch.grids]
    assert lengths == sorted(lengths)
    assert len(batch.patches) == sum(lengths)
    start = 0
    for length, picture in zip(lengths, batch.images, strict=True):
        assert np.array_equal(batch.patches[start : start + length], picture.patches)
        start += length
