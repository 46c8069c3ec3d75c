from __future__ import annotations

import math
import pickle

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from curate.filter.expressions import FUNCTIONS, NOT_ALLOWED, Expression, parse

ROWS = {
    "i": pl.Series([1, 70_000, None, -5], dtype=pl.Int32),
    "u": pl.Series([1, 5, 3, 0], dtype=pl.UInt32),
    "f": pl.Series([0.7, float("nan"), None, 2.0], dtype=pl.Float32),
    "b": pl.Series([True, False, None, True]),
    "s": pl.Series(["cat", "a Dog", None, "12"]),
    "l": pl.Series([[1, 2], [], None, [3]], dtype=pl.List(pl.Int8)),
}
FRAME = pl.DataFrame(ROWS)
YES, NO, NULL = True, False, None


def evaluated(sql: str) -> list[bool | None]:
    found = parse(sql)
    return found.judge(FRAME.select(found.columns)).to_list()


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("i > 0", [YES, YES, NULL, NO]),
        ("i >= 1 and u < 4", [YES, NO, NULL, NO]),
        ("i = 1 or u = 5 or u <> 0 and not b", [YES, YES, NULL, NO]),
        ("b", [YES, NO, NULL, YES]),
        ("not b", [NO, YES, NULL, NO]),
        ("i between 1 and 10", [YES, NO, NULL, NO]),
        ("i not in (1, 2)", [NO, YES, NULL, YES]),
        ("s in ('cat', 'dog')", [YES, NO, NULL, NO]),
        ("i in (u, 3)", [YES, NO, NULL, NO]),
        ("i is not null", [YES, YES, NULL, YES]),
        ("f > 1", [NO, YES, NULL, YES]),
        ("f < 1", [YES, NO, NULL, NO]),
        ("case when i > 10 then b else true end", [YES, NO, NULL, YES]),
        ("s like 'c_t'", [YES, NO, NULL, NO]),
        ("s like '%o%'", [NO, YES, NULL, NO]),
        ("s ilike 'a d%'", [NO, YES, NULL, NO]),
        ("s rlike '^[0-9]+$'", [NO, NO, NULL, YES]),
        ("s ~ 'o'", [NO, YES, NULL, NO]),
        ("s || 'x' = 'catx'", [YES, NO, NULL, NO]),
        ("s = 'it''s' -- now()\n or s = 'cat' /* max(x) */", [YES, NO, NULL, NO]),
        ("l[1] = 3", [NO, NULL, NULL, YES]),
        ("i is distinct from u", [NO, YES, NULL, YES]),
        ("i > 0 or true", [YES, YES, NULL, YES]),
        ('"i" > 0', [YES, YES, NULL, NO]),
    ],
)
def test_results_of_rows(sql: str, expected: list[bool | None]) -> None:
    assert evaluated(sql) == expected


CALLS = {
    "abs": "abs(-i) = 1", "array_contains": "array_contains(l, 2)", "array_get": "array_get(l, 2) = 2",
    "array_length": "array_length(l) = 2", "cast": "cast(i as text) = '1'", "cbrt": "cbrt(i) = 1",
    "ceil": "ceil(f) = 1", "ceiling": "ceiling(f) = 1", "char_length": "char_length(s) = 3",
    "coalesce": "coalesce(nullif(i, 1), 9) = 9", "ends_with": "ends_with(s, 't')", "exp": "exp(i) < 3 and i = 1",
    "floor": "floor(f) = 0", "greatest": "greatest(i, u) = 1", "if": "if(i = 1, b, false)",
    "ifnull": "ifnull(nullif(i, 1), 9) = 9", "least": "least(i, u, 2) = 1", "length": "length(s) = 3",
    "ln": "ln(u) = 0", "log": "log(u, 2) = 0", "log10": "log10(u) = 0", "log2": "log2(u) = 0",
    "lower": "lower(s) = 'cat'", "ltrim": "ltrim(s) = 'cat'", "mod": "mod(i, 2) = 1", "nullif": "nullif(i, 2) = 1",
    "octet_length": "octet_length(s) = 3", "pow": "pow(i, 2) = 1", "power": "power(i, 2) = 1",
    "regexp_like": "regexp_like(s, '^C', 'i')", "round": "round(f) = 1", "rtrim": "rtrim(s) = 'cat'",
    "sign": "sign(i) = 1 and u = 1", "sqrt": "sqrt(i) = 1", "starts_with": "starts_with(s, 'c')",
    "strpos": "strpos(s, 'c') = 1", "trim": "trim(s) = 'cat'", "try_cast": "try_cast(s as int) is null and u = 1",
    "upper": "upper(s) = 'CAT'",
}  # fmt: skip


@pytest.mark.parametrize("function", FUNCTIONS)
def test_every_function_on_the_list_works(function: str) -> None:
    assert f"{function}(" in CALLS[function]
    assert evaluated(CALLS[function])[0] is True


@pytest.mark.parametrize(
    "sql",
    [
        "max(i) > 3", "min(i) > 3", "sum(i) > 3", "count(i) > 3", "count(*) > 3", "avg(i) > 3", "mean(i) > i",
        "first(i) = i", "last(i) = i", "median(i) > i", "stddev(i) > 1", "variance(i) > 1", "quantile_cont(i, 0.5) > i",
        "corr(i, f) > 0.5", "array_agg(i) is null", "bool_and(b)", "any_value(i) = i", "mode(i) = i",
        "rank() over (order by i) = 1", "row_number() over (partition by s order by i) = 1", "row_number() = 1",
        "lag(i) over (order by i) > 1", "lead(i) over (order by i) > 1", "first_value(i) over (order by i) = i",
        "sum(i) over (partition by s) > 3", "sum(i) over w > 3", "ntile(4) over (order by i) = 1",
        "i in (select i from self)", "exists (select 1)", "(select 1) = i", "i = any(select i from self)",
        "i = any(u)", "i = any(l)", "i = any([1, 2])", "i > 3 order by i", "i > 3 limit 5", "order by i",
        "unnest(l) = 1", "explode(l) = 1", "array_unique(l) = l", "array_sum(l) > 1", "i in unnest(l)",
        "rand() > 0.5", "random() > 0.5", "uuid() = s", "now() > i", "today() > i", "current_timestamp > i",
        "current_date > i", "CURRENT_DATE > i", "current_time > i", "localtime > i", "localtimestamp > i",
        "i in (current_date)", "cast(current_timestamp as text) > s", "cast(now() as text) > s",
        "date '2020-01-01' > i", "timestamp '2020-01-01' > i", "cast('2020-01-01' as date) > i", "cast(s as date) > i",
        "cast(s as timestamp) is null", "s::date is null", "date(s) is null", "i = 'now'::timestamp",
        "cumsum(i) > 3", "cum_sum(i) > 3", "shift(i) > 3", "diff(i) > 3", "reverse(s) = s", "hash(s) > 3",
        "columns('.*') > 3", "*", "self.*", "i.x > 3", "i > $1", "i > ?", "i > 0x10", "[1, 2] = l",
        "(i, u) in ((1, 2))",
        '"max"(i) > 3', "`max`(i) > 3", "max  (i) > 3", "max/**/(i) > 3", "i > 3 or max(i) > 3",
        "case when true then max(i) else i end > 3", "abs(max(i)) > 3", "i in (1, max(u))", "coalesce(i, sum(i)) > 3",
    ],
)  # fmt: skip
def test_reading_other_rows_or_the_clock_is_rejected(sql: str) -> None:
    with pytest.raises(ValueError) as caught:
        parse(sql)
    message = str(caught.value)
    assert "\n" not in message and "Span" not in message and len(message) < 700
    assert message[0].islower() or message[0] in "'`"


@pytest.mark.parametrize(
    ("sql", "message"),
    [
        ("max(i) > 3", "function 'max' is not allowed; did you mean 'greatest'? a filter sees one row at a time, with"),
        ("sum(i) > 3", "function 'sum' is not allowed; a filter sees one row at a time, with the functions abs, "),
        ("starts_wiht(s, 'a')", "function 'starts_wiht' is not allowed; did you mean 'starts_with'? "),
        ('"max"(i) > 3', "an aggregate is not allowed; a filter sees"),
        ("i in (select 1)", "'select' is not allowed (a subquery); a filter sees"),
        ("b over (order by i)", "'over' is not allowed (a window); a filter sees"),
        ("current_date > i", "'current_date' is not allowed (it changes from run to run); a filter sees"),
        ("cast(s as date) > i", "a cast to date is not allowed; cast to integer, double, boolean or text"),
        ("date '2020-01-01' > i", "a literal of type date is not allowed; write a number, a text, true or false"),
        ("i = any(l)", "`= any(…)` is not allowed; write `in (1, 2)`, or array_contains(list, value)"),
        ("[1, 2] = l", "a list is not allowed here; write lists after `in`"),
        ("i.x > 3", "a dot is only allowed in meta.FIELD; put a column name that has one in double quotes"),
        ("i >", "not an SQL expression: it cannot be parsed; write one such as `width >= 256`"),
        ("", "not an SQL expression: it cannot be parsed; write one such as `width >= 256`"),
        ("i > 3)", "not an SQL expression: invalid expression (found unexpected token ')'); write one such as"),
        ("i > 3; i > 4", "not an SQL expression: invalid expression (found unexpected token ';'); write one such as"),
        ("s similar to 'a'", "not an SQL expression: expression SimilarTo is not currently supported; write one"),
        ("i > 3 u", "'u' follows a complete expression; remove it, or write an operator before it"),
        ("i > 1_000", "'_000' follows a complete expression; remove it"),
        ("regexp_like(s, '(')", "pattern '(': unclosed group; fix the regular expression"),
        ("regexp_like(s, s)", "a pattern must be a text in single quotes, not a column; write regexp_like(caption"),
        ("strpos(s, s) > 0", "a pattern must be a text in single quotes, not a column; write"),
        ("1 < 2", "names no column, so every row has the same result; compare a column with a value"),
        (" and ".join(["i > 0"] * 80), "more than about 60 conditions; split them into several filters, or use `in"),
        (" and ".join(["i > 0"] * 999), "more than about 60 conditions; split them into several filters, or use `in"),
    ],
)
def test_messages(sql: str, message: str) -> None:
    with pytest.raises(ValueError) as caught:
        parse(sql)
    assert str(caught.value).startswith(message)


def test_every_rejected_word_is_a_column_in_double_quotes() -> None:
    for word in (*NOT_ALLOWED, "max", "now"):
        assert parse(f'"{word}" > 0').columns == (word,)
        assert parse(f"s = '{word}(x)'").columns == ("s",)


@pytest.mark.parametrize(
    ("sql", "message"),
    [
        (
            "s > 3",
            "cannot compare string with numeric type (i32) (s: String); use functions for these types, or `cast(",
        ),
        ("i in ('1')", "'is_in' cannot check for Int32 values in List(String) data (i: Int32)"),
        ("length(l) > 1", "invalid series dtype: expected `String`, got `list[i64]`"),
        ("not s", "dtype String not supported in 'not' operation"),
        ("i", "the result is Int32, not true or false; compare it with a value: … > 0"),
        ("not i", "the result is Int32, not true or false"),
        ("i + 1", "the result is Int64, not true or false"),
        ("lower(s)", "the result is String, not true or false"),
        ("case when b then s else 'x' end", "the result is String, not true or false"),
    ],
)
def test_wrong_types_are_named_without_rows_too(sql: str, message: str) -> None:
    found = parse(sql)
    for frame in (FRAME, FRAME.clear()):
        with pytest.raises(ValueError) as caught:
            found.judge(frame.select(found.columns))
        assert str(caught.value).replace("list[i8]", "list[i64]").startswith(message)


def test_columns_are_known_without_data() -> None:
    found = parse("least(width, height) >= 256 and (aspect < 3 or width > 1000)")
    assert found.columns == ("width", "height", "aspect")
    assert isinstance(found, Expression) and pickle.loads(pickle.dumps(found)).columns == found.columns


def test_integers_do_not_overflow() -> None:
    assert evaluated("i * i > 1000000") == [NO, YES, NULL, NO]
    assert evaluated("u - 2 < 0") == [YES, NO, NO, YES]
    assert evaluated("-u < 0") == [YES, YES, YES, NO]
    assert evaluated("length(s) - 4 < 0") == [YES, NO, NULL, YES]
    assert evaluated("array_length(l) - 1 < 0") == [NO, YES, NULL, NO]
    assert evaluated("l[1] * 100 = 300") == [NO, NULL, NULL, YES]
    assert evaluated("pow(i, 5) > 1000000") == [NO, YES, NULL, NO]
    assert evaluated("cast(u as int) * 1000000000 > 4000000000") == [NO, YES, NO, NO]
    smallest = pl.DataFrame({"x": pl.Series([-128], dtype=pl.Int8)})
    assert parse("abs(x) = 128").judge(smallest).to_list() == [True]


@pytest.mark.parametrize(
    "sql",
    ["f = 0.7", "f >= 0.7", "f between 0.7 and 1", "f in (0.7, 3)", "f <=> 0.7", "0.7 = f", "f = 7e-1"],
)  # fmt: skip
def test_a_number_equals_the_float32_of_it(sql: str) -> None:
    assert evaluated(sql)[0] is True


def test_values_that_cannot_be_cast_are_null() -> None:
    assert evaluated("cast(s as int) > 3") == [NULL, NULL, NULL, YES]
    assert evaluated("cast(s as double) > 3") == evaluated("try_cast(s as double) > 3") == [NULL, NULL, NULL, YES]


NUMBERS = st.none() | st.integers(-(2**31), 2**31 - 1)
FLOATS = st.none() | st.sampled_from([0.0, -0.0, 0.7, math.nan, math.inf, -math.inf]) | st.floats(width=32)
TEXTS = st.none() | st.sampled_from(["", "cat", "a%b", "12", "1e3", "Ünï", "\n"]) | st.text(max_size=5)
RECORDS = st.lists(
    st.tuples(NUMBERS, NUMBERS, FLOATS, st.none() | st.booleans(), TEXTS, st.none() | st.lists(NUMBERS, max_size=3)),
    min_size=1,
    max_size=12,
)
SCHEMA = {"i": pl.Int32, "u": pl.Int32, "f": pl.Float32, "b": pl.Boolean, "s": pl.String, "l": pl.List(pl.Int32)}
CHECKED = (
    *(sql for sql in CALLS.values()),
    "i > u", "f > 0.7", "f <= i", "i / u > 1", "i // u > 1", "i % u = 1", "i * u > 0", "f = f", "f - f = 0",
    "b or f > 0", "b and not i > 3", "i in (1, 2, null)", "s like '%a%' or l[1] = i", "cast(s as double) > f",
    "case when f > 0 then i > u when b then s = 'cat' end", "coalesce(l[1], i) > 0", "i > 3 or true", "s is null or b",
)  # fmt: skip


@given(RECORDS, st.sampled_from(CHECKED), st.integers(0, 12))
def test_a_row_does_not_depend_on_the_rows_next_to_it(records: list[tuple], sql: str, cut: int) -> None:
    found = parse(sql)
    frame = pl.DataFrame(records, schema=SCHEMA, orient="row").select(found.columns)
    together = found.judge(frame).to_list()
    assert together == [found.judge(frame[row : row + 1]).item() for row in range(len(frame))]
    assert together == found.judge(frame[:cut]).to_list() + found.judge(frame[cut:]).to_list()
    assert together == found.judge(frame.reverse()).to_list()[::-1]
    for row, told_of_it in enumerate(together):
        assert told_of_it is None or None not in frame.row(row)


@settings(max_examples=300)
@given(st.text(alphabet="ixl()[],.'\"<>=+-*/%|&~! 013ensadormc_", max_size=30))
def test_any_text_is_an_expression_or_an_error_of_one_line(sql: str) -> None:
    def outcome() -> str:
        try:
            return "".join(parse(sql).columns)
        except ValueError as error:
            return str(error)

    assert "\n" not in outcome()
