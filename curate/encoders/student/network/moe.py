"""A mixture of SwiGLU experts that drops no token: sigmoid router, top-k, grouped matrix products, no balancing loss.

A token goes to the experts of largest score + bias; its output is the sum of theirs, weighted by the raw scores (not
renormalised: AMoE). The bias is not a parameter: after each update it moves by a fixed step towards equal loads
(loss-free balancing, Wang et al. 2024), from counts summed over ranks, so that all ranks agree.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx
from torch.nn import functional
from torch.nn.functional import embedding_bag, silu

from curate.encoders.student.config import MoeConfig

grouped_mm = getattr(functional, "grouped_mm", None)  # torch >= 2.13


class Moe(nn.Module):
    """(tokens, width) -> (tokens, width)."""

    bias: Tensor
    """Added to the scores when experts are chosen (experts,)."""
    counts: Tensor
    """Tokens per expert in forwards with gradients since the last `balance` (experts,)."""

    def __init__(self, width: int, config: MoeConfig) -> None:
        super().__init__()
        self.config = config
        self.experts = config.experts + config.shared
        """The shared ones are the last."""
        self.router = nn.Linear(width, self.experts, bias=False)
        self.gate_up = nn.Parameter(torch.empty(self.experts, 2 * config.hidden, width))
        self.down = nn.Parameter(torch.empty(self.experts, width, config.hidden))
        self.register_buffer("bias", torch.zeros(self.experts))
        self.register_buffer("counts", torch.zeros(self.experts, dtype=torch.int64), persistent=False)
        self.routing: list[Tensor] | None = None
        """Set to a list to record routing: each forward appends the experts of its tokens (tokens, active)."""
        self.forced: Tensor | None = None
        """Set to replay routing: the experts of the tokens (tokens, active)."""

    def initialise(self) -> None:
        """Like one dense MLP made of a token's experts, whose second layer has active x hidden inputs."""
        width, hidden = self.down.shape[1:]
        nn.init.trunc_normal_(self.router.weight, std=0.5 * width**-0.5)
        nn.init.trunc_normal_(self.gate_up, std=width**-0.5)
        nn.init.trunc_normal_(self.down, std=(hidden * (self.config.active + self.config.shared_active)) ** -0.5)

    def forward(self, x_NC: Tensor) -> Tensor:
        scores, experts = self.route(x_NC)
        dispatch = Dispatch.of(experts, self.experts)
        if torch.is_grad_enabled() and not _recomputation.running:
            with torch.no_grad():
                self.counts += dispatch.counts
        dtype = _product_dtype(x_NC)
        inner = _grouped(dispatch.expand(x_NC.to(dtype)), self.gate_up.to(dtype), dispatch.ends)
        gate, up = inner.chunk(2, dim=-1)
        weight = scores.gather(1, experts).flatten().index_select(0, dispatch.order).to(dtype)
        outer = _grouped(silu(gate) * up * weight[:, None], self.down.to(dtype), dispatch.ends)
        return dispatch.combine(outer).to(x_NC.dtype)

    def route(self, x_NC: Tensor) -> tuple[Tensor, Tensor]:
        """Scores (tokens, experts) in at least 32 bits, and the chosen experts (tokens, active)."""
        with torch.autocast(x_NC.device.type, enabled=False):
            wide = torch.promote_types(x_NC.dtype, torch.float32)
            scores = torch.sigmoid(x_NC.to(wide) @ self.router.weight.to(wide).T)
        if self.forced is not None:
            experts = self.forced
        else:
            experts = self._choose(scores.detach() + self.bias.to(wide))
        if self.routing is not None:
            self.routing.append(experts)
        return scores, experts

    def _choose(self, scores_NE: Tensor) -> Tensor:
        """The experts of the largest scores in each group (tokens, active)."""
        sizes, chosen, first = [size for size, _ in self.config.groups], list[Tensor](), 0
        for own, (size, active) in zip(scores_NE.split(sizes, dim=-1), self.config.groups, strict=True):
            chosen.append(own.topk(active, dim=-1, sorted=False).indices + first)
            first += size
        return torch.cat(chosen, dim=-1)

    @torch.no_grad()
    def balance(self, counts: Tensor) -> None:
        """counts (experts,): tokens per expert in the update, summed over ranks. A frozen router is unchanged."""
        counts = counts.to(self.bias)
        if self.router.weight.requires_grad:
            self.bias += self.config.balance_rate * torch.sign(self.means(counts) - counts)
        self.counts.zero_()

    def means(self, counts: Tensor) -> Tensor:
        """Mean tokens per expert of each expert's group (…, experts), for counts (…, experts)."""
        parts = counts.split([size for size, _ in self.config.groups], dim=-1)
        return torch.cat([part.mean(-1, keepdim=True).expand_as(part) for part in parts], dim=-1)


@dataclass(frozen=True)
class Dispatch:
    """Copies of the tokens, one per chosen expert, sorted by expert."""

    order: Tensor
    """(tokens * active,): the flat (token, choice) at each position."""
    back: Tensor
    """(tokens, active): the inverse of `order`."""
    ends: Tensor
    """(experts,) int32: end of each expert's rows."""

    @classmethod
    def of(cls, experts: Tensor, count: int) -> Dispatch:
        """experts: (tokens, active)."""
        ranked, order = experts.flatten().sort(stable=True)
        ends = torch.searchsorted(ranked, torch.arange(count, device=ranked.device), right=True, out_int32=True)
        back = torch.empty_like(order).scatter_(0, order, torch.arange(len(order), device=order.device))
        return cls(order, back.view(experts.shape), ends)

    @property
    def counts(self) -> Tensor:
        return self.ends.diff(prepend=self.ends.new_zeros(1)).long()

    def expand(self, x_NC: Tensor) -> Tensor:
        """Rows for the experts (tokens * active, C)."""
        rows: Tensor = _Expand.apply(x_NC, self.order // self.back.shape[1], self.back)
        return rows

    def combine(self, y_RC: Tensor) -> Tensor:
        """The experts' rows, summed for each token (tokens, C)."""
        sums: Tensor = _Combine.apply(y_RC, self.order // self.back.shape[1], self.back)
        return sums


class _Context(FunctionCtx):
    saved_tensors: tuple[Tensor, ...]


class _Expand(torch.autograd.Function):
    """A gather whose gradient is a gather too: without scattered additions, results are reproducible on any device."""

    @staticmethod
    def forward(ctx: _Context, x_NC: Tensor, token: Tensor, back: Tensor) -> Tensor:
        ctx.save_for_backward(back)
        return x_NC.index_select(0, token)

    @staticmethod
    def backward(ctx: _Context, grad_RC: Tensor) -> tuple[Tensor, None, None]:
        return _sum_rows(grad_RC, *ctx.saved_tensors), None, None


class _Combine(torch.autograd.Function):
    @staticmethod
    def forward(ctx: _Context, y_RC: Tensor, token: Tensor, back: Tensor) -> Tensor:
        ctx.save_for_backward(token)
        return _sum_rows(y_RC, back)

    @staticmethod
    def backward(ctx: _Context, grad_NC: Tensor) -> tuple[Tensor, None, None]:
        return grad_NC.index_select(0, *ctx.saved_tensors), None, None


def _sum_rows(rows_RC: Tensor, positions_NK: Tensor) -> Tensor:
    """Sums of K rows each (N, C), accumulated in 32 bits or more, without an intermediate (N, K, C)."""
    return embedding_bag(positions_NK, rows_RC, mode="sum")


def _grouped(x_RC: Tensor, weights_EDC: Tensor, ends: Tensor) -> Tensor:
    """Rows of expert e, up to ends[e], times its weights -> (R, D). Every row belongs to an expert."""
    if grouped_mm is None or x_RC.dtype == torch.float64 or not len(x_RC):
        return looped(x_RC, weights_EDC, ends)
    products: Tensor = grouped_mm(x_RC, weights_EDC.transpose(1, 2), offs=ends)
    return products


def looped(x_RC: Tensor, weights_EDC: Tensor, ends: Tensor) -> Tensor:
    """`_grouped` expert by expert, for float64, which grouped products do not support."""
    parts = x_RC.split(ends.diff(prepend=ends.new_zeros(1)).tolist())
    return torch.cat([part @ weight.T for part, weight in zip(parts, weights_EDC, strict=True)])


def _product_dtype(x: Tensor) -> torch.dtype:
    """Autocast's dtype, which grouped products ignore; float32 on a CPU that emulates bfloat16 (20 times slower)."""
    kind = x.device.type
    dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) and x.dtype != torch.float64 else x.dtype
    emulated = kind == "cpu" and dtype == torch.bfloat16 and not _cpu_has_bfloat16()
    return torch.float32 if emulated else dtype


@cache
def _cpu_has_bfloat16() -> bool:
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


class _Recomputation:
    running = False


_recomputation = _Recomputation()


@contextmanager
def recomputation() -> Iterator[None]:
    """The code inside recomputes a forward pass (activation checkpointing): its tokens do not count again."""
    before, _recomputation.running = _recomputation.running, True
    try:
        yield
    finally:
        _recomputation.running = before
