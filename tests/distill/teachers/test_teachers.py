import numpy as np
import pytest
import torch
from PIL import Image

from curate.core.errors import InputError, Reject
from curate.encoders import Encoder, Features
from distill.parallel import World
from distill.recipe import TeacherRecipe
from distill.samples.images.reader import CacheBudget, ImageReader, PatchedImage
from distill.teachers import EncoderTeacher, Shape, TargetStandardiser, Teachers, fit_standardisers

ALONE = World(0, 1, torch.device("cpu"))


class Colours(Encoder):
    """Mean colours of an image and of its quarters; counts the images."""

    dim, patch_dim = 3, 3
    preprocessing = {}

    def __init__(self, patches: bool = True) -> None:
        self.count = 0
        self.patch_dim = 3 if patches else None

    def prepare(self, image):
        return np.asarray(image.resize((4, 4)))

    def encode(self, batch, *, patches=True):
        self.count += len(batch)
        pixels = np.stack(batch).astype(np.float32)
        quarters = pixels.reshape(-1, 2, 2, 2, 2, 3).mean((2, 4))
        return Features(pixels.mean((1, 2)), quarters if self.patch_dim else None)


def context(dataset, limit: int = 1 << 24, patches: bool = True):
    allowance = CacheBudget(limit)
    encoder = Colours(patches)
    teachers = Teachers({"colours": EncoderTeacher(encoder)}, allowance=allowance, batch=4)
    return encoder, teachers, ImageReader(dataset, patch=8, max_tokens=16, teachers=teachers, allowance=allowance)


def test_targets_follow_the_order_and_the_students_grids(dataset):
    encoder, teachers, reader = context(dataset)
    items = [reader.get(row) for row in (5, 2, 9, 5, 0, 7)]
    target = teachers.targets(items)[0]
    again = teachers.targets([reader.get(row) for row in (0, 5)])[0]
    assert torch.equal(target.summary[[4, 0]], again.summary)
    assert torch.equal(target.summary[0], target.summary[3])
    lengths = [len(item.patches) for item in items]
    assert len(target.patches) == sum(lengths)
    assert encoder.count == 5
    means = torch.stack([part.mean(0) for part in target.patches.split(lengths)])
    assert torch.allclose(means, target.summary, atol=8)


def test_targets_are_recomputed_without_memory_to_keep_them(dataset):
    encoder, teachers, reader = context(dataset, limit=0)
    for _ in range(2):
        teachers.targets([reader.get(row) for row in range(5)])
    assert encoder.count == 10


def test_an_augmented_image_is_computed_each_time(dataset):
    encoder, teachers, reader = context(dataset)
    plain = reader.get(0)
    kept = teachers.targets([plain])[0]
    dark = PatchedImage(0, plain.grid, plain.patches, {"colours": np.zeros((4, 4, 3), np.uint8)}, augmented=True)
    for _ in range(2):
        before = encoder.count
        target = teachers.targets([plain, dark, dark])[0]
        assert encoder.count == before + 2
        assert torch.equal(target.summary[0], kept.summary[0])
        assert torch.equal(target.summary[1:], torch.zeros(2, 3))
    image = Image.new("RGB", (8, 8))
    assert not teachers.missing(0)
    assert not teachers.prepare(0, image)
    assert list(teachers.prepare(0, image, augmented=True)) == ["colours"]


def test_an_image_on_two_grids_is_computed_once(dataset):
    encoder, teachers, reader = context(dataset)
    small, large = reader.get(0), reader.get(0)
    small.grid = (1, 2)
    target = teachers.targets([small, large])[0]
    assert encoder.count == 1
    assert len(target.patches) == 2 + large.grid[0] * large.grid[1]


@pytest.mark.parametrize(
    ("precision", "half", "places", "message"),
    [
        ("float32", (), [1], r"for 1 of 3 images, such as key-1; check that image, or remove it"),
        ("float32", (), [0, 1, 2], r"for 3 of 3 .* key-0; all images fail, so check the teacher's weights"),
        ("bfloat16", (), [1], r"key-1; they may exceed the range of precision: bfloat16: use float32"),
        ("float16", ("colours",), [1], r"the range of precision: float16 and keep: float16: use float32"),
    ],
)
def test_features_that_are_not_finite_are_one_line_with_a_remedy(dataset, precision, half, places, message):
    encoder, _, reader = context(dataset)
    encoder.precision = precision
    teachers = Teachers({"colours": EncoderTeacher(encoder)}, name=lambda row: f"key-{row}", half=half)
    items = [reader.get(row) for row in range(3)]
    plain = encoder.encode

    def overflow(batch, patches=True):
        features = plain(batch, patches=patches)
        features.patches[places, 0, 0, 0] = np.inf
        return features

    encoder.encode = overflow
    with pytest.raises(InputError, match=rf"teachers: features of 'colours' are not finite .*{message}"):
        teachers.targets(items)


def test_a_teacher_without_patches_has_none(dataset):
    _, teachers, reader = context(dataset, patches=False)
    assert teachers.targets([reader.get(0)])[0].patches is None
    assert teachers.shapes == [Shape(3, None)]


def test_an_image_rejected_by_a_teacher_is_skipped(dataset):
    encoder, _, reader = context(dataset)

    def reject(image):
        raise Reject("too_bright")

    encoder.prepare = reject
    assert reader.get(0).reason == "too_bright"


def test_standardisers_are_fitted_on_patches_too_and_survive_serialisation(dataset):
    _, teachers, reader = context(dataset)
    items = [reader.get(row) for row in range(20)]
    recipes = [TeacherRecipe(encoder="descriptor", standardise="scale")]
    fitted = fit_standardisers(teachers, recipes, [(items[:9], []), ([], []), (items[9:], [])], ALONE)[0]
    target = fitted(teachers.targets(items)[0])
    assert target.summary.mean(0).abs().max() < 1e-3
    assert target.patches.var(0, unbiased=False).mean().item() == pytest.approx(1.0, rel=1e-3)
    again = TargetStandardiser.of(fitted.state())
    assert torch.equal(again.patches.mean, fitted.patches.mean)
    assert TargetStandardiser.of({k: v for k, v in fitted.state().items() if "patches" not in k}).patches is None
