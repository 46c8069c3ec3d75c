"""What is judged: a student or a teacher, as vectors and patch features of the same packed pictures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from distill.evaluation.tasks.zero_shot import TextEncoder
from distill.models.student import Student
from distill.samples.batches.loader import Batch
from distill.teachers import Standards, Target

Floats = NDArray[np.float32]
OWN = ""
"""Name of the space that a model shares with texts of its own; a head's space has its teacher's name."""


@dataclass
class Answer:
    """Of one model on the B pictures of a batch, in its order."""

    summary: Floats
    """(B, D)."""
    patches: Floats | None = None
    """(N, P), the pictures' patches end to end; None where a model has none."""
    spaces: dict[str, Floats] = field(default_factory=dict)
    """Vectors (B, E) of the pictures in spaces that texts or teachers share, by name."""
    foretold: dict[str, Target] = field(default_factory=dict)
    """What a student's heads say each teacher would say, in the teacher's own (raw) space."""


class Subject(Protocol):
    name: str
    texts: Mapping[str, TextEncoder]
    """By space: how texts get there."""

    def __call__(self, batch: Batch, targets: Mapping[str, Target]) -> Answer:
        """targets: what each teacher said of the batch."""
        ...


class StudentSubject:
    """Vectors are the CLS token. With heads: what they say of each teacher, and the space shared with texts."""

    def __init__(
        self,
        name: str,
        student: Student,
        *,
        teachers: Sequence[str] = (),
        standards: Sequence[Standards] = (),
        poolers: Mapping[str, Any] | None = None,
        texts: Mapping[str, TextEncoder] | None = None,
    ) -> None:
        """teachers, standards: of the heads that are judged; none for a student that was never trained. poolers: of
        teachers whose own pooler makes the student's summary. texts: OWN for the student's own tower, and those of
        teachers."""
        self.name, self.student, self.texts = name, student, dict(texts or {})
        self.heads = dict(zip(teachers, zip(student.heads, standards, strict=True), strict=True)) if teachers else {}
        self.poolers = dict(poolers or {})

    @torch.no_grad()
    def __call__(self, batch: Batch, targets: Mapping[str, Target]) -> Answer:
        output = self.student(batch.tensor(self.student.backbone.prefix.device), batch.grids)
        lengths = [rows * columns for rows, columns in batch.grids]
        answer = Answer(_array(output.summary), _array(output.patches))
        for name, (head, standards) in self.heads.items():
            patches = None if standards.patches is None else standards.invert_patches(head.patches(output.patches))
            if name in self.poolers and patches is not None:
                summary = self.poolers[name](patches, lengths)
            else:
                summary = standards.invert_summary(head.summary(output.summary))
            answer.foretold[name] = Target(summary.float().cpu(), None if patches is None else patches.float().cpu())
            answer.spaces[name] = _array(summary)
        if OWN in self.texts:
            answer.spaces[OWN] = _array(self.student.project(output.summary))
        return answer


class TeacherSubject:
    """A teacher itself: its summaries, which are the space of its texts, too."""

    def __init__(self, label: str, texts: TextEncoder | None = None) -> None:
        self.label, self.name = label, f"teacher {label}"
        self.texts = {} if texts is None else {OWN: texts}

    def __call__(self, batch: Batch, targets: Mapping[str, Target]) -> Answer:
        target = targets[self.label]
        summary = _array(target.summary)
        return Answer(summary, None if target.patches is None else _array(target.patches), {OWN: summary})


def text_encoder(student: Student, tokenizer: Any, context: int) -> TextEncoder:
    """The student's own tower as a function of texts."""

    @torch.no_grad()
    def encode(texts: list[str]) -> Floats:
        tokens = torch.from_numpy(np.asarray(tokenizer.encode(texts, context)))
        assert student.text is not None
        return _array(student.text(tokens.to(student.backbone.prefix.device)))

    return encode


def _array(values: torch.Tensor) -> Floats:
    return values.float().cpu().numpy()
