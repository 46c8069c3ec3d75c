"""What the command line does, in order. Imports torch only when there is something left to compute."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from curate.core.errors import InputError, PinnedError, RecipeError, StorageError
from curate.encoders import identity
from distill.evaluation.settings import check, evaluation_digest, with_datasets
from distill.evaluation.show import show_evaluation
from distill.export.model_folder import CONFIG, TOKENIZER, ModelConfig, read_config
from distill.recipe import Recipe, apply_overrides, parse_recipe
from distill.recipe.places import anchored, local_folder
from distill.samples.sources.mixture import Blend, open_blends
from distill.training.run_folder import RunFolder, run_fingerprint

# Read when torch is loaded: threads that spin while they wait for one another make a step 30 times slower as soon as
# anything else wants a core (8.0 s against 0.24 s, 2 threads on 2 cores beside 2 busy processes).
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

if TYPE_CHECKING:
    from distill.models.student import Student
    from distill.teachers import Standards
    from distill.workbench import Workbench

PAGE = "evaluation.html"


def train(recipe: Recipe, console: Console) -> RunFolder:
    """Train and evaluate; returns at once when the folder holds the finished run of the same fingerprint."""
    recipe = anchored(recipe)
    run, fingerprint, blends = located(recipe)
    done = run.finished(fingerprint) or _train(recipe, blends, run, fingerprint, console)
    if _first():
        said = f"trained {done['step']} steps in {done['seconds']:.0f} s; run: {run.path}"
        console.print(said, highlight=False, soft_wrap=True)
    return run


def located(recipe: Recipe) -> tuple[RunFolder, str, list[Blend]]:
    """Where the recipe's run lies, its fingerprint, and the data of its stages."""
    blends = open_blends(stage.data for stage in recipe.staged())
    fingerprint = _fingerprint(recipe, blends)
    return RunFolder.of(recipe, fingerprint), fingerprint, blends


def _train(
    recipe: Recipe, blends: Sequence[Blend], run: RunFolder, fingerprint: str, console: Console
) -> dict[str, Any]:
    from distill.training.parallel import join_world
    from distill.training.train import Training

    _look(recipe, blends[-1], console)
    with join_world(recipe.run.device, recipe.run.timeout_seconds) as world, run.writing(), ExitStack() as stack:
        if world.first:
            stack.enter_context(run.claimed(recipe, fingerprint, blends))
        world.barrier()
        trainer = Training(recipe, blends, run, fingerprint, world, console).train()
        key = evaluation_digest(recipe, fingerprint, trainer.step)
        _evaluate(trainer.bench, trainer.trained(), trainer.standards, run, key)
        done = {"fingerprint": fingerprint, "step": trainer.step, "seconds": trainer.seconds}
        if world.first:
            run.write("finished.json", done)
        world.barrier()
    return done


def teach(recipe: Recipe, console: Console) -> Path:
    """Fill run.teacher_cache with what the teachers say of the recipe's datasets; returns that folder."""
    from distill.teachers.teach import teach as ask

    return ask(recipe, open_blends(stage.data for stage in recipe.staged()), console)


def evaluate(
    place: str, overrides: Sequence[str], console: Console, datasets: Sequence[str] = (), to: str | None = None
) -> dict[str, Any]:
    """Print the evaluation of a run or of an exported model, computing it when it is not there for these settings.

    datasets: places of other pictures, beside those of `evaluate.datasets`; to: folder for a model's evaluation.json
    and evaluation.html. Returns what was printed.
    """
    folder = Path(place).expanduser().absolute()
    if (folder / CONFIG).is_file():
        result, written = _evaluate_model(folder, overrides, datasets, to, console)
    elif to is not None:
        raise RecipeError(f"--to {to}: a run's evaluation lies in the run's folder; leave --to out, or export the run")
    else:
        result, written = _evaluate_run(RunFolder(folder), overrides, datasets, console)
    if _first():
        show_evaluation(result, console, str(written / PAGE))
    return result


def _evaluate_run(
    run: RunFolder, overrides: Sequence[str], datasets: Sequence[str], console: Console
) -> tuple[dict[str, Any], Path]:
    recipe = _judging(run.recipe(), overrides, datasets, str(run.path))
    fingerprint = run.fingerprint()
    step = run.last_step()
    if step is None:
        raise InputError(f"{run.path} has no checkpoint yet; run `distill train` again to go on")
    result = run.read("evaluation.json", "digest", "sets")
    if result is None or result["digest"] != evaluation_digest(recipe, fingerprint, step):
        result = _evaluate_checkpoint(run, recipe, fingerprint, console)
    return result, run.path


def _evaluate_checkpoint(run: RunFolder, recipe: Recipe, fingerprint: str, console: Console) -> dict[str, Any]:
    from distill.models.tokenizer import Tokenizer
    from distill.training.checkpoint import check_shared, last_checkpoint, load_standards
    from distill.training.parallel import join_world
    from distill.workbench import Workbench

    blends = open_blends(stage.data for stage in recipe.staged())
    found = _fingerprint(recipe, blends)
    if found != fingerprint:
        raise PinnedError(
            f"{run.path} is of fingerprint {fingerprint}, but its recipe and dataset now give {found}; "
            f"keep recipe.yaml and {blends[-1].url} as they were"
        )
    _look(recipe, blends[-1], console)
    with join_world(recipe.run.device, recipe.run.timeout_seconds) as world:
        check_shared(run, world)
        tokenizer = Tokenizer.of_run(run.path / TOKENIZER)
        bench = Workbench.of(recipe.staged()[-1], blends[-1], world, tokenizer=tokenizer)
        saved = world.from_first(lambda: last_checkpoint(run, fingerprint))
        assert saved is not None
        student = bench.new_student()
        saved.fill(student)
        key = evaluation_digest(recipe, fingerprint, saved.values["step"])
        return _evaluate(bench, student, load_standards(run) or [], run, key)


def _evaluate(
    bench: Workbench, student: Student, standards: Sequence[Standards], run: RunFolder, key: str
) -> dict[str, Any]:
    from distill.evaluation.runs import evaluate_run

    result, page = evaluate_run(bench, student, standards)
    result = {"digest": key, **result}
    if bench.world.first:
        run.storage.publish_bytes(PAGE, page)
        run.write("evaluation.json", result)
    return result


def _evaluate_model(
    folder: Path, overrides: Sequence[str], datasets: Sequence[str], to: str | None, console: Console
) -> tuple[dict[str, Any], Path]:
    """Always computed: it is written beside the reader, not into the model."""
    from distill.evaluation.runs import evaluate_model
    from distill.export.model import load
    from distill.training.parallel import join_world

    config = read_config(folder)
    recipe = _judging(describing(config), overrides, datasets, str(folder))
    _look(recipe, None, console)
    run = RunFolder(_writable(local_folder(to or f"evaluation-{config.name}", "--to")))
    with join_world(recipe.run.device, recipe.run.timeout_seconds) as world:
        result, page = evaluate_model(load(folder, device=world.device), recipe, world)
        if world.first:
            run.storage.publish_bytes(PAGE, page)
            run.write("evaluation.json", result)
    return result, run.path


def _look(recipe: Recipe, held_out: Blend | None, console: Console) -> None:
    """At what is to be evaluated, before anything is computed; what is doubtful is said."""
    for line in check(recipe, held_out):
        if _first():
            console.print(line, highlight=False, soft_wrap=True, markup=False)


def _writable(folder: Path) -> Path:
    """A folder that is made where there is none. Raises StorageError, before anything is computed for it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return folder
    except OSError as error:
        raise StorageError(
            f"--to {folder}: no evaluation can be written there ({error.strerror}); name another folder"
        ) from error


def describing(config: ModelConfig) -> Recipe:
    """A recipe with the student of an exported model, to be evaluated; nothing can be trained from it."""
    tokens = config.preprocessing.max_tokens
    source = {"dataset": "none", "max_tokens": tokens, "texts": {"txt": 1.0}}
    values = {
        "name": config.name,
        "data": {"sources": [source], "sequence_tokens": tokens + 1 + config.student.registers},
        "student": config.student.model_dump(mode="json"),
        "teachers": [{"encoder": "descriptor", "name": teacher.name} for teacher in config.teachers],
        "contrastive": {} if config.student.text is not None else None,
        "train": {"steps": 1, "warmup_steps": 0},
    }
    return parse_recipe(values, CONFIG)


def _judging(recipe: Recipe, overrides: Sequence[str], datasets: Sequence[str], place: str) -> Recipe:
    """With what may be changed of something trained, and places of datasets beside those of `evaluate.datasets`.

    Raises RecipeError for a change of what it was trained with.
    """
    for override in overrides:
        if override.partition(".")[0] not in ("evaluate", "run"):
            raise RecipeError(
                f"--set {override}: what is trained already cannot be changed; set evaluate.* and run.* here, and the "
                f"rest for `distill train`"
            )
    folder = recipe.run.folder
    recipe = apply_overrides(recipe, overrides, place)
    if recipe.run.folder != folder:
        raise RecipeError(
            f"--set run.folder={recipe.run.folder}: a run is evaluated where it lies; name that folder, without this"
        )
    others = with_datasets(recipe.evaluate, datasets)
    return anchored(apply_overrides(recipe, [f"evaluate.datasets={json.dumps(others)}"], place) if datasets else recipe)


def _fingerprint(recipe: Recipe, blends: Sequence[Blend]) -> str:
    teachers = [identity(teacher.encoder, precision=teacher.precision) for teacher in recipe.teachers]
    return run_fingerprint(recipe, blends, teachers)


def _first() -> bool:
    return os.environ.get("RANK", "0") == "0"
