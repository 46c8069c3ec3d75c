"""What a run has spent at endpoints, for `curate status` and at the end of `curate run`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rich import box
from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from curate.api import Spend, Status

NO_STAGE = "(no stage)"
"""Shown for requests that no stage has reported: yet, or because their worker died."""


def spending(status: Status) -> Iterator[RenderableType]:
    """A table by stage and endpoint, and how much of the ceilings is spent; nothing if nothing is."""
    from curate.api import dollars

    found = status.spend
    if not found.stages:
        return
    table = Table(title="Spent", title_justify="left", header_style="bold", box=box.SIMPLE_HEAD)
    for name in ("stage", "endpoint", "requests", "tokens in", "tokens out", "cost", "not reported", "estimate"):
        table.add_column(name, justify="left" if name in ("stage", "endpoint") else "right")
    for stage, of_stage in found.stages.items():
        for endpoint, spend in of_stage.items():
            table.add_row(escape(stage) or NO_STAGE, escape(endpoint), *_cells(spend))
    if sum(map(len, found.stages.values())) > 1:
        table.add_section()
        table.add_row("all", "", *_cells(found.total))
    whole, ceilings, tokens = found.total, status.ceilings, found.total.most_tokens
    lines = []
    if ceilings.tokens is not None:
        lines.append(f"{tokens:,} of {ceilings.tokens:,.0f} tokens ({tokens / ceilings.tokens:.0%})")
    if ceilings.dollars is not None and whole.dollars is not None:
        spent, ceiling = dollars(whole.most_dollars), dollars(ceilings.dollars)
        lines.append(f"{spent} of {ceiling} ({whole.most_dollars / ceilings.dollars:.0%})")
    with_estimate = ", with the estimate" if whole.estimated else ""
    yield Group(table, *([Text(f"spent {' and '.join(lines)}{with_estimate}")] if lines else []))


def _cells(spend: Spend) -> tuple[str, ...]:
    from curate.api import dollars

    cost = "no price given" if spend.dollars is None else dollars(spend.dollars)
    counts = (spend.requests, spend.prompt_tokens, spend.completion_tokens)
    return (*(f"{count:,}" for count in counts), cost, *_estimate(spend))


def _estimate(spend: Spend) -> tuple[str, str]:
    from curate.api import dollars

    if not spend.estimated:
        return "", ""
    about = f"{spend.most_tokens - spend.tokens:,} tokens"
    return f"{spend.estimated:,}", about if spend.dollars is None else f"{about}, {dollars(spend.estimated_dollars)}"
