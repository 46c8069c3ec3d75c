"""What the sections of a recipe share."""

from __future__ import annotations

from typing import Annotated, Any, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator

Weight = Annotated[float, Field(ge=0, le=1e6)]
"""Of a loss. Bounded, so that sums of losses stay numbers."""
Share = Annotated[float, Field(ge=0, lt=1)]
Count = Annotated[int, Field(ge=1, le=10**9)]
"""Bounded, so that a slip is a line and no machine without memory."""
Width = Annotated[int, Field(ge=1, le=1 << 20)]


class Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _as_meant(cls, value: Any, info: ValidationInfo) -> Any:
        """What YAML makes of a slip: `steps: true` would be one step, `encoder: timm:` is a mapping to nothing."""
        expected = cls.model_fields[str(info.field_name)].annotation
        if isinstance(value, bool) and not _holds(expected, bool):
            raise ValueError(f"{str(value).lower()}: not true or false; expected a number, a name or a mapping here")
        if isinstance(value, dict) and list(value.values()) == [None] and _holds(expected, str):
            said = f"{next(iter(value))}:"
            raise ValueError(f"YAML reads {said} as a mapping; put it into quotes, with what comes behind the colon")
        return value


def _holds(annotation: Any, kind: type) -> bool:
    """Whether an annotation is this type, Any, or has it among its parts."""
    return annotation in (kind, Any) or any(_holds(part, kind) for part in get_args(annotation))
