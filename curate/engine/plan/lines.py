"""Lines of a plan, and the table that shows them."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from rich.table import Table

from curate.core.spend import dollars

EXACT, ESTIMATED, UNKNOWN = "exact", "estimated", "unknown"


@dataclass
class PlanLine:
    """One line of the plan. Numbers are rows; None if still unknown. Seconds are for one worker."""

    stage: str
    op: str
    kind: str
    """acquire, pass, derive or global."""
    done: int | None = None
    needed: int | None = None
    compute: int | None = None
    after: int | None = None
    """Rows that pass."""
    certainty: str = UNKNOWN
    note: str = ""
    gains: int | None = None
    losses: int | None = None
    """For a changed filter: rows that it additionally passes and rejects, compared with the last run."""
    seconds: float | None = None
    bytes: int | None = None
    gpus: float = 0
    requests: int | None = None
    tokens: int | None = None
    dollars: float | None = None
    """What its requests to endpoints will cost, by the tokens of an earlier run and today's prices."""

    @property
    def not_run(self) -> bool:
        """Whether a filter has not judged any row yet: nothing to compute, and nothing done."""
        return self.done == self.compute == 0 and bool(self.needed)


def table(lines: list[PlanLine]) -> Table:
    shown = Table(title="Plan", title_justify="left", header_style="bold")
    for name in ("stage", "op", "kind"):
        shown.add_column(name)
    for name in ("done", "needed", "to compute"):
        shown.add_column(name, justify="right")
    shown.add_column("certainty")
    for name in ("seconds", "GPU-hours", "new bytes"):
        shown.add_column(name, justify="right")
    shown.add_column("notes")
    for line in lines:
        hours = line.seconds * line.gpus / 3600 if line.seconds is not None and line.gpus else None
        cells = [
            line.stage,
            line.op,
            line.kind,
            "not run" if line.not_run else _number(line.done),
            _number(line.needed),
            _compute(line),
        ]
        cells += [line.certainty, _number(line.seconds, ",.1f"), _number(hours, ".2f", ""), _number(line.bytes)]
        shown.add_row(*cells, _notes(line))
    seconds = sum(line.seconds or 0 for line in lines)
    unknown = [line.stage for line in lines if line.seconds is None]
    known = [f"{seconds:,.0f} s of work at measured rates"] if seconds or not unknown else []
    prices = [line.dollars for line in lines if line.dollars]
    known += [f"requests for about {dollars(sum(prices))}"] if prices else []
    shown.caption = "; ".join([*known, *([f"unknown time: {', '.join(unknown)}"] if unknown else [])])
    return shown


def _notes(line: PlanLine) -> str:
    changed = []
    if line.gains is not None and line.losses is not None:
        about = "" if line.certainty == EXACT else "about "
        changed = [f"changed: passes {about}{line.gains:,} more rows, rejects {about}{line.losses:,} more"]
    price = f", {dollars(line.dollars)}" if line.dollars is not None else ""
    asks = [f"about {line.requests:,} requests, {line.tokens:,} tokens{price}"] if line.requests else []
    return "; ".join([*changed, *asks, *([line.note] if line.note else [])])


def _compute(line: PlanLine) -> str:
    """Rows to compute; an estimated 0 may turn out to be more."""
    return "about 0" if line.compute == 0 and line.certainty != EXACT else _number(line.compute)


def _number(value: float | None, form: str = ",", missing: str = "?") -> str:
    return missing if value is None else format(value, form)


def to_json(lines: list[PlanLine]) -> dict[str, Any]:
    """A plan for programs."""
    return {"stages": [asdict(line) for line in lines]}
