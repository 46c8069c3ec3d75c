"""Progress of a run: bars with rate and time left on a terminal, lines elsewhere, and events for `curate status`.

Several steps run at a time, each in its own thread, so everything here may be called from any thread.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, ProgressColumn, Task, TaskID, TextColumn
from rich.progress import Progress as Bars
from rich.table import Column
from rich.text import Text

from curate.core.contracts import Resources, Stage
from curate.engine.record.events import Events
from curate.engine.workers.scheduler import Scheduler

LINE_SECONDS = 15.0
WINDOW_SECONDS = 30.0
"""Period that rates cover."""
EVENT_SECONDS = 2.0
SAMPLE_SECONDS = 0.5
MANY_ROWS = 100_000
"""More are a reason to say what would be faster."""
LABEL_CHARACTERS, BAR_CHARACTERS = 26, 10


class RowRate:
    """Rows per second over the last WINDOW_SECONDS."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, int]] = deque([(time.monotonic(), 0)])

    def at(self, done: int) -> float:
        now = time.monotonic()
        if now - self._samples[-1][0] > SAMPLE_SECONDS:
            self._samples.append((now, done))
        while len(self._samples) > 2 and now - self._samples[1][0] > WINDOW_SECONDS:
            self._samples.popleft()
        began, before = self._samples[0]
        return (done - before) / max(now - began, 1e-6)


class StepProgress:
    """Progress of a running stage or pass: rows done out of `total`."""

    def __init__(self, owner: Progress, label: str, total: int, bar: TaskID | None, live: bool = False) -> None:
        self.owner, self.label, self.total, self.bar = owner, label, total, bar
        self.live = live
        self.done = self.found = 0
        """Rows; those that no task computed, which say nothing about how fast the rest will be."""
        self._reported = 0
        """For a live step: rows that its tasks have reported, unfinished tasks included."""
        self.text = ""
        self.rejects: Counter[str] = Counter()
        self.began = self.printed = self.emitted = time.monotonic()
        self._rate = RowRate()
        self._lock = threading.Lock()

    def advance(self, rows: int, rejects: int = 0, stage: str = "", found: bool = False) -> None:
        """`rejects`: rows rejected by `stage`, one of the stages of a pass. `found`: they were computed before."""
        with self._lock:
            self.done += rows
            self.found += rows if found else 0
            self.rejects[stage] += rejects
            self._show()

    def report(self, rows: int) -> None:
        with self._lock:
            self._reported = rows
            self._show()

    @property
    def shown(self) -> int:
        """Rows done, of unfinished tasks too if the step is live."""
        return max(self.done, min(self._reported, self.total))

    def progress(self, share: float, text: str) -> None:
        """Progress of work not counted in rows: share done (0 .. 1) and the current activity."""
        with self._lock:
            self.done = int(min(1.0, max(0.0, share)) * self.total)
            self.text = text
            self._show()

    def finish(self) -> None:
        with self._lock:
            self._emit(None)
            seconds = time.monotonic() - self.began
            if self.owner.bars is not None and self.bar is not None:
                speed, took = f"{count(self.done / max(seconds, 1e-6))}/s", f"in {duration(seconds)}"
                fields = _fields(rate=speed, left=took, note=self._note())
                self.owner.bars.update(self.bar, completed=self.done, **fields)
            else:
                rate = self.done / max(seconds, 1e-6)
                self.owner.say(
                    f"{self.label}: {self.done:,} rows in {seconds:.1f} s ({rate:,.0f}/s), {self.rejected()}"
                )

    def rejected(self) -> str:
        """Number of rejected rows, by stage if there are several."""
        by_stage = ", ".join(f"{stage} {count:,}" for stage, count in self.rejects.items() if stage and count)
        return f"{self.rejects.total():,} rejected" + (f" ({by_stage})" if by_stage else "")

    def _note(self) -> str:
        return f"{count(self.rejects.total())} rejected" if self.rejects.total() else ""

    def _show(self) -> None:
        done = self.shown
        now, rate = time.monotonic(), max(0.0, self._rate.at(done - self.found))
        left = (self.total - done) / rate if rate > 0 and done < self.total else None
        if self.owner.bars is not None and self.bar is not None:
            fields = {"rate": "" if self.text else f"{count(rate)}/s", "note": self.text or self._note()}
            fields |= {"text": self.text, "left": "" if left is None else f"{duration(left)} left"}
            self.owner.bars.update(self.bar, completed=done, **_fields(**fields))
        elif now - self.printed > LINE_SECONDS and 0 < done < self.total:
            self.printed = now
            share = f"{done / self.total:.0%}" if self.text else f"{done:,} of {self.total:,}"
            what = self.text or f"{rate:,.0f}/s"
            self.owner.say(
                f"  {self.label}: {share}, {what}" + (f", {duration(left)} left" if left is not None else "")
            )
        if now - self.emitted > EVENT_SECONDS:
            self.emitted = now
            self._emit(rate, left)

    def _emit(self, rate: float | None, left: float | None = None) -> None:
        """Emit an event; without a rate, the step has ended."""
        rows = self.done if rate is None else self.shown
        about: dict[str, Any] = {"stage": self.label, "rows": rows, "total": self.total, "text": self.text}
        about |= {"live": True} if self.live else {}
        about |= {"ended": True} if rate is None else {"rows_per_s": round(rate, 3)}
        if left is not None:
            about["left_seconds"] = round(left, 1)
        self.owner.emit("step", **about)


class Progress:
    """Shows the progress of a run. With `events`, the scheduler's rates by stage and lane are shown too."""

    def __init__(self, console: Console | None, events: Events | None = None) -> None:
        self.console, self.events = console, events
        self.bars: Bars | None = None
        self._lanes: dict[tuple[str, str], TaskID] = {}
        self._showing = threading.Lock()
        self._ended: set[str] = set()
        """Stages that have ended; later events of the scheduler for them are ignored."""
        self._live: dict[str, StepProgress] = {}
        self._reported: dict[str, dict[str, int]] = {}
        """Stage -> lane -> rows that its tasks have reported, without those of lost tasks."""
        if console is not None and console.is_terminal:
            self.bars = _bars(console)
        if events is not None:
            events.listener = self._on_event

    @contextmanager
    def live(self) -> Iterator[None]:
        if self.bars is None:
            yield
        else:
            with self.bars:
                yield

    @contextmanager
    def step(self, label: str, total: int, live: bool = False) -> Iterator[StepProgress]:
        """`live`: between two calls of `advance`, rows count as soon as tasks report them to their beats."""
        bar = None
        if self.bars is not None:
            bar = self.bars.add_task(label, total=total, **_fields())
        step = StepProgress(self, label, total, bar, live)
        if live:
            self._live[label] = step
        self.emit("step", stage=label, rows=0, total=total, text="", rows_per_s=0.0, **({"live": True} if live else {}))
        yield step
        self._live.pop(label, None)
        step.finish()

    def reused(self, label: str, rows: int) -> None:
        self.say(f"{label}: {rows:,} rows, reused")

    def say(self, text: str) -> None:
        if self.console is not None:
            self.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def emit(self, event: str, **fields: Any) -> None:
        if self.events is not None:
            self.events.emit(event, **fields)

    def _on_event(self, event: str, fields: dict[str, Any]) -> None:
        """Warnings, and rows of live steps; and on a terminal, a line below the bars for each active stage and lane,
        removed when the stage ends."""
        if event == "warning":
            self.say(f"warning: {fields['text']}")
        stage, lane = fields.get("stage"), fields.get("lane")
        if event == "progress" and lane and stage is not None and (step := self._live.get(stage)) is not None:
            of_stage = self._reported.setdefault(stage, {})
            of_stage[lane] = fields["rows"] - fields.get("lost", 0)
            step.report(sum(of_stage.values()))
        if self.bars is None:
            return
        with self._showing:
            if stage is None or stage in self._ended:
                return
            if event == "stage":
                self._ended.add(stage)
                for name in [name for name in self._lanes if name[0] == stage]:
                    self._bars.remove_task(self._lanes.pop(name))
            elif event == "progress" and lane:
                self._show_lane((stage, lane), fields)

    def _show_lane(self, name: tuple[str, str], about: dict[str, Any]) -> None:
        if name not in self._lanes:
            self._lanes[name] = self._bars.add_task(f"  {name[0]} on {name[1]}", total=None, **_fields())
        size = speed(about["bytes_per_s"]) if about.get("bytes_per_s") else ""
        busy = f"{about['busy']:.0%} busy" if about.get("busy") is not None else ""
        fields = _fields(rate=f"{count(about.get('rows_per_s', 0))}/s", left=size, note=busy)
        self._bars.update(self._lanes[name], completed=about.get("rows", 0), **fields)

    @property
    def _bars(self) -> Bars:
        assert self.bars is not None
        return self.bars


def duration(seconds: float) -> str:
    """`8.3 s`, `4 min 10 s`, `25 min`, `3 h 20 min`, `2 d 5 h`."""
    if seconds < 59.5:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s" if minutes < 10 else f"{minutes} min"
    hours, rest = divmod(minutes, 60)
    return f"{hours} h {rest} min" if hours < 48 else f"{hours // 24} d {hours % 24} h"


def pace(stage: Stage, rows: int, workers: Scheduler) -> str:
    """How long so many rows will take, if the stage knows it before it has run; otherwise empty."""
    if not rows or stage.pace(1, gpu=False) is None:
        return ""
    cpus = workers.slots(Resources(cpus=1))
    rate, faster = stage.pace(cpus, workers.has_gpu()) or (0, "")
    if not rate:
        return ""
    hint = f"; {faster}" if faster and rows > MANY_ROWS else ""
    plural = "s" if cpus > 1 else ""
    return f"about {rate:,.0f} new images/s on {cpus} CPU{plural}, {duration(rows / rate)} for {rows:,}{hint}"


def count(number: float) -> str:
    """`12,345`, `2.30 B`: at most nine characters."""
    for size, name in ((1e9, "B"), (1e6, "M")):
        if number >= 10 * size or (name == "B" and number >= size):
            return f"{number / size:,.2f} {name}" if number < 100 * size else f"{number / size:,.0f} {name}"
    return f"{int(number):,}"


def speed(bytes_per_s: float) -> str:
    """`43.1 MB/s`, `4.3 kB/s`."""
    return f"{bytes_per_s / 1e6:,.1f} MB/s" if bytes_per_s >= 1e5 else f"{bytes_per_s / 1e3:,.1f} kB/s"


class _Counted(ProgressColumn):
    """Rows done and total; for work not counted in rows, the share done."""

    def render(self, task: Task) -> Text:
        if task.fields["text"]:
            text = f"{task.percentage:.0f}%"
        else:
            text = count(task.completed) + ("" if task.total is None else f" / {count(task.total)}")
        return Text(text, style="progress.download")


class _Bar(BarColumn):
    """A bar for steps. Lanes have no total and get none: an indeterminate bar carries no information."""

    def render(self, task: Task) -> Any:
        return Text("") if task.total is None else super().render(task)


def _bars(console: Console) -> Bars:
    def narrow(width: int | None = None, ratio: int | None = None) -> Column:
        return Column(no_wrap=True, overflow="ellipsis", max_width=width, ratio=ratio)

    return Bars(
        TextColumn("{task.description}", table_column=narrow(LABEL_CHARACTERS)),
        _Bar(bar_width=BAR_CHARACTERS, table_column=Column(min_width=BAR_CHARACTERS)),
        _Counted(table_column=Column(no_wrap=True, justify="right")),
        TextColumn("{task.fields[rate]}", table_column=Column(no_wrap=True, justify="right")),
        TextColumn("{task.fields[left]}", table_column=narrow(16)),
        TextColumn("{task.fields[note]}", style="yellow", table_column=narrow()),
        console=console,
    )


def _fields(**given: str) -> dict[str, Any]:
    return {"rate": "", "left": "", "note": "", "text": ""} | given
