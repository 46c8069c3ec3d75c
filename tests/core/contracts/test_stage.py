from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from curate.core.contracts import Added, Filter, Runtime, is_as_before


class Before(Filter):
    op: ClassVar[str] = "tests.grown"

    limit: int = 3


class Grown(Filter):
    op: ClassVar[str] = "tests.grown"

    limit: int = 3
    also: Annotated[list[str], Added()] = Field(default_factory=list)
    threads: Annotated[int, Runtime()] = 2


def test_an_added_parameter_enters_the_fingerprint_only_if_it_is_set() -> None:
    assert Grown(threads=5).parameters() == Grown(also=[]).parameters() == Before().parameters() == {"limit": 3}
    assert Grown(also=["a"]).parameters() == {"limit": 3, "also": ["a"]}


def test_only_added_fields_may_be_as_before() -> None:
    fields = Grown.model_fields
    assert is_as_before(fields["also"], []) and not is_as_before(fields["also"], ["a"])
    assert not is_as_before(fields["limit"], 3)
