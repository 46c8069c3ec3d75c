import pytest
import torch

from curate.encoders.student.config import StudentConfig, TextConfig
from curate.encoders.student.network.student import build_student
from curate.encoders.student.network.text import PAD, TextTower
from distill.training.optim import parameter_groups

CONFIG = TextConfig(vocabulary=300, context=8, width=16, depth=2, heads=2)


@pytest.fixture(scope="module")
def tower() -> TextTower:
    torch.manual_seed(3)
    return TextTower(CONFIG, embed=12).double()


def padded(rows: list[list[int]], length: int) -> torch.Tensor:
    return torch.tensor([row + [PAD] * (length - len(row)) for row in rows])


def test_a_text_does_not_depend_on_its_neighbours_or_padding(tower):
    rows = [[5, 6, 7], [9], [11, 12, 13, 14, 15, 16, 17, 1]]
    together = tower(padded(rows, 8))
    for row, vector in zip(rows, together, strict=True):
        assert torch.allclose(tower(torch.tensor([row]))[0], vector, atol=1e-12)
    assert torch.allclose(tower(padded(rows[::-1], 8)).flip(0), together, atol=1e-12)


def test_gradients_do_not_depend_on_padding(tower):
    rows = [[5, 6, 7], [9, 3]]

    def gradient(tokens: torch.Tensor) -> torch.Tensor:
        tower.zero_grad()
        tower(tokens).square().sum().backward()
        return tower.tokens.weight.grad.clone()

    assert torch.allclose(gradient(padded(rows, 3)), gradient(padded(rows, 8)), atol=1e-12)
    assert gradient(padded(rows, 8))[PAD].abs().max() == 0


def test_the_order_of_words_matters(tower):
    a, b = tower(torch.tensor([[5, 6, 7], [7, 6, 5]]))
    assert (a - b).abs().max() > 1e-3


def test_a_student_with_a_text_tower_compares_images_and_texts():
    student = build_student(StudentConfig(patch=4, width=16, depth=1, heads=2, text=CONFIG, embed=12), [], 0)
    patches = torch.randint(0, 256, (2 * 4, 48), dtype=torch.uint8)
    images = student.project(student(patches, [(2, 2), (2, 2)]).summary)
    assert images.shape == student.text(torch.tensor([[5, 1], [6, 1]])).shape == (2, 12)
    assert student.logit_scale.exp().item() == pytest.approx(1 / 0.07)
    decayed = {id(item) for item in parameter_groups(student, 0.1)[0]["params"]}
    assert id(student.text.positions) not in decayed and id(student.logit_scale) not in decayed
    assert id(student.text.tokens.weight) in decayed
