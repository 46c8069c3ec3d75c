import numpy as np
import pytest
import torch
from PIL import Image

from curate.core.errors import InputError, Reject
from curate.encoders import Encoder, Features
from distill.recipe import TeacherRecipe
from distill.samples.images.images import Allowance, Picture, Pictures
from distill.teachers import EncoderTeacher, Shape, Standards, Teachers, fit_standards
from distill.training.parallel import World

ALONE = World(0, 1, torch.device("cpu"))


class Colours(Encoder):
    """Mean colours of the picture and of its quarters, and how often it was asked."""

    dim, patch_dim = 3, 3
    preprocessing = {}

    def __init__(self, patches: bool = True) -> None:
        self.asked = 0
        self.patch_dim = 3 if patches else None

    def prepare(self, image):
        return np.asarray(image.resize((4, 4)))

    def encode(self, batch, *, patches=True):
        self.asked += len(batch)
        pixels = np.stack(batch).astype(np.float32)
        quarters = pixels.reshape(-1, 2, 2, 2, 2, 3).mean((2, 4))
        return Features(pixels.mean((1, 2)), quarters if self.patch_dim else None)


def bench(dataset, limit: int = 1 << 24, patches: bool = True):
    allowance = Allowance(limit)
    encoder = Colours(patches)
    teachers = Teachers({"colours": EncoderTeacher(encoder)}, allowance=allowance, batch=4)
    return encoder, teachers, Pictures(dataset, patch=8, max_tokens=16, teachers=teachers, allowance=allowance)


def test_targets_follow_the_order_and_the_students_grids(dataset):
    encoder, teachers, pictures = bench(dataset)
    items = [pictures.get(row) for row in (5, 2, 9, 5, 0, 7)]
    target = teachers.targets(items)[0]
    again = teachers.targets([pictures.get(row) for row in (0, 5)])[0]
    assert torch.equal(target.summary[[4, 0]], again.summary)
    assert torch.equal(target.summary[0], target.summary[3])
    lengths = [len(item.patches) for item in items]
    assert len(target.patches) == sum(lengths)
    assert encoder.asked == 5
    means = torch.stack([part.mean(0) for part in target.patches.split(lengths)])
    assert torch.allclose(means, target.summary, atol=8)


def test_targets_are_asked_for_again_where_there_is_no_room(dataset):
    encoder, teachers, pictures = bench(dataset, limit=0)
    for _ in range(2):
        teachers.targets([pictures.get(row) for row in range(5)])
    assert encoder.asked == 10


def test_a_picture_changed_at_random_is_asked_about_each_time(dataset):
    encoder, teachers, pictures = bench(dataset)
    plain = pictures.get(0)
    kept = teachers.targets([plain])[0]
    dark = Picture(0, plain.grid, plain.patches, {"colours": np.zeros((4, 4, 3), np.uint8)}, changed=True)
    for _ in range(2):
        asked = encoder.asked
        target = teachers.targets([plain, dark, dark])[0]
        assert encoder.asked == asked + 2
        assert torch.equal(target.summary[0], kept.summary[0])
        assert torch.equal(target.summary[1:], torch.zeros(2, 3))
    image = Image.new("RGB", (8, 8))
    assert not teachers.missing(0)
    assert not teachers.prepare(0, image)
    assert list(teachers.prepare(0, image, changed=True)) == ["colours"]


def test_a_picture_on_two_grids_is_asked_about_once(dataset):
    encoder, teachers, pictures = bench(dataset)
    small, large = pictures.get(0), pictures.get(0)
    small.grid = (1, 2)
    target = teachers.targets([small, large])[0]
    assert encoder.asked == 1
    assert len(target.patches) == 2 + large.grid[0] * large.grid[1]


@pytest.mark.parametrize(
    ("precision", "half", "places", "said"),
    [
        ("float32", (), [1], r"for 1 of 3 pictures, such as key-1; look at that picture, or take it out"),
        ("float32", (), [0, 1, 2], r"for 3 of 3 .* key-0; of every picture, so its weights are at fault: look at them"),
        ("bfloat16", (), [1], r"key-1; its numbers may not fit into precision: bfloat16: give float32"),
        ("float16", ("colours",), [1], r"fit into precision: float16 and keep: float16: give float32"),
    ],
)
def test_features_that_are_not_finite_name_what_can_be_done(dataset, precision, half, places, said):
    encoder, _, pictures = bench(dataset)
    encoder.precision = precision
    teachers = Teachers({"colours": EncoderTeacher(encoder)}, name=lambda row: f"key-{row}", half=half)
    items = [pictures.get(row) for row in range(3)]
    plain = encoder.encode

    def overflow(batch, patches=True):
        features = plain(batch, patches=patches)
        features.patches[places, 0, 0, 0] = np.inf
        return features

    encoder.encode = overflow
    with pytest.raises(InputError, match=rf"teachers: 'colours' gives features that are not finite .*{said}"):
        teachers.targets(items)


def test_a_teacher_without_patches_has_none(dataset):
    _, teachers, pictures = bench(dataset, patches=False)
    assert teachers.targets([pictures.get(0)])[0].patches is None
    assert teachers.shapes == [Shape(3, None)]


def test_a_picture_that_a_teacher_refuses_is_skipped(dataset):
    encoder, _, pictures = bench(dataset)

    def refuse(image):
        raise Reject("too_bright")

    encoder.prepare = refuse
    assert pictures.get(0).reason == "too_bright"


def test_standards_are_fitted_over_patches_too_and_survive_a_checkpoint(dataset):
    _, teachers, pictures = bench(dataset)
    items = [pictures.get(row) for row in range(20)]
    recipes = [TeacherRecipe(encoder="descriptor", standardise="scale")]
    fitted = fit_standards(teachers, recipes, [(items[:9], []), ([], []), (items[9:], [])], ALONE)[0]
    target = fitted(teachers.targets(items)[0])
    assert target.summary.mean(0).abs().max() < 1e-3
    assert target.patches.var(0, unbiased=False).mean().item() == pytest.approx(1.0, rel=1e-3)
    again = Standards.of(fitted.state())
    assert torch.equal(again.patches.mean, fitted.patches.mean)
    assert Standards.of({k: v for k, v in fitted.state().items() if "patches" not in k}).patches is None
