"""The complete, typed configuration of a training run.

Fields marked `Runtime` change speed or place, never the result, and are not part of the run's fingerprint.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Annotated, Any

from pydantic import (
    BaseModel,
    BeforeValidator,
    Field,
    SerializerFunctionWrapHandler,
    ValidationError,
    field_serializer,
    model_serializer,
    model_validator,
)

from curate.core.contracts import Added, Runtime, is_as_before, is_runtime
from curate.core.recipe.section import Section
from curate.encoders.student.config import StudentConfig
from distill.objectives import Needs, Objective
from distill.objectives.base import module_name
from distill.objectives.contrastive import Contrastive
from distill.objectives.views import SECOND
from distill.recipe.data import DataRecipe
from distill.recipe.evaluate import EvaluateRecipe
from distill.recipe.init_from import InitFrom
from distill.recipe.objectives import KEY, class_name, parsed
from distill.recipe.run import RunRecipe
from distill.recipe.teacher import LOSSES, TeacherRecipe
from distill.recipe.train import TrainRecipe


class InvalidStage(ValueError):
    """A stage whose changes do not give a valid recipe; `values` are those of the complete recipe."""

    def __init__(self, number: int, values: dict[str, Any], error: ValidationError) -> None:
        super().__init__(f"stages.{number}: {error}")
        self.number, self.values, self.error = number, values, error


class StageRecipe(Section):
    """What a stage of training changes. It continues from the weights before it, of which it drops those that it has no
    use for; others that it needs are new. The backbone keeps its shape."""

    data: dict[str, Any] = {}
    train: dict[str, Any] = {}
    student: dict[str, Any] = {}
    """`text`: null without a text tower. `keep`, `keep_layers`, `merge`: fewer tokens."""
    teachers: dict[str, dict[str, Any]] = {}
    """Other losses, by the teacher's name: {dinov3: {summary: {weight: 0}}}."""
    contrastive: dict[str, Any] | None = None
    """null: without it."""
    objectives: list[dict[str, Any]] = []
    """In place of those before."""

    @model_serializer(mode="wrap")
    def _changes(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        values = handler(self)
        return {name: values[name] for name in self.sections}

    @property
    def sections(self) -> list[str]:
        """Those that it names; `data` and `train`, which alone a stage of before could change, always."""
        return [name for name in type(self).model_fields if name in {"data", "train"} | self.model_fields_set]


class Recipe(Section):
    name: Annotated[str, Runtime(), Field(pattern=r"^[\w.-]+$")]
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    run: RunRecipe = RunRecipe()
    data: DataRecipe
    student: StudentConfig = StudentConfig()
    teachers: list[TeacherRecipe] = []
    contrastive: Contrastive | None = None
    objectives: Annotated[list[Annotated[Objective, BeforeValidator(parsed)]], Added()] = []
    """More objectives, each with `objective: package.module:Class` and the values of that class."""
    init_from: Annotated[InitFrom | None, Added()] = None
    """Weights that the first stage starts from, instead of random ones."""
    train: TrainRecipe
    stages: list[StageRecipe] = []
    """Stages run in turn, each with its own steps, schedule and data; empty: a single stage with `data` and `train`."""
    evaluate: Annotated[EvaluateRecipe, Runtime()] = EvaluateRecipe()

    def staged(self) -> list[Recipe]:
        """The complete recipe of each stage. Raises InvalidStage."""
        if not self.stages:
            return [self]
        base = self.model_dump(mode="json") | {"stages": []}
        made = []
        for number, stage in enumerate(self.stages):
            changes = stage.model_dump(mode="json")
            changes |= {"teachers": self._with_losses(base["teachers"], number)} if stage.teachers else {}
            values = _merged(base, changes)
            try:
                made.append(Recipe.model_validate(values))
            except ValidationError as error:
                raise InvalidStage(number, values, error) from error
        return made

    def _with_losses(self, teachers: list[dict[str, Any]], number: int) -> list[dict[str, Any]]:
        """The teachers' values, with the losses of a stage."""
        changed, place = dict(self.stages[number].teachers), f"stages.{number}.teachers"
        found = []
        for teacher, values in zip(self.teachers, teachers, strict=True):
            own = changed.pop(teacher.label, {})
            if others := own.keys() - set(LOSSES):
                known = ", ".join(LOSSES)
                raise ValueError(
                    f"{place}.{teacher.label}: a stage cannot change {min(others)!r}; it may change {known}"
                )
            found.append(_merged(values, own))
        if changed:
            known = ", ".join(teacher.label for teacher in self.teachers) or "none"
            raise ValueError(f"{place}: unknown teacher {next(iter(changed))!r}; choose from {known}")
        return found

    def schedules(self) -> list[range]:
        """The updates (from 0) of the schedule that each stage is in, which several may share."""
        spans, end = list[range](), 0
        for stage in self.staged():
            start = end if stage.train.restart or not spans else spans[-1].start
            end += stage.train.steps
            spans = [range(start, end) if span.start == start else span for span in spans] + [range(start, end)]
        return spans

    @field_serializer("objectives")
    def _with_names(self, objectives: list[Objective]) -> list[dict[str, Any]]:
        return [{KEY: class_name(item), **item.model_dump(mode="json")} for item in objectives]

    @property
    def every_objective(self) -> list[Objective]:
        """What the student is trained on, and relations that are only logged: of the teachers, `contrastive`, and
        `objectives`."""
        of_teachers = [item for teacher in self.teachers for item in teacher.objectives]
        return [*of_teachers, *([self.contrastive] if self.contrastive is not None else []), *self.objectives]

    @property
    def needs(self) -> Needs:
        """What all objectives read of a sample."""
        return Needs.of(self.every_objective)

    @property
    def reads_text(self) -> bool:
        """Whether the texts of the samples are read, as opposed to vectors of them."""
        return self.needs.text and (self.student.text is None or self.student.text.tokenizes)

    @property
    def steps(self) -> int:
        """Steps of all stages."""
        return sum(stage.train.steps for stage in self.staged())

    @model_validator(mode="after")
    def _check_sizes(self) -> Recipe:
        longest = self.data.max_tokens + self.student.prefix
        if self.data.sequence_tokens < longest:
            raise ValueError(
                f"data.sequence_tokens {self.data.sequence_tokens} is less than the tokens of the largest image, "
                f"{longest} (max_tokens + CLS + registers); raise it or lower data.sources' max_tokens"
            )
        names = [teacher.label for teacher in self.teachers]
        if len(set(names)) < len(names):
            raise ValueError("teachers: two have the same name; give each its own `name`")
        return self

    @model_validator(mode="after")
    def _check_objectives(self) -> Recipe:
        objectives = self.every_objective
        if not objectives:
            raise ValueError("no training objective; set teachers, or contrastive with student.text")
        reading = [item.label for item in objectives if item.needs().text_tower] or ["contrastive"]
        if self.needs.text_tower != (self.student.text is not None):
            raise ValueError(f"{reading[0]} requires student.text and the reverse; set both or neither")
        if not any(item.trains for item in objectives):
            raise ValueError("no training objective: every loss of every teacher has weight 0; set a weight above 0")
        for item in objectives:
            if item.needs().text and self.reads_text and not all(source.texts for source in self.data.sources):
                raise ValueError(
                    f"{item.label} requires texts; set `texts` of every one of data.sources, as in {{txt: 1}}"
                )
        if self.needs.text and not self.reads_text and (self.data.paired or self.needs.teacher_texts):
            both = "text_pair" if self.data.paired else f"the texts that {min(self.needs.teacher_texts)} reads"
            raise ValueError(
                f"data.sources: {both}, but student.text reads the vectors of a column; remove one of them"
            )
        return self

    @model_validator(mode="after")
    def _check_labels(self) -> Recipe:
        modules = [module_name(item.label) for item in self.every_objective]
        teachers = [item.label for item in self.teachers]
        for number, item in enumerate(self.objectives):
            if modules.count(module_name(item.label)) > 1:
                raise ValueError(f"objectives.{number}: two objectives are called {item.label!r}; leave one out")
            for label in item.needs().features.keys() - set(teachers):
                known = f"choose from {', '.join(teachers)}" if teachers else "the recipe has no teachers; add it"
                raise ValueError(f"objectives.{number}: unknown teacher {label!r}; {known}")
        return self

    @model_validator(mode="after")
    def _check_tokens(self) -> Recipe:
        """That every objective gets the views and the outputs that it needs."""
        reduction, most, tubes = self.student.reduction, self.data.max_tokens, self.student.tubelet > 1
        for item in self.every_objective:
            if (reduction or tubes) and item.needs().patches:
                raise ValueError(
                    f"{item.label} needs the output of each patch, which student.keep, merge and tubelet do not leave; "
                    f"remove them, or what reads patches"
                )
            if tubes and (SECOND in item.needs().views or (isinstance(item, Contrastive) and item.frame_pairs)):
                raise ValueError(f"{item.label} compares frames, of which student.tubelet makes one clip; remove one")
            whole = [source for source in self.data.sources if source.modality == "image"]
            if SECOND in item.needs().views and whole and self.data.augment is None:
                raise ValueError(f"{item.label} needs data.augment, for a second crop of each image; set it")
        for name, merge in (("student.merge", self.student.merge), ("evaluate.merge", self.evaluate.merge or 0)):
            if (end := replace(reduction, merge=merge).exhausted(most, self.student.depth)) is not None:
                raise ValueError(
                    f"{name} {merge}: of the {most} patches of the largest image, {end[1]} are left at layer {end[0]}, "
                    f"which can merge at most half of them; lower it"
                )
        if self.student.merge and self.run.attention == "varlen":
            raise ValueError("run.attention: 'varlen' cannot weigh merged tokens (student.merge); use flex")
        return self

    @model_validator(mode="after")
    def _check_samples(self) -> Recipe:
        samples = self.train.standardise_samples
        if isinstance(samples, int):
            return self
        for number, teacher in enumerate(self.teachers):
            missing = [kind for kind in teacher.kinds if kind not in samples]
            if missing:
                raise ValueError(
                    f"train.standardise_samples: no number for {missing[0]}, which teachers.{number} standardises; add "
                    f"it, or remove {missing[0]} from teachers.{number}.standardised"
                )
        return self

    @model_validator(mode="after")
    def _check_stages(self) -> Recipe:
        stages = self.staged()
        for number, (before, stage) in enumerate(pairwise(stages), start=1):
            for name in ("learning_rate", "final_learning_rate", "warmup_steps", "schedule"):
                first, own = (getattr(each.train, name) for each in (before, stage))
                if own != first and not stage.train.restart:
                    raise ValueError(
                        f"stages.{number}.train.{name}: {own!r}, but {first!r} in the stage before, whose schedule it "
                        f"continues; set it once, as train.{name}, or set restart: true"
                    )
        for number, (stage, span) in enumerate(zip(stages, self.schedules(), strict=True)):
            if self.stages and stage.train.warmup_steps >= len(span):
                raise ValueError(
                    f"stages.{number}.train.warmup_steps: {stage.train.warmup_steps} must be less than the {len(span)} "
                    f"steps of its schedule; lower it (0 for none)"
                )
        return self

    def semantic(self) -> dict[str, Any]:
        """The values that determine the trained student, JSON-able: what the fingerprint covers."""
        values: dict[str, Any] = semantic(self)
        if self.objectives:
            values["objectives"] = [
                {KEY: class_name(item), "version": item.version, **semantic(item)} for item in self.objectives
            ]
        stages = [stage.semantic() for stage in self.staged()[: len(self.stages)]]
        values["stages"] = [
            {name: values.get(name) for name in stage.sections}
            for stage, values in zip(self.stages, stages, strict=True)
        ]
        return values


def semantic(value: Any) -> Any:
    """The value without fields marked Runtime, and without fields marked Added that have their default."""
    if isinstance(value, BaseModel):
        fields = {name: info for name, info in type(value).model_fields.items() if not is_runtime(info.metadata)}
        values = {name: getattr(value, name) for name, info in fields.items()}
        return {name: semantic(item) for name, item in values.items() if not is_as_before(fields[name], item)}
    if isinstance(value, Mapping):
        return {str(key): semantic(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [semantic(item) for item in value]
    return value


def _merged(base: dict[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """`base` updated with `changes`, recursively in mappings; lists and plain values are replaced."""
    out = dict(base)
    for name, value in changes.items():
        old = out.get(name)
        out[name] = _merged(old, value) if isinstance(value, Mapping) and isinstance(old, dict) else value
    return out
