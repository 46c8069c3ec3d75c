"""Classification of images by labels in their columns, one or several each: hashtags (Xray, section 4.2.2), classes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from curate.core.recipe.section import Share
from distill.objectives.base import Needs, Objective, Term

if TYPE_CHECKING:
    from torch import nn

    from curate.encoders.student.network.student import Student
    from distill.objectives.outputs import Outputs

Classes = Annotated[int, Field(ge=2, le=1 << 24)]


class Labels(Objective):
    """A linear layer over the student's summary scores classes. Images without a label have a loss of 0."""

    column: str
    """Where an image's labels are, one or a list: a member of the tar (`cls`), or a column or field of its JSON
    (`hashtags`, `meta.category`)."""
    classes: Classes | Annotated[list[str], Field(min_length=2)]
    """Number of classes, or their names; in a recipe also a file with a name per line. A number takes the most frequent
    labels of the training images, in the first stage with this objective. RUN/classes.json has the names in order."""
    loss: Literal["softmax", "sigmoid"] = "softmax"
    """softmax: one distribution, with 1/k for each of k labels; sigmoid: each class by itself."""
    smoothing: Share = 0.0
    """Label smoothing of softmax."""
    outside: Literal["error", "ignore"] = "error"
    """What to do with a label that is not among the classes."""

    @field_validator("classes", mode="before")
    @classmethod
    def _from_file(cls, value: Any) -> Any:
        if not isinstance(value, str):
            return value
        try:
            lines = Path(value).expanduser().read_text("utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise ValueError(f"cannot read {value!r} ({error}); give a file with a class per line") from None
        return [line.strip() for line in lines if line.strip()]

    @field_validator("classes")
    @classmethod
    def _different(cls, value: int | list[str]) -> int | list[str]:
        if isinstance(value, list) and len(set(value)) < len(value):
            twice = next(name for number, name in enumerate(value) if name in value[:number])
            raise ValueError(f"{twice!r} twice; expected different names")
        return value

    @model_validator(mode="after")
    def _of_softmax(self) -> Labels:
        if self.loss == "sigmoid" and self.smoothing:
            raise ValueError(f"smoothing {self.smoothing:g} requires loss: softmax, not sigmoid; remove one of them")
        return self

    @property
    def label(self) -> str:
        return f"labels/{self.column}"

    @property
    def count(self) -> int:
        """Number of classes."""
        return self.classes if isinstance(self.classes, int) else len(self.classes)

    def needs(self) -> Needs:
        return Needs(columns=frozenset({self.column}))

    def heads(self, student: Student) -> nn.Module:
        from torch import nn

        head = nn.Linear(student.backbone.prefix.shape[-1], self.count)
        nn.init.zeros_(head.bias)
        return head

    def terms(self, outputs: Outputs) -> Mapping[str, Term]:
        """The loss, and the share of images whose best class is one of their labels."""
        from distill.objectives.kernels.labels import label_losses, right

        names = outputs.micro.classes[self.label]
        labels = [names.numbers(image.columns.get(self.column)) for image in outputs.batch.images]
        scores = self.own(outputs.student)(outputs.image.summary).to(outputs.student.backbone.prefix.dtype)
        losses = label_losses(scores, labels, self.loss, self.smoothing)
        return {self.label: Term(self.weight, losses), f"{self.label}/accuracy": Term(0.0, right(scores, labels))}
