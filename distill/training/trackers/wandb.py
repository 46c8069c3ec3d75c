"""Weights & Biases. WANDB_PROJECT, WANDB_MODE and its other variables apply."""

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
    """A resumed run has the same id; W&B ignores the steps that it has."""
    import wandb

    project = os.environ.get("WANDB_PROJECT", PROJECT)
    return Run(
        wandb.init(
            project=project, name=run.title, id=run.fingerprint, resume="allow", dir=str(run.folder), config=run.config
        )
    )
