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

from curate.core.errors import CurateError, InputError, StorageError
from curate.encoders.student.model_folder import TOKENIZER
from curate.encoders.student.tokenizer import Tokenizer, known_tokenizer
from distill.context import StageContext
from distill.evaluation.extraction import StoppedError
from distill.evaluation.validation import Validation
from distill.objectives.labels import Labels
from distill.parallel import World
from distill.recipe import Recipe
from distill.recipe.stages import check_stages
from distill.samples.sources.mixture import Mixture
from distill.samples.texts import check_columns
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
from distill.training.checkpoint_writer import CheckpointWriter
from distill.training.initial import inherited_tokenizer
from distill.training.plan import check_clips, plan_stages
from distill.training.progress import Bar, Metrics, short
from distill.training.run_folder import CLASSES, RunFolder
from distill.training.stages import check_trained, weights_of
from distill.training.steps import record_stage
from distill.training.throughput import measured_peak
from distill.training.trackers import TENSORBOARD, Tracked, opened
from distill.training.trackers import check as check_trackers
from distill.training.trainer import NotFiniteError, Trainer


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
    writer: CheckpointWriter = field(init=False)
    saved_step: int | None = None
    """Step of the last checkpoint, which may not be complete yet."""

    def __post_init__(self) -> None:
        self.stages = self.recipe.staged()
        self.schedules = self.recipe.schedules()
        self.ends = [sum(stage.train.steps for stage in self.stages[: n + 1]) for n in range(len(self.stages))]
        check_stages(self.stages)
        check_trackers(self.recipe.run.trackers)
        for recipe, mixture in zip(self.stages, self.mixtures, strict=True):
            check_clips(recipe, mixture)
            check_columns(mixture, recipe.needs.columns)

    def train(self) -> Trainer:
        """Resume from the last checkpoint, or start; returns the trainer after the last step."""
        began = time.monotonic()
        check_shared(self.run, self.world)
        saved = self._last_checkpoint()
        self.trainer = self.trainer_of(0 if saved is None else int(saved.values["stage"]))
        if saved is not None:
            self.trainer.load(saved)
            self.saved_step = self.trainer.step
        self._print_summary()
        self._run_stages(began - self.trainer.seconds)
        trainer = self.trainer
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

    def trainer_of(self, stage: int) -> Trainer:
        """A new trainer, at the beginning of a stage. Raises RecipeError for any stage that trains nothing, and
        InputError for any whose labels are not its classes."""
        context = self._context(stage)
        check_trained(self.stages, context.teachers)
        for number in range(stage + 1, len(self.stages)):
            if any(isinstance(item, Labels) for item in self.stages[number].every_objective):
                self._context(number, context)
        return self._trainer(context, stage)

    def _trainer(self, context: StageContext, stage: int) -> Trainer:
        return Trainer(context, self.fingerprint, self._standardisers(context), stage, self.schedules[stage])

    def _start_stage(self, number: int) -> None:
        """A stage with other weights or other frozen ones starts as if it resumed, from the checkpoint of the stage
        before, so that a restart at the boundary gives the same bits."""
        context = self._context(number, self.trainer.context)
        if weights_of(self.trainer.context.recipe) == weights_of(context.recipe):
            self.trainer.start_stage(context, number, self.schedules[number])
            return
        examples = self.trainer.examples
        if self.saved_step == self.trainer.step:
            self._note_checkpoint(wait=True)
        else:
            self._save(wait=True)
        del self.trainer  # releases its memory
        self.trainer, saved = self._trainer(context, number), self._last_checkpoint()
        assert saved is not None
        self.trainer.load(saved)
        self.trainer.examples = examples

    def _run_stages(self, began: float) -> None:
        """Run the remaining stages. began: the clock's time minus the seconds that the run has taken so far."""
        metrics = self._metrics() if self.world.first else None
        bar = Bar(steps=self.ends[-1], done=self.trainer.step, console=self.console, shown=self.world.first)
        self.writer = CheckpointWriter(self.run, self.world, self.recipe.run.keep_checkpoints)
        try:
            with bar, self.writer, _stop_signal() as stop:
                for number in range(self.trainer.stage, len(self.stages)):
                    if number > self.trainer.stage:
                        self._start_stage(number)
                    self._run_stage(number, began, metrics, bar, stop)
        finally:
            if metrics is not None:
                metrics.close()

    def _run_stage(self, number: int, began: float, metrics: Metrics | None, bar: Bar, stop: list[int]) -> None:
        trainer, recipe, end = self.trainer, self.stages[number], self.ends[number]
        if self.world.first:
            record_stage(self.run, number, trainer.step, self.world.size, trainer.loader.stream.counted())
        validation = None
        if recipe.evaluate.every:
            validation = Validation(
                trainer.context, lambda: bool(stop), self._print if self.world.first else lambda _: None
            )
        shares = iter(trainer.loader)
        try:
            while trainer.step < end:
                start = time.monotonic()
                share = next(shares)
                waited = time.monotonic() - start
                try:
                    sums, stopping = trainer.update(share, stop=bool(stop))
                except NotFiniteError as error:
                    replay = self._capture()
                    raise CurateError(f"{error}; {trainer.restart_advice()}. {replay}") from error
                trainer.seconds = time.monotonic() - began
                last = trainer.step == self.ends[-1]
                if trainer.step == end:
                    trainer.check_epoch()
                paused, values = time.monotonic(), dict[str, float]()
                if validation is not None and not stopping and trainer.step % recipe.evaluate.every == 0:
                    try:
                        values = validation(trainer.final_student())
                    except StoppedError:
                        stopping = True
                paused = time.monotonic() - paused
                if metrics is not None:
                    sums |= {"wait_seconds": waited, "places": sums["sequences"] * recipe.data.sequence_tokens}
                    del sums["sequences"]
                    place: dict[str, Any] = {"stage": number, "epoch": share.step.epoch}
                    place["learning_rate"] = trainer.rate(trainer.step - 1)
                    place["tokens_seen"] = trainer.tokens_seen
                    place["places"] = [asdict(one) for one in share.step.after.places]
                    flush = last or stopping or bool(values)
                    bar.advance(metrics.add(trainer.step, sums, place | values, flush=flush, paused=paused))
                if last or stopping or trainer.step % recipe.run.checkpoint_every == 0:
                    self._save(wait=last or stopping)
                else:
                    self._note_checkpoint()
                if stopping:
                    raise SystemExit(143)
        finally:
            shares.close()  # type: ignore[attr-defined]

    def _capture(self) -> str:
        """Save the state before a step that is not finite; returns what to do with it."""
        values, tensors = self.trainer.captured()
        try:
            self._note_checkpoint(wait=True)
            save_checkpoint(self.run, values, tensors, self.world)
        except StorageError as error:
            return f"For a replay: {error}"
        return f"`distill replay {self.run.path}` shows where it begins"

    def _save(self, *, wait: bool) -> None:
        """Start to write a checkpoint beside the steps; wait: until it is complete."""
        trainer = self.trainer
        self._note_checkpoint(wait=True)
        if not trainer.weights_finite():
            raise CurateError(f"step {trainer.step}: weights are not finite; {trainer.restart_advice()}")
        self.writer.save(trainer.values(), trainer.tensors())
        self.saved_step = trainer.step
        self._note_checkpoint(wait=wait)

    def _note_checkpoint(self, *, wait: bool = False) -> None:
        """Note the checkpoint that is complete since the last call. Raises StorageError if it could not be written."""
        self.trainer.checkpoint_step = self.writer.complete(wait=wait) or self.trainer.checkpoint_step

    def _context(self, stage: int, before: StageContext | None = None) -> StageContext:
        """before: context of another stage, whose teachers' models and tokenizer are reused."""
        models, tokenizer = (None, None) if before is None else (before.teachers, before.tokenizer)
        context = StageContext.of(
            self.stages[stage], self.mixtures[stage], self.world, tokenizer=tokenizer, models=models
        )
        if tokenizer is None:
            context.tokenizer = known_tokenizer(self.stages[stage].student.text, lambda: self._tokenizer(context))
        self._find_classes(context)
        return context

    def _find_classes(self, context: StageContext) -> None:
        """The run's classes; fitted on the samples of this stage if there are none yet."""
        known = self.world.from_first(lambda: self.run.read(CLASSES, "classes") or {"classes": {}})["classes"]
        context.find_classes(known)
        found = {label: index.names for label, index in context.classes.items()}
        if self.world.first and not found.items() <= known.items():
            self.run.write(CLASSES, {"classes": {**known, **found}})

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
