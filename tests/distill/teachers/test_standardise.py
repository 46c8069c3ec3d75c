"""Hadamard matrices, moments, and the standardisation computed from them."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from curate.core.errors import InputError, RecipeError
from distill.context import StageContext
from distill.objectives.kernels.losses import errors
from distill.parallel import World
from distill.recipe import TeacherRecipe, parse_recipe
from distill.samples.images.reader import Skipped
from distill.teachers import Moments, Shape, Target, TargetStandardiser, TeacherFeatures, Teachers, fit_standardisers
from distill.teachers.hadamard import hadamard
from distill.teachers.standardise import eigenvectors

ALONE = World(0, 1, torch.device("cpu"))


def randn(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def skewed(count, width, seed=0):
    """Correlated channels of very different variance, far from zero."""
    return randn(count, width, seed=seed) @ randn(width, width, seed=9) * torch.logspace(-2, 2, width) + 100.0


class ShapeOnly:
    """A teacher that is never called."""

    prepares = False

    def __init__(self, shape: Shape) -> None:
        self.shape = shape


class TargetsAsBatch(Teachers):
    """Takes targets in place of images."""

    def targets(self, batch):
        return batch


ALL = ["summary", "patches", "registers"]


def fitted(
    target: Target, standardise: str = "phi_s", parts: int = 3, kinds: Sequence[str] = ALL
) -> TargetStandardiser:
    """Fitted on the target's features, in several batches."""
    summary, patches, registers = target.summary, target.patches, target.registers
    shape = Shape(
        summary.shape[1],
        None if patches is None else patches.shape[1],
        0 if registers is None else registers.shape[1],
    )
    batches = [
        [Target(*(None if kind is None else kind.tensor_split(parts)[part] for kind in (summary, patches, registers)))]
        for part in range(parts)
    ]
    recipe = TeacherRecipe(encoder="descriptor", name="t", standardise=standardise, standardised=kinds)
    return fit_standardisers(
        TargetsAsBatch({"t": ShapeOnly(shape)}), [recipe], [(batch, []) for batch in batches], ALONE
    )[0]


@pytest.mark.parametrize("order", [1, 2, 4, 12, 20, 28, 36, 64, 192, 384, 640, 728, 768, 1024, 1152, 1280, 1408, 1536])
def test_orders_of_vision_models(order):
    h = hadamard(order).astype(np.float32)
    assert set(np.unique(h)) <= {-1, 1}
    assert np.array_equal(h @ h.T, order * np.eye(order))


@given(st.integers(1, 300))
def test_a_hadamard_matrix_or_none(order):
    h = hadamard(order)
    if h is None:
        assert order > 2 and (order % 4 or order >= 52)
    else:
        assert np.array_equal(h.astype(int) @ h.T.astype(int), order * np.eye(order))


@given(st.lists(st.integers(0, 9), min_size=1, max_size=6), st.booleans())
def test_moments_do_not_depend_on_the_batches(counts, covariance):
    x = skewed(sum(counts) + 1, 4)
    moments = Moments(4, covariance=covariance)
    for part in x.split([*counts, 1]):
        moments.add(part)
    deviation = x - x.mean(0)
    expected = deviation.T @ deviation if covariance else deviation.square().sum(0)
    assert torch.allclose(moments.mean, x.mean(0), rtol=1e-12)
    assert torch.allclose(moments.scatter, expected, rtol=1e-9, atol=1e-9)


class Ranks(World):
    """One of two ranks in one process; an earlier pass gives the other rank's terms of the sums."""

    def __init__(self, other, own) -> None:
        super().__init__(0, 2, torch.device("cpu"))
        object.__setattr__(self, "other", other)
        object.__setattr__(self, "own", own)

    def sum(self, values):
        self.own.append(values.clone())
        others = self.other[len(self.own) - 1] if len(self.other) >= len(self.own) else torch.zeros_like(values)
        return values + others


@pytest.mark.parametrize("covariance", [False, True])
@pytest.mark.parametrize("first", [0, 1, 20])
def test_moments_of_two_ranks_equal_those_of_one(covariance, first):
    """A rank's later sums need the mean of both ranks, so there are as many passes as sums."""
    x = skewed(21, 4)
    sums = [[], []]
    for _ in range(4):
        new = []
        for rank, part in enumerate((x[:first], x[first:])):
            own, moments = [], Moments(4, covariance=covariance)
            moments.add(part)
            moments.merge(Ranks(sums[1 - rank], own))
            new.append((own, moments))
        sums = [own for own, _ in new]
    whole = Moments(4, covariance=covariance)
    whole.add(x)
    for _, moments in new:
        assert moments.count == 21
        assert torch.allclose(moments.mean, whole.mean, rtol=1e-12)
        assert torch.allclose(moments.scatter, whole.scatter, rtol=1e-9)


def test_phi_s_gives_every_channel_unit_variance_and_can_be_inverted():
    target = Target(skewed(200, 12), skewed(500, 20, seed=1))
    standardisers = fitted(target)
    y = standardisers(target)
    for kind in (y.summary, y.patches):
        assert torch.allclose(kind.mean(0), torch.zeros(kind.shape[1], dtype=kind.dtype), atol=1e-9)
        assert torch.allclose(kind.var(0, unbiased=False), torch.ones(kind.shape[1], dtype=kind.dtype), rtol=1e-9)
    assert torch.allclose(standardisers.invert_summary(y.summary), target.summary, rtol=1e-10)
    assert torch.allclose(standardisers.invert_patches(y.patches), target.patches, rtol=1e-10)
    again = TargetStandardiser.of(standardisers.state())
    assert torch.equal(again(target).patches, y.patches)
    assert again.registers is None


def test_squared_error_and_cosine_are_invariant_under_the_rotation_but_smooth_l1_is_not():
    target = Target(skewed(100, 12))
    whole, scale = (fitted(target, method) for method in ("phi_s", "scale"))
    a, b = skewed(30, 12, seed=3), skewed(30, 12, seed=4)
    for kind in ("mse", "cosine", "smooth_l1"):
        rotated, plain = (
            errors(standardiser.summary(a), standardiser.summary(b), kind) for standardiser in (whole, scale)
        )
        assert torch.allclose(rotated, plain, rtol=1e-9) == (kind != "smooth_l1")
    raw = errors(a, b, "mse")
    assert torch.allclose(errors(whole.summary(a), whole.summary(b), "mse"), raw / whole.summary.scale**2, rtol=1e-9)


@pytest.mark.parametrize("method", ["phi_s", "scale", "none"])
def test_constant_and_rank_deficient_features_stay_finite(method):
    line = randn(50, 1) * torch.arange(1.0, 13.0) + 5.0
    for features in (torch.full((50, 12), 3.0, dtype=torch.float64), line):
        standardisers = fitted(Target(features), method)
        y = standardisers.summary(features)
        assert y.isfinite().all()
        assert torch.allclose(standardisers.invert_summary(y), features, rtol=1e-9)
    assert method == "none" or y.var(0, unbiased=False).mean().item() == pytest.approx(1.0)


def test_constant_summaries_give_a_warning(caplog):
    """A single image has constant summaries."""
    fitted(Target(skewed(9, 4)))
    assert not caplog.records
    fitted(Target(skewed(1, 4)), parts=1)
    assert [record.message for record in caplog.records] == [
        "teachers: the summaries of t are the same for all 1 images of the standardisation; the student cannot learn "
        "from them"
    ]


def test_none_leaves_features_unchanged():
    target = Target(skewed(9, 5), skewed(9, 3), randn(9, 2, 5))
    y = fitted(target, "none")(target)
    assert torch.equal(y.summary, target.summary)
    assert torch.equal(y.patches, target.patches)
    assert torch.equal(y.registers, target.registers)


@pytest.mark.parametrize("method", ["phi_s", "scale"])
@pytest.mark.parametrize("kinds", [[], ["summary"], ["patches"], ["summary", "patches"]], ids=str)
def test_kinds_that_are_not_standardised_keep_their_own_space(method, kinds, caplog):
    target = Target(skewed(50, 12), skewed(90, 20, seed=1), skewed(100, 12, seed=2).view(50, 2, 12))
    y, whole = fitted(target, method, kinds=kinds)(target), fitted(target, method)(target)
    for kind in ALL:
        assert torch.equal(getattr(y, kind), getattr(whole if kind in kinds else target, kind))
    assert not caplog.records


def test_registers_keep_their_own_space_by_default():
    """AMoE, sections 3.2 and 6: no PHI-S for any register."""
    assert TeacherRecipe(encoder="descriptor").kinds == ["summary", "patches"]
    assert TeacherRecipe(encoder="descriptor", standardise="none").kinds == []


def test_moments_of_a_kind_come_from_its_own_images(stage_of):
    """With {summary: 20, patches: 30}, 20 summaries and the patches of as many images as have 30 patches."""
    both = stage_of({"summary": 20, "patches": 30})
    images, few = stage_of(20), stage_of(both[1])
    assert both[1] < 20
    assert torch.equal(both[0].summary.mean, images[0].summary.mean)
    assert torch.equal(both[0].patches.mean, few[0].patches.mean)
    assert torch.equal(both[0].patches.scale, few[0].patches.scale)
    assert not torch.allclose(images[0].patches.mean, few[0].patches.mean)


@pytest.fixture
def stage_of(values, dataset):
    """Standardisers fitted with these `standardise_samples`, and the images whose patches counted."""
    encoder = "timm:vit_tiny_patch16_224?depth=1&embed_dim=12&num_heads=1&random=1"
    values["teachers"] = [{"encoder": encoder, "name": "t"}]

    def fit(samples):
        values["train"]["standardise_samples"] = samples
        context = StageContext.of(parse_recipe(values, "test"), dataset, ALONE)
        rows, only = context._standardise_rows()
        return context.fit_standardisers()[0], len(only.get("patches", rows))

    return fit


@pytest.mark.parametrize("method", ["phi_s", "scale"])
def test_registers_are_centred_one_by_one_and_never_rotated(method):
    registers = randn(40, 2, 4) * 7.0 + torch.tensor([100.0, -100.0])[:, None]
    standardisers = fitted(Target(randn(40, 4), None, registers), method)
    y = standardisers(Target(randn(40, 4), None, registers)).registers
    assert standardisers.registers.rotation is None
    assert torch.allclose(y.mean(0), torch.zeros(2, 4, dtype=y.dtype), atol=1e-9)
    assert y.var(0, unbiased=False).mean().item() == pytest.approx(1.0)
    assert TargetStandardiser.of(standardisers.state()).registers.mean.shape == (2, 4)


def test_precision_is_kept_under_autocast():
    x = skewed(50, 12).float()
    standardisers = fitted(Target(x.double()))
    with torch.autocast("cpu", torch.bfloat16):
        y = standardisers.summary(x)
    assert torch.equal(y, standardisers.summary(x))


@pytest.mark.parametrize("dim", [729, 100, 92, 18])
def test_a_dimension_without_a_hadamard_matrix_is_an_error_before_data_is_read(dim, recipe):
    timm = f"timm:vit_tiny_patch16_224?depth=1&embed_dim={dim}&num_heads=1&random=1"
    teacher = TeacherRecipe(encoder=timm, name="t")
    with pytest.raises(RecipeError, match=rf"'t' has a summary of {dim} dimensions.* standardise: scale") as error:
        Teachers.of(recipe.model_copy(update={"teachers": [teacher]}), ALONE.device)
    assert "\n" not in str(error.value)
    scaled = recipe.model_copy(update={"teachers": [teacher.model_copy(update={"standardise": "scale"})]})
    assert Teachers.of(scaled, ALONE.device).shapes[0].summary == dim


@pytest.mark.parametrize(
    ("encoder", "kind", "message"),
    [("descriptor", "patches", "has no patch features"), ("tiny", "registers", "has no registers, or not as many")],
)
def test_a_weight_for_features_that_a_teacher_does_not_have(encoder, kind, message, recipe):
    teacher = TeacherRecipe(encoder=encoder, name="t", **{kind: {"weight": 2.0}})
    with pytest.raises(RecipeError, match=rf"'t' {message}.*, so {kind}\.weight 2 has no effect; leave it out"):
        Teachers.of(recipe.model_copy(update={"teachers": [teacher]}), ALONE.device)


def perturbed(matrix, seed):
    """The matrix with other last bits, as from another order of summation; still symmetric."""
    return matrix + matrix.abs().max() * 2e-16 * (lambda x: x + x.T)(randn(*matrix.shape, seed=seed))


@pytest.mark.parametrize("case", ["few", "equal", "many", "constant", "doubled"])
def test_the_rotation_hardly_depends_on_the_last_bits_of_sums(case):
    """Targets agree with fewer samples than dimensions, with equal eigenvalues, and with many samples."""
    x = {
        "few": skewed(16, 64),
        "equal": torch.eye(64, dtype=torch.float64).repeat(3, 1),
        "many": randn(500, 64) @ torch.diag(torch.logspace(-4, 0, 64, dtype=torch.float64)),
        "constant": torch.ones(9, 64, dtype=torch.float64),
        "doubled": randn(16, 32).repeat(1, 2),
    }[case]
    deviation = x - x.mean(0)
    covariance = deviation.T @ deviation / len(x)
    others = x[0] + randn(40, 64, seed=5) * covariance.diagonal().max().sqrt()
    vectors = eigenvectors(covariance)
    assert torch.allclose(vectors.T @ vectors, torch.eye(64, dtype=torch.float64), atol=1e-12)
    scale = covariance.diagonal().mean().sqrt().clamp(min=1e-300)
    inside = vectors.T @ covariance @ vectors / scale**2 if case != "constant" else torch.eye(64)
    assert torch.allclose(inside, torch.diag(inside.diagonal()).to(inside), atol=1e-7)
    for seed in range(3):
        again = eigenvectors(perturbed(covariance, seed))
        assert torch.allclose(others @ again, others @ vectors, atol=1e-6 * float(others.norm(dim=1).mean()))


def test_the_order_of_few_images_does_not_change_targets():
    few, others = skewed(16, 64), skewed(50, 64, seed=5)
    one = fitted(Target(few))
    for seed, parts in ((1, 3), (2, 5)):
        order = torch.randperm(16, generator=torch.Generator().manual_seed(seed))
        again = fitted(Target(few[order]), parts=parts)
        assert torch.allclose(again.summary(others), one.summary(others), atol=1e-6)


def test_no_readable_image_is_one_line_on_every_rank():
    teachers = TargetsAsBatch({"t": ShapeOnly(Shape(12))})
    skipped = [Skipped(1, "shard_missing", "shard_missing: a.tar"), Skipped(2, "corrupt", "corrupt: x")]
    with pytest.raises(InputError, match=r"none of the 3 images .* \(corrupt 2, shard_missing 1; such as shard_miss"):
        fit_standardisers(teachers, [TeacherRecipe(encoder="t")], [([], skipped), ([], skipped[1:])], ALONE)


def test_kept_features_do_not_keep_the_batch_in_memory():
    batch = torch.zeros(10, 8)
    kept = TeacherFeatures(batch[0]).copy_to_cpu()
    assert kept.summary.untyped_storage().nbytes() == 32
