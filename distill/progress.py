"""What a running training says of itself: a line of metrics.jsonl per `log_every` steps, a bar or lines for people."""

from __future__ import annotations

import json
import time
from collections import Counter
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from distill.data.packing import fill_rate
from distill.folder import RunFolder

_LINE_SECONDS = 15.0


class Metrics:
    """Averages over `every` steps. Losses are means over images, so a step counts by its images."""

    def __init__(self, run: RunFolder, *, every: int, capacity: int, after_step: int) -> None:
        """Lines beyond `after_step` (of a run that was cut off) are dropped: each step is reported once."""
        self._every, self._capacity = every, capacity
        kept = []
        if run.metrics.is_file():
            kept = [line for line in run.metrics.read_text().splitlines(keepends=True) if _step(line) <= after_step]
        run.storage.publish_bytes(run.metrics.name, "".join(kept).encode())
        self._file = run.metrics.open("a")
        self._clear()

    def _clear(self) -> None:
        self._sums: Counter[str] = Counter()
        self._since = time.monotonic()

    def add(self, step: int, sums: dict[str, float], state: dict[str, Any], *, flush: bool = False) -> dict[str, Any]:
        """sums over the global batch: images, tokens, sequences, skipped, loss and its parts; returns means so far."""
        self._sums.update(sums)
        images = self._sums["images"]
        losses = [name for name in self._sums if name == "loss" or "/" in name]
        line = {
            "step": step,
            **{name: self._sums[name] / images if images else None for name in losses},
            **state,
            "images": int(images),
            "skipped": int(self._sums["skipped"]),
            "fill": round(fill_rate(int(self._sums["tokens"]), int(self._sums["sequences"]), self._capacity), 4),
            "images_per_second": round(images / max(time.monotonic() - self._since, 1e-9), 1),
        }
        if flush or step % self._every == 0:
            self._file.write(json.dumps(line) + "\n")
            self._file.flush()
            self._clear()
        return line

    def close(self) -> None:
        self._file.close()


def _step(line: str) -> float:
    try:
        return float(json.loads(line)["step"])
    except (ValueError, KeyError):
        return float("inf")


class Bar:
    """A bar with rate and time left on a terminal, a line every 15 seconds elsewhere; shown by the first rank only."""

    def __init__(self, *, steps: int, done: int, console: Console, shown: bool) -> None:
        self._steps, self._done, self._first, self._shown = steps, done, done, shown
        self._console = console
        self._start = self._last = time.monotonic()
        self._progress = Progress(
            TextColumn("train"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[note]}"),
            TimeRemainingColumn(), console=console, disable=not (shown and console.is_terminal),
        )  # fmt: skip
        self._task = self._progress.add_task("train", total=steps, completed=done, note="")

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def advance(self, line: dict[str, Any]) -> None:
        self._done += 1
        loss = line.get("loss")
        note = f"{line['images_per_second']:.0f} images/s" + ("" if loss is None else f"  loss {loss:.4f}")
        self._progress.update(self._task, completed=self._done, note=note)
        now = time.monotonic()
        if self._shown and not self._console.is_terminal and now - self._last > _LINE_SECONDS:
            left = (now - self._start) / (self._done - self._first) * (self._steps - self._done)
            self._console.print(f"train: step {self._done}/{self._steps}, {note}, {left:.0f} s left", highlight=False)
            self._last = now
