"""Progress for people: a bar per stage with rate, ETA and rejects on a terminal; a line per stage elsewhere."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bars

LINE_SECONDS = 15.0


class Step:
    """One stage (or pass) under way. Rows done, against rows in all."""

    def __init__(self, owner: Progress, label: str, total: int, bar: int | None) -> None:
        self.owner, self.label, self.total, self.bar = owner, label, total, bar
        self.done = 0
        self.rejects: Counter[str] = Counter()
        self.began = self.spoke = time.monotonic()

    def advance(self, rows: int, rejects: int = 0, stage: str = "") -> None:
        """`rejects` are of one stage of a pass, or of the step's only one."""
        self.done += rows
        self.rejects[stage] += rejects
        rate = self.done / max(1e-6, time.monotonic() - self.began)
        if self.bar is not None and self.owner.bars is not None:
            self.owner.bars.update(self.bar, completed=self.done, rate=f"{rate:,.0f}/s", rejects=self.left_out())
        elif self.owner.console and time.monotonic() - self.spoke > LINE_SECONDS and 0 < self.done < self.total:
            self.spoke = time.monotonic()
            left = (self.total - self.done) / max(rate, 1e-6)
            self.owner.say(f"  {self.label}: {self.done:,} of {self.total:,}, {rate:,.0f}/s, {left:,.0f} s to go")

    def tell(self, share: float, text: str) -> None:
        """Progress of work that is not counted in rows: share done (0 .. 1), and what is going on."""
        self.done = int(min(1.0, max(0.0, share)) * self.total)
        if self.bar is not None and self.owner.bars is not None:
            self.owner.bars.update(self.bar, completed=self.done, rate=text)
        elif self.owner.console and time.monotonic() - self.spoke > LINE_SECONDS and 0 < share < 1:
            self.spoke = time.monotonic()
            left = (self.spoke - self.began) * (1 - share) / share
            self.owner.say(f"  {self.label}: {share:.0%}, {text}, about {left:,.0f} s to go")

    def left_out(self) -> str:
        """How many rows did not go on, and at which stages where there are several."""
        by_stage = ", ".join(f"{stage} {count:,}" for stage, count in self.rejects.items() if stage and count)
        return f"{self.rejects.total():,} left out" + (f" ({by_stage})" if by_stage else "")


class Progress:
    def __init__(self, console: Console | None) -> None:
        self.console = console
        self.bars: Bars | None = None
        if console is not None and console.is_terminal:
            self.bars = Bars(
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("{task.fields[rate]}"),
                TextColumn("{task.fields[rejects]}", style="yellow"),
                TimeElapsedColumn(),
                TimeRemainingColumn(),
                console=console,
            )

    @contextmanager
    def live(self) -> Iterator[None]:
        if self.bars is None:
            yield
        else:
            with self.bars:
                yield

    @contextmanager
    def step(self, label: str, total: int) -> Iterator[Step]:
        bar = self.bars.add_task(label, total=total, rate="", rejects="") if self.bars is not None else None
        step = Step(self, label, total, bar)
        yield step
        seconds = time.monotonic() - step.began
        rate = step.done / max(seconds, 1e-6)
        if self.bars is None:
            self.say(f"{label}: {step.done:,} rows in {seconds:.1f} s ({rate:,.0f}/s), {step.left_out()}")

    def reused(self, label: str, rows: int) -> None:
        self.say(f"{label}: {rows:,} rows, reused")

    def say(self, text: str) -> None:
        if self.console is not None:
            self.console.print(text, markup=False, highlight=False)
