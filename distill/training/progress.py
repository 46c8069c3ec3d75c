"""Progress of a training: a line of metrics.jsonl per `log_every` steps, and a bar or lines on the console."""

from __future__ import annotations

import json
import math
import time
from collections import Counter
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from distill.training.run_folder import RunFolder
from distill.training.trackers import Tracker

_LINE_SECONDS = 15.0


def short(count: float) -> str:
    """A large number for people: 172.3M, 1.2B."""
    for size, unit in ((1e9, "B"), (1e5, "M")):
        if count >= size:
            return f"{count / max(size, 1e6):,.1f}{unit}"
    return f"{count:.0f}"


class Metrics:
    """Averages over `every` steps. Losses are means over images, so steps are weighted by their number of images."""

    def __init__(
        self, run: RunFolder, *, every: int, after_step: int, peak: float, trackers: Sequence[Tracker]
    ) -> None:
        """Lines of steps beyond `after_step`, which the resumed run will repeat, are dropped.

        peak: FLOPs per second that the devices of all ranks reach together.
        """
        self._every, self._peak = every, peak
        kept = []
        if run.metrics.is_file():
            lines = run.metrics.read_text("utf-8", errors="replace").splitlines(keepends=True)
            kept = [line for line in lines if _step(line) <= after_step]
        run.storage.publish_bytes(run.metrics.name, "".join(kept).encode())
        self._file = run.metrics.open("a")
        self._trackers = list(trackers)
        self._clear()

    def _clear(self) -> None:
        self._sums: Counter[str] = Counter()
        self._steps = 0
        self._since = time.monotonic()

    def add(
        self, step: int, sums: dict[str, float], state: dict[str, Any], *, flush: bool = False, paused: float = 0.0
    ) -> dict[str, Any]:
        """Add a step; returns means since the last line.

        sums: over the global batch: images, tokens, places, flops, skipped, wait_seconds, loss and its parts; also the
        step's gradient_norm and expert_load. paused: seconds that do not count.
        """
        self._since += paused
        self._sums.update(sums)
        self._steps += 1
        images, seconds = self._sums["images"], max(time.monotonic() - self._since, 1e-9)
        losses = [name for name in self._sums if name not in _COUNTS]
        line = {
            "step": step,
            **{name: self._sums[name] / images if images else None for name in losses},
            **{name: self._sums[name] / self._steps for name in _PER_STEP if name in self._sums},
            **state,
            "time": round(time.time(), 1),
            "images": int(images),
            "skipped": int(self._sums["skipped"]),
            "fill": round(self._sums["tokens"] / max(self._sums["places"], 1), 4),
            "images_per_second": round(images / seconds, 1),
            "tokens_per_second": round(self._sums["tokens"] / seconds, 1),
            "peak_share": round(self._sums["flops"] / seconds / self._peak, 4),
            "wait_share": round(self._sums["wait_seconds"] / seconds, 4),
        }
        if flush or step % self._every == 0:
            self._file.write(json.dumps(line) + "\n")
            self._file.flush()
            self._track(step, line)
            self._clear()
        return line

    def _track(self, step: int, line: dict[str, Any]) -> None:
        skipped = ("step", "time")
        values = {name: value for name, value in line.items() if name not in skipped and isinstance(value, int | float)}
        for tracker in self._trackers:
            tracker.log(step, values)

    def close(self) -> None:
        self._file.close()
        for tracker in self._trackers:
            tracker.close()


_PER_STEP = ("gradient_norm", "expert_load")
_COUNTS = {"images", "tokens", "places", "flops", "skipped", "wait_seconds", *_PER_STEP}


def _step(line: str) -> float:
    """Step of a line of metrics.jsonl; infinity for a corrupt line."""
    try:
        return float(json.loads(line)["step"])
    except (ValueError, LookupError, TypeError):
        return float("inf")


def read_lines(run: RunFolder) -> list[dict[str, Any]]:
    """The lines of metrics.jsonl; without corrupt ones."""
    lines = run.metrics.read_text("utf-8", errors="replace").splitlines() if run.metrics.is_file() else []
    return [json.loads(line) for line in lines if math.isfinite(_step(line))]


def losses_of(line: dict[str, Any]) -> dict[str, float]:
    """The losses of a line, without weights."""
    return {name: value for name, value in line.items() if name not in _NO_LOSSES and "validation/" not in name}


_NO_LOSSES = {
    "step", "stage", "epoch", "learning_rate", "tokens_seen", "places", "time", "images", "skipped", "fill",
    "images_per_second", "tokens_per_second", "peak_share", "wait_share", *_PER_STEP,
}  # fmt: skip


class Bar:
    """A bar with rate and remaining time on a terminal, elsewhere a line every 15 seconds."""

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
        note = (
            f"{line['images_per_second']:.0f} images/s {line['tokens_per_second']:.0f} tokens/s, "
            f"{short(line['tokens_seen'])} seen"
        ) + ("" if loss is None else f"  loss {loss:.4f}")
        self._progress.update(self._task, completed=self._done, note=note)
        now = time.monotonic()
        if self._shown and not self._console.is_terminal and now - self._last > _LINE_SECONDS:
            left = (now - self._start) / (self._done - self._first) * (self._steps - self._done)
            self._console.print(f"train: step {self._done}/{self._steps}, {note}, {left:.0f} s left", highlight=False)
            self._last = now
