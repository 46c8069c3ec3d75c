"""A model folder written by `distill export`: its configuration, and checks of it. Does not import torch.

config.json         ModelConfig
model.safetensors   `student.*`: the weights; `standards.I.*`: the standardisation of the I-th teacher's features;
                    `poolers.I.*`: the teacher's pooler, if it computes the summary
tokenizer.json      only with a text tower whose tokens were learned
MODEL_CARD.md       written by the publisher of the model; loading ignores it
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, Field, ValidationError, model_validator

from curate.core.contracts import is_as_before
from curate.core.errors import InputError
from curate.core.recipe.section import Section
from curate.encoders.spec import Spec
from curate.encoders.student.config import HALF, Channels, HeadConfig, StudentConfig

FORMAT, VERSION = "distill", 1
CONFIG, WEIGHTS, TOKENIZER, CARD = "config.json", "model.safetensors", "tokenizer.json", "MODEL_CARD.md"
Precision = Literal["float32", "float16", "bfloat16"]
PRECISIONS: tuple[Precision, ...] = get_args(Precision)
Positive = Annotated[int, Field(ge=1)]


class Preprocessing(Section):
    """Images are resized to whole patches with their aspect ratio, never enlarged; x -> (x / 255 - mean) / std."""

    patch: Positive
    """Pixels."""
    max_tokens: Positive
    """Maximum number of patches per image: the largest number in training."""
    mean: Channels = HALF
    std: Channels = HALF
    interpolation: Literal["bicubic"] = "bicubic"
    decoding: Literal["whole", "reduced"] = "whole"
    """reduced: JPEG files of twice the needed size or more are decoded at 1/2, 1/4 or 1/8, as in training."""


class TeacherConfig(Section):
    name: str
    head: HeadConfig
    patches: bool
    """The head was trained to predict the teacher's patch features too."""
    pooler: dict[str, Any] | None = None
    """Sizes of the teacher's pooler, which computes the summary from the patch features; None: the head predicts it."""


class Trained(Section):
    fingerprint: str
    """Fingerprint of the run."""
    step: int
    ema: bool
    """The weights are the moving average of the trained weights."""


class ModelConfig(Section):
    format: Literal["distill"] = "distill"
    version: int = VERSION
    name: str
    student: StudentConfig
    teachers: list[TeacherConfig]
    preprocessing: Preprocessing
    trained: Trained
    precision: Precision
    """Precision of the weights on disk; they are loaded as float32."""

    @model_validator(mode="after")
    def _agrees(self) -> ModelConfig:
        if self.preprocessing.patch != self.student.patch:
            raise ValueError(f"preprocessing.patch is {self.preprocessing.patch}, student.patch {self.student.patch}")
        scaled = self.student.pixel_mean, self.student.pixel_std
        if (self.preprocessing.mean, self.preprocessing.std) != scaled:
            raise ValueError(f"preprocessing: the student needs pixels scaled by {scaled[0]} and {scaled[1]}")
        for item in self.teachers:
            if (item.patches or item.pooler) and item.head.patches is None:
                raise ValueError(f"teachers: the head of {item.name!r} has no width for patch features")
            if item.pooler and (not item.patches or item.pooler.get("width") != item.head.patches):
                raise ValueError(f"teachers: the pooler of {item.name!r} does not take the features of its head")
        return self

    def bytes(self) -> bytes:
        """Without options of the student that have their default, so that older versions read the model too."""
        values = self.model_dump(mode="json")
        _drop_defaults(self.student, values["student"])
        return json.dumps(values, indent=1).encode() + b"\n"


def _drop_defaults(section: BaseModel, values: dict[str, Any]) -> None:
    for name, info in type(section).model_fields.items():
        value = getattr(section, name)
        if is_as_before(info, value):
            del values[name]
        elif isinstance(value, BaseModel):
            _drop_defaults(value, values[name])


def read_config(folder: Path) -> ModelConfig:
    """Raises InputError (one line) unless the folder is a model of this version or an older one."""
    if not folder.is_dir():
        raise InputError(f"{str(folder)!r} is not a folder; give a folder written by `distill export`")
    try:
        values = json.loads((folder / CONFIG).read_bytes())
    except FileNotFoundError:
        raise InputError(f"no {CONFIG} in {str(folder)!r}; give a folder written by `distill export`") from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"{str(folder / CONFIG)!r} is not JSON ({error}); export the model again") from None
    if not isinstance(values, dict) or values.get("format") != FORMAT:
        raise InputError(f"{str(folder / CONFIG)!r} is of another kind of model; give one written by `distill export`")
    version = values.get("version")
    if type(version) is not int or version < 1:
        raise InputError(f"{str(folder / CONFIG)!r}: version must be an integer, not {version!r}; export again")
    if version > VERSION:
        raise InputError(
            f"{str(folder)!r} is a model of version {version}, but this package reads versions up to {VERSION}; "
            f"update the package, or export the model with this version"
        )
    try:
        config = ModelConfig.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        at = "".join(f"{part}: " for part in [".".join(map(str, first["loc"]))] if part)
        problem = first["msg"].removeprefix("Value error, ")
        raise InputError(f"{str(folder / CONFIG)!r}: {at}{problem}; export the model again") from None
    text = config.student.text
    needed = [WEIGHTS, *([TOKENIZER] if text is not None and text.tower == "mean" else [])]
    for name in needed:
        if not (folder / name).is_file():
            raise InputError(f"no {name} in {str(folder)!r}; copy the whole folder, or export the model again")
    return config


@dataclass(frozen=True)
class FolderCheck:
    """State of a model folder, read without loading the model."""

    problems: list[str]
    reads_text: bool
    """True also if the configuration cannot be read."""


def check_folder(spec: Spec) -> FolderCheck:
    """For `distill:FOLDER?head=…&max_tokens=…` and `tiny`."""
    assert spec.path is not None
    try:
        config = read_config(Path(spec.path))
    except InputError as error:
        return FolderCheck([f"encoder: {error}"], reads_text=True)
    problems, head = [], head_of(spec)
    names = [teacher.name for teacher in config.teachers]
    if head is not None and head not in names:
        known = f"choose one of: {', '.join(names)}" if names else "it has none; leave out `head`"
        problems.append(f"encoder: the model in {spec.path!r} has no head {head!r}; {known}")
    tokens = spec.options.get("max_tokens", 1)
    if not isinstance(tokens, int) or isinstance(tokens, bool) or tokens < 1:
        problems.append(f"encoder: max_tokens must be an integer of 1 or more, not {tokens!r}")
    text = config.student.text
    return FolderCheck(problems, text is not None and text.tokenizes and head is None)


def head_of(spec: Spec) -> str | None:
    return str(spec.options["head"]) if "head" in spec.options else None
