"""A port that bears a parameter's name: the recipe writes a value or a stage's name under one key."""

from __future__ import annotations

from typing import Any, ClassVar

import pyarrow as pa
import pytest

from curate.core.contracts import Map
from curate.core.errors import RecipeError
from curate.core.pipeline import Pipeline, build_stage
from tests.engine import toys


class Brighter(Map):
    """Marks what is darker than a limit, which is given or comes from the total."""

    op: ClassVar[str] = "tests.brighter"
    ports: ClassVar[dict[str, str]] = {"limit": toys.Total.kind}
    optional_ports: ClassVar[tuple[str, ...]] = ("limit",)
    limit: float | None = None

    def schema(self) -> pa.Schema:
        return pa.schema([pa.field("dark", pa.bool_())])


def pipeline(stage: Brighter, **ports: str) -> Pipeline:
    made = Pipeline().add("pool", toys.Numbers(namespace="n")).add("bright", toys.Brightness(), "pool")
    return made.add("total", toys.Total(), "bright").add("limited", stage, "bright", **ports)


def built(**values: Any) -> tuple[Brighter, dict[str, str]]:
    def fail(field: str, text: str) -> RecipeError:
        return RecipeError(f"{field}: {text}")

    stage, ports = build_stage("tests.core.test_pipeline_ports:Brighter", values, fail)
    return stage, ports  # type: ignore[return-value]


def test_a_value_or_a_stage_under_one_key() -> None:
    stage, ports = built(limit=0.5)
    assert stage.limit == 0.5 and ports == {}
    pipeline(stage, **ports).check()
    stage, ports = built(limit="total")
    assert stage.limit is None and ports == {"limit": "total"}
    pipeline(stage, **ports).check()


def test_neither_or_both_are_refused() -> None:
    with pytest.raises(RecipeError, match=r"limited: limit is missing; give its value, or name .* the toy_total"):
        pipeline(Brighter()).check()
    with pytest.raises(RecipeError, match=r"limit: both 0.5 and the stage 'total' are given; leave one out"):
        pipeline(Brighter(limit=0.5), limit="total").check()
