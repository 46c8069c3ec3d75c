"""The training run of a recipe: its stages, checkpoints and metrics, in one process or in each rank of torchrun."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from rich.console import Console

from curate.core.errors import CurateError, InputError, RecipeError
from curate.encoders.student.model_folder import TOKENIZER
from curate.encoders.student.tokenizer import Tokenizer, known_tokenizer
from distill.context import StageContext
from distill.parallel import World
from distill.recipe import Recipe
from distill.samples.sources.mixture import Mixture
from distill.teachers import TargetStandardiser
from distill.training.checkpoint import (
    STANDARDS,
    Checkpoint,
    check_shared,
    last_valid_checkpoint,
    load_standardisers,
    save_checkpoint,
    save_standardisers,
)
from distill.training.initial import inherited_tokenizer
from distill.training.optim import learning_rate
from distill.training.plan import check_clips, plan_stages
from distill.training.progress import Bar, Metrics, short
from distill.training.run_folder import RunFolder
from distill.training.steps import record_stage
from distill.training.throughput import measured_peak
from distill.training.trackers import TENSORBOARD, Tracked, opened
from distill.training.trackers import check as check_trackers
from distill.training.trainer import Trainer


@dataclass
class TrainingRun:
    """A run on this rank. Its stages run in turn."""

    recipe: Recipe
    mixtures: Sequence[Mixture]
    """Dataset mixture of each stage."""
    run: RunFolder
    fingerprint: str
    world: World
    console: Console
    trainer: Trainer = field(init=False)

    def __post_init__(self) -> None:
        self.stages = self.recipe.staged()
        self.ends = [sum(stage.train.steps for stage in self.stages[: n + 1]) for n in range(len(self.stages))]
        check_stages(self.stages)
        check_trackers(self.recipe.run.trackers)
        for recipe, mixture in zip(self.stages, self.mixtures, strict=True):
            check_clips(recipe, mixture)

    def train(self) -> Trainer:
        """Resume from the last checkpoint, or start; returns the trainer after the last step."""
        began = time.monotonic()
        check_shared(self.run, self.world)
        saved = self._last_checkpoint()
        self.trainer = trainer = self._trainer(0 if saved is None else int(saved.values["stage"]))
        if saved is not None:
            trainer.load(saved)
        self._print_summary()
        self._run_stages(began - trainer.seconds)
        if self.world.first and trainer.skipped:
            self._print(f"skipped {trainer.skipped.total()} of {trainer.seen} samples: {trainer.reasons()}")
        return trainer

    def _last_checkpoint(self) -> Checkpoint | None:
        """Rank 0 looks for it, because corrupt ones are renamed."""
        first = self.world.first
        found, warnings = last_valid_checkpoint(self.run, self.fingerprint) if first else (None, [])
        for line in warnings:
            self._print(line)
        values = self.world.from_first(lambda: None if found is None else found.values)
        return None if values is None else Checkpoint(self.run.checkpoint(values["step"]), values)

    def _trainer(self, stage: int) -> Trainer:
        context = self._context(stage)
        return Trainer(context, self.fingerprint, self._standardisers(context), stage)

    def _run_stages(self, began: float) -> None:
        """Run the remaining stages. began: the clock's time minus the seconds that the run has taken so far."""
        trainer = self.trainer
        metrics = self._metrics() if self.world.first else None
        bar = Bar(steps=self.ends[-1], done=trainer.step, console=self.console, shown=self.world.first)
        try:
            with bar, _stop_signal() as stop:
                for number in range(trainer.stage, len(self.stages)):
                    if number > trainer.stage:
                        trainer.start_stage(self._context(number, trainer.context), number)
                    self._run_stage(number, began, metrics, bar, stop)
        finally:
            if metrics is not None:
                metrics.close()

    def _run_stage(self, number: int, began: float, metrics: Metrics | None, bar: Bar, stop: list[int]) -> None:
        trainer, recipe, end = self.trainer, self.stages[number], self.ends[number]
        if self.world.first:
            record_stage(self.run, number, trainer.step, self.world.size, trainer.loader.stream.counted())
        shares = iter(trainer.loader)
        try:
            while trainer.step < end:
                start = time.monotonic()
                share = next(shares)
                waited = time.monotonic() - start
                sums, stopping = trainer.update(share, stop=bool(stop))
                trainer.seconds = time.monotonic() - began
                last = trainer.step == self.ends[-1]
                if trainer.step == end:
                    trainer.check_epoch()
                if metrics is not None:
                    sums |= {"wait_seconds": waited, "places": sums["sequences"] * recipe.data.sequence_tokens}
                    del sums["sequences"]
                    rate = learning_rate(recipe, trainer.step - 1 - trainer.began)
                    place: dict[str, Any] = {"stage": number, "epoch": share.step.epoch, "learning_rate": rate}
                    place["tokens_seen"] = trainer.tokens_seen
                    place["places"] = [asdict(one) for one in share.step.after.places]
                    bar.advance(metrics.add(trainer.step, sums, place, flush=last or stopping))
                if last or stopping or trainer.step % recipe.run.checkpoint_every == 0:
                    self._save()
                if stopping:
                    raise SystemExit(143)
        finally:
            shares.close()  # type: ignore[attr-defined]

    def _save(self) -> None:
        trainer = self.trainer
        if not trainer.weights_finite():
            raise CurateError(f"step {trainer.step}: weights are not finite; {trainer.restart_advice()}")
        save_checkpoint(self.run, trainer.values(), trainer.tensors(), self.world, self.recipe.run.keep_checkpoints)
        trainer.checkpoint_step = trainer.step

    def _context(self, stage: int, before: StageContext | None = None) -> StageContext:
        """before: context of another stage, whose teachers' models and tokenizer are reused."""
        models, tokenizer = (None, None) if before is None else (before.teachers, before.tokenizer)
        context = StageContext.of(
            self.stages[stage], self.mixtures[stage], self.world, tokenizer=tokenizer, models=models
        )
        if tokenizer is None:
            context.tokenizer = known_tokenizer(self.recipe.student.text, lambda: self._tokenizer(context))
        return context

    def _tokenizer(self, context: StageContext) -> Tokenizer:
        """The run's tokenizer; if there is none yet, that of `init_from`, or fitted on the texts of this stage."""
        path = self.run.path / TOKENIZER
        saved = self.world.from_first(lambda: None if (found := Tokenizer.of_run(path)) is None else found.json())
        if saved is not None:
            return Tokenizer.parse(saved)
        fitted = inherited_tokenizer(self.recipe) or context.fit_tokenizer()
        if self.world.first:
            self.run.storage.publish_bytes(TOKENIZER, fitted.json().encode())
        return fitted

    def _standardisers(self, context: StageContext) -> list[TargetStandardiser]:
        """The run's standardisers; fitted on the images of the first stage if there are none yet."""
        found = load_standardisers(self.run) if self.world.first else None
        states = self.world.from_first(lambda: None if found is None else [item.state() for item in found])
        if states is None:
            own = context.recipe == self.stages[0]
            standardisers = (context if own else self._context(0, context)).fit_standardisers()
            if self.world.first:
                save_standardisers(self.run, standardisers)
            return standardisers
        standardisers = [TargetStandardiser.of(state) for state in states]
        widths = [shape.summary for shape in context.teachers.shapes]
        if [len(item.summary.mean) for item in standardisers] != widths:
            raise InputError(f"{self.run.path / STANDARDS} was fitted for other teachers; remove it to refit")
        return standardisers

    def _metrics(self) -> Metrics:
        run, precision = self.recipe.run, self.recipe.train.precision
        peak = measured_peak(self.world.device, precision, torch.get_num_threads()) * self.world.size
        step = self.trainer.step
        inputs = {source.url: source.fingerprint for mixture in self.mixtures for source in mixture.sources}
        about = self.recipe.model_dump(mode="json")
        told = Tracked(self.run.path, self.recipe.name, self.fingerprint, about, inputs, step)
        names = [*([TENSORBOARD] if run.tensorboard else []), *run.trackers]
        made = opened(names, told, self._print)
        return Metrics(self.run, every=run.log_every, after_step=step, peak=peak, trackers=made)

    def _print_summary(self) -> None:
        """Print a line about the student, the steps and the devices, and one about the weights it starts from."""
        if not self.world.first:
            return
        if (initial := self.trainer.context.initial) is not None and not self.trainer.step:
            self.run.write("initial.json", asdict(initial))
            self._print(initial.line())
        size, train, data = self.trainer.size, self.recipe.train, self.recipe.data
        active = f", {short(size.active)} of them active" if size.active < size.parameters else ""
        sequences = (
            "/".join(map(str, train.sequences.values())) if isinstance(train.sequences, dict) else train.sequences
        )
        resumed = self.trainer.step
        planned = short(sum(stage.total for stage in plan_stages(self.stages, self.mixtures)))
        self._print(
            f"{self.recipe.name} {self.fingerprint[:12]}: {short(size.parameters)} parameters{active}; a step is "
            f"{sequences} sequences x {data.sequence_tokens} tokens on {self.world.size} x {self.world.device.type}; "
            f"{self.ends[-1]} steps{f' in {len(self.stages)} stages' if len(self.stages) > 1 else ''}, "
            f"about {planned} image tokens, "
            f"{f'resuming after step {resumed}' if resumed else 'from the beginning'}"
        )

    def _print(self, line: str) -> None:
        self.console.print(line, highlight=False, soft_wrap=True, markup=False)


def check_stages(stages: Sequence[Recipe]) -> None:
    """RecipeError if a later stage changes a setting of the optimiser, the standardisation or the held-out rows, which
    it takes over from the first stage."""
    for number, stage in enumerate(stages):
        for place in ("train.optimizer", "train.precision", "train.standardise_samples", "data.test_fraction"):
            section, name = place.split(".")
            first, given = (getattr(getattr(item, section), name) for item in (stages[0], stage))
            if given != first:
                raise RecipeError(
                    f"stages.{number}.{place}: {given!r}, but {first!r} in the first stage; set it once, as {place}"
                )
        if bool(stage.train.ema) != bool(stages[0].train.ema):
            raise RecipeError(
                f"stages.{number}.train.ema: on in one stage and off in another; set it in all stages or in none"
            )


@contextmanager
def _stop_signal() -> Iterator[list[int]]:
    """A list that SIGTERM makes non-empty: the ranks then finish the step, write a checkpoint and end together.

    Always empty outside the main thread (in a worker of Ray), which receives no signals.
    """
    signals: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield signals
        return
    before = signal.signal(signal.SIGTERM, lambda number, _: signals.append(number))
    try:
        yield signals
    finally:
        signal.signal(signal.SIGTERM, before)
