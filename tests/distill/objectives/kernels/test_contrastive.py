import math

import pytest
import torch
from pydantic import ValidationError
from torch import nn
from torch.nn.functional import normalize

from curate.encoders.student.network.text import MAX_SCALE, limit_scale, scale_at
from distill.objectives.contrastive import Contrastive
from distill.objectives.kernels.contrastive import contrastive_loss, kl_loss, numbered, same, scaled, softmax_loss
from distill.recipe.recipe import semantic

torch.manual_seed(0)
N, D = 6, 8
IMAGES, TEXTS = torch.randn(N, D, dtype=torch.float64), torch.randn(N, D, dtype=torch.float64)
SCALE, BIAS = torch.tensor(math.log(5.0), dtype=torch.float64), torch.tensor(-2.0, dtype=torch.float64)
APART = torch.arange(N)[:, None]


def cosines() -> torch.Tensor:
    return normalize(IMAGES, dim=-1) @ normalize(TEXTS, dim=-1).T


def test_softmax_by_hand():
    total = 0.0
    logits = 5.0 * cosines()
    for i in range(N):
        total += math.log(sum(math.exp(logits[i, j]) for j in range(N))) - logits[i, i]
        total += math.log(sum(math.exp(logits[j, i]) for j in range(N))) - logits[i, i]
    loss = contrastive_loss(IMAGES, TEXTS, SCALE, None, Contrastive(), APART)
    assert loss.item() == pytest.approx(float(total) / (2 * N), abs=1e-12)


def test_sigmoid_by_hand():
    logits = 5.0 * cosines() - 2.0
    total = sum(math.log1p(math.exp(-logits[i, j] * (1 if i == j else -1))) for i in range(N) for j in range(N))
    loss = contrastive_loss(IMAGES, TEXTS, SCALE, BIAS, Contrastive(loss="sigmoid"), APART)
    assert loss.item() == pytest.approx(total / N, abs=1e-12)


def test_smoothing_equals_torchs_if_no_pair_is_left_out():
    labels, logits = torch.arange(N), 5.0 * cosines()
    expected = sum(torch.nn.functional.cross_entropy(x, labels, label_smoothing=0.2) for x in (logits, logits.T)) / 2
    assert softmax_loss(scaled(IMAGES, 5.0), scaled(TEXTS), smoothing=0.2).item() == pytest.approx(
        expected.item(), abs=1e-12
    )


@pytest.mark.parametrize(("loss", "smoothing"), [("softmax", 0.0), ("softmax", 0.1), ("sigmoid", 0.0)])
def test_samples_with_equal_texts_or_images_are_not_negatives(loss, smoothing):
    recipe = Contrastive(loss=loss, smoothing=smoothing)
    groups = torch.tensor([[0, 7], [0, -1], [1, -1], [2, 7], [3, -1], [4, -1]])
    images = IMAGES.clone().requires_grad_()
    texts = TEXTS.clone().requires_grad_()
    contrastive_loss(images, texts, SCALE, BIAS, recipe, groups).backward()

    def gradient_of(i: int, j: int) -> torch.Tensor:
        """Gradient of image i when text j changes."""
        moved = TEXTS.clone()
        moved[j] += torch.randn(D, dtype=torch.float64)
        other = IMAGES.clone().requires_grad_()
        return torch.autograd.grad(contrastive_loss(other, moved, SCALE, BIAS, recipe, groups), other)[0][i]

    assert torch.isfinite(images.grad).all() and torch.isfinite(texts.grad).all()
    if loss == "sigmoid":  # rows are independent: a pair that is left out has no influence
        assert torch.equal(gradient_of(0, 1), images.grad[0]) and torch.equal(gradient_of(0, 3), images.grad[0])
        assert not torch.equal(gradient_of(0, 2), images.grad[0])
    elif not smoothing:
        whole = contrastive_loss(IMAGES, TEXTS, SCALE, BIAS, recipe, APART)
        assert contrastive_loss(IMAGES, TEXTS, SCALE, BIAS, recipe, groups) < whole


def alike(groups: torch.Tensor, side: int = 0) -> list[list[int]]:
    return same(numbered(groups), numbered(groups), side).nonzero().tolist()


def test_same():
    assert alike(torch.tensor([[0, 5], [0, 6], [-1, 5], [-1, -1], [-1, -1]])) == [[0, 1], [0, 2], [1, 0], [2, 0]]


def test_a_text_is_not_a_negative_of_an_image_that_has_it():
    """Texts of both sides: the image's sample may have the text on either side. Duplicate sets are the last column."""
    groups = torch.tensor([[0, 1, 9], [0, 2, 8], [3, 1, 7], [1, 5, 6], [4, 6, 9]])
    assert alike(groups, 0) == [[0, 1], [0, 3], [0, 4], [1, 0], [2, 3], [4, 0]]
    assert alike(groups, 1) == [[0, 2], [0, 4], [2, 0], [3, 0], [3, 2], [4, 0]]


@pytest.mark.parametrize("loss", ["softmax", "sigmoid"])
def test_two_texts_count_one_to_one(loss):
    recipe, others = Contrastive(loss=loss), torch.randn(N, D, dtype=torch.float64)
    groups = torch.stack([torch.arange(N), torch.arange(N) + N, torch.arange(N) + 2 * N], 1)
    found = contrastive_loss(IMAGES, torch.stack([TEXTS, others], 1), SCALE, BIAS, recipe, groups)
    alone = [contrastive_loss(IMAGES, texts, SCALE, BIAS, recipe, APART) for texts in (TEXTS, others)]
    assert found.item() == pytest.approx(sum(alone).item() / 2, rel=1e-12)
    assert contrastive_loss(IMAGES[:0], TEXTS[:0, None].repeat(1, 2, 1), SCALE, BIAS, recipe, groups[:0]) == 0


def test_the_texts_of_one_sample_are_not_compared():
    """The gradient of a text does not depend on the sample's other text."""
    groups = torch.stack([torch.arange(N), torch.arange(N) + N, torch.arange(N) + 2 * N], 1)

    def gradient(others: torch.Tensor) -> torch.Tensor:
        texts = torch.stack([TEXTS, others], 1).requires_grad_()
        contrastive_loss(IMAGES, texts, SCALE, None, Contrastive(), groups).backward()
        return texts.grad[:, 0]

    assert torch.equal(gradient(TEXTS.flip(0)), gradient(IMAGES)) and gradient(TEXTS).abs().max() > 1e-3


def test_perfect_pairs_have_almost_no_loss():
    own = torch.eye(N, dtype=torch.float64)
    assert softmax_loss(scaled(own, 100.0), scaled(own)) < 1e-30


@pytest.mark.parametrize("loss", ["softmax", "sigmoid"])
def test_a_scale_at_its_bound_can_decrease(loss):
    """With texts unrelated to the images, the loss falls with the scale."""
    scale = torch.nn.Parameter(
        torch.tensor(math.log(MAX_SCALE) + 3.0, dtype=torch.float64)
    )  # beyond the bound after an update
    limit_scale(scale.detach())
    for _ in range(2):
        before = scale.item()
        assert before <= math.log(MAX_SCALE)
        scale.grad = None
        contrastive_loss(IMAGES, TEXTS, scale, BIAS, Contrastive(loss=loss), APART).backward()
        scale.data -= 0.01 * scale.grad
        assert scale.item() < before
    assert scale_at(1e-3).item() == pytest.approx(math.log(MAX_SCALE))


def test_the_sigmoid_loss_has_no_smoothing():
    with pytest.raises(ValidationError, match=r"smoothing 0\.1 requires loss: softmax, not sigmoid; remove one"):
        Contrastive(loss="sigmoid", smoothing=0.1)


@pytest.mark.parametrize("loss", ["softmax", "sigmoid"])
def test_the_gradient_equals_the_finite_difference(loss):
    recipe = Contrastive(loss=loss, smoothing=0.1 if loss == "softmax" else 0.0)
    groups = torch.tensor([[0], [0], [1], [2], [3], [4]])
    images, direction = IMAGES.clone().requires_grad_(), torch.randn(N, D, dtype=torch.float64)
    contrastive_loss(images, TEXTS, SCALE, BIAS, recipe, groups).backward()
    step = 1e-6 * direction
    above, below = (contrastive_loss(IMAGES + sign * step, TEXTS, SCALE, BIAS, recipe, groups) for sign in (1, -1))
    assert ((above - below) / 2e-6).item() == pytest.approx((images.grad * direction).sum().item(), rel=1e-6)


def test_with_all_negatives_groups_have_no_influence():
    groups, plain = torch.zeros(N, 2, dtype=torch.int64), Contrastive()
    student = nn.Module()
    student.logit_scale, student.logit_bias = SCALE, BIAS
    every = Contrastive(negatives="all").pairs(student, IMAGES, TEXTS, groups)
    assert every == plain.pairs(student, IMAGES, TEXTS, APART) and every > plain.pairs(student, IMAGES, TEXTS, groups)
    assert semantic(plain) == semantic(Contrastive(negatives="distinct")) and "negatives" not in semantic(plain)


def test_the_divergence_is_zero_for_equal_distributions_and_sharpens_with_the_teachers_scale():
    scale = SCALE.clone().requires_grad_()
    own = normalize(IMAGES, dim=-1), normalize(TEXTS, dim=-1)
    loss = kl_loss(IMAGES, TEXTS, scale, (*own, 5.0))
    loss.backward()
    assert loss.item() == pytest.approx(0.0, abs=1e-14) and scale.grad.item() == pytest.approx(0.0, abs=1e-14)
    kl_loss(IMAGES, TEXTS, scale, (*own, 10.0)).backward()
    assert scale.grad < -1e-3  # gradient descent raises the student's scale
