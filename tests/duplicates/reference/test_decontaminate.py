"""`duplicates.decontaminate` on matches that `duplicates.match` has found."""

from __future__ import annotations

import pickle
from typing import Any

import pyarrow as pa
import pytest
from pydantic import ValidationError

from curate.core.errors import CurateError
from curate.duplicates.reference.decontaminate import Decontaminate
from tests.duplicates.reference.test_match import POOL, found, matched, reference

CONTAMINATED = "contaminated"


def rejected(table: pa.Table, **parameters: Any) -> list[str | None]:
    stage = Decontaminate(**parameters)
    return stage.keep(table.select(stage.reads())).to_pylist()


@pytest.mark.parametrize(
    ("parameters", "rows"),
    [
        ({}, [0, 1, 2]),
        ({"kinds": ["exact"]}, [0]),
        ({"kinds": ["near"]}, [0, 1]),
        ({"kinds": ["exact", "semantic"]}, [0, 2]),
        ({"near": 0.98, "semantic": 0.999}, [0, 1]),
        ({"near": 0.99}, [0, 2]),
        ({"semantic": 0.999}, [0, 1]),
        ({"kinds": ["near", "semantic"], "near": 1, "semantic": 1}, [0]),
    ],
)
def test_kinds_and_thresholds(parameters: dict[str, Any], rows: list[int]) -> None:
    assert rejected(found(POOL, reference()), **parameters) == [
        CONTAMINATED if row in rows else None for row in range(6)
    ]


@pytest.mark.parametrize(("bits", "eps"), [(12, 0.001), (4, 0.05), (4, 0.001), (0, 0.0001)])
def test_a_threshold_equals_a_narrower_search(bits: int, eps: float) -> None:
    narrow = [kind is not None for _, kind, _ in matched(POOL, reference(), max_distance=bits, eps=eps)]
    reasons = rejected(found(POOL, reference(), eps=0.3), near=1 - bits / 256, semantic=1 - eps)
    assert [reason == CONTAMINATED for reason in reasons] == narrow


def test_another_column_name() -> None:
    assert rejected(found(POOL, reference(), column="voc"), column="voc")[:4] == [
        CONTAMINATED,
        CONTAMINATED,
        CONTAMINATED,
        None,
    ]


def test_rows_that_were_not_compared_pass() -> None:
    schema = found(POOL, reference()).schema
    nulls = pa.table({field.name: pa.nulls(2, field.type) for field in schema}, schema=schema)
    assert rejected(nulls) == [None, None]
    for empty in (nulls.slice(2), schema.empty_table()):
        assert rejected(empty, near=0.97, kinds=["near"]) == []


@pytest.mark.parametrize(
    ("parameters", "searched", "message"),
    [
        (
            {"near": 0.9},
            {},
            r"near: 0.9, but its `duplicates.match` searched only for 0.953125 and above; raise its `max",
        ),
        (
            {"semantic": 0.9},
            {},
            r"semantic: 0.9, but its `duplicates.match` searched only for 0.95 and above; name its",
        ),
        ({"near": 0.99}, {"max_distance": -1}, r"near: 0.99, but its `duplicates.match` compared none; raise"),
        ({"semantic": 0.99}, {"embedding": None}, r"semantic: 0.99, but its `duplicates.match` compared none; name"),
    ],
)
def test_a_threshold_beyond_the_search_is_an_error(
    parameters: dict[str, Any], searched: dict[str, Any], message: str
) -> None:
    with pytest.raises(CurateError, match=f"duplicates.decontaminate.{message}"):
        rejected(found(POOL, reference(), **searched), **parameters)


def test_a_threshold_at_the_search_limit_is_valid() -> None:
    for bits, eps in ((12, 0.05), (0, 0.58), (64, 0.07), (7, 1 / 3)):
        table = found(POOL, reference(), max_distance=bits, eps=eps)
        reasons = rejected(table, near=1 - bits / 256, semantic=round(1 - eps, 8))
        assert reasons == [
            kind and CONTAMINATED for _, kind, _ in matched(POOL, reference(), max_distance=bits, eps=eps)
        ]


def test_parameters() -> None:
    for values in ({"kinds": []}, {"kinds": ["same"]}, {"near": 1.1}, {"semantic": float("nan")}):
        with pytest.raises(ValidationError):
            Decontaminate(**values)
    assert pickle.loads(pickle.dumps(Decontaminate(near=0.97))) == Decontaminate(near=0.97)
    assert all(info.description for info in Decontaminate.model_fields.values())
