"""What the sections of a recipe share."""

from __future__ import annotations

from typing import Annotated, Any, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator

Weight = Annotated[float, Field(ge=0, le=1e6)]
"""Of a loss. Bounded, so that sums of losses stay numbers."""
Share = Annotated[float, Field(ge=0, lt=1)]


class Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _no_truth_for_a_number(cls, value: Any, info: ValidationInfo) -> Any:
        """`steps: true` would else be one step."""
        if isinstance(value, bool) and not _holds(cls.model_fields[str(info.field_name)].annotation, bool):
            raise ValueError(f"{str(value).lower()}: expected a number or a name here, not true or false")
        return value


def _holds(annotation: Any, kind: type) -> bool:
    """Whether an annotation is this type, Any, or has it among its parts."""
    return annotation in (kind, Any) or any(_holds(part, kind) for part in get_args(annotation))
