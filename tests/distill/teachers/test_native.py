"""Teachers on the student's patches, as tiny random models of the architectures in use."""

import numpy as np
import pytest
import torch

from curate.core.errors import RecipeError
from curate.encoders import load
from curate.encoders.student.patches import unpatchify
from distill.recipe import parse_recipe
from distill.samples.images.reader import PatchedImage
from distill.teachers import EncoderTeacher, Teachers
from distill.teachers.native import NativeTeacher, batches_by_length
from tests.distill.conftest import recipe_values

PATCH = 8
DINO = "timm:vit_small_patch16_dinov3?depth=1&embed_dim=32&num_heads=2&patch_size=8&img_size=32&random=7"
SIGLIP = "timm:naflexvit_so400m_patch16_siglip?depth=1&embed_dim=32&num_heads=2&patch_size=8&img_size=32&random=7"
GRIDS = [(2, 4), (4, 2), (3, 3), (2, 4), (5, 1), (4, 4)]


def image_of(row: int, grid: tuple[int, int]) -> PatchedImage:
    rng = np.random.default_rng([row, *grid])
    return PatchedImage(row, grid, rng.integers(0, 256, (grid[0] * grid[1], PATCH**2 * 3), dtype=np.uint8))


IMAGES = [image_of(row, grid) for row, grid in enumerate(GRIDS)]


def loaded(spec: str, **options):
    """With weights as large as trained ones; with fresh ones positions and neighbours would hardly matter."""
    encoder = load(spec, device="cpu", **options)
    generator = torch.Generator().manual_seed(0)
    for item in encoder.model.parameters():
        item.add_(torch.randn(item.shape, generator=generator), alpha=0.3)
    return encoder


@pytest.fixture(scope="module", params=[DINO, SIGLIP], ids=["dinov3", "naflex"])
def encoder(request):
    return loaded(request.param)


@pytest.fixture(scope="module")
def dino():
    return loaded(DINO)


def teacher(encoder, **options) -> NativeTeacher:
    return NativeTeacher("t", encoder, patch=PATCH, **{"registers": 4, **options})


def test_features_equal_the_models_features_of_each_image(encoder):
    """Compared with the encoder on each image alone, in pixels."""
    for item, found in zip(IMAGES, teacher(encoder).features(IMAGES, []), strict=True):
        pixels = unpatchify(item.patches, item.grid[1], item.grid[0], PATCH).transpose(2, 0, 1)
        with torch.no_grad():
            features = encoder.model.forward_features(encoder.normalise(torch.from_numpy(pixels.copy())[None]))
            summary = encoder.model.forward_head(features, pre_logits=True)
        prefix = encoder.model.num_prefix_tokens
        assert found.patches.shape == (*item.grid, 32)
        assert torch.allclose(found.summary, summary[0], atol=1e-5)
        assert torch.allclose(found.patches.flatten(0, 1), features[0, prefix:], atol=1e-5)
        if prefix:
            assert torch.allclose(found.registers, features[0, 1:5], atol=1e-5)


def test_batching_and_padding_change_nothing(encoder):
    model = teacher(encoder)
    for item, features in zip(IMAGES, model.features(IMAGES, []), strict=True):
        alone = model.features([item], [])[0]
        for one, two in zip(features.tensors(), alone.tensors(), strict=True):
            assert torch.allclose(one, two, atol=1e-5)


def test_a_wide_grid_is_not_a_tall_one(encoder):
    wide = image_of(0, (2, 4))
    tall = PatchedImage(1, (4, 2), wide.patches)
    one, two = teacher(encoder).features([wide, tall], [])
    assert (one.patches.flatten(0, 1) - two.patches.flatten(0, 1)).abs().max() > 1e-3


def test_only_requested_features_are_computed(dino):
    assert teacher(dino).shape.registers == 4
    assert teacher(dino, registers=3).shape.registers == 0
    assert teacher(dino, registers=0).features(IMAGES[:1], [])[0].registers is None
    assert teacher(dino, patches=False).shape.patches is None
    assert teacher(dino, patches=False).features(IMAGES[:1], [])[0].patches is None
    assert teacher(dino).pooler() is None


def test_the_pooler_computes_the_summary_from_the_patches():
    model = teacher(loaded(SIGLIP))
    features = model.features(IMAGES[:1], [])[0]
    pooled = model.pooler()(features.patches.flatten(0, 1)[None])
    assert torch.allclose(pooled[0], features.summary, atol=1e-5)
    assert not any(item.requires_grad for item in model.pooler().parameters())


def test_half_precision_is_close(dino):
    half = teacher(loaded(DINO, precision="bfloat16")).features(IMAGES, [])
    for one, two in zip(half, teacher(dino).features(IMAGES, []), strict=True):
        assert one.summary.dtype == torch.float32
        assert 0 < (one.summary - two.summary).abs().max() < 0.1


@pytest.mark.parametrize(
    ("spec", "patch", "message"),
    [
        ("descriptor", 8, r"'t' cannot read the student's patches .*pictures: own"),
        ("timm:vit_small_patch16_224?depth=1&random=0", 16, r"cannot read .*dynamic_img_size=true"),
        (DINO, 16, r"'t' has patches of 8 x 8 pixels, the student's are 16 x 16; set student\.patch=8"),
    ],
)
def test_models_that_do_not_fit_the_student_are_one_line(spec, patch, message):
    with pytest.raises(RecipeError, match=message) as error:
        NativeTeacher("t", load(spec, device="cpu"), patch=patch)
    assert "\n" not in str(error.value)


def test_a_plain_vision_transformer_of_dynamic_size():
    spec = "timm:vit_tiny_patch16_224?depth=1&embed_dim=32&num_heads=2&patch_size=8&img_size=32&dynamic_img_size=true"
    model = teacher(load(f"{spec}&random=1", device="cpu"), registers=0)
    assert [tuple(features.patches.shape[:2]) for features in model.features(IMAGES, [])] == GRIDS


def test_batches_are_full_and_have_little_padding():
    lengths = np.random.default_rng(0).integers(10, 400, 500).tolist()
    batches = list(batches_by_length(lengths, tokens=4000))
    assert sorted(place for batch in batches for place in batch) == list(range(500))
    for batch in batches:
        whole = len(batch) * max(lengths[place] for place in batch)
        assert whole <= 4000
        assert sum(lengths[place] for place in batch) >= 0.9 * whole
    assert len(batches) < 2 * sum(lengths) / 4000
    assert list(batches_by_length([9000], tokens=4000)) == [[0]]


def recipe_of(**teacher):
    values = recipe_values("/none", "/none")
    values["student"] |= {"patch": PATCH, "registers": 4}
    values["teachers"] = [{"encoder": DINO, "name": "t", "pictures": "student", **teacher}]
    return parse_recipe(values, "test")


def test_teachers_of_a_recipe():
    both = Teachers.of(recipe_of(), torch.device("cpu"))
    target = both.targets(IMAGES)[0]
    assert target.summary.shape == (6, 32)
    assert target.patches.shape == (sum(rows * columns for rows, columns in GRIDS), 32)
    assert target.registers.shape == (6, 4, 32)
    assert not both.missing(0)
    none = Teachers.of(recipe_of(patches={"weight": 0}, registers={"weight": 0}), torch.device("cpu"))
    target = none.targets(IMAGES)[0]
    assert target.patches is None
    assert target.registers is None
    with pytest.raises(RecipeError, match="'t' has no attention pooler over patches"):
        Teachers.of(recipe_of(pooler=True), torch.device("cpu"))


def test_an_image_of_the_models_size_has_the_same_features_from_both_teachers(dino):
    """Such an image is not resized, so the model gets the same pixels."""
    item = image_of(0, (4, 4))
    own = EncoderTeacher(dino, registers=4).features(
        [item], [unpatchify(item.patches, 4, 4, PATCH).transpose(2, 0, 1)]
    )[0]
    native = teacher(dino).features([item], [])[0]
    for one, two in zip(own.tensors(), native.tensors(), strict=True):
        assert torch.allclose(one, two, atol=1e-5)
    assert EncoderTeacher(dino, registers=2).shape.registers == 0
