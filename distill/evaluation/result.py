"""The result of a task, as evaluation.json holds it."""

from __future__ import annotations

from typing import Any

Result = dict[str, Any]


def not_computed(why: str) -> Result:
    """The result of a task that cannot be computed, with the reason as one line."""
    return {"models": {}, "why_none": why}
