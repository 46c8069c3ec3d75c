"""SQL expressions over the columns of a row, checked so that a row's result depends on that row alone.

polars parses the SQL. It also accepts aggregates, windows, subqueries, shifts and the clock, which read other rows or
change from run to run. We therefore walk the parsed tree and reject every node that is not on a list. Function names
are checked in the text first, so that messages show what the user wrote.

The walk also rewrites surprising behaviour: a value that cannot be cast is null (polars would raise for all rows), a
number such as 0.7 equals the float32 0.7 everywhere, and integers are computed in 64 bits (`width * height` of two
32-bit columns would overflow).
"""

from __future__ import annotations

import difflib
import io
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any

import polars as pl
import polars.exceptions
from polars.datatypes import DataTypeClass

from curate.core.bounded import computed
from curate.kernels.meta import META

FUNCTIONS = (
    "abs", "array_contains", "array_get", "array_length", "cast", "cbrt", "ceil", "ceiling", "char_length", "coalesce",
    "ends_with", "exp", "floor", "greatest", "if", "ifnull", "least", "length", "ln", "log", "log10", "log2", "lower",
    "ltrim", "mod", "nullif", "octet_length", "pow", "power", "regexp_like", "round", "rtrim", "sign", "sqrt",
    "starts_with", "strpos", "trim", "try_cast", "upper",
)  # fmt: skip
"""Functions that an expression may call, in addition to operators, `case`, `in`, `between`, `like` and `is null`."""

NOT_ALLOWED = {
    "select": "a subquery",
    "over": "a window",
    "current_date": "it changes from run to run",
    "current_time": "it changes from run to run",
    "current_timestamp": "it changes from run to run",
    "localtime": "it changes from run to run",
    "localtimestamp": "it changes from run to run",
}
_MEANT = {"max": "greatest", "min": "least", "len": "length", "list_contains": "array_contains", "nvl": "ifnull"}
_KEYWORDS = {
    "all", "and", "any", "between", "case", "distinct", "else", "from", "ilike", "in", "is", "like", "not", "or",
    "regexp", "rlike", "then", "when", "xor",
}  # fmt: skip
_TOKENS = re.compile(r"""'(?:[^']|'')*'|"(?:[^"]|"")*"|`[^`]*`|--[^\n]*|/\*.*?\*/|\s+|[^\W\d]\w*|.""", re.S)

_COMPARISONS = {"Eq", "NotEq", "Lt", "LtEq", "Gt", "GtEq", "EqValidity", "NotEqValidity", "And", "Or", "Xor"}
_ARITHMETIC = {"Plus", "Minus", "Multiply", "TrueDivide", "FloorDivide", "Modulus"}
_ARITHMETIC_FUNCTIONS = {
    "Abs", "Sql.Binary.Plus", "Sql.Binary.Minus", "Sql.Binary.Mul", "Sql.Binary.Div", "Sql.Binary.IntDiv",
    "Sql.Binary.Rem",
}  # fmt: skip
_INTEGER_FUNCTIONS = {"StringExpr.LenChars", "StringExpr.LenBytes", "StringExpr.Find", "ListExpr.Length"}
_PATTERN_FUNCTIONS = {"StringExpr.Contains", "StringExpr.Find"}
_OTHER_FUNCTIONS = {
    "Ceil", "Coalesce", "Exp", "FillNull", "Floor", "Log", "MaxHorizontal", "MinHorizontal", "Sign", "Boolean.IsNull",
    "Boolean.IsNotNull", "Boolean.Not", "ListExpr.Contains", "ListExpr.Get", "Pow.Cbrt", "Pow.Generic", "Pow.Sqrt",
    "Sql.Binary.Eq", "Sql.Binary.EqMissing", "Sql.Binary.Gt", "Sql.Binary.GtEq", "Sql.Binary.Lt", "Sql.Binary.LtEq",
    "Sql.Binary.NotEq", "Sql.Binary.NotEqMissing", "Sql.IsIn", "Sql.Round", "Sql.ToFloat", "StringExpr.EndsWith",
    "StringExpr.Lowercase", "StringExpr.StartsWith", "StringExpr.StripChars", "StringExpr.StripCharsEnd",
    "StringExpr.StripCharsStart", "StringExpr.Uppercase",
}  # fmt: skip
_FUNCTION_NODES = _ARITHMETIC_FUNCTIONS | _INTEGER_FUNCTIONS | _PATTERN_FUNCTIONS | _OTHER_FUNCTIONS
_INTEGERS = {f"{sign}Int{bits}" for sign in ("", "U") for bits in (8, 16, 32, 64)}
_PLAIN_TYPES = {*_INTEGERS, "Float32", "Float64", "Boolean", "String"}
_ERRORS = (polars.exceptions.PolarsError, polars.exceptions.PanicException)

Node = Any  # a node of polars' tree as JSON: {kind: body}, or a kind without a body


@dataclass(frozen=True)
class Expression:
    """A checked expression, from `parse`."""

    expr: pl.Expr
    columns: tuple[str, ...]
    """Columns in the expression, in order."""
    computes: bool
    """Whether it does arithmetic, for which integer columns are widened."""
    patterns: bool
    """Whether it matches patterns, which may take long."""

    def judge(self, frame: pl.DataFrame) -> pl.Series:
        """True, False or null for each row of `frame`, which has exactly the `columns`; null if any of them is null.
        NaN is greater than every number, as in PostgreSQL. Raises ValueError for columns of the wrong type."""
        found = self._computed(frame)
        found = found.cast(pl.Boolean) if found.dtype == pl.Null else found
        if found.dtype != pl.Boolean:
            raise ValueError(f"the result is {found.dtype}, not true or false; compare it with a value: … > 0")
        return found

    def measure(self, frame: pl.DataFrame) -> pl.Series:
        """The same for an expression whose result is a number."""
        found = self._computed(frame)
        if not found.dtype.is_numeric():
            raise ValueError(f"the result is {found.dtype}, not a number; give a number, such as least(width, height)")
        return found

    def _computed(self, frame: pl.DataFrame) -> pl.Series:
        """The result, null where a column is null."""
        used = frame
        if self.computes:
            wide = {name: _widened(kind) for name, kind in used.schema.items()}
            used = used.cast({name: kind for name, kind in wide.items() if kind != used.schema[name]}, strict=False)
        try:
            found = computed(self.expr, used, self.patterns)
        except _ERRORS as error:
            held = ", ".join(f"{name}: {kind}" for name, kind in frame.schema.items())
            raise ValueError(f"{_line(error)} ({held}); use functions for these types, or `cast(… as …)`") from None
        nullable = [name for name in self.columns if used.get_column(name).null_count()]
        if not nullable or found.dtype == pl.Null:
            return found
        known = used.select(pl.all_horizontal(pl.col(nullable).is_not_null())).to_series()
        return found.zip_with(known, pl.Series([None], dtype=found.dtype))


_TOO_DEEP = "more than about 60 conditions; split them into several filters, or use `in (…)` or regexp_like"


@lru_cache(maxsize=256)
def parse(sql: str) -> Expression:
    """The expression, if it reads one row at a time. Raises ValueError with one line: the problem and the remedy."""
    _check_words(sql)
    try:
        tree = json.loads(pl.sql_expr(sql).meta.serialize(format="json"))
        walk = _Walk()
        rewritten = json.dumps(walk.rewritten(tree))
    except _ERRORS as error:
        raise ValueError(f"not an SQL expression: {_line(error)}; write one such as `width >= 256`") from None
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    try:
        expr = pl.Expr.deserialize(io.StringIO(rewritten), format="json")
    except _ERRORS:  # polars reads at most 128 levels; an operator takes two
        raise ValueError(_TOO_DEEP) from None
    columns = tuple(dict.fromkeys(expr.meta.root_names()))
    if not columns:
        raise ValueError("names no column, so every row has the same result; compare a column with a value")
    return Expression(expr, columns, walk.computes, walk.patterns)


def _check_words(sql: str) -> None:
    """Raises ValueError for functions that are not allowed, by the names that the user wrote."""
    tokens = [token for token in _TOKENS.findall(sql) if not token.isspace() and not token.startswith(("--", "/*"))]
    for token, following in pairwise([*tokens, ""]):
        word = token.lower()
        if word in NOT_ALLOWED:
            raise ValueError(f"{token!r} is not allowed ({NOT_ALLOWED[word]}); {_allowed()}")
        if following == "(" and word.isidentifier() and word not in _KEYWORDS and word not in FUNCTIONS:
            near = difflib.get_close_matches(word, FUNCTIONS, n=1, cutoff=0.75)
            meant = _MEANT.get(word, near[0] if near else None)
            hint = f"did you mean {meant!r}? " if meant else ""
            raise ValueError(f"function {token!r} is not allowed; {hint}{_allowed()}")


def _allowed() -> str:
    return f"a filter sees one row at a time, with the functions {', '.join(FUNCTIONS)}"


class _Walk:
    """A walk over a parsed tree."""

    computes = patterns = False

    def rewritten(self, node: Node) -> Node:
        """The node to evaluate. Raises ValueError for a node that is not on the lists."""
        if not isinstance(node, dict):
            raise ValueError(f"{_kind_name(node, None)} is not allowed; {_allowed()}")
        kind, body = next(iter(node.items()))
        if kind == "Column":
            return node
        if kind == "Literal":
            return _literal(node)
        if kind == "BinaryExpr" and body["op"] in _COMPARISONS | _ARITHMETIC:
            self.computes |= body["op"] in _ARITHMETIC
            return {kind: {**body, "left": self.rewritten(body["left"]), "right": self.rewritten(body["right"])}}
        if kind == "Ternary":
            return {kind: {name: self.rewritten(part) for name, part in body.items()}}
        if kind == "Cast":
            return self._cast(body)
        if kind == "Function":
            return self._function(body)
        if kind == "Alias" and not body[1]:
            raise ValueError("a list is not allowed here; write lists after `in`")
        if kind == "Alias":
            raise ValueError(f"{body[1]!r} follows a complete expression; remove it, or write an operator before it")
        raise ValueError(f"{_kind_name(kind, body)} is not allowed; {_allowed()}")

    def _cast(self, body: dict[str, Any]) -> Node:
        name = body["dtype"].get("Literal")
        if not isinstance(name, str) or name not in _PLAIN_TYPES:
            raise ValueError(f"a cast to {_type_name(name)} is not allowed; cast to integer, double, boolean or text")
        cast = _cast_to(name, self.rewritten(body["expr"]))
        return _cast_to("Int64", cast) if name in _INTEGERS else cast

    def _function(self, body: dict[str, Any]) -> Node:
        name, inputs = _function_name(body["function"]), body["input"]
        if name.startswith("StructExpr") and (field := _meta_field(body)):
            return {"Column": field}
        if name.startswith("StructExpr"):
            raise ValueError("a dot is only allowed in meta.FIELD; put a column name that has one in double quotes")
        if name not in _FUNCTION_NODES:
            raise ValueError(f"`{name}` is not allowed; {_allowed()}")
        self.computes |= name in _ARITHMETIC_FUNCTIONS
        if name == "Sql.IsIn":
            return {"Function": {**body, "input": [self.rewritten(inputs[0]), _listed(inputs[1])]}}
        if name in _PATTERN_FUNCTIONS:
            self.patterns = True
            _check_pattern(inputs[1])
        if name == "Boolean.Not" and "Cast" in inputs[0]:  # polars casts the operand of `not`, even texts
            inputs = [inputs[0]["Cast"]["expr"]]
        inputs = [self.rewritten(item) for item in inputs]
        if name == "Sql.ToFloat":  # of pow(); it keeps integers, which then overflow
            return _cast_to("Float64", inputs[0])
        node = {"Function": {**body, "input": inputs}}
        return _cast_to("Int64", node) if name in _INTEGER_FUNCTIONS else node


def _meta_field(node: Node) -> str:
    """`meta.license`, if that is what a chain of dots names; "" otherwise."""
    names: list[str] = []
    while "function" in node:
        names.insert(0, str(node["function"].get("StructExpr", {}).get("FieldByName", "")))
        node = node["input"][0]
        node = node.get("Function", node)
    return META + ".".join(names) if node == {"Column": "meta"} else ""


def _literal(node: Node) -> Node:
    """Numbers, texts, true, false and null. Decimals become floats, which take the width of the other operand."""
    kind, body = next(iter(node["Literal"].items()))
    if kind == "Dyn" and next(iter(body)) in ("Int", "Float"):
        return node
    if kind == "Scalar":
        name, value = next(iter(body.items()))
        if name == "Decimal":
            digits, _, scale = value
            return {"Literal": {"Dyn": {"Float": float(f"{digits}e-{scale}")}}}
        if name in (*_PLAIN_TYPES, "Null"):
            return node
        raise ValueError(f"a literal of type {_type_name(name)} is not allowed; write a number, a text, true or false")
    raise ValueError("a list is not allowed here; write lists after `in`")


def _listed(node: Node) -> Node:
    """The values after `in`. A column is an error: polars would take its values of all rows."""
    if "Series" not in node.get("Literal", {}):
        raise ValueError("`= any(…)` is not allowed; write `in (1, 2)`, or array_contains(list, value)")
    kind = pl.select(pl.Expr.deserialize(io.StringIO(json.dumps(node)), format="json")).dtypes[0]
    inner = kind.inner if isinstance(kind, pl.List) else kind
    if not (inner.is_numeric() or inner in (pl.String, pl.Boolean, pl.Null)):
        raise ValueError(f"a list of {inner} is not allowed; list numbers or texts after `in`")
    return node


def _check_pattern(node: Node) -> None:
    """Raises ValueError for a pattern that does not compile, which would fail at every row."""
    pattern = node.get("Literal", {}).get("Scalar", {}).get("String")
    if pattern is None:
        raise ValueError("a pattern must be a text in single quotes, not a column; write regexp_like(caption, 'cat')")
    try:
        pl.select(pl.lit("").str.contains(pattern))
    except _ERRORS as error:
        problem = str(error).partition("\n\nThis error occurred")[0].splitlines()[-1].removeprefix("error: ")
        raise ValueError(f"pattern {pattern!r}: {problem}; fix the regular expression") from None


def _cast_to(name: str, node: Node) -> Node:
    return {"Cast": {"expr": node, "dtype": {"Literal": name}, "options": "NonStrict"}}


def _widened(kind: pl.DataType | DataTypeClass) -> pl.DataType | DataTypeClass:
    if isinstance(kind, pl.List):
        return pl.List(_widened(kind.inner))
    return pl.Int64() if kind.is_integer() else kind


def _function_name(function: Any) -> str:
    """{"Sql": {"Binary": "Lt"}} -> "Sql.Binary.Lt", without the function's options."""
    parts = []
    while isinstance(function, Mapping) and len(function) == 1 and next(iter(function))[0].isupper():
        name, function = next(iter(function.items()))
        parts.append(name)
    if isinstance(function, str) and function[:1].isupper():
        parts.append(function)
    return ".".join(parts)


def _kind_name(kind: str, body: Any) -> str:
    names = {"Agg": "an aggregate", "Over": "a window", "SubPlan": "a subquery", "Selector": "a choice of columns"}
    if kind == "BinaryExpr":
        return f"the operator {body['op']}"
    return names.get(kind, f"{kind!r}")


def _type_name(kind: Any) -> str:
    return str(next(iter(kind)) if isinstance(kind, dict) else kind).lower()


def _line(error: BaseException) -> str:
    """The first line of a message of polars, without Rust structures."""
    text = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    if text.startswith("unable to parse"):
        return "it cannot be parsed"
    return re.sub(r"\s*(\w*\(|\{|\[).*[\])}]", "", text) if "Span" in text else text
