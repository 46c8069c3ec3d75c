"""Shared by all shapes."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any, Generic, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator

NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"


class Shape(BaseModel):
    """An answer."""

    model_config = ConfigDict(frozen=True, from_attributes=True)


class Order(BaseModel):
    """The body of a request: unknown fields, other types (0 for false, "5" for 5), NaN and Infinity are errors, and so
    is NUL in a text, which neither databases nor paths can hold."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _whole(cls, value: Any) -> Any:
        """5.0 is an integer in JSON."""
        return int(value) if isinstance(value, float) and value.is_integer() else value

    @field_validator("*", mode="after")
    @classmethod
    def _without_nul(cls, value: Any) -> Any:
        if any(isinstance(one, str) and "\0" in one for one in (value if isinstance(value, list) else [value])):
            raise ValueError("expected text without NUL")
        return value


def _time(value: object) -> object:
    return datetime.fromtimestamp(value, UTC) if isinstance(value, int | float) else value


Time = Annotated[datetime, BeforeValidator(_time)]
"""From seconds since the epoch."""
Name = Annotated[str, Field(pattern=NAME, examples=["openclipart"])]
Text = Annotated[str, Field(max_length=200)]
Amount = Annotated[int, Field(ge=0, lt=1 << 53)]
"""That JSON, tables and databases hold exactly."""
T = TypeVar("T")


class Page(Shape, Generic[T]):
    """Part of a list. `next`: cursor of the next page; null on the last one."""

    items: list[T]
    next: str | None = None


class ProblemShape(Shape):
    """application/problem+json (RFC 9457). Programs may depend on `code`."""

    type: str = "about:blank"
    title: str
    status: int
    code: str
    detail: str
    request_id: str
    errors: list[dict[str, str]] = []
    """For a body of the wrong form: `field` and `message` of each mistake."""
