"""Where what was fetched or compiled once is kept, for all runs of a user on a machine."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder(name: str) -> Path:
    """A folder of $CURATE_CACHE, or of ~/.cache/curate; it need not exist."""
    named = os.environ.get("CURATE_CACHE")
    return (Path(named) if named else Path.home() / ".cache" / "curate") / name
