"""Multi-teacher distillation on curated shards: `distill train`, `distill eval`, `distill export`, `distill.load`.

Light to import: torch comes with the first name that needs it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from distill.export.model import DistilledModel, Output, load

__all__ = ["DistilledModel", "Output", "load"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'distill' has no attribute {name!r}")
    from distill.export import model as distilled

    return getattr(distilled, name)
