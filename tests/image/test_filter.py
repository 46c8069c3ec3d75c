from __future__ import annotations

import pickle
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from curate.codec.formats import DECODED
from curate.image.filter import ImageFilter
from curate.image.inspect import SCHEMA


def facts(*rows: tuple[int | None, int | None, str | None, int | None]) -> pa.Table:
    """Columns of `image.inspect` from rows (width, height, format, frames)."""
    names = ["width", "height", "format", "frames"]
    schema = pa.schema([SCHEMA.field(name) for name in names])
    return pa.Table.from_pylist([dict(zip(names, row, strict=True)) for row in rows], schema=schema)


def reasons(stage: ImageFilter, table: pa.Table) -> list[str | None]:
    return stage.keep(table.select(stage.reads())).to_pylist()


PNG, TINY, GIF = (96, 48, "png", 1), (1, 1, "png", 1), (40, 40, "gif", 2)


@pytest.mark.parametrize(
    ("row", "parameters", "reason"),
    [
        (TINY, {}, "too_small"),
        (TINY, {"min_side": 1}, None),
        (PNG, {"min_side": 48}, None),
        (PNG, {"min_side": 49}, "too_small"),
        (PNG, {"max_side": 95}, "too_large"),
        (PNG, {"max_side": 96}, None),
        (PNG, {"max_aspect": 1.9}, "aspect"),
        (PNG, {"max_aspect": 2.0}, None),
        ((48, 96, "png", 1), {"max_aspect": 1.9}, "aspect"),
        (GIF, {}, None),
        (GIF, {"animated": "reject"}, "animated"),
        (PNG, {"formats": ["jpeg"]}, "format"),
        (PNG, {"formats": ["jpeg", "png"]}, None),
        (GIF, {"formats": ["png"], "animated": "reject", "min_side": 50}, "format"),
        (GIF, {"animated": "reject", "min_side": 50, "max_side": 9}, "animated"),
        (PNG, {"min_side": 50, "max_side": 50, "max_aspect": 1}, "too_small"),
        (PNG, {"max_side": 50, "max_aspect": 1}, "too_large"),
        ((None, None, None, None), {"formats": ["png"], "animated": "reject", "max_side": 50, "max_aspect": 1}, None),
    ],
)
def test_rules_and_their_order(
    row: tuple[int | None, int | None, str | None, int | None], parameters: dict[str, Any], reason: str | None
) -> None:
    assert reasons(ImageFilter(**parameters), facts(row)) == [reason]


def test_reads_only_the_columns_of_active_rules() -> None:
    assert ImageFilter().reads() == ("width", "height")
    assert ImageFilter(formats=["png"], animated="reject").reads() == ("width", "height", "format", "frames")


_SIDES, _FORMATS = st.integers(1, 90) | st.none(), st.sampled_from(["png", "gif", None])


@given(
    st.lists(st.tuples(_SIDES, _SIDES, _FORMATS, st.integers(1, 3)), max_size=8),
    st.integers(1, 90),
    st.none() | st.floats(1, 9),
    st.integers(0, 8),
)
def test_rows_are_judged_independently(
    rows: list[tuple[int | None, int | None, str | None, int | None]], least: int, aspect: float | None, cut: int
) -> None:
    stage = ImageFilter(min_side=least, max_aspect=aspect, animated="reject", formats=["png"], max_side=80)
    table = facts(*rows)
    alone = [reason for row in rows for reason in reasons(stage, facts(row))]
    assert reasons(stage, table) == alone
    assert reasons(stage, pa.concat_tables([table.slice(0, cut), table.slice(cut)])) == alone


def test_no_rows() -> None:
    for empty in (facts(), facts().schema.empty_table(), facts(PNG).slice(1)):
        assert reasons(ImageFilter(formats=list(DECODED), animated="reject"), empty) == []


def test_unknown_formats_are_rejected() -> None:
    with pytest.raises(ValidationError, match="unknown format 'jpg'; choose from jpeg, png"):
        ImageFilter(formats=["jpg"])
    assert pickle.loads(pickle.dumps(ImageFilter(min_side=3))) == ImageFilter(min_side=3)
    assert all(info.description for info in ImageFilter.model_fields.values())
