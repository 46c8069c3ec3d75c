"""Multi-teacher distillation on curated shards: `distill train`, `distill eval`, `distill export`, `distill.load`.

Importing it does not import torch; the first use of a name does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from curate.encoders.student.model import DistilledModel, Output, load

__all__ = ["DistilledModel", "Output", "load"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'distill' has no attribute {name!r}")
    from curate.encoders.student import model

    return getattr(model, name)
