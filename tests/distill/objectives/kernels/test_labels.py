import pytest
import torch
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

from distill.objectives.kernels.labels import label_losses, right

LABELS = [[2], [0, 3], [], [1, 2, 4]]


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_softmax_is_the_cross_entropy_of_1_of_k_for_each_label(smoothing):
    scores = torch.randn(4, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64, requires_grad=True)
    targets = torch.zeros(4, 5, dtype=torch.float64)
    for row, labels in enumerate(LABELS):
        targets[row, labels] = 1 / max(len(labels), 1)
    expected = cross_entropy(scores, targets, reduction="none", label_smoothing=smoothing)
    expected[2] = 0.0 * expected[2]
    losses = label_losses(scores, LABELS, "softmax", smoothing)
    assert torch.allclose(losses, expected, rtol=0, atol=1e-12)
    grads = (torch.autograd.grad(each.sum(), scores)[0] for each in (losses, expected))
    assert torch.allclose(*grads, rtol=0, atol=1e-12)


def test_sigmoid_is_the_mean_binary_cross_entropy():
    scores = torch.randn(4, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    targets = torch.zeros(4, 5, dtype=torch.float64)
    for row, labels in enumerate(LABELS):
        targets[row, labels] = 1
    expected = binary_cross_entropy_with_logits(scores, targets, reduction="none").mean(1)
    expected[2] = 0
    assert torch.allclose(label_losses(scores, LABELS, "sigmoid"), expected, rtol=0, atol=1e-12)


def test_an_image_is_right_if_its_best_class_is_one_of_its_labels():
    scores = torch.tensor([[0.0, 0, 9, 0, 0], [0, 0, 0, 9, 0], [9, 0, 0, 0, 0], [9, 0, 0, 0, 0]])
    assert right(scores, LABELS).tolist() == [1, 1, 0, 0]
    assert right(scores[:0], []).shape == label_losses(scores[:0], [], "softmax").shape == (0,)
