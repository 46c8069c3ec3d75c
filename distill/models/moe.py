"""A mixture of SwiGLU experts that drops no token: sigmoid router, top-k, grouped matrix products, no balancing loss.

A token goes to the experts of largest score + bias; its output is the sum of theirs, weighted by the raw scores (not
renormalised: AMoE). The bias is no parameter: after each update it moves by a fixed step towards equal loads (loss-free
balancing, Wang et al. 2024), from counts summed over ranks, so that ranks stay alike.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding_bag, silu

try:
    from torch.nn.functional import grouped_mm
except ImportError:  # torch < 2.13
    grouped_mm = None


@dataclass(frozen=True)
class MoeConfig:
    experts: int
    active: int
    hidden: int
    """Hidden width of an expert; a multiple of 8, as the model's width, since grouped products want 16-byte strides."""
    balance_rate: float = 1e-3


class Moe(nn.Module):
    """(tokens, width) -> (tokens, width)."""

    bias: Tensor
    """Added to the scores for choosing (experts,)."""
    counts: Tensor
    """Tokens of each expert in forwards with gradients since the last `balance`, (experts,)."""

    def __init__(self, width: int, config: MoeConfig) -> None:
        super().__init__()
        self.config = config
        self.router = nn.Linear(width, config.experts, bias=False)
        self.gate_up = nn.Parameter(torch.empty(config.experts, 2 * config.hidden, width))
        self.down = nn.Parameter(torch.empty(config.experts, width, config.hidden))
        self.register_buffer("bias", torch.zeros(config.experts))
        self.register_buffer("counts", torch.zeros(config.experts, dtype=torch.int64), persistent=False)
        self.routing: list[Tensor] | None = None
        """While routing is recorded: the experts of the tokens of each forward (tokens, active)."""
        self.forced: Tensor | None = None
        """While routing is replayed: the experts to go to."""

    def initialise(self) -> None:
        """As if the experts of a token were one dense MLP: its second layer has active x hidden inputs."""
        width, hidden = self.down.shape[1:]
        nn.init.trunc_normal_(self.router.weight, std=0.5 * width**-0.5)
        nn.init.trunc_normal_(self.gate_up, std=width**-0.5)
        nn.init.trunc_normal_(self.down, std=(hidden * self.config.active) ** -0.5)

    def forward(self, x_NC: Tensor) -> Tensor:
        scores, experts = self.route(x_NC)
        sent = Dispatch.of(experts, self.config.experts)
        if torch.is_grad_enabled() and not _again.now:
            with torch.no_grad():
                self.counts += sent.counts
        dtype = _product_dtype(x_NC)
        inner = _grouped(sent.expand(x_NC.to(dtype)), self.gate_up.to(dtype), sent.ends)
        gate, up = inner.chunk(2, dim=-1)
        weight = scores.gather(1, experts).flatten().index_select(0, sent.order).to(dtype)
        outer = _grouped(silu(gate) * up * weight[:, None], self.down.to(dtype), sent.ends)
        return sent.combine(outer).to(x_NC.dtype)

    def route(self, x_NC: Tensor) -> tuple[Tensor, Tensor]:
        """Scores (tokens, experts) in at least 32 bits, and the chosen experts (tokens, active)."""
        with torch.autocast(x_NC.device.type, enabled=False):
            wide = torch.promote_types(x_NC.dtype, torch.float32)
            scores = torch.sigmoid(x_NC.to(wide) @ self.router.weight.to(wide).T)
        if self.forced is not None:
            experts = self.forced
        else:
            experts = (scores.detach() + self.bias.to(wide)).topk(self.config.active, dim=-1, sorted=False).indices
        if self.routing is not None:
            self.routing.append(experts)
        return scores, experts

    @torch.no_grad()
    def balance(self, counts: Tensor) -> None:
        """counts (experts,): tokens of each expert in the update, over all ranks."""
        counts = counts.to(self.bias)
        self.bias += self.config.balance_rate * torch.sign(counts.mean() - counts)
        self.counts.zero_()


@dataclass(frozen=True)
class Dispatch:
    """Copies of the tokens, one for each of their experts, in the experts' order."""

    order: Tensor
    """(tokens * active,): which of the flat (token, choice) comes at each place."""
    back: Tensor
    """(tokens, active): its inverse."""
    ends: Tensor
    """(experts,) int32: where each expert's rows end."""

    @classmethod
    def of(cls, experts: Tensor, count: int) -> Dispatch:
        """experts (tokens, active): of each token."""
        ranked, order = experts.flatten().sort(stable=True)
        ends = torch.searchsorted(ranked, torch.arange(count, device=ranked.device), right=True, out_int32=True)
        back = torch.empty_like(order).scatter_(0, order, torch.arange(len(order), device=order.device))
        return cls(order, back.view(experts.shape), ends)

    @property
    def counts(self) -> Tensor:
        return self.ends.diff(prepend=self.ends.new_zeros(1)).long()

    def expand(self, x_NC: Tensor) -> Tensor:
        """Rows for the experts (tokens * active, C)."""
        return _Expand.apply(x_NC, self.order // self.back.shape[1], self.back)

    def combine(self, y_RC: Tensor) -> Tensor:
        """The experts' rows, added up for each token (tokens, C)."""
        return _Combine.apply(y_RC, self.order // self.back.shape[1], self.back)


class _Expand(torch.autograd.Function):
    """A gather whose gradient is a gather too: no scattered additions, so the same bits each time on any device."""

    @staticmethod
    def forward(ctx, x_NC: Tensor, token: Tensor, back: Tensor) -> Tensor:  # type: ignore[override]
        ctx.save_for_backward(back)
        return x_NC.index_select(0, token)

    @staticmethod
    def backward(ctx, grad_RC: Tensor) -> tuple[Tensor, None, None]:  # type: ignore[override]
        return _sum_rows(grad_RC, *ctx.saved_tensors), None, None


class _Combine(torch.autograd.Function):
    @staticmethod
    def forward(ctx, y_RC: Tensor, token: Tensor, back: Tensor) -> Tensor:  # type: ignore[override]
        ctx.save_for_backward(token)
        return _sum_rows(y_RC, back)

    @staticmethod
    def backward(ctx, grad_NC: Tensor) -> tuple[Tensor, None, None]:  # type: ignore[override]
        return grad_NC.index_select(0, *ctx.saved_tensors), None, None


def _sum_rows(rows_RC: Tensor, places_NK: Tensor) -> Tensor:
    """Sums of K rows each (N, C), accumulated in 32 bits or more, without the (N, K, C) between."""
    return embedding_bag(places_NK, rows_RC, mode="sum")


def _grouped(x_RC: Tensor, weights_EDC: Tensor, ends: Tensor) -> Tensor:
    """Rows of expert e, up to ends[e], times its weights -> (R, D). All rows belong to an expert."""
    if grouped_mm is None or x_RC.dtype == torch.float64 or not len(x_RC):
        return looped(x_RC, weights_EDC, ends)
    return grouped_mm(x_RC, weights_EDC.transpose(1, 2), offs=ends)


def looped(x_RC: Tensor, weights_EDC: Tensor, ends: Tensor) -> Tensor:
    """The same, expert by expert: for float64, which grouped products do not know."""
    parts = x_RC.split(ends.diff(prepend=ends.new_zeros(1)).tolist())
    return torch.cat([part @ weight.T for part, weight in zip(parts, weights_EDC, strict=True)])


def _product_dtype(x: Tensor) -> torch.dtype:
    """Autocast's, which grouped products do not ask for. 32 bits on a CPU without instructions for 16: there the latter
    are emulated, and 20 times slower."""
    kind = x.device.type
    dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) and x.dtype != torch.float64 else x.dtype
    emulated = kind == "cpu" and dtype == torch.bfloat16 and not _cpu_has_bfloat16()
    return torch.float32 if emulated else dtype


@cache
def _cpu_has_bfloat16() -> bool:
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


class _Again:
    now = False
    """While activations are computed for the second time: tokens are not counted twice."""


_again = _Again()


@contextmanager
def again() -> Iterator[None]:
    """What runs inside has run before (activation checkpointing)."""
    before, _again.now = _again.now, True
    try:
        yield
    finally:
        _again.now = before
