"""The contract of an objective: what it reads of a sample, its heads, and its losses of and between images."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Literal, NamedTuple

from curate.core.recipe.section import Section, Weight
from distill.objectives.views import WHOLE, View

if TYPE_CHECKING:
    from torch import Tensor, nn

    from curate.encoders.student.network.student import Student
    from distill.objectives.outputs import Outputs

Kind = Literal["summary", "patches", "registers"]
"""Kinds of a teacher's features."""


@dataclass(frozen=True)
class Needs:
    """What an objective reads, apart from the image itself."""

    text: bool = False
    """The text drawn for an image; images without any are skipped."""
    text_tower: bool = False
    """The student's text tower (`student.text`)."""
    columns: frozenset[str] = frozenset()
    """Columns of the samples: members of the tar, and columns or fields of their JSON."""
    features: Mapping[str, frozenset[Kind]] = field(default_factory=dict)
    """Kinds of features of teachers, by label: the teacher computes them, the student's head predicts them."""
    views: tuple[View, ...] = (WHOLE,)
    """What passes the student: `outputs.image` needs the whole images, `outputs.view(view)` the view."""

    teacher_texts: frozenset[str] = frozenset()
    """Labels of teachers whose text tower reads the texts."""

    @property
    def patches(self) -> bool:
        """Whether it reads the student's output for each patch."""
        return any("patches" in kinds for kinds in self.features.values()) or any(view.hidden for view in self.views)

    @classmethod
    def of(cls, objectives: Iterable[Objective]) -> Needs:
        """All that several objectives read."""
        every, features = [objective.needs() for objective in objectives], dict[str, frozenset[Kind]]()
        for needs in every:
            for label, kinds in needs.features.items():
                features[label] = features.get(label, frozenset()) | kinds
        views = tuple(dict.fromkeys(view for needs in every for view in needs.views))
        columns, texts = (
            frozenset[str]().union(*parts)
            for parts in ((one.columns for one in every), (one.teacher_texts for one in every))
        )
        text, tower = any(one.text for one in every), any(one.text_tower for one in every)
        return cls(text, tower, columns, features, views, texts)


class Term(NamedTuple):
    """A loss of each image. It is logged without its weight."""

    weight: float
    losses: Tensor
    """(B,)."""


class Objective(Section):
    """A loss that the student is trained on. An entry has `objective: package.module:Class`, and the values of that
    class.

    `terms` and `vectors` see a micro-batch on one process, and may get a batch without images. `pairs` sees the vectors
    of all images of the global batch, once per process: each computes the whole loss, or together with the others one
    that is a sum of `kernels.tiles`.
    """

    version: ClassVar[int] = 1
    """Increase it if the same values train another student: it enters the run's fingerprint."""

    weight: Weight = 1.0
    """With 0, losses between images are logged, but not trained on."""

    @property
    def label(self) -> str:
        """Its name in metrics and checkpoints; two objectives of a recipe may not have the same."""
        return type(self).__name__.lower()

    @property
    def trains(self) -> bool:
        """Whether it changes the student."""
        return self.weight > 0

    @property
    def relates(self) -> bool:
        """Whether it has a loss between images."""
        return type(self).pairs is not Objective.pairs

    def needs(self) -> Needs:
        """What it reads, apart from the image."""
        return Needs()

    def heads(self, student: Student) -> nn.Module | None:
        """Its trained modules, for a new student whose initial values it may also set. `own` returns them later."""
        return None

    def own(self, student: Student) -> nn.Module:
        """What `heads` has returned for this student."""
        return student.objectives[module_name(self.label)]

    def add_heads(self, student: Student) -> None:
        """Add its heads to a new student, which trains and checkpoints them; an exported student has none of them."""
        if (heads := self.heads(student)) is not None:
            student.objectives[module_name(self.label)] = heads

    def terms(self, outputs: Outputs) -> Mapping[str, Term]:
        """Losses of each image, by their name in the metrics. The trainer divides their sums by the images of the
        global batch."""
        return {}

    def vectors(self, outputs: Outputs) -> tuple[Tensor, ...]:
        """Vectors of the images (B, …) that `pairs` compares. Integers are labels."""
        return ()

    def pairs(self, student: Student, *vectors: Tensor) -> Tensor:
        """The loss between the images of the global batch: a mean, with a gradient also for one image. It is logged as
        `label`.

        vectors: (N, …) of all images, in the order of `vectors`; detach those that are targets. student: only for its
        scalar weights, such as a temperature, since other weights may be sharded.
        """
        raise NotImplementedError

    def after_update(self, student: Student) -> None:
        """Called after each update of the weights, which may be sharded."""


def module_name(label: str) -> str:
    """The name of an objective's module in `student.objectives`: torch's names have no dots."""
    return label.replace(".", "-")
