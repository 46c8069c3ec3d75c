"""What the command line does, in order. Imports torch only when there is something left to compute."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from curate.core.errors import InputError, PinnedError
from curate.core.hashing import digest
from curate.encoders import identity
from distill.data.blend import Blend, open_blend
from distill.folder import RunFolder, run_fingerprint
from distill.recipe import Recipe, apply_overrides
from distill.evaluation.show import AFTER, BEFORE, show_evaluation

# Read when torch is loaded: threads that spin while they wait for one another make a step 30 times slower as soon as
# anything else wants a core (8.0 s against 0.24 s, 2 threads on 2 cores beside 2 busy processes).
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

if TYPE_CHECKING:
    from distill.models.student import Student
    from distill.workbench import Workbench


def train(recipe: Recipe, console: Console) -> RunFolder:
    """Train and evaluate; returns at once when the folder holds the finished run of the same fingerprint."""
    blends = [open_blend(stage.data) for stage in recipe.staged()]
    fingerprint = _fingerprint(recipe, blends)
    run = RunFolder.of(recipe, fingerprint)
    done = run.finished(fingerprint) or _train(recipe, blends, run, fingerprint, console)
    if _first():
        said = f"trained {done['step']} steps in {done['seconds']:.0f} s; run: {run.path}"
        console.print(said, highlight=False, soft_wrap=True)
    return run


def _train(
    recipe: Recipe, blends: Sequence[Blend], run: RunFolder, fingerprint: str, console: Console
) -> dict[str, Any]:
    from distill.parallel import join_world
    from distill.train import Training

    with join_world(recipe.run.device, recipe.run.timeout_seconds) as world, ExitStack() as stack:
        if world.first:
            stack.enter_context(run.claimed(recipe, fingerprint, blends))
        world.barrier()
        trainer = Training(recipe, blends, run, fingerprint, world, console).train()
        result = _evaluate(trainer.bench, trainer.trained(), _evaluation_digest(recipe, fingerprint, trainer.step))
        done = {"fingerprint": fingerprint, "step": trainer.step, "seconds": trainer.seconds}
        if world.first:
            run.write("evaluation.json", result)
            run.write("finished.json", done)
        world.barrier()
    return done


def evaluate(place: str, overrides: Sequence[str], console: Console) -> dict[str, Any]:
    """Print the run's evaluation, computing it when it is not there for these settings. Returns what was printed."""
    run = RunFolder(Path(place).expanduser().absolute())
    recipe = apply_overrides(run.recipe(), overrides, str(run.path))
    fingerprint = run.read("run.json")["fingerprint"]
    step = run.last_step()
    if step is None:
        raise InputError(f"{run.path} has no checkpoint yet; run `distill train` again to go on")
    result = run.read("evaluation.json")
    if result is None or result["digest"] != _evaluation_digest(recipe, fingerprint, step):
        result = _evaluate_run(run, recipe, fingerprint)
    if _first():
        show_evaluation(result, console)
    return result


def _evaluate_run(run: RunFolder, recipe: Recipe, fingerprint: str) -> dict[str, Any]:
    from distill.checkpoint import last_checkpoint
    from distill.parallel import join_world
    from distill.workbench import Workbench

    blends = [open_blend(stage.data) for stage in recipe.staged()]
    found = _fingerprint(recipe, blends)
    if found != fingerprint:
        raise PinnedError(
            f"{run.path} is of fingerprint {fingerprint}, but its recipe and dataset now give {found}; "
            f"change only evaluate.* and run.*, and keep {blends[-1].url} as it was"
        )
    with join_world(recipe.run.device, recipe.run.timeout_seconds) as world:
        bench = Workbench.of(recipe.staged()[-1], blends[-1], world)
        saved = last_checkpoint(run, fingerprint)
        assert saved is not None
        student = bench.new_student()
        student.load_state_dict(saved.weights())
        result = _evaluate(bench, student, _evaluation_digest(recipe, fingerprint, saved.values["step"]))
        if world.first:
            run.write("evaluation.json", result)
    return result


def _evaluate(bench: Workbench, student: Student, digest: str) -> dict[str, Any]:
    from distill.evaluate import evaluate as evaluate_students

    return {"digest": digest, **evaluate_students(bench, {BEFORE: bench.new_student(), AFTER: student})}


def _evaluation_digest(recipe: Recipe, fingerprint: str, step: int) -> str:
    return digest({"fingerprint": fingerprint, "step": step, "evaluate": recipe.evaluate.model_dump(mode="json")})


def _fingerprint(recipe: Recipe, blends: Sequence[Blend]) -> str:
    teachers = [identity(teacher.encoder, precision=teacher.precision) for teacher in recipe.teachers]
    return run_fingerprint(recipe, blends, teachers)


def _first() -> bool:
    return os.environ.get("RANK", "0") == "0"
