"""A model folder, as `distill export` writes it: its configuration, and what is wrong with one. Knows nothing of torch.

config.json         ModelConfig
model.safetensors   `student.*`: the weights; `standards.I.*`: how the I-th teacher's targets were standardised;
                    `poolers.I.*`: its own pooler, where that makes the summary
tokenizer.json      only with a text tower
MODEL_CARD.md       whoever publishes the model writes it; it decides nothing
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError, field_validator, model_validator

from curate.core.errors import InputError
from curate.encoders.spec import Spec
from distill.recipe import StudentRecipe
from distill.recipe.section import Section

FORMAT, VERSION = "distill", 1
CONFIG, WEIGHTS, TOKENIZER, CARD = "config.json", "model.safetensors", "tokenizer.json", "MODEL_CARD.md"
PRECISIONS = ("float32", "float16", "bfloat16")
HALF = (0.5, 0.5, 0.5)
Positive = Annotated[int, Field(ge=1)]


class Preprocessing(Section):
    """Pictures keep their aspect, are never enlarged, and are resized to whole patches; x -> (x / 255 - mean) / std."""

    patch: Positive
    """Pixels."""
    max_tokens: Positive
    """Patches of a picture at most: the largest that the student was trained on."""
    mean: tuple[float, float, float] = HALF
    std: tuple[float, float, float] = HALF
    interpolation: Literal["bicubic"] = "bicubic"
    decoding: Literal["whole", "reduced"] = "whole"
    """reduced: files of JPEGs of twice the size that is needed are decoded at 1/2, 1/4 or 1/8, as the run read them."""

    @field_validator("mean", "std")
    @classmethod
    def _halves(cls, value: tuple[float, ...]) -> tuple[float, ...]:
        if value != HALF:
            raise ValueError(f"students are given pixels scaled by {HALF}")
        return value


class HeadSizes(Section):
    """Of a teacher's head, as HeadConfig."""

    summary: Positive
    patches: Positive | None
    hidden: Positive


class TeacherConfig(Section):
    name: str
    head: HeadSizes
    patches: bool
    """The head was trained to give the teacher's patch features, too."""
    pooler: dict[str, Any] | None = None
    """Figures of the teacher's own pooler, which makes the summary of the patch features; None: the head does."""


class Trained(Section):
    fingerprint: str
    """Of the run."""
    step: int
    ema: bool
    """The weights are the moving average of those that were trained."""


class ModelConfig(Section):
    format: Literal["distill"] = "distill"
    version: int = VERSION
    name: str
    student: StudentRecipe
    teachers: list[TeacherConfig]
    preprocessing: Preprocessing
    trained: Trained
    precision: Literal["float32", "float16", "bfloat16"]
    """Of the weights on disk; they are loaded as float32."""

    @model_validator(mode="after")
    def _agrees(self) -> ModelConfig:
        if self.preprocessing.patch != self.student.patch:
            raise ValueError(f"preprocessing.patch is {self.preprocessing.patch}, student.patch {self.student.patch}")
        for item in self.teachers:
            if (item.patches or item.pooler) and item.head.patches is None:
                raise ValueError(f"teachers: the head of {item.name!r} has no width of patch features")
            if item.pooler and (not item.patches or item.pooler.get("width") != item.head.patches):
                raise ValueError(f"teachers: the pooler of {item.name!r} does not take what its head gives")
        return self

    def bytes(self) -> bytes:
        return json.dumps(self.model_dump(mode="json"), indent=1).encode() + b"\n"


def read_config(folder: Path) -> ModelConfig:
    """Raises InputError, a line, for anything but a model folder of this version or an older one."""
    if not folder.is_dir():
        raise InputError(f"{str(folder)!r} is no folder; give one that `distill export` wrote")
    try:
        values = json.loads((folder / CONFIG).read_bytes())
    except FileNotFoundError:
        raise InputError(
            f"no {CONFIG} in {str(folder)!r}; give a folder that `distill export` wrote ('distill export RUN')"
        ) from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"{str(folder / CONFIG)!r} is not JSON ({error}); export the model again") from None
    if not isinstance(values, dict) or values.get("format") != FORMAT:
        raise InputError(f"{str(folder / CONFIG)!r} is of another kind of model; give what `distill export` wrote")
    version = values.get("version")
    if type(version) is not int or version < 1:
        raise InputError(f"{str(folder / CONFIG)!r}: version {version!r} is no whole number; export the model again")
    if version > VERSION:
        raise InputError(
            f"{str(folder)!r} is a model of version {version}, this package reads up to {VERSION}; "
            f"update the package, or export the model with this one"
        )
    try:
        config = ModelConfig.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        at = "".join(f"{part}: " for part in [".".join(map(str, first["loc"]))] if part)
        said = first["msg"].removeprefix("Value error, ")
        raise InputError(f"{str(folder / CONFIG)!r}: {at}{said}; export the model again") from None
    needed = [WEIGHTS, *([TOKENIZER] if config.student.text is not None else [])]
    for name in needed:
        if not (folder / name).is_file():
            raise InputError(f"no {name} in {str(folder)!r}; copy the model's folder whole, or export it again")
    return config


@dataclass(frozen=True)
class Account:
    """What can be said of an encoder without loading it."""

    problems: list[str]
    texts: bool
    """It reads texts, as far as that can be told."""


def account(spec: Spec) -> Account:
    """Of `distill:FOLDER?head=…&max_tokens=…` and `tiny`."""
    assert spec.path is not None
    if spec.kind == "tiny" and not Path(spec.path).is_dir():
        return Account(["encoder: the weights of 'tiny' are not in this installation; install the package anew"], True)
    try:
        config = read_config(Path(spec.path))
    except InputError as error:
        return Account([f"encoder: {error}"], True)
    problems, head = [], head_of(spec)
    names = [teacher.name for teacher in config.teachers]
    if head is not None and head not in names:
        known = f"choose one of: {', '.join(names)}" if names else "it has none; leave `head` out"
        problems.append(f"encoder: head={head!r} names no head of the model in {spec.path!r}; {known}")
    tokens = spec.options.get("max_tokens", 1)
    if not isinstance(tokens, int) or isinstance(tokens, bool) or tokens < 1:
        problems.append(f"encoder: max_tokens={tokens!r} is no whole number of patches; give 1 or more")
    return Account(problems, config.student.text is not None and head is None)


def head_of(spec: Spec) -> str | None:
    return str(spec.options["head"]) if "head" in spec.options else None
