from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import silu

from curate.encoders.student.config import MoeConfig
from curate.encoders.student.network import moe as module
from curate.encoders.student.network.moe import Dispatch, Moe, looped, recomputation

WIDTH, HIDDEN = 16, 8


def layer(
    experts: int = 6, active: int = 2, dtype: torch.dtype = torch.float64, rate: float = 0.01, shared: int = 0
) -> Moe:
    """shared: more experts, of which each token visits one."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        sizes = {"experts": experts, "active": active, "shared": shared, "shared_active": min(shared, 1)}
        made = Moe(WIDTH, MoeConfig(**sizes, hidden=HIDDEN, balance_rate=rate))
        made.initialise()
    return made.to(dtype)


def tokens(count: int = 40, dtype: torch.dtype = torch.float64, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, WIDTH, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()


def by_hand(moe: Moe, x_NC: Tensor) -> Tensor:
    """The definition: each token through each of its experts, weighted by the raw sigmoid scores."""
    scores = torch.sigmoid(moe.router(x_NC))
    own, shared = (scores + moe.bias).split([moe.config.experts, moe.config.shared], dim=1)
    chosen = torch.cat(
        [
            own.argsort(dim=1, descending=True)[:, : moe.config.active],
            moe.config.experts + shared.argsort(dim=1, descending=True)[:, : moe.config.shared_active],
        ],
        dim=1,
    )
    out = []
    for x, score, experts in zip(x_NC, scores, chosen.tolist(), strict=True):
        total = torch.zeros_like(x)
        for expert in experts:
            gate, up = (moe.gate_up[expert] @ x).chunk(2)
            total = total + score[expert] * (moe.down[expert] @ (silu(gate) * up))
        out.append(total)
    return torch.stack(out)


def grads(moe: Moe, x: Tensor, y: Tensor) -> list[Tensor]:
    weights = torch.linspace(1, 2, y.numel(), dtype=y.dtype).view(y.shape)
    return [grad.double() for grad in torch.autograd.grad((y * weights).sum(), [x, *moe.parameters()])]


def only(moe: Moe, experts: Sequence[int]) -> Moe:
    """Route every token to these experts."""
    with torch.no_grad():
        moe.bias.fill_(-10.0)[list(experts)] = 0.0
    return moe


@pytest.mark.parametrize("kept", [range(6), [1, 4], [0, 5, 2]], ids=["all", "two", "three"])
def test_outputs_and_gradients_equal_the_definition(kept):
    moe, x = only(layer(), kept), tokens()
    ours, theirs = moe(x), by_hand(moe, x)
    assert torch.allclose(ours, theirs, atol=1e-12)
    for one, two in zip(grads(moe, x, ours), grads(moe, x, theirs), strict=True):
        assert torch.allclose(one, two, atol=1e-10)
    idle = set(range(6)) - set(kept)
    assert {expert for expert in range(6) if not moe.counts[expert]} >= idle


def test_shared_experts_are_chosen_and_balanced_apart_from_the_others():
    """Also for an expert whose score would be among the best of all."""
    moe, x = layer(shared=3), tokens()
    with torch.no_grad():
        moe.bias[6:] = torch.tensor([0.0, 2.0, -2.0])
    ours, theirs = moe(x), by_hand(moe, x)
    assert torch.allclose(ours, theirs, atol=1e-12)
    for one, two in zip(grads(moe, x, ours), grads(moe, x, theirs), strict=True):
        assert torch.allclose(one, two, atol=1e-10)
    assert moe.counts[:6].sum() == 80
    assert moe.counts[6:].tolist() == [0, 40, 0]
    before = moe.bias.clone()
    moe.balance(moe.counts)
    steps = (moe.bias - before)[6:] / moe.config.balance_rate
    assert torch.allclose(steps, torch.tensor([1.0, -1.0, 1.0]).double())
    moe.router.requires_grad_(False)
    before = moe.bias.clone()
    moe.balance(torch.arange(9))
    assert torch.equal(moe.bias, before)  # a frozen student is not changed


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 3e-2)])
@pytest.mark.parametrize("kept", [range(6), [1, 4]], ids=["all", "two"])
def test_grouped_products_equal_the_loop(monkeypatch, dtype, tolerance, kept):
    """The loop in float64 against torch's kernel in `dtype`, on the same rounded numbers; bfloat16 as on a CPU that has
    instructions for it."""
    assert module.grouped_mm is not None
    monkeypatch.setattr(module, "_cpu_has_bfloat16", lambda: True)
    moe, x = only(layer(dtype=dtype, shared=2), kept), tokens(dtype=dtype)
    exact, wide = only(layer(shared=2), kept), x.detach().double().requires_grad_()
    exact.load_state_dict(moe.state_dict())
    exact.forced = moe.route(x)[1]
    ours, theirs = moe(x), exact(wide)
    assert ours.dtype == dtype
    scale = theirs.detach().abs().max()
    assert torch.allclose(ours.double(), theirs, atol=float(tolerance * scale))
    for one, two in zip(grads(moe, x, ours), grads(exact, wide, theirs), strict=True):
        assert torch.allclose(one, two, atol=float(2 * tolerance * two.abs().max()))


def test_bfloat16_without_instructions_is_computed_in_32_bits(monkeypatch):
    monkeypatch.setattr(module, "_cpu_has_bfloat16", lambda: False)
    moe, x = layer(dtype=torch.float32), tokens(dtype=torch.float32)
    expected = moe(x)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(moe(x), expected)
    monkeypatch.setattr(module, "_cpu_has_bfloat16", lambda: True)
    with torch.autocast("cpu", torch.bfloat16):
        rounded = moe(x)
    assert 0 < (rounded - expected).abs().max() < 0.05 * expected.abs().max()


@settings(deadline=None)
@given(st.lists(st.integers(0, 9), min_size=5, max_size=5), st.integers(0, 2**31))
def test_the_loop_takes_any_number_of_rows(counts, seed):
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn(sum(counts), 3, generator=generator, dtype=torch.float64)
    weights = torch.randn(5, 2, 3, generator=generator, dtype=torch.float64)
    owner = torch.repeat_interleave(torch.arange(5), torch.tensor(counts))
    expected = torch.einsum("rc,rdc->rd", rows, weights[owner])
    ends = torch.tensor(counts).cumsum(0).int()
    assert torch.allclose(looped(rows, weights, ends), expected, atol=1e-12)


@given(st.integers(1, 30), st.integers(1, 4), st.integers(0, 2**31))
def test_every_token_gets_the_sum_of_its_experts(count, active, seed):
    generator = torch.Generator().manual_seed(seed)
    experts = torch.stack([torch.randperm(6, generator=generator)[:active] for _ in range(count)])
    sent, x = Dispatch.of(experts, 6), tokens(count, seed=seed % 1000)
    rows = sent.expand(x)
    assert sent.counts.tolist() == torch.bincount(experts.flatten(), minlength=6).tolist()
    owner = torch.repeat_interleave(torch.arange(6), sent.counts)
    assert owner.tolist() == experts.flatten()[sent.order].tolist()
    assert torch.allclose(sent.combine(rows), active * x)
    assert torch.allclose(torch.autograd.grad(rows.sum(), x)[0], torch.full_like(x, active))


def test_balancing_moves_loads_towards_equal():
    """Also for an expert without tokens at first."""
    moe, x = layer(experts=8, rate=0.02), tokens(800)
    with torch.no_grad():
        moe.bias[0], moe.bias[1] = 0.5, -0.5
    loads = []
    for _ in range(60):
        moe.balance(moe.counts)
        moe(x)
        loads.append(moe.counts.double() / moe.counts.double().mean())
    assert loads[0].max() > 3.0
    assert loads[0].min() == 0.0
    assert 0.7 < loads[-1].min() < loads[-1].max() < 1.3


def test_the_bias_chooses_but_does_not_weigh():
    moe, x = layer(active=6), tokens()
    before = moe(x)
    moe.bias += torch.randn(6, generator=torch.Generator().manual_seed(0)).double()
    assert torch.allclose(moe(x), before, atol=1e-12)


def test_tokens_are_counted_once_an_update():
    moe, x = layer(), tokens()
    moe(x)
    first = moe.counts.clone()
    assert first.sum() == 40 * 2
    with torch.no_grad():
        moe(x)
    with recomputation():
        moe(x)
    assert torch.equal(moe.counts, first)
    moe(x)
    assert torch.equal(moe.counts, 2 * first)
    moe.balance(moe.counts)
    assert not moe.counts.any()
    assert set(moe.state_dict()) == {"bias", "router.weight", "gate_up", "down"}


def test_zero_tokens():
    moe, x = layer(dtype=torch.float32), tokens(0, dtype=torch.float32)
    out = moe(x)
    out.sum().backward()
    assert out.shape == x.shape
    assert all(item.grad is not None and not item.grad.any() for item in moe.parameters())
