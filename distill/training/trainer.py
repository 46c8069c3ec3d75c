"""One update after another: student, optimiser, moving average, place in the data: what a checkpoint holds."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from curate.core.errors import BudgetError, CurateError
from distill.models.student import Student, apply_checkpointing, compile_blocks
from distill.models.text import limit_scale
from distill.samples.batches.loader import Loader, Share, collate
from distill.teachers import Standards
from distill.training.checkpoint import Checkpoint
from distill.training.ema import Ema
from distill.training.optim import build_optimizer, learning_rate, set_up
from distill.training.parallel import local
from distill.training.sharding import same_layout, shard, sharded, whole_state
from distill.training.throughput import Cost, size_of
from distill.training.update import Gradients, Micro
from distill.workbench import Workbench

_BUDGET_AFTER = 200  # samples seen before a fraction of bad ones means something in the middle of an epoch


class Trainer:
    """Of a stage at a time: `enter` goes on with the next one's data and schedule."""

    def __init__(
        self, bench: Workbench, fingerprint: str, standards: list[Standards] | None = None, stage: int = 0
    ) -> None:
        """standards: of the teachers; fitted on the bench's pictures when None is given."""
        self.fingerprint = fingerprint
        self.standards = bench.standards() if standards is None else standards
        self.student = bench.new_student()
        self.size, self.cost = size_of(self.student, bench.recipe), Cost.of(self.student, bench.recipe)
        if bench.recipe.run.activation_checkpointing:
            apply_checkpointing(self.student)
        if bench.recipe.run.compile:
            compile_blocks(self.student)
        if bench.recipe.run.parallel == "fsdp" and bench.world.size > 1:
            shard(self.student, bench.world)
        self.optimizer = build_optimizer(self.student, bench.recipe.train)
        self.ema = Ema(self.student) if bench.recipe.train.ema else None
        self.step, self.seen, self.seconds = 0, 0, 0.0
        """Updates and samples of all stages; seconds spent by all processes that went on with the run."""
        self.checkpoint_step: int | None = None
        """Of the last one that was saved or read."""
        self.skipped: Counter[str] = Counter()
        self.examples: dict[str, str] = {}
        self.enter(bench, stage)

    def enter(self, bench: Workbench, stage: int) -> None:
        """Begin a stage, at the beginning of its data; `step` must be that of its first update."""
        recipe, world = bench.recipe, bench.world
        self.bench, self.stage, self.began = bench, stage, self.step
        self.epoch: int | None = None
        """Of the last step of this stage."""
        self.loader = Loader(
            bench.stream(), bench.pictures,
            rank=world.rank, world=world.size, workers=recipe.run.workers, prefetch=recipe.run.prefetch_steps,
        )  # fmt: skip
        set_up(self.optimizer, recipe.train)
        self.gradients = Gradients(self.student, self.standards, recipe, world, bench.poolers(), bench.autocast)

    # --- what a checkpoint holds ---

    def values(self) -> dict[str, Any]:
        counts = {"seen": self.seen, "skipped": dict(self.skipped), "seconds": self.seconds}
        place = {"stage": self.stage, "began": self.began, "epoch": self.epoch, "reader": self.loader.state_dict()}
        what = {"fingerprint": self.fingerprint, "step": self.step, "averaged": self.ema is not None}
        return {**what, **counts, **place}

    def tensors(self) -> dict[str, Tensor]:
        """Student, optimiser and moving average by name, as this rank holds them."""
        held = {f"student.{name}": value for name, value in self.student.state_dict().items()}
        if self.ema is not None:
            held |= {f"ema.{name}": value for name, value in self.ema.state(self.student).items()}
        for name, parameter in self.student.named_parameters():
            for key, value in self.optimizer.state.get(parameter, {}).items():
                held[f"optimizer.{name}.{key}"] = value
        for number, group in enumerate(self.optimizer.param_groups):
            held |= {f"group.{number}.{key}": value for key, value in group.items() if isinstance(value, Tensor)}
        return held

    def load(self, saved: Checkpoint) -> None:
        """A collective of all ranks. The stage's bench must have been entered."""
        saved.check(self.student.state_dict(), "student.")
        parameters = dict(self.student.named_parameters())
        for place, (shape, dtype) in saved.shapes().items():
            kind, _, rest = place.partition(".")
            name, _, key = rest.rpartition(".")
            if kind == "optimizer":
                self.optimizer.state[parameters[name]][key] = same_layout(shape, dtype, parameters[name])
            elif kind == "group":
                self.optimizer.param_groups[int(name)][key] = torch.zeros(shape, dtype=dtype)
        saved.load(self.tensors(), self.bench.world)
        values = saved.values
        self.checkpoint_step = values["step"]
        self.step, self.seen, self.seconds = values["step"], values["seen"], values["seconds"]
        self.skipped, self.began, self.epoch = Counter(values["skipped"]), values["began"], values.get("epoch")
        self.loader.load_state_dict(values["reader"])

    def trained(self) -> Student:
        """The student as it is evaluated: whole, in the moving average's weights where there is one. A collective."""
        if self.ema is None and not sharded(self.student):
            return self.student
        student = self.bench.new_student()
        held = self.student.state_dict() if self.ema is None else self.ema.state(self.student)
        student.load_state_dict(whole_state(held))
        return student

    def sound(self) -> bool:
        """Whether all weights are numbers, on every rank."""
        bad = sum(int((~torch.isfinite(local(item.detach()))).any()) for item in self.student.parameters())
        return self.bench.world.largest(bad) == 0

    # --- an update ---

    def take(self, share: Share, *, stop: bool = False) -> tuple[dict[str, float], bool]:
        """One update from this rank's share. Sums over the global batch, and whether any rank was asked to stop."""
        world, recipe = self.bench.world, self.bench.recipe
        patches = [len(picture.patches) for picture in share.pictures]
        prefix = 1 + recipe.student.registers
        own = [len(patches), len(share.skipped), sum(patches) + prefix * len(patches), self.cost.flops(patches, prefix)]
        images, skipped, tokens, flops, stops = world.numbers([*own, stop])
        if self.epoch is not None and share.step.epoch != self.epoch:
            self.judge()
        self.epoch = share.step.epoch
        self._count_skipped(share, int(images), int(skipped))
        sequences = len(share.step.sequences)
        sums = {"images": images, "skipped": skipped, "tokens": tokens, "flops": flops, "sequences": sequences}
        if images:
            with self._memory():
                sums |= self._update(share, images)
        self.step += 1
        return sums, stops > 0

    @contextmanager
    def _memory(self) -> Iterator[None]:
        try:
            yield
        except torch.OutOfMemoryError as error:
            run = self.bench.recipe.run
            raise CurateError(
                f"step {self.step + 1}: the memory of {self.bench.world.device} is full with run.micro_sequences="
                f"{run.micro_sequences} (0: all at once); set it lower, or run.activation_checkpointing=true, or "
                f"run.parallel=fsdp, and run again: it goes on from {self.kept()}"
            ) from error

    def _update(self, share: Share, images: float) -> dict[str, float]:
        recipe, world = self.bench.recipe, self.bench.world
        self.optimizer.zero_grad(set_to_none=True)
        sums = self.gradients.add(self._micros(share), images)
        self._check(sums)
        world.sum_gradients(self.student)
        norm = world.gradient_norm(self.student)
        self._check({"the gradient's norm": norm})
        if recipe.train.clip_norm and norm > recipe.train.clip_norm:
            for parameter in self.student.parameters():
                if parameter.grad is not None:
                    local(parameter.grad).mul_(recipe.train.clip_norm / norm)
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(recipe, self.step - self.began)
        self.optimizer.step()
        if self.student.text is not None:
            limit_scale(local(self.student.logit_scale))
        load = self._balance()
        if self.ema is not None:
            self.ema.update(self.student, recipe.train.ema)
        return {**sums, "gradient_norm": norm, **load}

    def _micros(self, share: Share) -> list[Micro]:
        parts = share.micro(self.bench.recipe.run.micro_sequences)
        batches = [collate(part.pictures) for part in parts if part.pictures]
        bench, micros = self.bench, []
        for batch in batches:
            tokens = bench.tokens(batch)
            groups = None if tokens is None else bench.groups(batch, tokens)
            micros.append(Micro(batch, bench.teachers.targets(batch), tokens, groups))
        return micros

    def _balance(self) -> dict[str, float]:
        """Loss-free balancing over the global batch; the greatest load of an expert over the mean one."""
        counts = self.student.backbone.expert_counts()
        if counts is None:
            return {}
        counts = self.bench.world.sum(counts)
        self.student.backbone.balance(counts)
        load = counts.double().amax(1) / counts.double().mean(1).clamp(min=1.0)
        return {"expert_load": float(load.max())}

    def _check(self, values: dict[str, float]) -> None:
        """Every rank has the same values, so all end here together; nothing of this step is kept."""
        bad = [name for name, value in values.items() if not math.isfinite(value)]
        if bad:
            raise CurateError(f"step {self.step + 1}: {_named(bad, values)}; {self.begin_anew()}")

    def begin_anew(self) -> str:
        """What can be done about weights that left all bounds: the same settings would lead there again."""
        kept = "no checkpoint was written" if self.checkpoint_step is None else f"{self.kept()} stays as it is"
        return (
            f"{kept}, but the same settings lead here again: begin another run (with a run.folder of its own) with a "
            f"train.learning_rate below {self.bench.recipe.train.learning_rate:g}, more train.warmup_steps, or "
            f"train.clip_norm=1"
        )

    def kept(self) -> str:
        if self.checkpoint_step is None:
            return "the beginning: there is no checkpoint yet"
        return f"the checkpoint of step {self.checkpoint_step}"

    def _count_skipped(self, share: Share, images: int, skipped: int) -> None:
        """Ranks count the same, so that all of them stop at the same step."""
        self.seen += images + skipped
        if not skipped:
            return
        for reasons, examples in self.bench.world.gather((dict(share.reasons()), share.examples())):
            self.skipped.update(reasons)
            self.examples = examples | self.examples
        if self.seen >= _BUDGET_AFTER:
            self._judge(self.bench.recipe.data.max_bad_fraction)

    def judge(self) -> None:
        """At the end of an epoch or a stage, however few samples it had. BudgetError for too many that were skipped."""
        self._judge(self.bench.recipe.data.max_bad_fraction)
        if self.seen == self.skipped.total():
            raise BudgetError(f"none of {self.seen} samples could be used ({self.reasons()}); mend the dataset")

    def _judge(self, limit: float) -> None:
        if self.skipped.total() > limit * self.seen:
            raise BudgetError(
                f"{self.skipped.total()} of {self.seen} samples could not be used ({self.reasons()}); "
                f"mend the dataset or raise data.max_bad_fraction above {limit}"
            )

    def reasons(self) -> str:
        """Why samples were skipped, the most frequent reason first, with an example of it."""
        common = self.skipped.most_common()
        said = ", ".join(f"{reason} {count}" for reason, count in common)
        first = self.examples.get(common[0][0], "") if common else ""
        return said + (f"; such as {first}" if first else "")


def _named(bad: list[str], values: dict[str, float]) -> str:
    """The part that is to blame rather than the sum that it makes bad."""
    parts = [name for name in bad if name != "loss"] or bad
    said = [f"{'the loss' if name == 'loss' else name} is {values[name]}" for name in parts]
    return ", ".join(said[:3])
