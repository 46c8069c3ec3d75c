"""The state of a training (student, optimiser, moving average, position in the data) and its updates."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from curate.core.errors import BudgetError, CurateError
from curate.encoders.student.network.student import Student, compile_blocks
from distill.context import StageContext
from distill.parallel import local
from distill.samples.batches.loader import BatchShare, Loader
from distill.samples.batches.stream import Position
from distill.teachers import TargetStandardiser
from distill.training.checkpoint import Checkpoint
from distill.training.gradients import Gradients
from distill.training.optim import (
    Ema,
    build_optimizer,
    configure_optimizer,
    freeze,
    learning_rate,
    split_by_updates,
    states,
)
from distill.training.sharding import full_state, same_layout, shard, sharded
from distill.training.throughput import Cost, size_of

_BUDGET_AFTER = 200  # in the middle of an epoch, a fraction of fewer samples means nothing


class NotFiniteError(CurateError):
    """A loss or a gradient is not finite. The weights and the optimiser are those before the step."""


class Trainer:
    """Trains one stage at a time; `start_stage` continues with the data and schedule of the next stage."""

    def __init__(
        self,
        context: StageContext,
        fingerprint: str,
        standardisers: list[TargetStandardiser] | None = None,
        stage: int = 0,
        schedule: range | None = None,
    ) -> None:
        """standardisers: one per teacher; None: fitted on the images of the context; schedule: see `start_stage`."""
        self.fingerprint = fingerprint
        self.standardisers = context.fit_standardisers() if standardisers is None else standardisers
        self.student = context.new_student()
        freeze(self.student, context.recipe.train)
        self.size, self.cost = size_of(self.student, context.recipe), Cost.of(self.student, context.recipe)
        if context.recipe.run.activation_checkpointing:
            self.student.backbone.checkpointing = True
        if context.recipe.run.compile:
            compile_blocks(self.student)
        if context.recipe.run.parallel == "fsdp" and context.world.size > 1:
            shard(self.student, context.world)
        self.optimizer = build_optimizer(self.student, context.recipe.train)
        self.ema = Ema(self.student) if context.recipe.train.ema else None
        self.step, self.seen, self.seconds = 0, 0, 0.0
        """Updates and samples of all stages; seconds, those before a restart included."""
        self.tokens_seen = 0
        """Image tokens (patches) of all updates, of all ranks and stages."""
        self.checkpoint_step: int | None = None
        """Step of the last checkpoint that was saved or loaded."""
        self.skipped: Counter[str] = Counter()
        self.examples: dict[str, str] = {}
        self.start_stage(context, stage, schedule)

    def start_stage(self, context: StageContext, stage: int, schedule: range | None = None) -> None:
        """Start a stage of the same weights at the beginning of its data. `step` must be the step of its first update.

        schedule: updates (from 0) that the learning rate's schedule spans; None: those of the stage."""
        recipe, world = context.recipe, context.world
        self.schedule = range(self.step, self.step + recipe.train.steps) if schedule is None else schedule
        self.context, self.stage, self.began, self.position = context, stage, self.step, Position()
        self.epoch: int | None = None
        """Epoch of the last update in this stage."""
        self.loader = Loader(
            context.stream(), context.reader,
            rank=world.rank, world=world.size, workers=recipe.run.workers, prefetch=recipe.run.prefetch_steps,
        )  # fmt: skip
        configure_optimizer(self.optimizer, recipe.train)
        self.objectives = recipe.every_objective
        spaces, empty = context.spaces(self.standardisers), context.micro_batch([])
        self.gradients = Gradients(self.student, self.objectives, spaces, empty, world, context.autocast)

    # --- contents of a checkpoint ---

    def values(self) -> dict[str, Any]:
        """JSON values of a checkpoint."""
        counts = {"seen": self.seen, "tokens_seen": self.tokens_seen, "skipped": dict(self.skipped)}
        reader = self.loader.stream.state(self.position)
        position = {"stage": self.stage, "began": self.began, "epoch": self.epoch, "reader": reader}
        identity = {"fingerprint": self.fingerprint, "step": self.step, "averaged": self.ema is not None}
        return {**identity, **counts, **position, "seconds": self.seconds}

    def tensors(self) -> dict[str, Tensor]:
        """This rank's tensors of student, optimiser and moving average, by name."""
        tensors = {f"student.{name}": value for name, value in self.student.state_dict().items()}
        if self.ema is not None:
            tensors |= {f"ema.{name}": value for name, value in self.ema.state(self.student).items()}
        return tensors | {f"optimizer.{name}": value for name, value in states(self.student, self.optimizer).items()}

    def load(self, saved: Checkpoint) -> None:
        """Load a checkpoint of this stage, or, of the end of the stage before, what both have. A collective of all
        ranks."""
        held, values = saved.shapes(), saved.values
        resumed = values.get("stage", self.stage) == self.stage
        if resumed:
            saved.check(self.student.state_dict(), "student.")
        wanted = {
            name: own for name, own in self.tensors().items() if resumed or (held.get(name) or [0])[0] == own.shape
        }
        parameters = {name: item for name, item in self.student.named_parameters() if item.requires_grad}
        for place, (shape, dtype) in held.items():
            kind, _, rest = place.partition(".")
            name, _, key = rest.rpartition(".")
            if kind == "optimizer" and name in parameters and f"student.{name}" in wanted:
                wanted[place] = same_layout(shape, dtype, parameters[name])
                self.optimizer.state[parameters[name]][key] = wanted[place]
            elif kind == "group":
                wanted[place] = torch.zeros(shape, dtype=dtype)
        saved.load(wanted, self.context.world)
        if self.context.recipe.train.optimizer == "lamb":
            split_by_updates(self.optimizer, wanted.get("group.0.step"))
        self.checkpoint_step = values["step"]
        self.step, self.seen, self.seconds = values["step"], values["seen"], values["seconds"]
        self.tokens_seen, self.skipped = values["tokens_seen"], Counter(values["skipped"])
        self.began = self.step
        if resumed:
            self.began, self.epoch = values["began"], values.get("epoch")
            self.loader.load_state_dict(values["reader"])
            self.position = self.loader.stream.position(values["reader"])

    def rate(self, step: int) -> float:
        """Learning rate of an update, from 0."""
        return learning_rate(self.context.recipe.train, step - self.schedule.start, len(self.schedule))

    def final_student(self) -> Student:
        """The student to evaluate: unsharded, with the moving average's weights if there is one. A collective."""
        if self.ema is None and not sharded(self.student):
            return self.student
        student = self.context.new_student(filled=True)
        state = self.student.state_dict() if self.ema is None else self.ema.state(self.student)
        student.load_state_dict(full_state(state))
        return student

    def weights_finite(self) -> bool:
        """Whether all weights are finite, on every rank. A collective."""
        bad = sum(int((~torch.isfinite(local(item.detach()))).any()) for item in self.student.parameters())
        return self.context.world.largest(bad) == 0

    def captured(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """Values and tensors to run the step again that was not finite."""
        own = {f"random.{self.context.world.rank}.{kind}": value for kind, value in self.random.items()}
        return {**self.values(), "ranks": self.context.world.size}, self.tensors() | own

    # --- an update ---

    def update(self, share: BatchShare, *, stop: bool = False) -> tuple[dict[str, float], bool]:
        """Update the student from this rank's batch share. Returns sums over the global batch, and whether to stop.

        stop: whether this rank received a signal to stop; one rank is enough.
        """
        world, recipe = self.context.world, self.context.recipe
        patches = [rows * columns for image in share.images for rows, columns in [image.grid] * image.frames]
        prefix = recipe.student.prefix
        counts = [len(share.images), len(share.skipped), sum(patches), len(patches)]
        passing = [(view.share, view.lengths(share.images, recipe.student.tubelet)) for view in recipe.needs.views]
        flops = sum(part * self.cost.flops(lengths, prefix) for part, lengths in passing)
        numbers = world.numbers([*counts, flops, stop])
        images, skipped, image_tokens, pictures, flops, stops = numbers
        tokens = image_tokens + prefix * pictures
        if self.epoch is not None and share.step.epoch != self.epoch:
            self.check_epoch()
        self.epoch = share.step.epoch
        self._count_skipped(share, int(images), int(skipped))
        sequences = len(share.step.sequences)
        sums = {"images": images, "skipped": skipped, "tokens": tokens, "flops": flops, "sequences": sequences}
        if images:
            with self._memory_error():
                sums |= self._optimize(share, images)
        self.step, self.position = self.step + 1, share.step.after
        self.tokens_seen += int(image_tokens)
        return sums, stops > 0

    @contextmanager
    def _memory_error(self) -> Iterator[None]:
        """Turn torch's out-of-memory error into one line with the settings that reduce memory."""
        try:
            yield
        except torch.OutOfMemoryError as error:
            run = self.context.recipe.run
            raise CurateError(
                f"step {self.step + 1}: {self.context.world.device} is out of memory with run.micro_sequences="
                f"{run.micro_sequences} (0: all at once); set it lower, or run.activation_checkpointing=true, or "
                f"run.parallel=fsdp, and run again to resume from {self.resume_point()}"
            ) from error

    def _optimize(self, share: BatchShare, images: float) -> dict[str, float]:
        recipe, world = self.context.recipe, self.context.world
        self.random = random_states()
        self.optimizer.zero_grad(set_to_none=True)
        parts = share.micro_batches(recipe.run.micro_sequences)
        micros = [self.context.micro_batch(part.images) for part in parts if part.images]
        sums = self.gradients.add(micros, images)
        self._check_finite(sums)
        world.sum_gradients(self.student)
        norm = world.gradient_norm(self.student)
        self._check_finite({"the gradient norm": norm})
        if recipe.train.clip_norm and norm > recipe.train.clip_norm:
            for parameter in self.student.parameters():
                if parameter.grad is not None:
                    local(parameter.grad).mul_(recipe.train.clip_norm / norm)
        for group in self.optimizer.param_groups:
            group["lr"] = group["factor"] * self.rate(self.step)
        self.optimizer.step()
        for objective in self.objectives:
            objective.after_update(self.student)
        load = self._balance()
        if self.ema is not None:
            self.ema.update(self.student, recipe.train.ema)
        return {**sums, "gradient_norm": norm, **load}

    def _balance(self) -> dict[str, float]:
        """Loss-free balancing over the global batch. Returns the maximum load of an expert, relative to its group's."""
        counts = self.student.backbone.expert_counts()
        if counts is None:
            return {}
        counts = self.context.world.sum(counts)
        self.student.backbone.balance(counts)
        counts = counts.double()
        load = counts / self.student.backbone.moes()[0].means(counts).clamp(min=1.0)
        return {"expert_load": float(load.max())}

    def _check_finite(self, values: dict[str, float]) -> None:
        """NotFiniteError for a value that is not finite. All ranks have the same values, so they end together."""
        bad = [name for name, value in values.items() if not math.isfinite(value)]
        if bad:
            raise NotFiniteError(f"step {self.step + 1}: {_not_finite(bad, values)}")

    def restart_advice(self) -> str:
        """What to do when training diverges; resuming with the same settings would diverge again."""
        kept = "no checkpoint was written" if self.checkpoint_step is None else f"{self.resume_point()} is unchanged"
        return (
            f"{kept}, but the same settings would fail again: start a new run (another run.folder) with a "
            f"train.learning_rate below {self.context.recipe.train.learning_rate:g}, more train.warmup_steps, or "
            f"train.clip_norm=1"
        )

    def resume_point(self) -> str:
        if self.checkpoint_step is None:
            return "the beginning (no checkpoint yet)"
        return f"the checkpoint of step {self.checkpoint_step}"

    def _count_skipped(self, share: BatchShare, images: int, skipped: int) -> None:
        """Count skipped samples over all ranks, so that all ranks stop at the same step."""
        self.seen += images + skipped
        if not skipped:
            return
        for reasons, examples in self.context.world.gather((dict(share.reasons()), share.examples())):
            self.skipped.update(reasons)
            self.examples = examples | self.examples
        if self.seen >= _BUDGET_AFTER:
            self._check_skipped()

    def check_epoch(self) -> None:
        """BudgetError at the end of an epoch or stage with too many skipped samples, however few samples it had."""
        self._check_skipped()
        if self.seen == self.skipped.total():
            raise BudgetError(f"none of {self.seen} samples could be used ({self.reasons()}); fix the dataset")

    def _check_skipped(self) -> None:
        limit = self.context.recipe.data.max_bad_fraction
        if self.skipped.total() > limit * self.seen:
            raise BudgetError(
                f"{self.skipped.total()} of {self.seen} samples could not be used ({self.reasons()}); "
                f"fix the dataset or raise data.max_bad_fraction above {limit}"
            )

    def reasons(self) -> str:
        """Numbers of skipped samples by reason, the most frequent first, with an example of that reason."""
        common = self.skipped.most_common()
        counts = ", ".join(f"{reason} {count}" for reason, count in common)
        example = self.examples.get(common[0][0], "") if common else ""
        return counts + (f"; such as {example}" if example else "")


def random_states() -> dict[str, Tensor]:
    """States of torch's generators, by kind of device."""
    states = {"cpu": torch.get_rng_state()}
    return states | ({"cuda": torch.cuda.get_rng_state()} if torch.cuda.is_initialized() else {})


def _not_finite(bad: list[str], values: dict[str, float]) -> str:
    """Text on the terms that are not finite; the total loss only if no term is."""
    terms = [name for name in bad if name != "loss"] or bad
    texts = [f"{'the loss' if name == 'loss' else name} is {values[name]}" for name in terms]
    return ", ".join(texts[:3])
