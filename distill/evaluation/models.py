"""The evaluated models: a student or a teacher as a function from a batch of images to features."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from curate.core.errors import InputError
from curate.encoders.student.network.student import Student
from distill.objectives.kernels.losses import frame_means
from distill.samples.batches.loader import Batch
from distill.teachers import Target, TargetStandardiser

Floats = NDArray[np.float32]
TextEncoder = Callable[[list[str]], NDArray[np.floating[Any]]]
"""Texts -> vectors (T, D)."""
ImageVectors = Callable[[torch.Tensor, torch.Tensor, Sequence[int], torch.Tensor | None], torch.Tensor]
"""Summaries (B, D), patches (N, D) end to end, numbers of patches and registers (B, R, D) -> vectors (B, E)."""
TEACHER = "teacher "
"""Begins the names of teachers for people."""
OWN = ""
"""Name of the space that a model shares with its own text tower. A head's space has the name of its teacher."""


@dataclass(frozen=True)
class TextSide:
    """Texts in the space of a teacher."""

    encode: TextEncoder
    image_vectors: ImageVectors | None = None
    """The vectors that are compared with the texts, from summaries and patches in the teacher's space, as for dino.txt;
    None: the summaries."""

    def space(self, teacher: str) -> str:
        """Name of the space of texts and images."""
        return teacher if self.image_vectors is None else f"{teacher} with patches"


@dataclass
class ModelOutput:
    """Output of one model for the B images of a batch, in the order of the batch.

    Vectors of a clip are the means of its frames' vectors.
    """

    summary: Floats
    """(B, D)."""
    patches: Floats | None = None
    """(N, P), the patches of all images end to end; None for a model without patch features."""
    spaces: dict[str, Floats] = field(default_factory=dict)
    """Vectors (B, E) of the images in the spaces shared with texts or teachers, by name."""
    predictions: dict[str, Target] = field(default_factory=dict)
    """A student's predictions of its teachers' features, in each teacher's own (raw) space."""


class EvaluatedModel(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def texts(self) -> Mapping[str, TextEncoder]:
        """Text encoder of each space."""
        ...

    def __call__(self, batch: Batch, targets: Mapping[str, Target]) -> ModelOutput:
        """targets: each teacher's features of the batch."""
        ...


class StudentModel:
    """A student. Its features are the CLS token; its heads give predictions, and spaces shared with texts."""

    def __init__(
        self,
        name: str,
        student: Student,
        *,
        teachers: Sequence[str] = (),
        standardisers: Sequence[TargetStandardiser] = (),
        poolers: Mapping[str, Any] | None = None,
        sides: Mapping[str, TextSide] | None = None,
        tower: TextEncoder | None = None,
    ) -> None:
        """teachers, standardisers: one per head; none for an untrained student. poolers: poolers of the teachers whose
        pooler computes the student's summary, by teacher. sides: text sides of heads, by teacher; tower: the student's
        own text tower."""
        self.name, self.student, self.sides = name, student, dict(sides or {})
        self.texts = {side.space(teacher): side.encode for teacher, side in self.sides.items()}
        if tower is not None:
            self.texts[OWN] = tower
        self.heads = (
            dict(zip(teachers, zip(student.heads, standardisers, strict=True), strict=True)) if teachers else {}
        )
        self.poolers = dict(poolers or {})

    @torch.no_grad()
    def __call__(self, batch: Batch, targets: Mapping[str, Target]) -> ModelOutput:
        lengths, frames = [rows * columns for rows, columns in batch.grids], batch.frames
        features = self.student(batch.tensor(self.student.backbone.prefix.device), batch.grids, frames=frames)
        own = None if features.reduced else _array(features.patches)
        output = ModelOutput(_array(frame_means(features.summary, frames)), own)
        for name, (head, standardiser) in self.heads.items():
            patches = None
            if standardiser.patches is not None and (name in self.poolers or not features.reduced):
                patches = standardiser.invert_patches(head.patches(features.patches))
            if name in self.poolers and patches is not None:
                summary = self.poolers[name](patches, lengths)
            else:
                summary = standardiser.invert_summary(head.summary(features.summary))
            side = self.sides.get(name)
            if side is not None and side.image_vectors is not None:
                if patches is None:
                    raise InputError(
                        f"evaluate.text_encoders: texts of {name!r} are compared with patches, which `keep`, `merge` "
                        f"and `tubelet` do not leave; remove it, or set evaluate.keep=1 and evaluate.merge=0"
                    )
                vectors = side.image_vectors(summary, patches, lengths, None)
                output.spaces[side.space(name)] = _array(frame_means(vectors, frames))
            summary = frame_means(summary, frames)
            patches = None if patches is None else patches.float().cpu()
            output.predictions[name] = Target(summary.float().cpu(), patches)
            output.spaces[name] = _array(summary)
        if OWN in self.texts:
            output.spaces[OWN] = _array(frame_means(self.student.image_vectors(features), frames))
        return output


class TeacherModel:
    """A teacher. Its summaries are the space of its texts, too, unless its text side has other vectors."""

    def __init__(self, label: str, side: TextSide | None = None) -> None:
        self.label, self.name, self.side = label, f"{TEACHER}{label}", side
        self.texts = {} if side is None else {OWN: side.encode}

    def __call__(self, batch: Batch, targets: Mapping[str, Target]) -> ModelOutput:
        target = targets[self.label]
        summary = _array(target.summary)
        output = ModelOutput(summary, None if target.patches is None else _array(target.patches), spaces={OWN: summary})
        if self.side is not None and self.side.image_vectors is not None and target.patches is not None:
            lengths = [image.frames * image.grid[0] * image.grid[1] for image in batch.images]
            vectors = self.side.image_vectors(target.summary, target.patches, lengths, target.registers)
            output.spaces[OWN] = _array(vectors)
        return output


def text_encoder(student: Student, tokenizer: Any, context: int) -> TextEncoder:
    """The student's text tower as a function from texts to vectors."""

    @torch.no_grad()
    def encode(texts: list[str]) -> Floats:
        tokens = torch.from_numpy(np.asarray(tokenizer.encode(texts, context)))
        assert student.text is not None
        return _array(student.text(tokens.to(student.backbone.prefix.device)))

    return encode


def space_name(model: EvaluatedModel, space: str) -> str:
    """Name of a model in one of its spaces, for people."""
    return model.name if space == OWN else f"{model.name}, as {space}"


def _array(values: torch.Tensor) -> Floats:
    array: Floats = values.float().cpu().numpy()
    return array
