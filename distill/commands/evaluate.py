"""`distill eval`: evaluates a run, or an exported model."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from curate.core.errors import InputError, PinnedError, RecipeError, StorageError
from curate.encoders.student.model_folder import CONFIG, TOKENIZER, ModelConfig, read_config
from distill.commands.tags import with_resolved_tags
from distill.evaluation.settings import check, evaluation_digest, with_datasets
from distill.evaluation.show import show_evaluation
from distill.recipe import Recipe, apply_overrides, parse_recipe
from distill.recipe.paths import local_folder, with_absolute_paths
from distill.samples.sources.mixture import Mixture, open_mixtures
from distill.training.run_folder import RunFolder, run_fingerprint

if TYPE_CHECKING:
    from curate.encoders.student.network.student import Student
    from distill.context import StageContext
    from distill.teachers import TargetStandardiser

PAGE = "evaluation.html"


def evaluate(
    place: str, overrides: Sequence[str], console: Console, datasets: Sequence[str] = (), to: str | None = None
) -> dict[str, Any]:
    """Print and return the evaluation of a run or of an exported model.

    A run's evaluation is read if it was computed with these settings before. datasets: more datasets, in addition to
    `evaluate.datasets`; to: folder for a model's evaluation.json and evaluation.html.
    """
    folder = Path(place).expanduser().absolute()
    if (folder / CONFIG).is_file():
        result, written = _evaluate_model(folder, overrides, datasets, to, console)
    elif to is not None:
        raise RecipeError(
            f"--to {to}: does not apply to a run, whose evaluation is written to its own folder; leave --to out, or "
            f"export the run"
        )
    else:
        result, written = _evaluate_run(RunFolder(folder), overrides, datasets, console)
    if is_first_rank():
        show_evaluation(result, console, str(written / PAGE))
    return result


def _evaluate_run(
    run: RunFolder, overrides: Sequence[str], datasets: Sequence[str], console: Console
) -> tuple[dict[str, Any], Path]:
    recipe = with_resolved_tags(_evaluation_recipe(run.recipe(), overrides, datasets, str(run.path)), console)
    fingerprint = run.fingerprint()
    step = run.last_step()
    if step is None:
        raise InputError(f"{run.path} has no checkpoint yet; run `distill train` to resume it")
    result = run.read("evaluation.json", "digest", "sets")
    if result is None or result["digest"] != evaluation_digest(recipe, fingerprint, step):
        result = _evaluate_checkpoint(run, recipe, fingerprint, console)
    return result, run.path


def _evaluate_checkpoint(run: RunFolder, recipe: Recipe, fingerprint: str, console: Console) -> dict[str, Any]:
    from curate.encoders.student.tokenizer import Tokenizer, known_tokenizer
    from distill.context import StageContext
    from distill.parallel import join_world
    from distill.training.checkpoint import check_shared, last_checkpoint, load_standardisers

    mixtures = open_mixtures(stage.data for stage in recipe.staged())
    current = run_fingerprint(recipe, mixtures)
    if current != fingerprint:
        raise PinnedError(
            f"{run.path} has fingerprint {fingerprint}, but its recipe and dataset now give {current}; restore "
            f"recipe.yaml and {mixtures[-1].url}"
        )
    print_doubts(recipe, mixtures[-1], console)
    with join_world(recipe.run.device, recipe.run.timeout_seconds) as world:
        check_shared(run, world)
        tokenizer = known_tokenizer(recipe.student.text, lambda: Tokenizer.of_run(run.path / TOKENIZER))
        saved = world.from_first(lambda: last_checkpoint(run, fingerprint))
        assert saved is not None
        stage = int(saved.values["stage"])
        context = StageContext.of(recipe.staged()[stage], mixtures[stage], world, tokenizer=tokenizer)
        student = context.new_student(filled=True)
        saved.fill(student)
        key = evaluation_digest(recipe, fingerprint, saved.values["step"])
        return evaluate_student(context, student, load_standardisers(run) or [], run, key)


def evaluate_student(
    context: StageContext, student: Student, standardisers: Sequence[TargetStandardiser], run: RunFolder, key: str
) -> dict[str, Any]:
    """Evaluate a run's student and publish evaluation.json and evaluation.html. A collective of all ranks.

    key: digest of the settings and weights (`evaluation_digest`)."""
    from distill.evaluation.runs import evaluate_run
    from distill.evaluation.validation import curves
    from distill.training.progress import read_lines

    result, page = evaluate_run(context, student, standardisers, curves(read_lines(run)))
    result = {"digest": key, **result}
    if context.world.first:
        run.storage.publish_bytes(PAGE, page)
        run.write("evaluation.json", result)
    return result


def _evaluate_model(
    folder: Path, overrides: Sequence[str], datasets: Sequence[str], to: str | None, console: Console
) -> tuple[dict[str, Any], Path]:
    """Always computes, and never writes into the model's folder."""
    from curate.encoders.student.model import load
    from distill.evaluation.runs import evaluate_model
    from distill.parallel import join_world

    config = read_config(folder)
    recipe = with_resolved_tags(_evaluation_recipe(_recipe_of_model(config), overrides, datasets, str(folder)), console)
    print_doubts(recipe, None, console)
    run = RunFolder(writable_folder(local_folder(to or f"evaluation-{config.name}", "--to")))
    with join_world(recipe.run.device, recipe.run.timeout_seconds) as world:
        result, page = evaluate_model(load(folder, device=world.device), recipe, world)
        if world.first:
            run.storage.publish_bytes(PAGE, page)
            run.write("evaluation.json", result)
    return result, run.path


def print_doubts(recipe: Recipe, held_out: Mixture | None, console: Console) -> None:
    """Check the settings of the evaluation before anything is computed, and print warnings about them."""
    for line in check(recipe, held_out):
        if is_first_rank():
            console.print(line, highlight=False, soft_wrap=True, markup=False)


def writable_folder(folder: Path, what: str = "the evaluation") -> Path:
    """Create the folder if it is missing. Raises StorageError if it is not writable."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return folder
    except OSError as error:
        raise StorageError(
            f"--to {folder}: cannot write {what} there ({error.strerror}); name another folder"
        ) from error


def _recipe_of_model(config: ModelConfig) -> Recipe:
    """A recipe with the student of an exported model, for evaluation only."""
    tokens = config.preprocessing.max_tokens
    source = {"dataset": "none", "max_tokens": tokens, "texts": {"txt": 1.0}}
    values = {
        "name": config.name,
        "data": {"sources": [source], "sequence_tokens": tokens + config.student.prefix},
        "student": config.student.model_dump(mode="json"),
        "teachers": [{"encoder": "descriptor", "name": teacher.name} for teacher in config.teachers],
        "contrastive": {} if config.student.text is not None else None,
        "train": {"steps": 1, "warmup_steps": 0},
    }
    return parse_recipe(values, CONFIG)


def _evaluation_recipe(recipe: Recipe, overrides: Sequence[str], datasets: Sequence[str], place: str) -> Recipe:
    """The recipe with overrides of evaluate.* and run.*, and with `datasets` added to `evaluate.datasets`.
    Its paths are absolute, so that the evaluation's digest does not depend on the working folder.

    Raises RecipeError for an override of a setting that the student was trained with.
    """
    for override in overrides:
        if override.partition(".")[0] not in ("evaluate", "run"):
            raise RecipeError(
                f"--set {override}: the student is trained already; set only evaluate.* and run.* here, and the rest "
                f"for `distill train`"
            )
    folder = recipe.run.folder
    recipe = apply_overrides(recipe, overrides, place)
    if recipe.run.folder != folder:
        raise RecipeError(
            f"--set run.folder={recipe.run.folder}: does not apply to an existing run; give that folder as RUN instead"
        )
    if datasets:
        added = json.dumps(with_datasets(recipe.evaluate, datasets))
        recipe = apply_overrides(recipe, [f"evaluate.datasets={added}"], place)
    return with_absolute_paths(recipe)


def is_first_rank() -> bool:
    """True on rank 0 and without torchrun, also before torch is loaded."""
    return os.environ.get("RANK", "0") == "0"
