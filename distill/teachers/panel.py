"""All teachers of a run: their targets, kept per picture while there is room."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from typing import Any, Self

import torch
from PIL import Image

from curate.core.errors import InputError, RecipeError
from curate.encoders import Encoder, load
from distill.models.pooler import FrozenPooler
from distill.models.student import HeadConfig
from distill.objectives.losses import resample_patches
from distill.recipe import Recipe, TeacherRecipe
from distill.recipe.objective import TermRecipe
from distill.samples.batches.loader import Batch
from distill.samples.images.images import Allowance, Picture
from distill.teachers.base import Answer, Shape, Target, Teacher
from distill.teachers.columns import Columns
from distill.teachers.encoder import EncoderTeacher
from distill.teachers.hadamard import hadamard


class Teachers:
    """In the recipe's order. `missing` and `prepare` are called by reading threads."""

    def __init__(
        self,
        teachers: Mapping[str, Teacher],
        *,
        allowance: Allowance | None = None,
        batch: int = 64,
        name: Callable[[int], str] = "row {}".format,
        half: Collection[str] = (),
        columns: Mapping[str, Columns] | None = None,
    ) -> None:
        """teachers: by label; batch: pictures per call of one; name: how a row of the index is called in errors; half:
        those whose patches are rounded to float16; columns: of those that have answered on rows before."""
        self.names = list(teachers)
        self._teachers = list(teachers.values())
        self._allowance, self._batch, self._name = allowance or Allowance(0), batch, name
        self._half, self._columns = frozenset(half), [(columns or {}).get(label) for label in self.names]
        self._kept: list[dict[Hashable, Answer]] = [{} for _ in self.names]
        self.answers: Counter[str] = Counter()
        """How many were `computed`, and how many `read` from columns."""

    @classmethod
    def of(
        cls,
        recipe: Recipe,
        device: torch.device,
        *,
        allowance: Allowance | None = None,
        name: Callable[[int], str] = "row {}".format,
        columns: Mapping[str, Columns] | None = None,
    ) -> Self:
        """Loads them. CurateError, one line, for a model that cannot be had or does not go with the student."""
        teachers = {item.label: _load(item, recipe, device) for item in recipe.teachers}
        for item in recipe.teachers:
            _check(item, teachers[item.label].shape)
        half = [item.label for item in recipe.teachers if item.keep == "float16"]
        return cls(teachers, allowance=allowance, name=name, half=half, columns=columns)

    def again(
        self,
        *,
        allowance: Allowance | None = None,
        name: Callable[[int], str] = "row {}".format,
        columns: Mapping[str, Columns] | None = None,
    ) -> Self:
        """The same models with nothing kept: for the rows of another index, or to look inside them at work."""
        models = dict(zip(self.names, self._teachers, strict=True))
        return type(self)(models, allowance=allowance, batch=self._batch, name=name, half=self._half, columns=columns)

    @property
    def encoders(self) -> dict[str, Encoder]:
        """What answers, by label: for texts and layers."""
        return {name: teacher.encoder for name, teacher in zip(self.names, self._teachers, strict=True)}

    @property
    def shapes(self) -> list[Shape]:
        return [teacher.shape for teacher in self._teachers]

    def heads(self, recipe: Recipe) -> list[HeadConfig]:
        hidden = recipe.student.head_hidden
        return [HeadConfig(shape.summary, shape.patches, hidden) for shape in self.shapes]

    def poolers(self) -> dict[str, FrozenPooler]:
        """Of the teachers whose summary is made by an attention pooler over their patches, by label."""
        found = zip(self.names, (teacher.pooler() for teacher in self._teachers), strict=True)
        return {name: FrozenPooler(module) for name, module in found if module is not None}

    @property
    def prepares(self) -> bool:
        """Whether some teacher ever looks at pictures other than as the student's patches."""
        return any(teacher.prepares for teacher in self._teachers)

    def missing(self, row: int) -> bool:
        """Whether some teacher wants to look at the picture."""
        return any(teacher.prepares and not self._knows(number, row) for number, teacher in enumerate(self._teachers))

    def prepare(self, row: int, image: Image.Image, *, changed: bool = False) -> dict[str, Any]:
        """Inputs of the teachers that have not yet answered for this row; of all for a picture changed at random.

        May raise Reject.
        """
        return {
            name: teacher.prepare(image)
            for number, (name, teacher) in enumerate(zip(self.names, self._teachers, strict=True))
            if teacher.prepares and (changed or not self._knows(number, row))
        }

    def targets(self, batch: Batch | Sequence[Picture]) -> list[Target]:
        """Of each teacher, for pictures (B) in the order given. InputError for features that are not finite."""
        pictures = batch.pictures if isinstance(batch, Batch) else batch
        return [self._targets(number, pictures) for number in range(len(self.names))]

    def _knows(self, number: int, row: int) -> bool:
        """Of a teacher that prepares."""
        columns = self._columns[number]
        return row in self._kept[number] or (columns is not None and columns.has(row))

    def _targets(self, number: int, pictures: Sequence[Picture]) -> Target:
        """A picture changed at random is asked about each time, any other once."""
        teacher, kept = self._teachers[number], self._kept[number]
        keys = [_key(teacher, picture, place) for place, picture in enumerate(pictures)]
        known = {key: kept[key] for key in keys if key in kept}
        todo: dict[Hashable, Picture] = {}
        for key, picture in zip(keys, pictures, strict=True):
            if key not in known and (answer := self._read(number, picture)) is not None:
                known[key] = answer
            elif key not in known:
                todo[key] = picture
        items = list(todo.items())
        for start in range(0, len(items), self._batch):
            chunk = items[start : start + self._batch]
            for (key, picture), answer in zip(chunk, self.ask(number, [item for _, item in chunk]), strict=True):
                known[key] = answer
                if not picture.changed and self._allowance.take(sum(kind.nbytes for kind in answer.kinds())):
                    kept[key] = answer.to_keep()
        return _joined([known[key] for key in keys], pictures)

    def _read(self, number: int, picture: Picture) -> Answer | None:
        """From columns, if they know this picture on this grid."""
        columns = self._columns[number]
        if columns is None or picture.changed or (answer := columns.get(picture.row)) is None:
            return None
        teacher, found = self._teachers[number], answer.patches
        if found is not None and not teacher.prepares and found.shape[:2] != picture.grid:
            return None
        self.answers["read"] += 1
        return answer

    def ask(self, number: int, pictures: Sequence[Picture]) -> list[Answer]:
        """Of one teacher, computed now. InputError for features that are not finite."""
        teacher, label = self._teachers[number], self.names[number]
        answers = teacher.answer(pictures, [item.prepared[label] for item in pictures] if teacher.prepares else [])
        self.answers["computed"] += len(answers)
        if label in self._half:
            answers = [answer.halved() for answer in answers]
        finite = torch.stack([torch.isfinite(kind).all() for answer in answers for kind in answer.kinds()])
        if not finite.all():
            raise InputError(self._not_finite(label, teacher, pictures, answers))
        return answers

    def _not_finite(self, label: str, teacher: Teacher, pictures: Sequence[Picture], answers: Sequence[Answer]) -> str:
        bad = [
            picture
            for picture, answer in zip(pictures, answers, strict=True)
            if not all(torch.isfinite(kind).all() for kind in answer.kinds())
        ]
        precision = getattr(teacher.encoder, "precision", "float32")
        lower = [f"precision: {precision}"] if precision != "float32" else []
        lower += ["keep: float16"] if label in self._half else []
        if lower:
            remedy = f"its numbers may not fit into {' and '.join(lower)}: give float32"
        elif len(bad) == len(pictures):
            remedy = "of every picture, so its weights are at fault: look at them, or name another teacher"
        else:
            remedy = "look at that picture, or take it out of the dataset"
        return (
            f"teachers: {label!r} gives features that are not finite for {len(bad)} of {len(pictures)} pictures, such "
            f"as {self._name(bad[0].row)}; {remedy}"
        )


def _load(item: TeacherRecipe, recipe: Recipe, device: torch.device) -> Teacher:
    encoder = load(item.encoder, device=str(device), precision=item.precision)
    patches = item.patches.weight > 0 or item.pooler
    registers = recipe.student.registers if item.registers.weight > 0 else 0
    teacher: Teacher
    if item.pictures == "student":
        from distill.teachers.native import NativeTeacher

        patch = recipe.student.patch
        teacher = NativeTeacher(item.label, encoder, patch=patch, patches=patches, registers=registers)
    else:
        teacher = EncoderTeacher(encoder, patches=patches, registers=registers)
    if item.pooler and (teacher.pooler() is None or teacher.shape.patches is None):
        raise RecipeError(
            f"teachers: {item.label!r} has no attention pooler over patches; set pooler: false, or name a model that "
            f"has one (timm:naflexvit_so400m_patch16_siglip)"
        )
    return teacher


def _check(item: TeacherRecipe, shape: Shape) -> None:
    """RecipeError, before anything is read, for what this teacher cannot give."""
    for kind, width in (("summary", shape.summary), ("patches", shape.patches)):
        if item.standardise == "phi_s" and width is not None and hadamard(width) is None:
            raise RecipeError(
                f"teachers: {item.label!r} has a {kind} of {width} dimensions, for which there is no Hadamard "
                f"matrix here (see distill.teachers.hadamard); give that teacher standardise: scale"
            )
    for name, there, why in (
        ("patches", shape.patches is not None, "has no patch features"),
        ("registers", shape.registers > 0, "has no registers, or another number of them than the student"),
    ):
        weight: float = getattr(item, name).weight
        if weight not in (0.0, TermRecipe().weight) and not there:
            raise RecipeError(f"teachers: {item.label!r} {why}, so {name}.weight {weight:g} does nothing; leave it out")


def _key(teacher: Teacher, picture: Picture, place: int) -> Hashable:
    """What an answer is kept under."""
    if picture.changed:
        return "changed", place
    return picture.row if teacher.prepares else (picture.row, picture.grid)


def _joined(answers: Sequence[Answer], pictures: Sequence[Picture]) -> Target:
    """Where the answers are, if not all were kept in main memory."""
    devices = {answer.summary.device for answer in answers}
    device = next((one for one in devices if one.type != "cpu"), torch.device("cpu"))
    patches, registers = [], []
    for answer, picture in zip(answers, pictures, strict=True):
        if answer.patches is not None:
            patches.append(resample_patches(answer.patches.to(device, torch.float32), *picture.grid))
        if answer.registers is not None:
            registers.append(answer.registers.to(device))
    return Target(
        torch.stack([answer.summary.to(device) for answer in answers]),
        torch.cat(patches) if patches else None,
        torch.stack(registers) if registers else None,
    )
