from __future__ import annotations

import pyarrow as pa
import pytest

from curate.caption.report.costs import Source, Usage, prices_of, usage_of
from curate.core.endpoints import Endpoint, Price
from tests.caption.captioned import ANSWERS, said


def table(*rows: dict) -> pa.Table:
    schema = pa.schema([("t", pa.string()), *((f"t_{name}", kind) for name, kind in ANSWERS.items())])
    return pa.Table.from_pylist(list(rows), schema=schema)


def test_tokens_are_added_by_origin() -> None:
    rows = [said("t", "two words"), said("t", "one"), said("t", None, "refused", model="other"), {"t": None}]
    found = usage_of(table(*rows), "t")
    first = Source("tiny-vlm", "fp_1", "caption_short@1", "local")
    assert found == {
        first: Usage(2, 400, 3, 2),
        Source("other", "fp_1", "caption_short@1", "local"): Usage(1, 200, 0, 1),
    }
    assert sum(found.values(), Usage()) == Usage(3, 600, 3, 3)


def test_answers_without_a_token_count_are_counted_apart() -> None:
    found = usage_of(table(said("t", "x", prompt_tokens=None, completion_tokens=None, model=None), said("t", "x")), "t")
    assert found[Source("", "fp_1", "caption_short@1", "local")] == Usage(1, 0, 0, 0)
    assert sum(found.values(), Usage()).reported == 1
    assert usage_of(table(said("t", "x")).drop_columns(["t_prompt_tokens", "t_completion_tokens", "t_model"]), "t") == {
        Source("", "fp_1", "caption_short@1", "local"): Usage(1, 0, 0, 0)
    }
    assert usage_of(table({"t": None}), "t") == {}


def test_cost_is_tokens_times_price() -> None:
    usage = Usage(10, 1_000_000, 500_000, 5)
    assert usage.dollars(Price(input=2, output=4)) == 4
    assert usage.per_thousand(Price(input=2, output=4)) == pytest.approx(800)
    assert usage.dollars(None) is None and usage.per_thousand(None) is None
    assert Usage(3).per_thousand(Price(input=1, output=1)) is None


def test_endpoints_without_a_price_have_none() -> None:
    priced = Endpoint(base_urls=("http://h:1/v1",), model="m", price=Price(input=1, output=2))
    free = Endpoint(base_urls=("http://h:2/v1",), model="m")
    assert prices_of({"b": priced, "a": free}) == {"b": Price(input=1, output=2)}
