"""Clips as the reader gives them, and as they are packed."""

from collections import Counter
from itertools import takewhile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from distill.objectives.views import frame_pair
from distill.recipe import AugmentRecipe
from distill.recipe.data import DataRecipe
from distill.samples.batches.stream import Packing, Stream
from distill.samples.images.augment import augment
from distill.samples.images.reader import CacheBudget, ImageReader, PatchedImage, Skipped
from distill.samples.sources.mixture import Mixture, open_mixture
from tests.distill.clips import clip, frame, write_clips

SAMPLES = [clip(0, 8), [frame(200)], clip(1, 3), [frame(77)] * 5]
SETTINGS = {"patch": 8, "max_tokens": 12}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_clips(tmp_path_factory.mktemp("clips") / "d", SAMPLES)


@pytest.fixture(scope="module")
def frames(tmp_path_factory: pytest.TempPathFactory) -> ImageReader:
    """Each frame as an image, in order."""
    samples = [[data] for sample in SAMPLES for data in sample]
    return ImageReader(mixture_of(write_clips(tmp_path_factory.mktemp("images") / "d", samples)), **SETTINGS)


def mixture_of(folder: Path, **source) -> Mixture:
    values = {"dataset": str(folder), "max_tokens": 12, "modality": "video", **source}
    return open_mixture(DataRecipe.model_validate({"sources": [values]}))


class Teacher:
    prepares = True

    def missing(self, row: int) -> bool:
        return True

    def prepare(self, row: int, image: Image.Image, *, augmented: bool = False) -> dict:
        return {"mean": np.asarray(image).mean()}


@pytest.mark.parametrize("how", ["alone", "with a teacher", "cached"])
def test_a_clip_has_the_patches_of_its_frames(folder, frames, how):
    teachers = Teacher() if how == "with a teacher" else None
    reader = ImageReader(
        mixture_of(folder), **SETTINGS, teachers=teachers, allowance=CacheBudget(1 << 20 if how == "cached" else 0)
    )
    first = 0
    for row, sample in enumerate(SAMPLES):
        for _ in range(2):
            found = reader.get(row)
            assert isinstance(found, PatchedImage) and found.frames == len(sample) and found.grid == (3, 4)
            expected = [frames.get(first + place).patches for place in range(len(sample))]
            assert np.array_equal(found.patches, np.concatenate(expected))
            pictures = found.pictures()
            assert all(np.array_equal(one.patches, own) for one, own in zip(pictures, expected, strict=True))
            if teachers:
                means = [picture.prepared["mean"] for picture in pictures]
                assert len(set(means)) == len(set(sample)) and found.prepared["mean"] in (means, means[0])
        first += len(sample)


@pytest.mark.parametrize(("count", "places"), [(1, [4]), (2, [2, 6]), (4, [1, 3, 5, 7])])
def test_frames_of_a_source_are_spread_over_those_stored(folder, frames, count, places):
    reader = ImageReader(mixture_of(folder, frames=count), **SETTINGS)
    found = reader.get(0)
    assert found.frames == count == reader.tokens(np.array([0]))[0] / 12
    assert np.array_equal(found.patches, np.concatenate([frames.get(place).patches for place in places]))
    assert reader.get(2).frames == min(3, count)
    assert np.array_equal(reader.get(1).patches, frames.get(8).patches)


@pytest.mark.parametrize("teachers", [None, Teacher()])
def test_all_frames_of_a_clip_are_augmented_alike(folder, teachers):
    settings, crops = AugmentRecipe(crop=(0.3, 0.9), flip=True, colour=0.3), set()
    reader = ImageReader(
        mixture_of(folder), **SETTINGS, teachers=teachers, allowance=CacheBudget(1 << 20),
        augment=lambda image, random: augment(image, settings, random),
    )  # fmt: skip
    for epoch in range(6):
        first, *others = reader.get(3, epoch).pictures()
        assert first.augmented and all(np.array_equal(first.patches, other.patches) for other in others)
        crops.add(first.patches.tobytes())
        assert reader.get(0, epoch).frames == 8
    assert len(crops) > 3


def test_frames_of_different_sizes_are_skipped(tmp_path):
    mixture = mixture_of(write_clips(tmp_path / "d", [[frame(1), frame(2, 24, 32)]]))
    for augmenting in (None, lambda image, random: image):
        found = ImageReader(mixture, **SETTINGS, augment=augmenting).get(0, 0)
        assert isinstance(found, Skipped) and found.reason == "frames_differ" and mixture.key(0) in found.detail


def test_two_different_frames_of_a_clip_are_drawn_alike_often(folder):
    for frames in (2, 3, 8):
        drawn = Counter(frame_pair(rank, frames) for rank in range(frames * (frames - 1)))
        assert set(drawn.values()) == {2} and len(drawn) == frames * (frames - 1) / 2
        assert all(0 <= first < second < frames for first, second in drawn)
    reader = ImageReader(mixture_of(folder), **SETTINGS)
    draws = reader.draws([reader.get(0, epoch) for epoch in range(40)])
    assert len(set(draws.tolist())) == 40 and frame_pair(int(draws[0]), 1) == (0, 0)
    assert reader.draws([reader.get(1, 3), reader.get(0, 3)])[1] == draws[3]


def test_a_clip_is_packed_as_one_with_the_tokens_of_its_frames(tmp_path):
    samples = [clip(number, 1 + number % 5) for number in range(40)]
    mixture = mixture_of(write_clips(tmp_path / "d", samples))
    reader, prefix, capacity = ImageReader(mixture, **SETTINGS), 3, 90
    stream = Stream(
        mixture,
        np.ones(40, dtype=bool),
        seed=0,
        sequences=2,
        packing=Packing(capacity=capacity, images=8, lookahead=16),
        tokens=lambda rows, epochs: reader.patch_counts.places(rows, epochs, prefix),
    )
    steps = list(takewhile(lambda step: step.epoch == 0, stream.steps()))
    packed = [rows for step in steps for rows in step.sequences]
    assert sorted(np.concatenate(packed).tolist()) == list(range(40))
    for rows in packed:
        assert sum((12 + prefix) * len(samples[row]) for row in rows.tolist()) <= capacity
        assert reader.patch_counts.places(rows, None, prefix).tolist() == [
            15 * len(samples[row]) for row in rows.tolist()
        ]
    assert sum(len(rows) for rows in packed) / len(packed) > 1.5
