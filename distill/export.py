"""`distill export RUN`: writes a run's student to a folder that needs neither the run nor its teachers.

The same run gives the same bytes. The folder is written under another name and renamed when it is complete.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor, nn

from curate.core.errors import InputError, RecipeError, StorageError
from curate.encoders.spec import parse_spec
from curate.encoders.student.config import HeadConfig
from curate.encoders.student.model import weights_of
from curate.encoders.student.model_folder import (
    CARD,
    CONFIG,
    PRECISIONS,
    TOKENIZER,
    WEIGHTS,
    ModelConfig,
    Precision,
    Preprocessing,
    TeacherConfig,
    Trained,
)  # fmt: skip
from curate.encoders.student.network.pooler import FrozenPooler, new_pooler
from distill.context import new_student
from distill.recipe import Recipe
from distill.recipe.paths import local_folder
from distill.teachers import TargetStandardiser, Teachers
from distill.training.checkpoint import last_checkpoint, load_standardisers
from distill.training.run_folder import RunFolder

_DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


def export(run: str | Path, to: str | Path | None = None, *, precision: str = "float32") -> Path:
    """Export the student of a run's last checkpoint to a model folder (`RUN/model` by default); returns the folder.

    Exports the moving average of the weights if the run has one. Raises InputError if there is no run or no checkpoint,
    or if `to` exists and is not a model; StorageError if the folder cannot be written, and then leaves nothing behind.
    """
    if precision not in PRECISIONS:
        raise RecipeError(f"--precision: expected one of {', '.join(PRECISIONS)}, not {precision}")
    place = RunFolder(Path(run).expanduser().absolute())
    recipe = place.recipe()
    folder = place.path / "model" if to is None else local_folder(str(to), "--to")
    _check_place(folder)
    checkpoint = last_checkpoint(place, place.fingerprint())
    if checkpoint is None:
        raise InputError(f"{place.path} has no checkpoint yet; run `distill train` to resume it")
    standardisers = load_standardisers(place) or []
    if len(standardisers) != len(recipe.teachers):
        raise InputError(
            f"{place.path} has the standardisation of {len(standardisers)} teachers, but its recipe has "
            f"{len(recipe.teachers)}; copy the whole run folder, or train in another folder"
        )
    heads = heads_of(recipe, standardisers)
    trained = Trained(
        fingerprint=checkpoint.values["fingerprint"], step=checkpoint.values["step"], ema=checkpoint.averaged
    )
    last = recipe.staged()[checkpoint.values.get("stage", -1)]
    recipe = recipe.model_copy(update={name: getattr(last, name) for name in ("student", "contrastive", "objectives")})
    student = new_student(recipe, heads)
    checkpoint.fill(student)
    student.objectives.clear()
    poolers = _poolers(recipe)
    config = describe(recipe, heads, trained, precision, poolers)
    return write_model(folder, config, student, standardisers, _tokenizer(place, recipe), poolers)


def _tokenizer(place: RunFolder, recipe: Recipe) -> bytes | None:
    if recipe.student.text is None or recipe.student.text.tower != "mean":
        return None
    try:
        return (place.path / TOKENIZER).read_bytes()
    except OSError as error:
        raise InputError(
            f"cannot read {place.path / TOKENIZER} ({error.strerror}); copy the whole run folder, or train again"
        ) from error


def _poolers(recipe: Recipe) -> list[FrozenPooler | None]:
    """Poolers of the teachers; None if the head predicts the summary. Loads only the teachers with a pooler."""
    found: dict[str, FrozenPooler] = {}
    wanted = [item for item in recipe.teachers if item.pooler]
    if wanted:
        found = Teachers.of(recipe.model_copy(update={"teachers": wanted}), torch.device("cpu")).poolers()
    return [found.get(item.label) for item in recipe.teachers]


def heads_of(recipe: Recipe, standardisers: Sequence[TargetStandardiser]) -> list[HeadConfig]:
    """Sizes of the heads. Widths come from the statistics, so that no teacher has to be loaded."""
    return [
        HeadConfig(
            summary=len(standardiser.summary.mean),
            patches=None if standardiser.patches is None else len(standardiser.patches.mean),
            hidden=recipe.student.head_hidden,
        )
        for standardiser in standardisers
    ]


def describe(
    recipe: Recipe,
    heads: Sequence[HeadConfig],
    trained: Trained,
    precision: Precision,
    poolers: Sequence[FrozenPooler | None] | None = None,
) -> ModelConfig:
    """The model's configuration. It names teachers, never their paths."""
    teachers: list[TeacherConfig] = []
    for number, (item, head) in enumerate(zip(recipe.teachers, heads, strict=True)):
        name = item.name or re.sub(r"[^\w.-]+", "-", parse_spec(item.encoder).public)
        if name in [other.name for other in teachers]:
            name = f"{name}-{number}"
        pooler = poolers[number] if poolers is not None else None
        patches = head.patches is not None and (item.patches.weight > 0 or pooler is not None)
        figures = None if pooler is None else describe_pooler(pooler, name)
        teachers.append(TeacherConfig(name=name, head=head, patches=patches, pooler=figures))
    tokens = max(stage.data.max_tokens for stage in recipe.staged())
    return ModelConfig(
        name=recipe.name,
        student=recipe.student,
        teachers=teachers,
        preprocessing=Preprocessing(
            patch=recipe.student.patch,
            max_tokens=tokens,
            mean=recipe.student.pixel_mean,
            std=recipe.student.pixel_std,
            decoding=decoding(recipe),
        ),
        trained=trained,
        precision=precision,
    )


def decoding(recipe: Recipe) -> Literal["whole", "reduced"]:
    """How the run decodes images: whole if a teacher has its own view of them."""
    return "whole" if any(item.pictures == "own" for item in recipe.teachers) else "reduced"


def write_model(
    folder: Path,
    config: ModelConfig,
    student: nn.Module,
    standardisers: Sequence[TargetStandardiser],
    tokenizer: bytes | None = None,
    poolers: Sequence[FrozenPooler | None] = (),
) -> Path:
    """standards, poolers: one per teacher; tokenizer: content of tokenizer.json, only with a text tower
    whose tokens were learned.

    Replaces an older model in the folder, but keeps its card.
    """
    folder = folder.expanduser().absolute()
    _check_place(folder)
    tensors = _tensors(student, standardisers, poolers, config.precision)
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
    """Raises InputError if the folder exists and is not a model, StorageError if it cannot be written."""
    with _explained(folder):
        if folder.exists() and not _replaceable(folder):
            raise InputError(f"{folder} exists and is not a model; remove it, or give another folder with --to")
        with _aside(folder):
            pass


@contextmanager
def _aside(folder: Path) -> Iterator[Path]:
    """A temporary folder beside `folder`, removed at the end unless it was renamed."""
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
            f"cannot write the model to {folder} ({why}); make room, or give another folder with --to"
        ) from error


def _replaceable(folder: Path) -> bool:
    return folder.is_dir() and ((folder / CONFIG).is_file() or all(item.name == CARD for item in folder.iterdir()))


def _tensors(
    student: nn.Module,
    standardisers: Sequence[TargetStandardiser],
    poolers: Sequence[FrozenPooler | None],
    precision: str,
) -> dict[str, Tensor]:
    """Matrices in `precision`; vectors (norms, biases) and statistics in float32."""
    weights = {f"student.{name}": value for name, value in weights_of(student).items()}
    for number, pooler in enumerate(poolers):
        if pooler is not None:
            weights |= {f"poolers.{number}.{name}": value for name, value in weights_of(pooler.module).items()}
    tensors = {}
    for name, value in weights.items():
        dtype = _DTYPES[precision] if value.ndim > 1 else torch.float32
        tensors[name] = value.detach().to("cpu", dtype if value.is_floating_point() else None)
        if not tensors[name].isfinite().all():
            corrupt = "not finite in the checkpoint either; export another run"
            why = f"too large for {precision}; give --precision float32" if value.isfinite().all() else corrupt
            raise InputError(f"weight {name!r} would not be finite on disk: {why}")
    for number, standardiser in enumerate(standardisers):
        for name, value in standardiser.state().items():
            tensors[f"standards.{number}.{name}"] = value.detach().to("cpu", torch.float32)
    return {name: value.contiguous() for name, value in tensors.items()}


def _publish(aside: Path, folder: Path) -> None:
    """Rename `aside` to `folder`. An existing folder is moved away first, since only an empty one can be replaced."""
    aside.chmod(0o755)
    (aside / WEIGHTS).chmod(0o644)  # safetensors makes it readable for its owner only
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


def describe_pooler(pooler: FrozenPooler, name: str) -> dict[str, Any]:
    """Sizes from which `new_pooler` builds an equal module. Raises InputError for another kind of pooler."""
    module: Any = pooler.module
    try:
        values = _figures(module)
        rebuilt = new_pooler(values)
        rebuilt.module.load_state_dict(module.state_dict())
        x = torch.randn(5, values["width"], generator=torch.Generator().manual_seed(0))
        same = torch.allclose(rebuilt(x, [2, 3]), pooler(x, [2, 3]).float(), rtol=1e-3, atol=1e-3)
    except (AttributeError, RuntimeError):
        same = False
    if not same:
        raise InputError(
            f"teacher {name!r}: cannot export its pooler ({type(module).__name__}), only timm's AttentionPoolLatent; "
            f"train without `pooler`"
        )
    return values


def _figures(module: Any) -> dict[str, Any]:
    width = module.kv.in_features
    values = {"width": width, "heads": module.num_heads, "bias": module.kv.bias is not None, "pool": module.pool}
    values |= {"latents": module.latent_len, "project_query": isinstance(module.q, nn.Linear)}
    if module.mlp is None:
        return values | {"out": 0}
    eps = module.norm.eps if isinstance(module.norm, nn.LayerNorm) else None
    tanh = getattr(module.mlp.act, "approximate", "none") == "tanh" or "Tanh" in type(module.mlp.act).__name__
    return values | {"out": module.proj.out_features, "hidden": module.mlp.fc1.out_features, "eps": eps, "tanh": tanh}
