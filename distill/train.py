"""Trains the student of a recipe: plain PyTorch, one process or as many as torchrun starts, resumable at any step."""

from __future__ import annotations

import math
import signal
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from rich.console import Console

from curate.core.errors import BudgetError, CurateError
from distill.checkpoint import last_checkpoint, save_checkpoint
from distill.data.loader import Loader, Share, collate
from distill.folder import RunFolder
from distill.models.student import Student, decay_groups
from distill.objective import part_names, student_terms
from distill.progress import Bar, Metrics
from distill.recipe import Recipe
from distill.teachers import Standards
from distill.workbench import Workbench

_BUDGET_AFTER = 200  # samples seen before a fraction of bad ones means something


def learning_rate(recipe: Recipe, step: int) -> float:
    """Of the step-th update (from 0): linear warm-up, then linear from `learning_rate` to `final_learning_rate`."""
    train = recipe.train
    if step < train.warmup_steps:
        return train.learning_rate * (step + 1) / train.warmup_steps
    span = max(1, train.steps - 1 - train.warmup_steps)
    return train.learning_rate + (train.final_learning_rate - train.learning_rate) * (step - train.warmup_steps) / span


@dataclass
class Trainer:
    """Student, optimiser and place in the data: what a checkpoint holds."""

    bench: Workbench
    fingerprint: str
    student: Student = field(init=False)
    standards: list[Standards] = field(init=False, default_factory=list)
    step: int = field(init=False, default=0)
    seen: int = field(init=False, default=0)
    skipped: Counter[str] = field(init=False, default_factory=Counter)
    seconds: float = field(init=False, default=0.0)
    """Spent on the run by all processes that went on with it."""

    def __post_init__(self) -> None:
        train, run = self.bench.recipe.train, self.bench.recipe.run
        self.student = self.bench.new_student()
        self.optimizer = torch.optim.AdamW(
            decay_groups(self.student, train.weight_decay), lr=train.learning_rate, betas=train.betas, eps=train.epsilon
        )
        world = self.bench.world
        self.loader = Loader(
            self.bench.stream(), self.bench.pictures,
            rank=world.rank, world=world.size, workers=run.workers, prefetch=run.prefetch_steps,
        )  # fmt: skip

    def state(self) -> dict[str, Any]:
        return {
            "fingerprint": self.fingerprint,
            "step": self.step,
            "seen": self.seen,
            "skipped": dict(self.skipped),
            "seconds": self.seconds,
            "reader": self.loader.state_dict(),
            "student": self.student.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "standards": [standard.state() for standard in self.standards],
        }

    def load(self, state: dict[str, Any]) -> None:
        self.step, self.seen, self.skipped = state["step"], state["seen"], Counter(state["skipped"])
        self.seconds = state["seconds"]
        self.loader.load_state_dict(state["reader"])
        self.student.load_state_dict(state["student"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.standards = [Standards.of(standard) for standard in state["standards"]]

    def take(self, share: Share, *, stop: bool = False) -> tuple[dict[str, float], bool]:
        """One update from this rank's share. Sums over the global batch, and whether any rank was asked to stop."""
        world = self.bench.world
        own = sum(len(picture.patches) + len(self.student.backbone.prefix) for picture in share.pictures)
        images, skipped, tokens, stops = world.numbers([len(share.pictures), len(share.skipped), own, stop])
        self._count_skipped(share, int(images), int(skipped))
        sums = {"images": images, "skipped": skipped, "tokens": tokens, "sequences": len(share.step.sequences)}
        if images:
            sums |= self._update(share, images)
        self.step += 1
        return sums, stops > 0

    def _update(self, share: Share, images: float) -> dict[str, float]:
        recipe, world = self.bench.recipe, self.bench.world
        self.optimizer.zero_grad(set_to_none=True)
        names = part_names(recipe, self.standards)
        sums = [0.0] * (1 + len(names))
        if share.pictures:
            batch = collate(share.pictures)
            targets = self.bench.teachers.targets(batch.pictures)
            with self._precision():
                losses = student_terms(self.student, batch, targets, self.standards, recipe)
            (losses.additive / images).backward()
            sums = [losses.additive.item(), *(float(losses.parts[name]) for name in names)]
        sums = world.numbers(sums)
        if not math.isfinite(sums[0]):
            raise CurateError(
                f"step {self.step}: the loss is {sums[0]}; lower train.learning_rate or set train.clip_norm=1, "
                f"and run again: it goes on from the last checkpoint"
            )
        world.sum_gradients(self.student)
        if recipe.train.clip_norm:
            torch.nn.utils.clip_grad_norm_(self.student.parameters(), recipe.train.clip_norm)
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(recipe, self.step)
        self.optimizer.step()
        return dict(zip(["loss", *names], sums, strict=True))

    def _precision(self) -> Any:
        if self.bench.recipe.train.precision == "bfloat16":
            return torch.autocast(self.bench.world.device.type, torch.bfloat16)
        return nullcontext()

    def _count_skipped(self, share: Share, images: int, skipped: int) -> None:
        """Ranks count the same, so that all of them stop at the same step."""
        self.seen += images + skipped
        if not skipped:
            return
        for reasons in self.bench.world.gather(dict(share.reasons())):
            self.skipped.update(reasons)
        limit = self.bench.recipe.data.max_bad_fraction
        if self.seen >= _BUDGET_AFTER and self.skipped.total() > limit * self.seen:
            reasons = ", ".join(f"{reason} {count}" for reason, count in self.skipped.most_common())
            raise BudgetError(
                f"{self.skipped.total()} of {self.seen} samples could not be used ({reasons}); "
                f"mend the dataset or raise data.max_bad_fraction above {limit}"
            )


def train(bench: Workbench, run: RunFolder, fingerprint: str, console: Console) -> Trainer:
    """Go on from the last checkpoint, or begin; returns the trainer after the last step."""
    recipe, world = bench.recipe, bench.world
    start = time.monotonic()
    state = last_checkpoint(run, fingerprint, world.device)
    trainer = Trainer(bench, fingerprint)
    if state is not None:
        trainer.load(state)
    else:
        trainer.standards = bench.standards()
    metrics = Metrics(
        run, every=recipe.run.log_every, capacity=recipe.data.sequence_tokens, after_step=trainer.step
    ) if world.first else None  # fmt: skip
    start -= trainer.seconds
    bar = Bar(steps=recipe.train.steps, done=trainer.step, console=console, shown=world.first)
    shares = iter(trainer.loader)
    try:
        with bar, _asked_to_stop() as stop:
            while trainer.step < recipe.train.steps:
                share = next(shares)
                sums, stopping = trainer.take(share, stop=bool(stop))
                trainer.seconds = time.monotonic() - start
                last = trainer.step == recipe.train.steps
                if metrics is not None:
                    place = {"epoch": share.step.epoch, "learning_rate": learning_rate(recipe, trainer.step - 1)}
                    bar.advance(metrics.add(trainer.step, sums, place, flush=last or stopping))
                if world.first and (last or stopping or trainer.step % recipe.run.checkpoint_every == 0):
                    save_checkpoint(run, trainer.step, trainer.state(), recipe.run.keep_checkpoints)
                if stopping:
                    raise SystemExit(143)
    finally:
        shares.close()  # type: ignore[attr-defined]
        if metrics is not None:
            metrics.close()
    return trainer


@contextmanager
def _asked_to_stop() -> Iterator[list[int]]:
    """SIGTERM fills the list: the step is finished, a checkpoint written, and all ranks leave together."""
    asked: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: asked.append(number))
    try:
        yield asked
    finally:
        signal.signal(signal.SIGTERM, before)
