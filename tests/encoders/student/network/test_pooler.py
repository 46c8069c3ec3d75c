import pytest
import torch
from timm.layers import AttentionPoolLatent
from torch import nn

from curate.encoders.student.network.pooler import FrozenPooler

LENGTHS = [3, 3, 1, 5]


@pytest.fixture
def module() -> nn.Module:
    torch.manual_seed(0)
    return AttentionPoolLatent(8, num_heads=2, mlp_ratio=2.0, norm_layer=nn.LayerNorm).double()


def tokens() -> torch.Tensor:
    return torch.randn(12, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).requires_grad_()


def test_packed_patches_are_pooled_image_by_image(module):
    x, pooler = tokens(), FrozenPooler(module)
    expected = torch.cat([module(part[None]) for part in x.split(LENGTHS)])
    found = pooler(x, LENGTHS)
    assert torch.allclose(found, expected, atol=1e-12)
    weights = torch.linspace(1, 2, 8, dtype=torch.float64)
    ours, theirs = (torch.autograd.grad((out.sin() * weights).sum(), x)[0] for out in (found, expected))
    assert torch.allclose(ours, theirs, atol=1e-12)
    assert ours.abs().sum(1).gt(0).all()


def test_padding_does_not_change_the_result(module):
    x, pooler = tokens(), FrozenPooler(module)
    padded = nn.utils.rnn.pad_sequence(list(x.split(LENGTHS)), batch_first=True, padding_value=3.0)
    assert torch.allclose(pooler._padded(padded, LENGTHS), pooler(x, LENGTHS), atol=1e-12)


def test_a_bias_counts_a_token_as_several_equal_ones(module):
    x, pooler, repeats = tokens(), FrozenPooler(module), torch.tensor([1, 2, 1] * 4)
    expected = pooler(x.repeat_interleave(repeats, 0), [4, 4, 1, 7])
    bias = repeats.double().log()
    assert torch.allclose(pooler(x, LENGTHS, bias), expected, atol=1e-12)
    padded = [nn.utils.rnn.pad_sequence(list(y.split(LENGTHS)), batch_first=True) for y in (x, bias)]
    assert torch.allclose(pooler._padded(padded[0], LENGTHS, padded[1]), expected, atol=1e-12)


def test_its_weights_are_a_frozen_copy(module):
    pooler = FrozenPooler(module).train()
    assert not pooler.module.training
    assert not any(item.requires_grad for item in pooler.parameters())
    before = pooler(tokens(), LENGTHS)
    assert before.requires_grad
    with torch.no_grad():
        module.latent += 1.0
    assert torch.equal(pooler(tokens(), LENGTHS), before)


def test_zero_images(module):
    x = torch.zeros(0, 8, dtype=torch.float64, requires_grad=True)
    found = FrozenPooler(module)(x, [])
    assert found.shape == (0, 8)
    found.sum().backward()
    assert x.grad is not None
