"""Base of the sections of a training recipe, and types of their fields."""

from __future__ import annotations

from typing import Annotated, Any, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator

Weight = Annotated[float, Field(ge=0, le=1e6)]
"""Weight of a loss. Bounded, so that sums of losses stay finite."""
Share = Annotated[float, Field(ge=0, lt=1)]
Count = Annotated[int, Field(ge=1, le=10**9)]
"""Bounded, so that a typo gives an error instead of exhausting memory."""
Width = Annotated[int, Field(ge=1, le=1 << 20)]


class Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _check_yaml_typos(cls, value: Any, info: ValidationInfo) -> Any:
        """Reject typos that YAML accepts: `steps: true` would be one step, `encoder: timm:` is a mapping to nothing."""
        expected = cls.model_fields[str(info.field_name)].annotation
        if isinstance(value, bool) and not _holds(expected, bool):
            raise ValueError(f"expected a number, a name or a mapping, not {str(value).lower()}")
        if isinstance(value, dict) and list(value.values()) == [None] and _holds(expected, str):
            raise ValueError(f"YAML reads {next(iter(value))}: as a mapping; quote the whole value, colon included")
        return value


def _holds(annotation: Any, kind: type) -> bool:
    """Whether an annotation is this type, Any, or contains either, other than in a mapping."""
    if get_origin(annotation) is dict:
        return False
    return annotation in (kind, Any) or any(_holds(part, kind) for part in get_args(annotation))
