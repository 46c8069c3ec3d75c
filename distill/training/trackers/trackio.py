"""trackio. TRACKIO_DIR and its other variables apply."""

from __future__ import annotations

import os

from distill.training.trackers import PROJECT, Logs, Tracked


def open_run(run: Tracked) -> Logs:
    """A resumed run has the same name; its repeated steps are logged again."""
    import trackio

    project = os.environ.get("TRACKIO_PROJECT", PROJECT)
    return Logs(trackio.init(project=project, name=run.title, resume="allow", config=run.config))
