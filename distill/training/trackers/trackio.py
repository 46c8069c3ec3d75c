"""trackio. TRACKIO_DIR and its other variables apply."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from distill.training.trackers import PROJECT, Tracked


class Run:
    def __init__(self, run: Any) -> None:
        self._run = run

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log(dict(values), step=step)

    def close(self) -> None:
        self._run.finish()


def open_run(run: Tracked) -> Run:
    """A resumed run has the same name; its repeated steps are logged again."""
    import trackio

    project = os.environ.get("TRACKIO_PROJECT", PROJECT)
    return Run(trackio.init(project=project, name=run.title, resume="allow", config=run.config))
