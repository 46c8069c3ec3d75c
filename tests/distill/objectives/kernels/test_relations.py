import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from distill.objectives.kernels import relations
from distill.objectives.kernels.relations import arkd, distance, mean_and_median, rkd


def randn(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def matrix(x):
    """All distances, from differences."""
    return (x[:, None] - x[None]).norm(dim=-1)


def huber(x):
    return torch.where(x.abs() < 1, x.square() / 2, x.abs() - 0.5)


def off_diagonal(x):
    return x[~torch.eye(len(x), dtype=torch.bool)]


@given(st.integers(2, 12), st.integers(1, 6), st.floats(-1e4, 1e4))
def test_distances_are_those_of_differences_however_far_from_zero(count, width, centre):
    x = randn(count, width)
    for vectors, expected in ((x + centre, matrix(x)), ((near := (x + 100.0).float()), matrix(near.double()))):
        assert torch.allclose(distance(vectors)(vectors, vectors), expected, rtol=1e-6, atol=1e-6)


def reference(loss, student, teacher):
    """AMoE, Eq. 7, or Park et al., Eqs. 5 and 6, with full matrices: each pair counts twice in sum and number."""
    own, wanted = off_diagonal(matrix(student)), off_diagonal(matrix(teacher))
    if loss is rkd:
        return huber(own / own.mean() - wanted / wanted.mean()).mean()
    own, wanted = own / wanted.mean(), wanted / wanted.mean()
    near = wanted < wanted.median()
    return huber(torch.where(near, (own - wanted).clamp(min=0), (wanted - own).clamp(min=0))).mean()


@pytest.mark.parametrize("loss", [arkd, rkd])
def test_values_and_gradients_are_those_of_the_papers(loss):
    teacher = randn(7, 4, seed=1)
    student, again = (2.0 * randn(7, 4)).requires_grad_(), (2.0 * randn(7, 4)).requires_grad_()
    value, expected = loss(student, teacher), reference(loss, again, teacher)
    value.backward()
    expected.backward()
    assert value.item() == pytest.approx(expected.item(), rel=1e-9)
    assert torch.allclose(student.grad, again.grad, rtol=1e-8, atol=1e-12)
    assert student.grad.abs().max() > 1e-3


def test_arkd_is_one_sided():
    """Three points on a line: a and b close, c far. The close pair may be closer, the far pairs further apart."""
    teacher = torch.tensor([[0.0], [1.0], [10.0]], dtype=torch.float64)
    assert arkd(teacher, teacher) == 0
    assert arkd(torch.tensor([[0.0], [0.1], [20.0]], dtype=torch.float64), teacher) == 0
    assert arkd(torch.tensor([[0.0], [2.0], [20.0]], dtype=torch.float64), teacher) > 0
    assert arkd(torch.tensor([[0.0], [0.5], [5.0]], dtype=torch.float64), teacher) > 0
    student = torch.tensor([[0.0], [2.0], [20.0]], dtype=torch.float64, requires_grad=True)
    arkd(student, teacher).backward()
    assert student.grad[0] < 0 < student.grad[1]  # gradient descent moves them together
    assert student.grad[2] == 0


@pytest.mark.parametrize("digits", [-4, 4])
def test_the_pair_of_the_median_keeps_its_side_if_last_digits_differ(monkeypatch, digits):
    """As they do between tiles of different sizes, on some processors. The pair is one of three."""
    student, teacher = randn(3, 5), randn(3, 5, seed=1)
    expected = arkd(student, teacher)

    def rounded(of, x):
        mean, median = mean_and_median(of, x)
        return mean, median * (1 + digits * torch.finfo(median.dtype).eps)

    monkeypatch.setattr(relations, "mean_and_median", rounded)
    assert torch.equal(arkd(student, teacher), expected)


def test_rkd_is_invariant_under_scale():
    student, teacher = randn(7, 4), randn(7, 4, seed=1)
    assert rkd(5.0 * student, teacher).item() == pytest.approx(rkd(student, teacher).item(), rel=1e-9)
    assert rkd(3.0 * teacher, teacher).item() == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize("loss", [arkd, rkd])
@pytest.mark.parametrize("count", [0, 1])
def test_without_pairs_the_loss_and_its_gradient_are_zero(loss, count):
    student = randn(count, 3).requires_grad_()
    value = loss(student, randn(count, 3))
    value.backward()
    assert value == 0
    assert torch.equal(student.grad, torch.zeros(count, 3, dtype=student.dtype))


@pytest.mark.parametrize("loss", [arkd, rkd])
@pytest.mark.parametrize("same", ["student", "teacher", "both", "a pair"])
def test_equal_vectors_give_finite_gradients(loss, same):
    student, teacher = randn(6, 3), randn(6, 3, seed=1)
    if same == "a pair":
        student[1], teacher[1] = student[0], teacher[0]
    for name, side in (("student", student), ("teacher", teacher)):
        if same in (name, "both"):
            side[:] = side[0].clone()
    student.requires_grad_()
    value = loss(student, teacher)
    value.backward()
    assert value.isfinite()
    assert student.grad.isfinite().all()


@pytest.mark.parametrize("loss", [arkd, rkd])
@pytest.mark.parametrize("value", [float("nan"), float("-inf")])
def test_vectors_that_are_not_finite_give_such_a_loss(loss, value):
    for place in (0, 1):
        sides = [randn(6, 3), randn(6, 3, seed=1)]
        sides[place][4, 1] = value
        assert not loss(*sides).isfinite()


@pytest.mark.parametrize("loss", [arkd, rkd])
def test_the_order_of_images_does_not_matter_and_precision_survives_autocast(loss):
    student, teacher = randn(9, 5).float(), randn(9, 5, seed=1).float()
    value = loss(student, teacher)
    order = torch.randperm(9, generator=torch.Generator().manual_seed(0))
    assert loss(student[order], teacher[order]).item() == pytest.approx(value.item(), rel=1e-9)
    with torch.autocast("cpu", torch.bfloat16):
        assert loss(student, teacher) == value
