"""The mixture of experts against a loop over experts, and against a dense layer of as many FLOPs: one core, forward
and backward, one layer of AMoE's student (d 768, 28 experts of which 6, hidden 384) on 2,309 tokens.

The loop is the plain one: for each expert find its tokens, run a SwiGLU of nn.Linear in the number format, weigh, add.
Much depends on the CPU's bfloat16 instructions. Without them torch emulates the products, 20 times slower than
float32's, and our experts compute in float32 instead; the table also has the same layers in float32, for one round.

    python -m bench.distill.moe [ROUNDS]
"""

from __future__ import annotations

import statistics
import sys
import time

import torch
from torch import Tensor, nn

from bench.kit.measure import line, machine
from curate.encoders.student.config import MoeConfig
from curate.encoders.student.network.layers import SwiGLU
from curate.encoders.student.network.moe import Moe, _cpu_has_bfloat16

WIDTH, TOKENS, CONFIG = 768, 2309, MoeConfig(experts=28, active=6, hidden=384)


class Loop(nn.Module):
    """The same experts with the same weights, one at a time."""

    def __init__(self, moe: Moe) -> None:
        super().__init__()
        self.moe = moe
        experts = [SwiGLU(WIDTH, CONFIG.hidden) for _ in range(CONFIG.experts)]
        self.experts = nn.ModuleList(experts)
        for number, expert in enumerate(experts):
            expert.gate_up.weight = nn.Parameter(moe.gate_up[number].detach().clone())
            expert.down.weight = nn.Parameter(moe.down[number].detach().clone())

    def forward(self, x_NC: Tensor) -> Tensor:
        scores, chosen = self.moe.route(x_NC)
        out = torch.zeros_like(x_NC)
        for number, expert in enumerate(self.experts):
            rows = (chosen == number).any(dim=1).nonzero().squeeze(1)
            out = out.index_add(0, rows, expert(x_NC[rows]) * scores[rows, number, None].to(x_NC.dtype))
        return out


def cost(layer: nn.Module, x: Tensor) -> float:
    """CPU seconds of a forward and backward pass."""
    began = time.process_time()
    layer(x).float().square().mean().backward()
    took = time.process_time() - began
    layer.zero_grad()
    return took


def compare(dtype: torch.dtype, rounds: int) -> None:
    torch.manual_seed(0)
    moe = Moe(WIDTH, CONFIG)
    moe.initialise()
    dense = SwiGLU(WIDTH, CONFIG.active * CONFIG.hidden)
    layers: dict[str, nn.Module] = {"grouped": moe, "loop over experts": Loop(moe), "dense of equal FLOPs": dense}
    x = torch.randn(TOKENS, WIDTH).to(dtype).requires_grad_()
    for layer in layers.values():
        layer.to(dtype)
    with torch.no_grad():
        expected, actual = layers["loop over experts"](x).float(), moe(x).float()
        assert (actual - expected).abs().max() < 0.03 * expected.abs().max(), "grouped differs from the loop"
    costs: dict[str, list[float]] = {name: [] for name in layers}
    for _ in range(rounds):
        for name, layer in layers.items():
            costs[name].append(cost(layer, x))
    kind = str(dtype).removeprefix("torch.")
    for name, times in costs.items():
        line(f"{kind}: {name}", f"{1e3 * statistics.median(times):,.0f} ms", f"{rounds} rounds")
    ratio(f"{kind}: loop over grouped", costs["loop over experts"], costs["grouped"])
    ratio(f"{kind}: grouped over dense", costs["grouped"], costs["dense of equal FLOPs"])


def ratio(name: str, above: list[float], below: list[float]) -> None:
    ratios = [one / other for one, other in zip(above, below, strict=True)]
    line(name, f"{statistics.median(ratios):.2f}x", f"{min(ratios):.2f} to {max(ratios):.2f}")


def main(rounds: int = 5) -> None:
    torch.set_num_threads(1)
    line(machine(), "", f"bfloat16 products {'native' if _cpu_has_bfloat16() else 'emulated'}")
    compare(torch.float32, rounds)
    compare(torch.bfloat16, rounds if _cpu_has_bfloat16() else 1)


if __name__ == "__main__":
    main(*(int(value) for value in sys.argv[1:]))
