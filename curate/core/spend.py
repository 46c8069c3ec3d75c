"""What requests to endpoints cost: their number, tokens and dollars."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import reduce
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from curate.core.endpoints import Price

ESTIMATES = ("estimated_prompt_tokens", "estimated_completion_tokens")
COUNTS = ("requests", "prompt_tokens", "completion_tokens", "estimated", *ESTIMATES)
ELSEWHERE = ""
"""Stands for the stage of requests whose worker died before it reported them."""


def whole(value: Any) -> int | None:
    """A number of tokens as a server reports it, perhaps as a float; None for anything else."""
    return int(value) if type(value) in (int, float) and 0 <= value < 2**31 and value == int(value) else None


@dataclass(frozen=True)
class Spend:
    """What some requests to an endpoint cost, or to several."""

    requests: int = 0
    """HTTP requests that were sent: attempts."""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    """As the endpoint reported them."""
    estimated: int = 0
    """Requests whose tokens it did not report; they are in the estimate only."""
    dollars: float | None = 0.0
    """For the reported tokens. None: an endpoint has no price."""
    estimated_prompt_tokens: int = 0
    estimated_completion_tokens: int = 0
    estimated_dollars: float = 0.0

    @classmethod
    def priced(cls, price: Price | None, **counts: int) -> Self:
        """The dollars of some tokens: the only place that computes them for a run."""
        found = cls(**counts)
        if price is None:
            return replace(found, dollars=None)
        return replace(
            found,
            dollars=price.of(found.prompt_tokens, found.completion_tokens),
            estimated_dollars=price.of(found.estimated_prompt_tokens, found.estimated_completion_tokens),
        )

    @property
    def tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens

    @property
    def most_tokens(self) -> int:
        """With the estimate, as ceilings count them."""
        return self.tokens + self.estimated_prompt_tokens + self.estimated_completion_tokens

    @property
    def most_dollars(self) -> float:
        return (self.dollars or 0.0) + self.estimated_dollars

    def __bool__(self) -> bool:
        return bool(self.requests or self.most_tokens)

    def __add__(self, other: Spend) -> Spend:
        return self._combined(other, 1)

    def __sub__(self, other: Spend) -> Spend:
        """What this has beyond another, nothing below 0."""
        return self._combined(other, -1)

    def _combined(self, other: Spend, sign: int) -> Spend:
        counts = {name: max(0, getattr(self, name) + sign * getattr(other, name)) for name in COUNTS}
        estimated = max(0.0, self.estimated_dollars + sign * other.estimated_dollars)
        if self.dollars is None or other.dollars is None:
            return Spend(**counts, dollars=None, estimated_dollars=estimated)
        return Spend(**counts, dollars=max(0.0, self.dollars + sign * other.dollars), estimated_dollars=estimated)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        return cls(**value)


def total(several: Iterable[Spend]) -> Spend:
    return sum(several, Spend())


def combined(one: Mapping[str, Spend], other: Mapping[str, Spend]) -> dict[str, Spend]:
    """Sums by endpoint."""
    return {name: one.get(name, Spend()) + other.get(name, Spend()) for name in sorted({*one, *other})}


def dollars(amount: float) -> str:
    """`$0.0042`, `$1.27`, `$3,100`."""
    if amount >= 1000:
        return f"${amount:,.0f}"
    return f"${amount:.2f}" if amount >= 1 or amount == 0 else f"${amount:.4f}"


def words(spend: Spend) -> str:
    """`12 requests, 3,400 tokens in, 560 out, $0.0042`, in one line, and the estimate if there is one."""
    cost = "no price given" if spend.dollars is None else dollars(spend.dollars)
    tokens = f"{spend.prompt_tokens:,} tokens in, {spend.completion_tokens:,} out"
    about = f"; {estimate(spend)}" if spend.estimated else ""
    return f"{spend.requests:,} request{'s' if spend.requests != 1 else ''}, {tokens}, {cost}{about}"


def estimate(spend: Spend) -> str:
    """`about 900 tokens, $0.0012 more for 3 requests whose tokens were not reported`."""
    cost = "" if spend.dollars is None else f", {dollars(spend.estimated_dollars)}"
    several = "requests" if spend.estimated != 1 else "request"
    tokens = spend.most_tokens - spend.tokens
    return f"about {tokens:,} tokens{cost} more for {spend.estimated:,} {several} whose tokens were not reported"


@dataclass(frozen=True)
class Ceilings:
    """Most that one run may spend. None: no ceiling."""

    tokens: float | None = None
    dollars: float | None = None

    def __bool__(self) -> bool:
        return self.tokens is not None or self.dollars is not None

    def words(self, spend: Spend) -> str:
        """What is spent of the ceiling that is closest: `$1.02 is spent, --max-dollars is 1`."""
        found = []
        if self.tokens is not None:
            text = f"{spend.most_tokens:,} tokens are spent, --max-tokens is {self.tokens:,.0f}"
            found.append((spend.most_tokens / self.tokens, text))
        if self.dollars is not None:
            amount = spend.most_dollars
            found.append((amount / self.dollars, f"{dollars(amount)} is spent, --max-dollars is {self.dollars:g}"))
        return max(found)[1] if found else "the budget is used up"


@dataclass
class RunSpend:
    """What a run has spent, by stage and in all."""

    stages: dict[str, dict[str, Spend]] = field(default_factory=dict)
    """Stage (or ELSEWHERE) -> endpoint -> spend."""

    @property
    def endpoints(self) -> dict[str, Spend]:
        return reduce(combined, self.stages.values(), {})

    @property
    def total(self) -> Spend:
        return total(self.endpoints.values())

    def to_json(self) -> dict[str, Any]:
        return {
            stage: {name: spend.to_json() for name, spend in of_stage.items()}
            for stage, of_stage in self.stages.items()
        }

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> RunSpend:
        return cls(
            {
                stage: {name: Spend.from_json(spend) for name, spend in of_stage.items()}
                for stage, of_stage in value.items()
            }
        )
