"""What people should look at, in one line. Pure."""

from __future__ import annotations

BUDGET_SHARE = 0.8
"""Used share of the failure budget that raises an alert: early enough to save the run."""


def alert(idle_seconds: float, stalled_seconds: float, budget: float) -> str:
    """`idle_seconds`: since the last progress; `budget`: used share of the failure budget. "" if all is well."""
    found = []
    if idle_seconds > stalled_seconds:
        found.append(f"no progress for {_rounded(idle_seconds)}")
    if budget >= BUDGET_SHARE:
        found.append(f"{min(budget, 1.0):.0%} of its failure budget is used")
    return "; ".join(found)


def _rounded(seconds: float) -> str:
    """Coarse, so that the text rarely changes."""
    minutes = int(seconds // 60)
    if minutes < 10:
        return f"{max(1, minutes)} min"
    return f"{minutes // 10 * 10} min" if minutes < 120 else f"{minutes // 60} h"
