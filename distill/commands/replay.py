"""`distill replay`: runs a step again that was not finite, and shows where it first was not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from curate.core.errors import InputError, PinnedError
from distill.recipe import apply_overrides
from distill.samples.sources.mixture import open_mixtures
from distill.training.run_folder import RunFolder, run_fingerprint

if TYPE_CHECKING:
    import torch

    from distill.samples.batches.loader import BatchShare
    from distill.training.checkpoint import Checkpoint
    from distill.training.trainer import Trainer


def replay(place: str, step: int | None, console: Console) -> list[str]:
    """Print and return what is not finite, in the order of the computation. Runs in one process; changes nothing.

    step: of those that the run has captured; None: the last one."""
    from distill.parallel import join_world
    from distill.training.checkpoint import open_checkpoint
    from distill.training.run import TrainingRun

    run = RunFolder(Path(place).expanduser().absolute())
    fingerprint, captured = run.fingerprint(), run.captured()
    if not captured or step not in (None, *captured):
        known = f"it has {', '.join(map(str, captured))}" if captured else "it has none"
        raise InputError(f"{run.path}: no step {'' if step is None else f'{step} '}that was not finite; {known}")
    recipe = apply_overrides(run.recipe(), ["run.compile=false", "run.parallel=replicated"], str(run.path))
    mixtures = open_mixtures(stage.data for stage in recipe.staged())
    if (current := run_fingerprint(recipe, mixtures)) != fingerprint:
        raise PinnedError(
            f"{run.path} has fingerprint {fingerprint}, but its recipe and dataset now give {current}; restore them"
        )
    saved = open_checkpoint(run.captured_path(captured[-1] if step is None else step), fingerprint)
    with join_world(recipe.run.device, recipe.run.timeout_seconds) as world:
        trainer = TrainingRun(recipe, mixtures, run, fingerprint, world, console).trainer_of(int(saved.values["stage"]))
        trainer.load(saved)
        shares = iter(trainer.loader)
        share = next(shares)
        shares.close()  # type: ignore[attr-defined]
        lines = not_finite(trainer, share, saved)
    ranks, keys = saved.values["ranks"], trainer.context.dataset.key
    console.print(
        f"step {trainer.step + 1} of {ranks} ranks, run again in one process: {len(share.images)} samples, such as "
        f"{keys(share.images[0].row)}", highlight=False, soft_wrap=True,
    )  # fmt: skip
    for line in lines or ["everything is finite: the cause may be the device or the number of ranks"]:
        console.print(line, highlight=False, soft_wrap=True, markup=False)
    return lines


def set_random_states(saved: Checkpoint) -> None:
    """torch's generators, as they were on the first rank before the step."""
    import torch

    held = saved.shapes()
    states = {name: torch.empty(held[name][0], dtype=held[name][1]) for name in held if name.startswith("random.0.")}
    saved.load(states)
    torch.set_rng_state(states["random.0.cpu"])
    if "random.0.cuda" in states and torch.cuda.is_available():
        torch.cuda.set_rng_state(states["random.0.cuda"])


def not_finite(trainer: Trainer, share: BatchShare, saved: Checkpoint) -> list[str]:
    """Lines on the weights, modules, terms and gradients of a step that are not finite, those that come first first."""
    import torch

    student, context = trainer.student, trainer.context
    lines = [
        f"before the step: the weight {name} is not finite"
        for name, weight in student.named_parameters() if not weight.isfinite().all()
    ][:3]  # fmt: skip
    modules, gradients = list[str](), list[str]()
    set_random_states(saved)
    with torch.no_grad():
        terms = _terms(trainer, share)
    set_random_states(saved)
    for name, module in student.named_modules():
        module.register_forward_hook(_watch(name, modules))
    for name, weight in student.named_parameters():
        if weight.requires_grad:
            weight.register_hook(_watch_gradient(name, gradients))
    parts = share.micro_batches(context.recipe.run.micro_sequences)
    micros = [context.micro_batch(part.images) for part in parts if part.images]
    sums = trainer.gradients.add(micros, len(share.images))
    totals = [f"{name} {value / len(share.images)}" for name, value in sums.items()]
    lines += [f"forward: the output of {name} is the first that is not finite" for name in modules[:1]] + terms
    lines += [f"backward: the gradient of {name} is the first that is not finite" for name in gradients[:1]]
    return [*lines, f"losses: {', '.join(totals)}"] if lines else []


def _watch(name: str, found: list[str]) -> Callable[..., None]:
    """A hook that adds a module whose output is not finite though its inputs are."""

    def watch(module: object, inputs: tuple[object, ...], output: object) -> None:
        if not _all_finite(output) and all(map(_all_finite, inputs)):
            found.append(name)

    return watch


def _watch_gradient(name: str, found: list[str]) -> Callable[..., None]:
    def watch(gradient: torch.Tensor) -> None:
        if not _all_finite(gradient):
            found.append(name)

    return watch


def _all_finite(value: object) -> bool:
    import torch

    return not isinstance(value, torch.Tensor) or not value.is_floating_point() or bool(value.isfinite().all())


def _terms(trainer: Trainer, share: BatchShare) -> list[str]:
    """Lines on terms of single samples, with the first sample, and on those between samples."""
    from distill.objectives.outputs import Outputs
    from distill.objectives.terms import relational

    lines, context, gradients = list[str](), trainer.context, trainer.gradients
    with context.autocast():
        micro = context.micro_batch(share.images)
        outputs = Outputs.of(trainer.student, micro, gradients.spaces)
        vectors = {}
        for objective in trainer.objectives:
            for name, term in objective.terms(outputs).items():
                bad = [row for row, fine in enumerate(term.losses.isfinite().tolist()) if not fine]
                if bad:
                    key = context.dataset.key(micro.batch.images[bad[0]].row)
                    lines.append(f"{name} is not finite for {len(bad)} of {len(share.images)} samples, the first {key}")
            if objective.relates:
                vectors[objective.label] = objective.vectors(outputs)
    related = [item for item in trainer.objectives if item.relates]
    _, parts = relational(related, vectors, trainer.student)
    return lines + [f"{name}, between samples, is not finite" for name, part in parts.items() if not part.isfinite()]
