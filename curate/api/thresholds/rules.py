"""The thresholds of a run's filters, and its recipe with another threshold."""

from __future__ import annotations

import operator
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from curate.api.recipes import free_name, set_parameter, set_stage
from curate.engine.record.live import WITH_ROWS, LiveRows
from curate.engine.record.runs import RunRecord

PLACES = ("offset", "parent_row")
"""Columns of a pool whose numbers say where a row is."""
SIGNS = (">=", ">", "<=", "<")
PARAMETERS = {
    ("image.filter", "min_side"): ("least(width, height)", ">=", 1, 1 << 40),
    ("image.filter", "max_side"): ("greatest(width, height)", "<=", 1 << 40, 1),
    ("image.filter", "max_aspect"): ("greatest(width, height) / least(width, height)", "<=", 1 << 40, 1),
}
"""(op, parameter) -> what it compares, the sign, and the values that reject fewest and most rows."""
FARTHEST = 1e300
NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
_TERM = re.compile(rf'[\s(]*("[^"]+"|[A-Za-z_]\w*)\s*(>=|<=|>|<)\s*({NUMBER})[\s)]*')
_JOINED = re.compile(r"\b(?:and|or)\b", re.IGNORECASE)
_TURNS = re.compile(r"\b(not|case|if|xor|in|between|is)\b|<>|!=|\|\||\)\s*=|=\s*\(|'|--|/\*", re.IGNORECASE)
"""In an expression with one of these, fewer rows may pass at a looser threshold, or a number may be a text."""
EXACT = 2**53
"""Whole numbers from here on are not all numbers of float64."""


@dataclass(frozen=True)
class Rule:
    """A comparison with a threshold: one of a filter, or a new one over the rows that pass a stage."""

    stage: str
    column: str
    """A column, or an SQL expression over columns."""
    sign: str = ">="
    at: float | None = None
    """The threshold; None for a new rule, and for a parameter that is not set."""
    parameter: str = ""
    """Of the filter; "" for a new rule."""
    words: tuple[str, str] = ("", "")
    """The expression of a `filter.where`, before and after the threshold."""

    def value(self, at: float) -> str | float:
        """The parameter with another threshold."""
        return "".join((self.words[0], plain(at), self.words[1])) if any(self.words) else _whole(at)

    def passes(self, value: Any, at: Any) -> Any:
        """Whether a value, or each of an array, passes."""
        return {">=": operator.ge, ">": operator.gt, "<=": operator.le, "<": operator.lt}[self.sign](value, at)


def plain(number: float) -> str:
    """A number in the form of recipes and expressions: 0.45, 256."""
    return f"{_whole(number)}"


def _whole(number: float) -> float:
    return int(number) if number == int(number) and abs(number) < 1e15 else float(number)


def rules(run: RunRecord) -> list[Rule]:
    """The thresholds of the run's filters that can be moved: comparisons of a `filter.where` with a number, and sides
    and aspect of an `image.filter`. Filters of items have none."""
    found: list[Rule] = []
    for stage, about in run.record["stages"].items():
        given = about["parameters"]
        if stage not in run.outputs:
            continue
        for (op, name), (column, sign, *_) in PARAMETERS.items():
            if about["op"] == op:
                found.append(Rule(stage, column, sign, given.get(name), name))
        text = given.get("keep") if about["op"] == "filter.where" and not given.get("items") else None
        if not isinstance(text, str) or _TURNS.search(text):
            continue
        for column, sign, start, end in _compared(text):
            words, at = (text[:start], text[end:]), float(text[start:end])
            if abs(at) < EXACT:
                found.append(Rule(stage, column, sign, at, "keep", words))
    return found


def _compared(text: str) -> Iterator[tuple[str, str, int, int]]:
    """(column, sign, start and end of the number) of each comparison of a column with a number that is a whole term of
    an `and` or an `or`."""
    bounds = [(one.start(), one.end()) for one in _JOINED.finditer(text)]
    for start, end in zip([0, *(end for _, end in bounds)], [*(start for start, _ in bounds), len(text)], strict=True):
        if match := _TERM.fullmatch(text, start, end):
            yield match[1].strip('"'), match[2], match.start(3), match.end(3)


def stages_of(run: RunRecord) -> list[str]:
    """Stages of the run that pass on rows, in the order of the DAG."""
    outputs = run.outputs
    return [name for name in run.record["stages"] if outputs.get(name, {}).get("base", "").startswith(WITH_ROWS)]


def numbers_of(run: RunRecord, stage: str) -> list[str]:
    """Columns of numbers of the rows that pass a stage."""
    rows = LiveRows(run, stage)
    return [name for name, field in rows.fields.items() if is_number(field.type) and name not in PLACES]


def is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))


def ends(op: str, rule: Rule) -> tuple[Any, Any]:
    """The parameter at the thresholds that reject fewest and most rows."""
    if (op, rule.parameter) in PARAMETERS:
        _, _, fewest, most = PARAMETERS[op, rule.parameter]
        return fewest, most
    low = rule.sign in (">=", ">")
    return rule.value(-FARTHEST if low else FARTHEST), rule.value(FARTHEST if low else -FARTHEST)


def readers(run: RunRecord, stage: str) -> list[str]:
    """Stages whose `from` names a stage."""
    return [name for name, about in run.record["stages"].items() if stage in about["from"]]


def sets(run: RunRecord, rule: Rule, at: float) -> list[str]:
    """Values of `--set` that give the run's recipe another threshold; with a new rule, the stages after `rule.stage`
    read a new filter."""
    if rule.parameter:
        return set_parameter(rule.stage, rule.parameter, rule.value(at))
    return set_stage(run, name_of_new(run, rule), new_filter(rule, at))


def name_of_new(run: RunRecord, rule: Rule) -> str:
    """Name of the filter that a new rule is."""
    return free_name(run, f"{rule.stage}_kept")


def new_filter(rule: Rule, at: float) -> dict[str, Any]:
    """A stage of a recipe that keeps the rows on one side of a threshold."""
    keep = f"{rule.column} {rule.sign} {plain(at)}"
    reason = "too_low" if rule.sign in (">=", ">") else "too_high"
    return {"op": "filter.where", "from": rule.stage, "keep": keep, "reason": reason}
