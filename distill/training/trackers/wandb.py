"""Weights & Biases. WANDB_PROJECT, WANDB_MODE and its other variables apply."""

from __future__ import annotations

import os

from distill.training.trackers import PROJECT, Logs, Tracked


def open_run(run: Tracked) -> Logs:
    """A resumed run has the same id; W&B ignores the steps that it has."""
    import wandb

    project = os.environ.get("WANDB_PROJECT", PROJECT)
    place = {"project": project, "name": run.title, "id": run.fingerprint, "dir": str(run.folder)}
    return Logs(wandb.init(**place, resume="allow", config=run.config))
