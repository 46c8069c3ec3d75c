"""Patterns in a child process: the same results, and an end."""

from __future__ import annotations

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from curate.core import bounded as module
from curate.core.bounded import bounded
from curate.core.errors import InputError
from curate.filter.expressions import parse

EXPRESSIONS = (
    "regexp_like(caption, '^a.*[b-z]$')",
    "caption like '%a%'",
    "strpos(caption, 'b') > 1 and width > 3",
    "regexp_like(caption, 'é|\\s') or width is null",
)


@given(
    st.sampled_from(EXPRESSIONS),
    st.lists(st.tuples(st.none() | st.text(max_size=20), st.none() | st.integers(0, 9)), min_size=1, max_size=20),
)
@settings(max_examples=30, deadline=None)
def test_a_child_computes_the_same(sql: str, rows: list[tuple[str | None, int | None]]) -> None:
    frame = pl.DataFrame(rows, {"caption": pl.String, "width": pl.Int32}, orient="row")
    expression = parse(sql)
    frame = frame.select(expression.columns)
    assert expression.patterns
    with bounded(30.0):
        inside = expression.judge(frame)
    assert inside.equals(expression.judge(frame), null_equal=True)


@pytest.mark.parametrize("pattern", ["(.{0,200}){0,20}z", "([a-z ]{0,300}){0,30}[0-9]", "(?s)(.{1,99}?){1,40}Z"])
def test_slow_patterns_end_in_one_line(pattern: str) -> None:
    frame = pl.DataFrame({"caption": ["lorem ipsum dolor sit amet " * 100] * 20_000})
    expression = parse(f"regexp_like(caption, '{pattern}')")
    with bounded(0.3), pytest.raises(InputError) as found:
        expression.judge(frame)
    assert "\n" not in str(found.value)
    assert "takes more than 0.3 s for the 20,000 rows of a shard; use a simpler one" in str(found.value)


def test_memory_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MEMORY_BYTES", 1 << 20)
    frame = pl.DataFrame({"caption": ["lorem ipsum " * 100] * 50_000})
    with bounded(30.0), pytest.raises(InputError, match="a pattern of the expression fails"):
        parse("regexp_like(caption, 'a.*z')").judge(frame)


def test_what_has_no_pattern_needs_no_child(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module._warm, "call", None)
    with bounded(0.001):
        assert parse("width > 3").judge(pl.DataFrame({"width": [1, 5]})).to_list() == [False, True]
