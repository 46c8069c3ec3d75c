"""Origin and cost of answers: tokens as the endpoints reported them, times the endpoints' prices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from curate.core.endpoints import Endpoint, Price

PROVENANCE = ("model", "fingerprint", "prompt", "endpoint")
TOKENS = ("prompt_tokens", "completion_tokens")
PER_ANSWERS = 1000


@dataclass(frozen=True)
class Source:
    """What an answer records about its origin; "" if nothing was reported."""

    model: str
    fingerprint: str
    prompt: str
    endpoint: str


@dataclass
class Usage:
    """Answers of one source and their tokens."""

    answers: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    reported: int = 0
    """Answers with a token count."""

    def __add__(self, other: Usage) -> Usage:
        return Usage(*(a + b for a, b in zip(vars(self).values(), vars(other).values(), strict=True)))

    def dollars(self, price: Price | None) -> float | None:
        """Cost of the answers with a token count; None without a price."""
        return None if price is None else price.of(self.prompt_tokens, self.completion_tokens)

    def per_thousand(self, price: Price | None) -> float | None:
        """Dollars per 1,000 answers; None without a price or a token count."""
        cost = self.dollars(price)
        return None if cost is None or not self.reported else PER_ANSWERS * cost / self.reported


def prices_of(endpoints: Mapping[str, Endpoint]) -> dict[str, Price]:
    """Endpoint -> price, of those that have one."""
    return {name: one.price for name, one in sorted(endpoints.items()) if one.price is not None}


def usage_of(table: pa.Table, name: str) -> dict[Source, Usage]:
    """Source -> answers and tokens of the rows of a table that have an answer in the columns `name`_*."""
    known = table.column_names
    answered = pc.is_valid(table.column(f"{name}_outcome"))
    rows = table.num_rows
    texts = [_column(table, f"{name}_{part}", pa.string()) for part in PROVENANCE]
    counts = [_column(table, f"{name}_{part}", pa.int64()) for part in TOKENS if f"{name}_{part}" in known]
    counts += [pa.nulls(rows, pa.int64())] * (len(TOKENS) - len(counts))
    columns = pa.table([*(pc.fill_null(text, "") for text in texts), *counts], names=[*PROVENANCE, *TOKENS]).filter(
        answered
    )
    if not columns.num_rows:
        return {}
    sums = [(TOKENS[0], "sum"), (TOKENS[1], "sum"), (TOKENS[0], "count"), ([], "count_all")]
    found = columns.group_by(list(PROVENANCE)).aggregate(sums)
    return {
        Source(*(line[part] for part in PROVENANCE)): Usage(
            line["count_all"], line["prompt_tokens_sum"] or 0, line["completion_tokens_sum"] or 0,
            line["prompt_tokens_count"],
        )
        for line in found.to_pylist()
    }  # fmt: skip


def _column(table: pa.Table, name: str, kind: pa.DataType) -> pa.Array:
    if name not in table.column_names:
        return pa.nulls(table.num_rows, kind)
    return table.column(name).cast(kind).combine_chunks()
