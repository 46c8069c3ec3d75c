"""Curate web-scale image pools into balanced training sets.

from curate import Workspace, load_recipe

run = Workspace("workspace").submit(load_recipe("recipe.yaml"))
run.wait()
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from curate.core.version import __version__

# Arrow's own memory pool keeps freed memory, so a long run grows slowly; Arrow reads this variable on import.
os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
# torch reads this one on import, and Ray's workers inherit it: threads that spin while they wait cost more than they
# compute on busy cores.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

if TYPE_CHECKING:
    from curate.api import Run, Workspace
    from curate.core.recipe.load import load as load_recipe
    from curate.core.recipe.pipeline import Pipeline
    from curate.engine.run import Result, run
    from curate.engine.state import Options

__all__ = ["Options", "Pipeline", "Result", "Run", "Workspace", "__version__", "load_recipe", "run"]

_PLACES = {
    "Options": ("curate.engine.state", "Options"),
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
