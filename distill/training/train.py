"""Trains the student of a recipe: plain PyTorch, one process or as many as torchrun starts, resumable at any step."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from rich.console import Console

from curate.core.errors import CurateError, InputError, RecipeError
from distill.export.model_folder import TOKENIZER
from distill.models.tokenizer import Tokenizer
from distill.recipe import Recipe
from distill.samples.sources.mixture import Blend
from distill.teachers import Standards
from distill.training.checkpoint import (
    STANDARDS,
    Checkpoint,
    check_shared,
    last_whole_checkpoint,
    load_standards,
    save_checkpoint,
    save_standards,
)
from distill.training.optim import learning_rate
from distill.training.parallel import World
from distill.training.progress import Bar, Metrics
from distill.training.run_folder import RunFolder
from distill.training.throughput import measured_peak
from distill.training.trainer import Trainer
from distill.workbench import Workbench


@dataclass
class Training:
    """One run on this rank: its stages one after another."""

    recipe: Recipe
    blends: Sequence[Blend]
    """Data of each stage."""
    run: RunFolder
    fingerprint: str
    world: World
    console: Console
    trainer: Trainer = field(init=False)

    def __post_init__(self) -> None:
        self.stages = self.recipe.staged()
        self.ends = [sum(stage.train.steps for stage in self.stages[: n + 1]) for n in range(len(self.stages))]
        check_stages(self.stages)

    def train(self) -> Trainer:
        """Go on from the last checkpoint, or begin; returns the trainer after the last step."""
        began = time.monotonic()
        check_shared(self.run, self.world)
        saved = self._saved()
        self.trainer = trainer = self._trainer(0 if saved is None else int(saved.values["stage"]))
        if saved is not None:
            trainer.load(saved)
        self._introduce()
        self._stages(began - trainer.seconds)
        if self.world.first and trainer.skipped:
            self._say(f"skipped {trainer.skipped.total()} of {trainer.seen} samples: {trainer.reasons()}")
        return trainer

    def _saved(self) -> Checkpoint | None:
        """The first rank looks for it, since it may have to put damaged ones aside."""
        first = self.world.first
        found, warnings = last_whole_checkpoint(self.run, self.fingerprint) if first else (None, [])
        for line in warnings:
            self._say(line)
        values = self.world.from_first(lambda: None if found is None else found.values)
        return None if values is None else Checkpoint(self.run.checkpoint(values["step"]), values)

    def _trainer(self, stage: int) -> Trainer:
        bench = self._bench(stage)
        return Trainer(bench, self.fingerprint, self._standards(bench), stage)

    def _stages(self, began: float) -> None:
        """What is left of them; began: when the run would have, had it never been interrupted."""
        trainer = self.trainer
        metrics = self._metrics() if self.world.first else None
        bar = Bar(steps=self.ends[-1], done=trainer.step, console=self.console, shown=self.world.first)
        try:
            with bar, _asked_to_stop() as stop:
                for number in range(trainer.stage, len(self.stages)):
                    if number > trainer.stage:
                        trainer.enter(self._bench(number, trainer.bench), number)
                    self._stage(number, began, metrics, bar, stop)
        finally:
            if metrics is not None:
                metrics.close()

    def _stage(self, number: int, began: float, metrics: Metrics | None, bar: Bar, stop: list[int]) -> None:
        trainer, recipe, end = self.trainer, self.stages[number], self.ends[number]
        shares = iter(trainer.loader)
        try:
            while trainer.step < end:
                asked = time.monotonic()
                share = next(shares)
                waited = time.monotonic() - asked
                sums, stopping = trainer.take(share, stop=bool(stop))
                trainer.seconds = time.monotonic() - began
                last = trainer.step == self.ends[-1]
                if trainer.step == end:
                    trainer.judge()
                if metrics is not None:
                    sums |= {"wait_seconds": waited, "places": sums["sequences"] * recipe.data.sequence_tokens}
                    del sums["sequences"]
                    rate = learning_rate(recipe, trainer.step - 1 - trainer.began)
                    place = {"stage": number, "epoch": share.step.epoch, "learning_rate": rate}
                    bar.advance(metrics.add(trainer.step, sums, place, flush=last or stopping))
                if last or stopping or trainer.step % recipe.run.checkpoint_every == 0:
                    self._save()
                if stopping:
                    raise SystemExit(143)
        finally:
            shares.close()  # type: ignore[attr-defined]

    def _save(self) -> None:
        trainer = self.trainer
        if not trainer.sound():
            raise CurateError(f"step {trainer.step}: weights are no longer numbers; {trainer.begin_anew()}")
        save_checkpoint(self.run, trainer.values(), trainer.tensors(), self.world, self.recipe.run.keep_checkpoints)
        trainer.checkpoint_step = trainer.step

    def _bench(self, stage: int, before: Workbench | None = None) -> Workbench:
        """before: of another stage, whose teachers' models and tokenizer are taken over."""
        models, tokenizer = (None, None) if before is None else (before.teachers, before.tokenizer)
        bench = Workbench.of(self.stages[stage], self.blends[stage], self.world, tokenizer=tokenizer, models=models)
        if self.recipe.student.text is not None and tokenizer is None:
            bench.tokenizer = self._tokenizer(bench)
        return bench

    def _tokenizer(self, bench: Workbench) -> Tokenizer:
        """The run's own; fitted on the texts of this stage when there is none yet."""
        place = self.run.path / TOKENIZER
        held = self.world.from_first(lambda: None if (found := Tokenizer.of_run(place)) is None else found.json())
        if held is not None:
            return Tokenizer.parse(held)
        fitted = bench.fitted_tokenizer()
        if self.world.first:
            self.run.storage.publish_bytes(TOKENIZER, fitted.json().encode())
        return fitted

    def _standards(self, bench: Workbench) -> list[Standards]:
        """The run's own; fitted on the pictures of the first stage when there are none yet. bench: of any stage."""
        found = load_standards(self.run) if self.world.first else None
        states = self.world.from_first(lambda: None if found is None else [item.state() for item in found])
        if states is None:
            own = bench.recipe == self.stages[0]
            standards = (bench if own else self._bench(0, bench)).standards()
            if self.world.first:
                save_standards(self.run, standards)
            return standards
        standards = [Standards.of(state) for state in states]
        widths = [shape.summary for shape in bench.teachers.shapes]
        if [len(item.summary.mean) for item in standards] != widths:
            raise InputError(f"{self.run.path / STANDARDS} is of other teachers; remove it: it is fitted anew")
        return standards

    def _metrics(self) -> Metrics:
        run, precision = self.recipe.run, self.recipe.train.precision
        peak = measured_peak(self.world.device, precision, torch.get_num_threads()) * self.world.size
        step = self.trainer.step
        return Metrics(self.run, every=run.log_every, after_step=step, peak=peak, tensorboard=run.tensorboard)

    def _introduce(self) -> None:
        """What is about to be trained, in a line."""
        if not self.world.first:
            return
        size, train, data = self.trainer.size, self.recipe.train, self.recipe.data
        active = f", {_short(size.active)} of them active" if size.active < size.parameters else ""
        sequences = (
            "/".join(map(str, train.sequences.values())) if isinstance(train.sequences, dict) else train.sequences
        )
        kept = self.trainer.step
        self._say(
            f"{self.recipe.name} {self.fingerprint[:12]}: {_short(size.parameters)} parameters{active}; a step is "
            f"{sequences} sequences x {data.sequence_tokens} tokens on {self.world.size} x {self.world.device.type}; "
            f"{self.ends[-1]} steps{f' in {len(self.stages)} stages' if len(self.stages) > 1 else ''}, "
            f"{f'going on after {kept}' if kept else 'from the beginning'}"
        )

    def _say(self, line: str) -> None:
        self.console.print(line, highlight=False, soft_wrap=True, markup=False)


def check_stages(stages: Sequence[Recipe]) -> None:
    """RecipeError for what a later stage cannot change, since it goes on with what the first one made."""
    for number, stage in enumerate(stages):
        for place in ("train.optimizer", "train.precision", "train.standardise_samples", "data.test_fraction"):
            section, name = place.split(".")
            first, given = (getattr(getattr(item, section), name) for item in (stages[0], stage))
            if given != first:
                raise RecipeError(f"stages.{number}.{place}: {given!r} after {first!r}; give it once, as {place}")
        if bool(stage.train.ema) != bool(stages[0].train.ema):
            raise RecipeError(f"stages.{number}.train.ema: on in one stage and off in another; give it in all or none")


def _short(count: int) -> str:
    return f"{count / 1e6:.1f}M" if count >= 1e5 else str(count)


@contextmanager
def _asked_to_stop() -> Iterator[list[int]]:
    """SIGTERM fills the list: the step is finished, a checkpoint written, and all ranks leave together.

    Outside of the main thread (a worker of Ray) nobody can listen to signals.
    """
    asked: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield asked
        return
    before = signal.signal(signal.SIGTERM, lambda number, _: asked.append(number))
    try:
        yield asked
    finally:
        signal.signal(signal.SIGTERM, before)
