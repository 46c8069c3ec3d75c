"""Curate web-scale image pools into balanced training sets.

from curate import Workspace, load_recipe

run = Workspace("workspace").submit(load_recipe("recipe.yaml"))
run.wait()
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

# Arrow's own pool keeps what was freed, so that a long run's memory creeps up; Arrow reads this when it is imported.
os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")

if TYPE_CHECKING:
    from curate.api import Run, Workspace
    from curate.core.recipe.load import load as load_recipe
    from curate.core.recipe.pipeline import Pipeline
    from curate.engine.context import Options
    from curate.engine.run import Result, run

__version__ = "0.1.0"
__all__ = ["Options", "Pipeline", "Result", "Run", "Workspace", "load_recipe", "run"]

_PLACES = {
    "Options": ("curate.engine.context", "Options"),
    "Pipeline": ("curate.core.recipe.pipeline", "Pipeline"),
    "Result": ("curate.engine.run", "Result"),
    "Run": ("curate.api", "Run"),
    "Workspace": ("curate.api", "Workspace"),
    "load_recipe": ("curate.core.recipe.load", "load"),
    "run": ("curate.engine.run", "run"),
}


def __getattr__(name: str) -> Any:
    if name in _PLACES:
        import importlib

        module, attribute = _PLACES[name]
        return getattr(importlib.import_module(module), attribute)
    raise AttributeError(f"module 'curate' has no attribute {name!r}")
