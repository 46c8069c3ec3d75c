"""A training run is one complete typed configuration.

What is marked `Runtime` changes speed or place, never the result, and stays outside of the run's fingerprint.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, Field, ValidationError, model_validator

from curate.core.contracts import Runtime
from distill.recipe.data import DataRecipe
from distill.recipe.evaluate import EvaluateRecipe
from distill.recipe.objective import ContrastiveRecipe, TeacherRecipe
from distill.recipe.run import RunRecipe
from distill.recipe.section import Section
from distill.recipe.student import StudentRecipe
from distill.recipe.train import TrainRecipe


class StageError(ValueError):
    """A stage of which no complete recipe can be made; `values` is what was tried."""

    def __init__(self, number: int, values: dict[str, Any], error: ValidationError) -> None:
        super().__init__(f"stages.{number}: {error}")
        self.number, self.values, self.error = number, values, error


class StageRecipe(Section):
    """What is different in a stage of training: any values of `data` and `train`. The weights go on."""

    data: dict[str, Any] = {}
    train: dict[str, Any] = {}


class Recipe(Section):
    name: Annotated[str, Runtime(), Field(pattern=r"^[\w.-]+$")]
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    run: RunRecipe = RunRecipe()
    data: DataRecipe
    student: StudentRecipe = StudentRecipe()
    teachers: list[TeacherRecipe] = []
    contrastive: ContrastiveRecipe | None = None
    train: TrainRecipe
    stages: list[StageRecipe] = []
    """One after another, each with its own steps, schedule and data; empty: one stage, as `data` and `train` say."""
    evaluate: Annotated[EvaluateRecipe, Runtime()] = EvaluateRecipe()

    def staged(self) -> list[Recipe]:
        """The complete recipe of each stage, itself without stages. Raises StageError."""
        if not self.stages:
            return [self]
        base = self.model_dump(mode="json") | {"stages": []}
        made = []
        for number, stage in enumerate(self.stages):
            values = merged(base, {"data": stage.data, "train": stage.train})
            try:
                made.append(Recipe.model_validate(values))
            except ValidationError as error:
                raise StageError(number, values, error) from error
        return made

    @property
    def steps(self) -> int:
        """Of all stages."""
        return sum(stage.train.steps for stage in self.staged())

    @model_validator(mode="after")
    def _fits(self) -> Recipe:
        longest = self.data.max_tokens + 1 + self.student.registers
        if self.data.sequence_tokens < longest:
            raise ValueError(
                f"data.sequence_tokens {self.data.sequence_tokens} is shorter than the longest picture, {longest} "
                f"(max_tokens + CLS + registers); raise it or lower data.sources' max_tokens"
            )
        names = [teacher.label for teacher in self.teachers]
        if len(set(names)) < len(names):
            raise ValueError("teachers: a name is given twice; give each teacher its own `name`")
        return self

    @model_validator(mode="after")
    def _asks_something(self) -> Recipe:
        if not self.teachers and self.contrastive is None:
            raise ValueError("nothing to learn from; give teachers, or contrastive with student.text")
        if (self.contrastive is None) != (self.student.text is None):
            raise ValueError("contrastive and student.text go together; give both or neither")
        if self.contrastive is None and not any(map(_teaches, self.teachers)):
            raise ValueError("nothing to learn from: every loss of every teacher has weight 0; give one a weight")
        if self.contrastive is not None and not all(source.texts for source in self.data.sources):
            raise ValueError("contrastive needs texts; give every one of data.sources its `texts`, as in {txt: 1}")
        return self

    @model_validator(mode="after")
    def _stages_are_valid(self) -> Recipe:
        self.staged()
        return self

    def semantic(self) -> dict[str, Any]:
        """What decides the trained student, JSON-able."""
        values: dict[str, Any] = semantic(self)
        values["stages"] = [
            {"data": semantic(stage.data), "train": semantic(stage.train)}
            for stage in self.staged()[: len(self.stages)]
        ]
        return values


def _teaches(teacher: TeacherRecipe) -> bool:
    related = teacher.relations.weight > 0 and teacher.relations.kind != "none"
    return related or any(term.weight > 0 for term in (teacher.summary, teacher.patches, teacher.registers))


def semantic(value: Any) -> Any:
    """Without what is marked Runtime."""
    if isinstance(value, BaseModel):
        fields = type(value).model_fields.items()
        kept = [name for name, info in fields if not any(isinstance(mark, Runtime) for mark in info.metadata)]
        return {name: semantic(getattr(value, name)) for name in kept}
    if isinstance(value, Mapping):
        return {str(key): semantic(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [semantic(item) for item in value]
    return value


def merged(base: dict[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """`changes` over `base`, mapping by mapping; lists and plain values are replaced."""
    out = dict(base)
    for name, value in changes.items():
        below = out.get(name)
        deeper = isinstance(value, Mapping) and isinstance(below, dict)
        out[name] = merged(below, value) if deeper and isinstance(below, dict) else value
    return out
