"""`distill train`: trains the student of a recipe, then evaluates it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

from rich.console import Console

from distill.commands.evaluate import evaluate_student, is_first_rank, print_doubts
from distill.commands.tags import with_resolved_tags
from distill.evaluation.settings import evaluation_digest
from distill.recipe import Recipe, apply_overrides
from distill.recipe.paths import with_absolute_paths
from distill.recipe.train import ADAM_BETAS
from distill.samples.sources.mixture import Mixture, open_mixtures
from distill.samples.texts import missing_texts
from distill.training.run_folder import RunFolder, run_fingerprint


def train(recipe: Recipe, console: Console) -> RunFolder:
    """Train and evaluate; returns at once if the folder holds the finished run of the same fingerprint."""
    recipe = prepared(recipe, console)
    run, fingerprint, mixtures = locate_run(recipe)
    finished = run.finished(fingerprint) or _train(recipe, mixtures, run, fingerprint, console)
    if is_first_rank():
        line = f"trained {finished['step']} steps in {finished['seconds']:.0f} s; run: {run.path}"
        console.print(line, highlight=False, soft_wrap=True)
    return run


def prepared(recipe: Recipe, console: Console) -> Recipe:
    """The recipe with absolute paths and the datasets of its tags. If it leaves out Lion's betas, and its run was begun
    when they were Adam's by default, it has those."""
    made = with_resolved_tags(with_absolute_paths(recipe), console, resume=True)
    if recipe.train.optimizer == "lion" and "betas" not in recipe.train.model_fields_set:
        before = apply_overrides(made, [f"train.betas={list(ADAM_BETAS)}"], recipe.name)
        run, fingerprint, _ = locate_run(before)
        held = run.read("run.json", "fingerprint")
        if held is not None and held["fingerprint"] == fingerprint:
            return before
    return made


def locate_run(recipe: Recipe) -> tuple[RunFolder, str, list[Mixture]]:
    """Folder and fingerprint of the recipe's run, and the dataset mixture of each stage."""
    mixtures = open_mixtures(stage.data for stage in recipe.staged())
    fingerprint = run_fingerprint(recipe, mixtures)
    return RunFolder.of(recipe, fingerprint), fingerprint, mixtures


def _train(
    recipe: Recipe, mixtures: Sequence[Mixture], run: RunFolder, fingerprint: str, console: Console
) -> dict[str, Any]:
    """Contents of finished.json."""
    from distill.parallel import join_world
    from distill.training.run import TrainingRun

    print_doubts(recipe, mixtures[-1], console)
    if is_first_rank():
        for line in dict.fromkeys(line for mixture in mixtures for line in missing_texts(mixture)):
            console.print(line, highlight=False, soft_wrap=True, markup=False)
    with join_world(recipe.run.device, recipe.run.timeout_seconds) as world, run.writing(), ExitStack() as stack:
        training = TrainingRun(recipe, mixtures, run, fingerprint, world, console)
        if world.first:
            stack.enter_context(run.claimed(recipe, fingerprint, mixtures))
        world.barrier()
        trainer = training.train()
        key = evaluation_digest(recipe, fingerprint, trainer.step)
        evaluate_student(trainer.context, trainer.final_student(), trainer.standardisers, run, key)
        finished = {"fingerprint": fingerprint, "step": trainer.step, "seconds": trainer.seconds}
        if world.first:
            run.write("finished.json", finished)
        world.barrier()
    return finished
