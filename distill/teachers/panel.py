"""All teachers of a run: their targets, kept per picture while there is room."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self

import torch
from PIL import Image

from curate.encoders import load
from distill.data.loader import Batch
from distill.data.pictures import Allowance, Picture
from distill.models.student import HeadConfig
from distill.recipe import Recipe
from distill.teachers.base import Answer, Shape, Target, Teacher
from distill.teachers.encoder import EncoderTeacher


class Teachers:
    """In the recipe's order. `missing` and `prepare` are called by reading threads."""

    def __init__(self, teachers: Mapping[str, Teacher], *, allowance: Allowance | None = None, batch: int = 64) -> None:
        """teachers: by label; batch: pictures per call of one."""
        self.names = list(teachers)
        self._teachers = list(teachers.values())
        self._allowance, self._batch = allowance or Allowance(0), batch
        self._kept: list[dict[int, Answer]] = [{} for _ in self.names]

    @classmethod
    def of(cls, recipe: Recipe, device: torch.device, *, allowance: Allowance | None = None) -> Self:
        """Loads them. CurateError, one line, for a model that cannot be had or does not go with the student."""
        teachers = {
            item.label: EncoderTeacher(load(item.encoder, device=str(device), precision=item.precision))
            for item in recipe.teachers
        }
        return cls(teachers, allowance=allowance)

    @property
    def shapes(self) -> list[Shape]:
        return [teacher.shape for teacher in self._teachers]

    def heads(self, recipe: Recipe) -> list[HeadConfig]:
        hidden = recipe.student.head_hidden
        return [HeadConfig(shape.summary, shape.patches, hidden) for shape in self.shapes]

    def missing(self, row: int) -> bool:
        return any(row not in kept for kept in self._kept)

    def prepare(self, row: int, image: Image.Image) -> dict[str, Any]:
        """Inputs of the teachers that have not yet answered for this row. May raise Reject."""
        todo = zip(self.names, self._teachers, self._kept, strict=True)
        return {name: teacher.prepare(image) for name, teacher, kept in todo if row not in kept}

    def targets(self, batch: Batch | Sequence[Picture]) -> list[Target]:
        """Of each teacher, for pictures (B) in the order given."""
        pictures = batch.pictures if isinstance(batch, Batch) else batch
        return [self._targets(number, pictures) for number in range(len(self.names))]

    def _targets(self, number: int, pictures: Sequence[Picture]) -> Target:
        kept, name = self._kept[number], self.names[number]
        known = {picture.row: kept[picture.row] for picture in pictures if picture.row in kept}
        todo = [picture for picture in {item.row: item for item in pictures}.values() if picture.row not in known]
        for start in range(0, len(todo), self._batch):
            chunk = todo[start : start + self._batch]
            answers = self._teachers[number].answer(chunk, [picture.prepared[name] for picture in chunk])
            for picture, answer in zip(chunk, answers, strict=True):
                known[picture.row] = answer
                if self._allowance.take(answer.nbytes):
                    kept[picture.row] = answer
        return _joined([known[picture.row] for picture in pictures])


def _joined(answers: Sequence[Answer]) -> Target:
    patches = [answer.patches for answer in answers if answer.patches is not None]
    registers = [answer.registers for answer in answers if answer.registers is not None]
    return Target(
        torch.stack([answer.summary for answer in answers]),
        torch.cat(patches) if patches else None,
        torch.stack(registers) if registers else None,
    )
