"""Weights that a training starts from (`init_from`): where they come from, and which of them the student takes."""

from __future__ import annotations

import pickle
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from curate.core.errors import InputError
from curate.encoders.spec import WORDS, Spec, parse_spec
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
    """Weights by the student's names, and what else decides whether they mean the same."""

    tensors: Mapping[str, Tensor]
    tokenizer: str | None = None
    """Digest of the text tower's tokenizer; None if it is unknown."""
    heads: Sequence[str] = ()
    """Teachers of the heads."""


@dataclass(frozen=True)
class Taken:
    """What a student has taken of other weights, by name."""

    weights: str
    taken: list[str]
    missing: list[str] = field(default_factory=list)
    """The student's, which the weights lack."""
    different: dict[str, list[list[int]]] = field(default_factory=dict)
    """Of another shape: the student's, and theirs."""
    unused: list[str] = field(default_factory=list)
    """Theirs, which the student lacks."""

    def line(self) -> str:
        total = len(self.taken) + len(self.missing) + len(self.different)
        parts = [
            ("drawn at random", self.missing),
            ("of another shape", list(self.different)),
            ("not used", self.unused),
        ]
        told = "".join(f"; {what}: {_summary(names)}" for what, names in parts if names)
        return f"init_from {self.weights}: took {len(self.taken)} of {total} weights{told}"


def start_from(recipe: Recipe, student: Student, tokenizer: AnyTokenizer | None) -> Taken:
    """Fill a new student, which is not sharded, with the weights that the recipe starts from.

    Raises InputError: one line; for weights that do not fit, one line for each.
    """
    settings = recipe.init_from
    assert settings is not None
    source, own = read_source(settings.weights), weights_of(student)
    every = given = _with_own_heads(source, [teacher.label for teacher in recipe.teachers])
    if not settings.text or student.text is None:
        given = {name: value for name, value in every.items() if _part(name) not in ("text", "project")}
    elif any(_part(name) == "text" for name in given):
        _check_tokenizer(settings.weights, source, student, tokenizer)
    taken = [name for name, value in own.items() if name in given and given[name].shape == value.shape]
    different = {
        name: [list(value.shape), list(given[name].shape)]
        for name, value in own.items()
        if name in given and given[name].shape != value.shape
    }
    missing = [name for name in own if name not in given]
    shared = student.state_dict().keys() - own.keys()
    unused = sorted(every.keys() - set(taken) - different.keys() - shared)
    found = Taken(settings.weights, taken, missing, different, unused)
    _check(found, {_part(name) for name in given}, strict=settings.strict)
    with torch.no_grad():
        for name in taken:
            own[name].copy_(given[name])
    return found


def inherited_tokenizer(recipe: Recipe) -> Tokenizer | None:
    """The learned tokenizer of the weights that a recipe starts from, if it takes their text tower."""
    if recipe.init_from is None or not recipe.init_from.text:
        return None
    place = Path(recipe.init_from.weights)
    return Tokenizer.read(place / TOKENIZER) if (place / TOKENIZER).is_file() else None


def read_source(weights: str) -> Source:
    """weights: see `InitFrom`. Raises InputError (one line)."""
    place = Path(weights)
    if is_run(place):
        return _of_run(RunFolder(place))
    if place.is_dir():
        return _of_model(place)
    if place.is_file():
        return Source(_without_start(_of_file(place), "student."))
    if ":" not in weights and weights not in WORDS:
        raise InputError(
            f"init_from: {weights!r} is not a run, an export or a file; give one, or timm:NAME, open_clip:NAME"
        )
    spec = parse_spec(weights)
    if spec.kind in ("distill", "tiny"):
        assert spec.path is not None
        return _of_model(Path(spec.path))
    return _of_library(spec)


def _of_run(run: RunFolder) -> Source:
    saved = last_checkpoint(run, run.fingerprint())
    if saved is None:
        raise InputError(f"init_from: {run.path} has no checkpoint yet; give a run that has one")
    recipe = run.recipe()
    return Source(saved.weights(), _learned(run.path), [teacher.label for teacher in recipe.teachers])


def _of_model(folder: Path) -> Source:
    config = read_config(folder)
    tensors = _without_start(_of_file(folder / WEIGHTS), "student.")
    return Source(tensors, _learned(folder), [teacher.name for teacher in config.teachers])


def _learned(folder: Path) -> str | None:
    return Tokenizer.read(folder / TOKENIZER).digest() if (folder / TOKENIZER).is_file() else None


def _of_library(spec: Spec) -> Source:
    """A model of timm, open_clip or transformers."""
    from curate.encoders.torch_encoder import one_line, seeded

    for file in _pickles(spec):
        _of_file(file)  # which refuses a pickle that the library would run
    with one_line(spec, "load"), seeded(spec.seed):
        if spec.kind == "timm":
            from curate.encoders.timm_models import create

            model = create(spec)
        elif spec.kind == "open_clip":
            from curate.encoders.open_clip_models import create as create_pair

            _, model = create_pair(spec)
        elif spec.kind == "hf":
            from curate.encoders.hf_models import create as create_hf

            model = create_hf(spec)
        else:
            raise InputError(f"init_from: {spec.public!r} has no weights; give a model of timm, open_clip or hf")
        return Source(translated(spec.kind, model.state_dict()))


def _pickles(spec: Spec) -> list[Path]:
    path = Path(spec.path or "")
    files = [path] if path.is_file() else list(path.glob("*.bin")) if spec.path else []
    return [file for file in files if file.suffix != _SAFE]


def _of_file(path: Path) -> dict[str, Tensor]:
    try:
        if path.suffix == _SAFE:
            return load_file(path)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about a pickle that it then refuses
            loaded: Any = torch.load(path, map_location="cpu", weights_only=True)
        for name in ("state_dict", "model"):
            loaded = loaded.get(name, loaded)
        return {name: value for name, value in loaded.items() if isinstance(value, Tensor)}
    except pickle.UnpicklingError:
        raise InputError(f"init_from: {path} is a pickle that may run code; save its weights as safetensors") from None
    except Exception as error:  # a corrupt file can make the readers raise anything
        why = " ".join(str(error).split())[:200]
        raise InputError(f"init_from: cannot read {path} ({why}); give safetensors, or a file of torch.save") from error


def _without_start(tensors: Mapping[str, Tensor], start: str) -> dict[str, Tensor]:
    """The weights under `start`, without it; all of them if there are none."""
    found = {name.removeprefix(start): value for name, value in tensors.items() if name.startswith(start)}
    return found or dict(tensors)


def _with_own_heads(source: Source, teachers: Sequence[str]) -> dict[str, Tensor]:
    """Heads under the number of the same teacher here; those of other teachers under their teacher's name."""
    found = {}
    for name, value in source.tensors.items():
        part, _, rest = name.partition(".")
        number, _, inner = rest.partition(".")
        if part == "heads":
            label = source.heads[int(number)] if int(number) < len(source.heads) else "unknown"
            name = f"heads.{teachers.index(label) if label in teachers else label}.{inner}"
        found[name] = value
    return found


def _check_tokenizer(weights: str, source: Source, student: Student, tokenizer: AnyTokenizer | None) -> None:
    assert student.text is not None
    known = source.tokenizer
    if known is None and len(source.tensors.get("text.tokens.weight", ())) == CLIP_VOCABULARY:
        known = CLIP_TOKENIZER
    own = None if tokenizer is None else tokenizer.digest()
    if known != own:
        raise InputError(
            f"init_from: the text tower of {weights} has the tokenizer {_short(known)}, the student's {_short(own)}; "
            f"set student.text to the same tower, or init_from.text=false to take the images' tower alone"
        )


def _short(digest: str | None) -> str:
    return "of another kind" if digest is None else digest[:12]


def _check(found: Taken, given: set[str], *, strict: bool) -> None:
    if not found.taken and not found.different:
        raise InputError(
            f"init_from: {found.weights} has no weight of the student; its names: {_summary(found.unused)}"
        )
    if not strict:
        return
    whole = {"backbone"} | given & {"text"}
    lines = [f"{name}: {own} here, {theirs} in the weights" for name, (own, theirs) in found.different.items()]
    lines += [f"{name}: not in the weights" for name in found.missing if _part(name) in whole]
    lines += [f"{name}: not in the student" for name in found.unused if _part(name) in whole]
    if lines:
        more = [f"… and {len(lines) - _LINES} more"] if len(lines) > _LINES else []
        told = "\n".join([*lines[:_LINES], *more])
        raise MismatchError(
            f"init_from: {found.weights} does not fit the student; change it, or set init_from.strict=false\n{told}"
        )


def _part(name: str) -> str:
    return name.partition(".")[0]


def _summary(names: Sequence[str]) -> str:
    """Numbers of weights by part."""
    counts = Counter(_part(name) for name in names)
    return ", ".join(f"{part} ({count})" if count > 1 else part for part, count in counts.items())
