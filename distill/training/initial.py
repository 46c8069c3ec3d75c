"""Weights that a training starts from (`init_from`): where they come from, and which of them the student takes."""

from __future__ import annotations

import pickle
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from curate.core.errors import InputError
from curate.encoders.spec import Spec, parse_spec
from curate.encoders.student.config import CLIP_VOCABULARY
from curate.encoders.student.foreign import translated
from curate.encoders.student.model import weights_of
from curate.encoders.student.model_folder import TOKENIZER, WEIGHTS, read_config
from curate.encoders.student.network.student import Student
from curate.encoders.student.tokenizer import CLIP_TOKENIZER, AnyTokenizer, Tokenizer
from distill.recipe import Recipe
from distill.training.checkpoint import last_checkpoint
from distill.training.run_folder import RunFolder, is_run

_LINES = 20
_SAFE = ".safetensors"


class MismatchError(InputError):
    """Weights that do not fit the student: a line about them, then one for each weight."""

    def __str__(self) -> str:
        return str(self.args[0])


@dataclass(frozen=True)
class Source:
    tensors: Mapping[str, Tensor]
    """By the student's names."""
    tokenizer: str | None = None
    """Digest of the text tower's learned tokenizer."""
    heads: Sequence[str] = ()
    """Teachers of the heads."""


@dataclass(frozen=True)
class Taken:
    """What a student has taken of other weights, by name."""

    weights: str
    taken: list[str]
    missing: list[str]
    """The student's, which the weights lack."""
    different: dict[str, list[list[int]]]
    """Two shapes: the student's, and theirs."""
    unused: list[str]
    """Theirs, which the student lacks."""

    def line(self) -> str:
        total = len(self.taken) + len(self.missing) + len(self.different)
        others = {"drawn at random": self.missing, "with other shapes": [*self.different], "not used": self.unused}
        told = "".join(f"; {what}: {_by_part(names)}" for what, names in others.items() if names)
        return f"init_from {self.weights}: took {len(self.taken)} of {total} weights{told}"


def start_from(recipe: Recipe, student: Student, tokenizer: AnyTokenizer | None) -> Taken:
    """Fill a new student, which is not sharded, with the weights that the recipe starts from.

    Raises InputError: one line; MismatchError: a line for each weight that does not fit.
    """
    settings = recipe.init_from
    assert settings is not None
    source, own = read_source(settings.weights), weights_of(student)
    every = given = _with_own_heads(source, [teacher.label for teacher in recipe.teachers])
    if not settings.text or student.text is None:
        given = {name: value for name, value in every.items() if _part(name) not in ("text", "project")}
    elif any(_part(name) == "text" for name in given):
        _check_tokenizer(settings.weights, source, tokenizer)
    both = {name: (value, given[name]) for name, value in own.items() if name in given}
    taken = [name for name, (mine, theirs) in both.items() if mine.shape == theirs.shape]
    different = {name: [list(value.shape) for value in both[name]] for name in both if name not in taken}
    aliases = student.state_dict().keys() - own.keys()
    unused = sorted(every.keys() - both.keys() - aliases)
    found = Taken(settings.weights, taken, [name for name in own if name not in given], different, unused)
    _check(found, {_part(name) for name in given}, strict=settings.strict)
    with torch.no_grad():
        for name in taken:
            own[name].copy_(given[name])
    return found


def inherited_tokenizer(recipe: Recipe) -> Tokenizer | None:
    """The learned tokenizer of the weights that a recipe starts from, if it takes their text tower."""
    if recipe.init_from is None or not recipe.init_from.text:
        return None
    path = _place(recipe.init_from.weights) / TOKENIZER
    return Tokenizer.read(path) if path.is_file() else None


def read_source(weights: str) -> Source:
    """weights: see `InitFrom`; `weights_identity` has found them. Raises InputError (one line)."""
    place = _place(weights)
    if is_run(place):
        run = RunFolder(place)
        saved = last_checkpoint(run, run.fingerprint())
        if saved is None:
            raise InputError(f"init_from: {place} has no checkpoint yet; give a run that has one")
        return Source(saved.weights(), _learned(place), [teacher.label for teacher in run.recipe().teachers])
    if place.is_dir() or _is_export(weights):
        return _of_model(place)
    if place.is_file():
        return Source(_of_student(place))
    return _of_library(parse_spec(weights))


def _is_export(weights: str) -> bool:
    """Whether it names an export as an encoder."""
    return weights.partition(":")[0] in ("distill", "tiny")


def _place(weights: str) -> Path:
    return Path(str(parse_spec(weights).path)) if _is_export(weights) else Path(weights)


def _of_model(folder: Path) -> Source:
    config = read_config(folder)
    return Source(_of_student(folder / WEIGHTS), _learned(folder), [teacher.name for teacher in config.teachers])


def _learned(folder: Path) -> str | None:
    return Tokenizer.read(folder / TOKENIZER).digest() if (folder / TOKENIZER).is_file() else None


def _of_library(spec: Spec) -> Source:
    """A model of timm, open_clip or transformers."""
    from curate.encoders.torch_encoder import one_line, seeded

    path = Path(spec.path or "")
    for file in [path] if path.is_file() else sorted(path.glob("*.bin")) if spec.path else []:
        if file.suffix != _SAFE:
            _of_file(file)  # raises for a pickle that the library would run
    with one_line(spec, "load"), seeded(spec.seed):
        return Source(translated(spec.kind, _created(spec).state_dict()))


def _created(spec: Spec) -> nn.Module:
    if spec.kind == "timm":
        from curate.encoders import timm_models

        return timm_models.create(spec)
    if spec.kind == "open_clip":
        from curate.encoders import open_clip_models

        return open_clip_models.create(spec)[1]
    if spec.kind == "hf":
        from curate.encoders import hf_models

        return hf_models.create(spec)
    raise InputError(f"init_from: {spec.public!r} has no weights; give a model of timm, open_clip or hf")


def _of_student(path: Path) -> dict[str, Tensor]:
    """The student's own weights, by names that may begin with `student.`, as in an export."""
    tensors = _of_file(path)
    inner = {name.removeprefix("student."): value for name, value in tensors.items() if name.startswith("student.")}
    return inner or tensors


def _of_file(path: Path) -> dict[str, Tensor]:
    try:
        if path.suffix == _SAFE:
            return load_file(path)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about a pickle that it then rejects
            loaded: Any = torch.load(path, map_location="cpu", weights_only=True)
        for name in ("state_dict", "model"):
            loaded = loaded.get(name, loaded)
        return {name: value for name, value in loaded.items() if isinstance(value, Tensor)}
    except pickle.UnpicklingError:
        raise InputError(f"init_from: {path} is a pickle that may run code; save its weights as safetensors") from None
    except Exception as error:  # a corrupt file can make the readers raise anything
        why = " ".join(str(error).split())[:200]
        raise InputError(f"init_from: cannot read {path} ({why}); give safetensors, or a file of torch.save") from error


def _with_own_heads(source: Source, teachers: Sequence[str]) -> dict[str, Tensor]:
    """Heads under their teacher's number here, or its name if it does not teach here."""
    found = {}
    for name, value in source.tensors.items():
        part, number, inner = (*name.split(".", 2), "", "")[:3]
        if part == "heads":
            label = source.heads[int(number)] if int(number) < len(source.heads) else "unknown"
            name = f"heads.{teachers.index(label) if label in teachers else label}.{inner}"
        found[name] = value
    return found


def _check_tokenizer(weights: str, source: Source, tokenizer: AnyTokenizer | None) -> None:
    of_clip = len(source.tensors.get("text.tokens.weight", ())) == CLIP_VOCABULARY
    theirs = source.tokenizer or (CLIP_TOKENIZER if of_clip else "none")
    own = "none" if tokenizer is None else tokenizer.digest()
    if theirs != own:
        raise InputError(
            f"init_from: the text tower of {weights} has the tokenizer {theirs[:12]}, the student's {own[:12]}; set "
            f"student.text to the same tower, or init_from.text=false to take the images' tower alone"
        )


def _check(found: Taken, given: set[str], *, strict: bool) -> None:
    """given: parts that the weights have."""
    if not found.taken and not found.different:
        raise InputError(
            f"init_from: {found.weights} has no weight of the student; its names: {_by_part(found.unused)}"
        )
    whole = {"backbone"} | given & {"text"}
    lines = [f"{name}: {own} here, {theirs} in the weights" for name, (own, theirs) in found.different.items()]
    lines += [f"{name}: not in the weights" for name in found.missing if _part(name) in whole]
    lines += [f"{name}: not in the student" for name in found.unused if _part(name) in whole]
    if strict and lines:
        more = [f"… and {len(lines) - _LINES} more"] if len(lines) > _LINES else []
        told = "\n".join([*lines[:_LINES], *more])
        raise MismatchError(
            f"init_from: {found.weights} does not fit the student; change it, or set init_from.strict=false\n{told}"
        )


def _part(name: str) -> str:
    return name.partition(".")[0]


def _by_part(names: Sequence[str]) -> str:
    """Numbers of weights by part of the student."""
    counts = Counter(map(_part, names))
    return ", ".join(f"{part} ({count})" if count > 1 else part for part, count in counts.items())
