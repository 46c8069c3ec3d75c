"""All teachers of a run: their targets, kept per picture while there is room."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

import torch
from PIL import Image

from curate.core.errors import InputError, RecipeError
from curate.encoders import Encoder, load
from distill.data.loader import Batch
from distill.data.pictures import Allowance, Picture
from distill.losses import resample_patches
from distill.models.student import HeadConfig
from distill.recipe import Recipe, TeacherRecipe
from distill.teachers.base import Answer, Shape, Target, Teacher
from distill.teachers.encoder import EncoderTeacher

if TYPE_CHECKING:
    from distill.models.pooler import FrozenPooler


class Teachers:
    """In the recipe's order. `missing` and `prepare` are called by reading threads."""

    def __init__(
        self,
        teachers: Mapping[str, Teacher],
        *,
        allowance: Allowance | None = None,
        batch: int = 64,
        name: Callable[[int], str] = str,
    ) -> None:
        """teachers: by label; batch: pictures per call of one; name: how a row of the index is called in errors."""
        self.names = list(teachers)
        self._teachers = list(teachers.values())
        self._allowance, self._batch, self._name = allowance or Allowance(0), batch, name
        self._kept: list[dict[Hashable, Answer]] = [{} for _ in self.names]

    @classmethod
    def of(
        cls,
        recipe: Recipe,
        device: torch.device,
        *,
        allowance: Allowance | None = None,
        name: Callable[[int], str] = str,
    ) -> Self:
        """Loads them. CurateError, one line, for a model that cannot be had or does not go with the student."""
        teachers = {item.label: _load(item, recipe, device) for item in recipe.teachers}
        return cls(teachers, allowance=allowance, name=name)

    def again(self) -> Self:
        """The same models with nothing kept: for the rows of another index, or to look inside them at work."""
        return type(self)(dict(zip(self.names, self._teachers, strict=True)), batch=self._batch, name=self._name)

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
        from distill.models.pooler import FrozenPooler

        found = zip(self.names, (teacher.pooler() for teacher in self._teachers), strict=True)
        return {name: FrozenPooler(module) for name, module in found if module is not None}

    @property
    def prepares(self) -> bool:
        """Whether some teacher ever looks at pictures other than as the student's patches."""
        return any(teacher.prepares for teacher in self._teachers)

    def missing(self, row: int) -> bool:
        """Whether some teacher wants to look at the picture."""
        return any(teacher.prepares and row not in kept for teacher, kept in self._each())

    def prepare(self, row: int, image: Image.Image, *, changed: bool = False) -> dict[str, Any]:
        """Inputs of the teachers that have not yet answered for this row; of all for a picture changed at random.

        May raise Reject.
        """
        todo = zip(self.names, self._each(), strict=True)
        return {
            name: teacher.prepare(image)
            for name, (teacher, kept) in todo
            if teacher.prepares and (changed or row not in kept)
        }

    def targets(self, batch: Batch | Sequence[Picture]) -> list[Target]:
        """Of each teacher, for pictures (B) in the order given. InputError for features that are not finite."""
        pictures = batch.pictures if isinstance(batch, Batch) else batch
        return [self._targets(number, pictures) for number in range(len(self.names))]

    def _each(self) -> list[tuple[Teacher, dict[Hashable, Answer]]]:
        return list(zip(self._teachers, self._kept, strict=True))

    def _targets(self, number: int, pictures: Sequence[Picture]) -> Target:
        """A picture changed at random is asked about each time, any other once."""
        teacher, kept = self._teachers[number], self._kept[number]
        keys = [_key(teacher, picture, place) for place, picture in enumerate(pictures)]
        known = {key: kept[key] for key in keys if key in kept}
        todo = {key: picture for key, picture in zip(keys, pictures, strict=True) if key not in known}
        items = list(todo.items())
        for start in range(0, len(items), self._batch):
            chunk = items[start : start + self._batch]
            for (key, picture), answer in zip(chunk, self._ask(number, [item for _, item in chunk]), strict=True):
                known[key] = answer
                if not picture.changed and self._allowance.take(sum(kind.nbytes for kind in answer.kinds())):
                    kept[key] = answer.to_keep()
        return _joined([known[key] for key in keys], pictures)

    def _ask(self, number: int, pictures: Sequence[Picture]) -> list[Answer]:
        teacher, label = self._teachers[number], self.names[number]
        answers = teacher.answer(pictures, [item.prepared[label] for item in pictures] if teacher.prepares else [])
        finite = torch.stack([torch.isfinite(kind).all() for answer in answers for kind in answer.kinds()])
        if not finite.all():
            kinds = [picture for picture, answer in zip(pictures, answers, strict=True) for _ in answer.kinds()]
            bad = kinds[int(finite.int().argmin())]
            raise InputError(
                f"teachers: {label!r} gives features that are not finite for {self._name(bad.row)}; look at that "
                f"picture, or give the teacher precision: float32"
            )
        return answers


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
            patches.append(resample_patches(answer.patches.to(device), *picture.grid))
        if answer.registers is not None:
            registers.append(answer.registers.to(device))
    return Target(
        torch.stack([answer.summary.to(device) for answer in answers]),
        torch.cat(patches) if patches else None,
        torch.stack(registers) if registers else None,
    )
