"""TensorBoard's event files, beside metrics.jsonl."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from distill.training.trackers import Tracked


class Events:
    def __init__(self, writer: Any) -> None:
        self._writer = writer

    def log(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        self._writer.close()


def open_run(run: Tracked) -> Events:
    """The import takes a second."""
    from torch.utils.tensorboard import SummaryWriter

    return Events(SummaryWriter(str(run.folder / "tensorboard"), purge_step=run.after_step + 1))
