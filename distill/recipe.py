"""A training run is one complete typed configuration, read from YAML and `--set` overrides before anything is loaded.

What is marked `Execution` changes speed or place, never the result, and stays outside of the run's fingerprint.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from curate.core.errors import RecipeError
from curate.core.stage import Execution

RECIPES = Path(__file__).parent / "recipes"


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class RunRecipe(_Section):
    folder: Annotated[str, Execution()] = "runs/distill/{name}-{fingerprint}"
    """Where checkpoints, metrics and results go (a local folder). `{fingerprint}` gives every configuration its own."""
    device: Annotated[str, Execution()] = "auto"
    """auto (the GPU if there is one), cpu, cuda."""
    threads: Annotated[int, Execution(), Field(ge=0)] = 0
    """Threads of torch; 0 leaves its default."""
    workers: Annotated[int, Execution(), Field(ge=1)] = 2
    """Reading and decoding threads of each rank."""
    prefetch_steps: Annotated[int, Execution(), Field(ge=0)] = 2
    cache_bytes: Annotated[int, Execution(), Field(ge=0)] = 1 << 30
    """Memory of each rank for decoded pictures and teacher targets, so that later epochs decode nothing."""
    checkpoint_every: Annotated[int, Execution(), Field(ge=1)] = 500
    """Steps."""
    keep_checkpoints: Annotated[int, Execution(), Field(ge=1)] = 2
    log_every: Annotated[int, Execution(), Field(ge=1)] = 10
    """Steps averaged into one line of metrics.jsonl."""


class DataRecipe(_Section):
    dataset: Annotated[str, Execution()]
    """Dataset folder, local or s3://. Its content enters the fingerprint, its place does not."""
    test_fraction: Annotated[float, Field(ge=0, lt=1)] = 0.2
    """Share of the duplicate sets that are never trained on."""
    max_tokens: Annotated[int, Field(ge=1)] = 256
    """Patches of a picture at most; larger pictures are scaled down, aspect kept."""
    sequence_tokens: Annotated[int, Field(ge=1)] = 2048
    """Length of a packed sequence."""
    sequence_images: Annotated[int, Field(ge=1)] = 16
    lookahead: Annotated[int, Field(ge=1)] = 512
    """Images packed together."""
    lanes: Annotated[int, Field(ge=1)] = 8
    window_shards: Annotated[int, Field(ge=1)] = 4
    """lanes x window_shards tars are shuffled into one another."""
    max_bad_fraction: Annotated[float, Execution(), Field(ge=0, le=1)] = 0.05
    """The run fails when more of the samples than this had to be skipped."""


class StudentRecipe(_Section):
    patch: Annotated[int, Field(ge=1)] = 16
    """Pixels."""
    width: Annotated[int, Field(ge=4)] = 192
    depth: Annotated[int, Field(ge=1)] = 6
    heads: Annotated[int, Field(ge=1)] = 3
    mlp_ratio: Annotated[float, Field(gt=0)] = 8 / 3
    registers: Annotated[int, Field(ge=0)] = 4
    head_hidden: Annotated[int, Field(ge=1)] = 384
    """Hidden width of the head that each teacher has."""

    @model_validator(mode="after")
    def _divisible(self) -> StudentRecipe:
        if self.width % (2 * self.heads):
            raise ValueError(f"width {self.width} is not a multiple of 2 x heads ({self.heads}); choose one that is")
        return self


class TeacherRecipe(_Section):
    encoder: Annotated[str, Execution()]
    """A curate encoder: descriptor, timm:NAME, open_clip:NAME, hf:NAME, any with @PATH to a local checkpoint.

    Its identity (name, digest of its weights, preprocessing) enters the fingerprint, its path does not."""
    precision: Literal["float32", "bfloat16", "float16"] = "float32"
    summary_weight: Annotated[float, Field(ge=0)] = 1.0
    patch_weight: Annotated[float, Field(ge=0)] = 1.0
    patch_error: Literal["mean", "sum"] = "mean"
    """Squared error of a patch over its channels (AMoE Eq. 2 sums, its Listing 2 means)."""


class TrainRecipe(_Section):
    steps: Annotated[int, Field(ge=1)]
    sequences: Annotated[int, Field(ge=1)] = 4
    """Sequences of a step over all ranks: the global batch."""
    learning_rate: Annotated[float, Field(gt=0)] = 1e-3
    final_learning_rate: Annotated[float, Field(ge=0)] = 1e-4
    """Reached linearly at the last step."""
    warmup_steps: Annotated[int, Field(ge=0)] = 50
    weight_decay: Annotated[float, Field(ge=0)] = 0.02
    betas: tuple[float, float] = (0.9, 0.999)
    epsilon: Annotated[float, Field(gt=0)] = 1e-15
    clip_norm: Annotated[float, Field(ge=0)] = 0.0
    """Global gradient norm above which gradients are scaled down; 0 for never."""
    standardise_samples: Annotated[int, Field(ge=2)] = 1024
    """Training pictures on which the teachers' mean and scale are fitted."""
    precision: Literal["float32", "bfloat16", "float64"] = "float32"
    """bfloat16 is autocast over float32 weights."""


class EvaluateRecipe(_Section):
    """Not part of the run's fingerprint: a trained student may be evaluated in several ways."""

    label: str = "label"
    """Column of the dataset's index."""
    k: Annotated[int, Field(ge=1)] = 20
    temperature: Annotated[float, Field(gt=0)] = 0.07
    min_train_images: Annotated[int, Field(ge=1)] = 2
    """Test pictures of a class with fewer training pictures are left out, and counted."""
    max_train_images: Annotated[int, Field(ge=1)] = 50_000
    max_test_images: Annotated[int, Field(ge=1)] = 10_000


class Recipe(_Section):
    name: Annotated[str, Execution(), Field(pattern=r"^[\w.-]+$")]
    seed: Annotated[int, Field(ge=0)] = 0
    run: RunRecipe = RunRecipe()
    data: DataRecipe
    student: StudentRecipe = StudentRecipe()
    teachers: Annotated[list[TeacherRecipe], Field(min_length=1)]
    train: TrainRecipe
    evaluate: Annotated[EvaluateRecipe, Execution()] = EvaluateRecipe()

    @model_validator(mode="after")
    def _fits(self) -> Recipe:
        longest = self.data.max_tokens + 1 + self.student.registers
        if self.data.sequence_tokens < longest:
            raise ValueError(
                f"data.sequence_tokens {self.data.sequence_tokens} is shorter than the longest picture, {longest} "
                f"(max_tokens + CLS + registers); raise it or lower data.max_tokens"
            )
        names = [teacher.encoder for teacher in self.teachers]
        if len(set(names)) < len(names):
            raise ValueError("teachers: an encoder is named twice; give each once, with its weights")
        return self

    def semantic(self) -> dict[str, Any]:
        """What decides the trained student, JSON-able."""
        return _semantic(self)


def _semantic(section: BaseModel) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for name, info in type(section).model_fields.items():
        if any(isinstance(mark, Execution) for mark in info.metadata):
            continue
        value = getattr(section, name)
        if isinstance(value, BaseModel):
            values[name] = _semantic(value)
        elif isinstance(value, list):
            values[name] = [_semantic(item) for item in value]
        else:
            values[name] = list(value) if isinstance(value, tuple) else value
    return values


def load_recipe(place: str, overrides: Sequence[str] = ()) -> Recipe:
    """A YAML file, or the name of one that comes with the package. Raises RecipeError, a line with the place in it."""
    path = Path(place)
    if not path.is_file():
        path = RECIPES / f"{place}.yaml"
    if not path.is_file():
        known = ", ".join(sorted(item.stem for item in RECIPES.glob("*.yaml")))
        raise RecipeError(f"{place}: no such recipe file; give a path, or one of: {known}")
    try:
        values = yaml.safe_load(path.read_text())
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise RecipeError(f"{place}: not YAML: {error}") from error
    if not isinstance(values, dict):
        raise RecipeError(f"{place}: a recipe is a mapping with name, data, teachers and train")
    for override in overrides:
        _override(values, override)
    return parse_recipe(values, place)


def parse_recipe(values: dict[str, Any], place: str) -> Recipe:
    try:
        return Recipe.model_validate(values)
    except ValidationError as error:
        raise RecipeError(f"{place}: {_explain(error)}") from None


def apply_overrides(recipe: Recipe, overrides: Sequence[str], place: str) -> Recipe:
    values = recipe.model_dump(mode="json")
    for override in overrides:
        _override(values, override)
    return parse_recipe(values, place)


def _override(values: dict[str, Any], override: str) -> None:
    """`train.steps=100`, `teachers.0.encoder=timm:…`; the value is YAML."""
    name, found, text = override.partition("=")
    if not found:
        raise RecipeError(f"--set {override}: expected name=value, as in train.steps=100")
    *parents, last = name.split(".")
    node: Any = values
    try:
        for part in parents:
            node = node[int(part)] if isinstance(node, list) else node.setdefault(part, {})
        if isinstance(node, list):
            node[int(last)] = yaml.safe_load(text)
        else:
            node[last] = yaml.safe_load(text)
    except (AttributeError, TypeError, ValueError, IndexError, yaml.YAMLError):
        raise RecipeError(f"--set {override}: the recipe has no place {name}; name it as in train.steps") from None


def _explain(error: ValidationError) -> str:
    """The first problem, as place: what was given, what was expected."""
    first = error.errors()[0]
    place = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        section = _section(first["loc"][:-1])
        near = difflib.get_close_matches(str(first["loc"][-1]), section, n=1)
        return f"{place}: unknown; " + (f"did you mean {near[0]!r}?" if near else f"known: {', '.join(section)}")
    if first["type"] == "missing":
        return f"{place}: missing; put it into the recipe or give --set {place}=…"
    message = first["msg"].removeprefix("Value error, ")
    given = "" if first["type"] == "value_error" else f"{first['input']!r}: "
    return f"{place}: {given}{message}" if place else message


def _section(location: tuple[int | str, ...]) -> list[str]:
    """Known keys at a place of the recipe."""
    model: Any = Recipe
    for part in location:
        if isinstance(part, str):
            annotation = model.model_fields[part].annotation
            model = TeacherRecipe if part == "teachers" else annotation
    return list(model.model_fields)
