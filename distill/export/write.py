"""A run's student as a folder that needs neither the run nor its teachers: `distill export RUN`.

The same run gives the same bytes. The folder is written aside and renamed when it is whole.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Literal

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor, nn

from curate.core.errors import InputError, RecipeError, StorageError
from curate.encoders.spec import parse_spec
from distill.export.model import new_student, weights_of
from distill.export.model_folder import (
    CARD,
    CONFIG,
    PRECISIONS,
    TOKENIZER,
    WEIGHTS,
    HeadSizes,
    ModelConfig,
    Preprocessing,
    TeacherConfig,
    Trained,
)  # fmt: skip
from distill.models.pooler import FrozenPooler
from distill.models.pooler_config import describe_pooler
from distill.models.student import HeadConfig
from distill.recipe import Recipe
from distill.recipe.places import local_folder
from distill.teachers import Standards, Teachers
from distill.training.checkpoint import last_checkpoint, load_standards
from distill.training.run_folder import RunFolder

_DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


def export(run: str | Path, to: str | Path | None = None, *, precision: str = "float32") -> Path:
    """The student of a run's last checkpoint -> a model folder, `RUN/model` where none is named; returns it.

    The moving average of the weights where the run has one. Raises InputError where there is no run, no checkpoint, or
    another thing in the folder's place; StorageError where it cannot be written, and then nothing is there.
    """
    if precision not in PRECISIONS:
        raise RecipeError(f"--precision {precision}: not one of {', '.join(PRECISIONS)}")
    place = RunFolder(Path(run).expanduser().absolute())
    recipe = place.recipe()
    folder = place.path / "model" if to is None else local_folder(str(to), "--to")
    _check_place(folder)
    checkpoint = last_checkpoint(place, place.fingerprint())
    if checkpoint is None:
        raise InputError(f"{place.path} has no checkpoint yet; run `distill train` again to go on")
    standards = load_standards(place) or []
    if len(standards) != len(recipe.teachers):
        raise InputError(
            f"{place.path}: its standards are of {len(standards)} teachers, its recipe names {len(recipe.teachers)}; "
            f"copy the run's folder whole, or train again in another"
        )
    heads = heads_of(recipe, standards)
    trained = Trained(
        fingerprint=checkpoint.values["fingerprint"], step=checkpoint.values["step"], ema=checkpoint.averaged
    )
    student = new_student(recipe.student, heads)
    checkpoint.fill(student)
    poolers = _poolers(recipe)
    config = describe(recipe, heads, trained, precision, poolers)
    return write_model(folder, config, student, standards, _tokenizer(place, recipe), poolers)


def _tokenizer(place: RunFolder, recipe: Recipe) -> bytes | None:
    if recipe.student.text is None:
        return None
    try:
        return (place.path / TOKENIZER).read_bytes()
    except OSError as error:
        raise InputError(
            f"{place.path / TOKENIZER} cannot be read ({error.strerror}); copy the run's folder whole, or train again"
        ) from error


def _poolers(recipe: Recipe) -> list[FrozenPooler | None]:
    """Of each teacher whose own pooler makes the student's summary: the only ones that have to be there."""
    found: dict[str, FrozenPooler] = {}
    wanted = [item for item in recipe.teachers if item.pooler]
    if wanted:
        found = Teachers.of(recipe.model_copy(update={"teachers": wanted}), torch.device("cpu")).poolers()
    return [found.get(item.label) for item in recipe.teachers]


def heads_of(recipe: Recipe, standards: Sequence[Standards]) -> list[HeadConfig]:
    """Of each teacher, whose widths are those of its statistics: no teacher has to be there."""
    return [
        HeadConfig(
            summary=len(standard.summary.mean),
            patches=None if standard.patches is None else len(standard.patches.mean),
            hidden=recipe.student.head_hidden,
        )
        for standard in standards
    ]


def describe(
    recipe: Recipe,
    heads: Sequence[HeadConfig],
    trained: Trained,
    precision: str,
    poolers: Sequence[FrozenPooler | None] | None = None,
) -> ModelConfig:
    """Teachers go by name, never by path."""
    teachers: list[TeacherConfig] = []
    for number, (item, head) in enumerate(zip(recipe.teachers, heads, strict=True)):
        name = item.name or re.sub(r"[^\w.-]+", "-", parse_spec(item.encoder).public)
        if name in [other.name for other in teachers]:
            name = f"{name}-{number}"
        pooler = poolers[number] if poolers is not None else None
        patches = head.patches is not None and (item.patches.weight > 0 or pooler is not None)
        figures = None if pooler is None else describe_pooler(pooler, name)
        teachers.append(TeacherConfig(name=name, head=HeadSizes(**asdict(head)), patches=patches, pooler=figures))
    tokens = max(stage.data.max_tokens for stage in recipe.staged())
    return ModelConfig(
        name=recipe.name,
        student=recipe.student,
        teachers=teachers,
        preprocessing=Preprocessing(patch=recipe.student.patch, max_tokens=tokens, decoding=decoding(recipe)),
        trained=trained,
        precision=precision,
    )


def decoding(recipe: Recipe) -> Literal["whole", "reduced"]:
    """How the run's pictures are read: whole where a teacher looks at them."""
    return "whole" if any(item.pictures == "own" for item in recipe.teachers) else "reduced"


def write_model(
    folder: Path,
    config: ModelConfig,
    student: nn.Module,
    standards: Sequence[Standards],
    tokenizer: bytes | None = None,
    poolers: Sequence[FrozenPooler | None] = (),
) -> Path:
    """standards, poolers: of each teacher; tokenizer: content of tokenizer.json, where there is a text tower.

    An older model in the folder's place is replaced, and its card stays.
    """
    folder = folder.expanduser().absolute()
    _check_place(folder)
    tensors = _tensors(student, standards, poolers, config.precision)
    with _explained(folder), _aside(folder) as aside:
        save_file(tensors, aside / WEIGHTS)
        (aside / CONFIG).write_bytes(config.bytes())
        if tokenizer is not None:
            (aside / TOKENIZER).write_bytes(tokenizer)
        if (folder / CARD).is_file():
            shutil.copyfile(folder / CARD, aside / CARD)
        _publish(aside, folder)
    return folder


def _check_place(folder: Path) -> None:
    """Raises InputError where another thing is there, StorageError where nothing can be written."""
    with _explained(folder):
        if folder.exists() and not _replaceable(folder):
            raise InputError(f"{folder} exists and is no model; remove it, or name another folder with --to")
        with _aside(folder):
            pass


@contextmanager
def _aside(folder: Path) -> Iterator[Path]:
    """A folder beside the one that is to be written, gone afterwards unless it was renamed."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    aside = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", suffix=".tmp", dir=folder.parent))
    try:
        yield aside
    finally:
        shutil.rmtree(aside, ignore_errors=True)


@contextmanager
def _explained(folder: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, SafetensorError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise StorageError(
            f"{folder}: the model cannot be written ({why}); make room, or name another folder with --to"
        ) from error


def _replaceable(folder: Path) -> bool:
    return folder.is_dir() and ((folder / CONFIG).is_file() or all(item.name == CARD for item in folder.iterdir()))


def _tensors(
    student: nn.Module, standards: Sequence[Standards], poolers: Sequence[FrozenPooler | None], precision: str
) -> dict[str, Tensor]:
    """Matrices in `precision`; what is added up rather than multiplied (norms, biases, statistics) in float32."""
    weights = {f"student.{name}": value for name, value in weights_of(student).items()}
    for number, pooler in enumerate(poolers):
        if pooler is not None:
            weights |= {f"poolers.{number}.{name}": value for name, value in weights_of(pooler.module).items()}
    tensors = {}
    for name, value in weights.items():
        dtype = _DTYPES[precision] if value.ndim > 1 else torch.float32
        tensors[name] = value.detach().to("cpu", dtype if value.is_floating_point() else None)
        if not tensors[name].isfinite().all():
            broken = "the weights are broken; export another run"
            why = f"too large for {precision}; give --precision float32" if value.isfinite().all() else broken
            raise InputError(f"weight {name!r} would not be finite on disk: {why}")
    for number, standard in enumerate(standards):
        for name, value in standard.state().items():
            tensors[f"standards.{number}.{name}"] = value.detach().to("cpu", torch.float32)
    return {name: value.contiguous() for name, value in tensors.items()}


def _publish(aside: Path, folder: Path) -> None:
    """Rename; a folder that is there is moved away first, since only an empty one can be renamed over."""
    aside.chmod(0o755)
    (aside / WEIGHTS).chmod(0o644)  # safetensors writes for its owner alone
    for path in (*aside.iterdir(), aside):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    if folder.exists():
        old = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", suffix=".tmp", dir=folder.parent))
        os.replace(folder, old)
        try:
            os.replace(aside, folder)
        except OSError:
            os.replace(old, folder)
            raise
        shutil.rmtree(old)
    else:
        os.replace(aside, folder)
