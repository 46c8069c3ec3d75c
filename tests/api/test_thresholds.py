"""Another threshold for a run: what its rows would do, from a sample and exactly, and the recipe that has it."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pytest

from curate.api import Pipeline, Run, RunRecord, Workspace, make_stage
from curate.api.thresholds import distribution
from curate.api.thresholds.distribution import Distribution, counted
from curate.api.thresholds.rules import Rule, rules, sets
from curate.core.contracts import Batch
from curate.core.errors import CorruptError, InputError
from curate.engine.run import run
from tests.engine import toys

ROWS, SHARD_ROWS = 240, 6


class Odd(toys.Brightness):
    """Columns of numbers that are hard to draw, and a whole one."""

    op: ClassVar[str] = "toy.odd_numbers"

    def schema(self) -> pa.Schema:
        kinds = {"gone": pa.float32(), "constant": pa.float64(), "holes": pa.float32(), "number": pa.int64()}
        return pa.schema([pa.field(name, kind) for name, kind in kinds.items()])

    def process(self, batch: Batch) -> dict[str, Any]:
        numbers = [int(caption.rpartition(" ")[2]) for caption in batch.column("caption")]
        holes = [None if n % 3 == 0 else float("nan") if n % 3 == 1 else n / 100 for n in numbers]
        same = {"gone": [float("nan")] * len(numbers), "constant": [0.1] * len(numbers)}
        return same | {"holes": pa.array(holes, pa.float32()), "number": numbers}

    def reads(self) -> tuple[str, ...]:
        return ("caption",)


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("thresholds") / "workspace"
    made = Pipeline().add("pool", toys.Numbers(namespace="toys", rows=ROWS, shard_rows=SHARD_ROWS))
    made.add("inspect", make_stage("image.inspect"), "pool")
    made.add("size", make_stage("image.filter", min_side=4, max_aspect=3), "inspect")
    made.add("bright", toys.Brightness(), "size").add("odd", Odd(), "bright")
    made.add("lit", make_stage("filter.where", keep="brightness > 125 and number < 200", reason="dark"), "odd")
    made.add("known", make_stage("filter.where", keep="holes >= 0.2", reason="low", keep_null=True), "odd")
    made.add("not_low", make_stage("filter.where", keep="not (number < 7)", reason="low"), "lit")
    run(made.check(), str(folder), run_id="one")
    return Workspace(str(folder)).run("one")


@pytest.fixture(scope="module")
def record(done: Run) -> RunRecord:
    return done.record


def rule(record: RunRecord, stage: str, column: str) -> Rule:
    (found,) = [one for one in rules(record) if (one.stage, one.column) == (stage, column)]
    return found


def sampled(record: RunRecord, rule: Rule, at: float | None = None, seconds: float = math.inf) -> Distribution:
    """A sample reads all its shards, however long that takes."""
    return distribution.sampled(record, rule, at, seconds)


def test_the_thresholds_of_a_run_are_those_of_its_filters(record: RunRecord) -> None:
    found = [(one.stage, one.column, one.sign, one.at) for one in rules(record)]
    assert found == [
        ("size", "least(width, height)", ">=", 4), ("size", "greatest(width, height)", "<=", None),
        ("size", "greatest(width, height) / least(width, height)", "<=", 3), ("lit", "brightness", ">", 125),
        ("lit", "number", "<", 200), ("known", "holes", ">=", 0.2),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("stage", "column"),
    [("lit", "brightness"), ("lit", "number"), ("known", "holes"), ("size", "least(width, height)")],
)
def test_rows_at_a_threshold_are_those_that_the_filter_passes_with_it(
    record: RunRecord, done: Run, stage: str, column: str
) -> None:
    moved = rule(record, stage, column)
    found = sampled(record, moved)
    assert found.exact and moved.at is not None and found.has(moved.at)
    before = {"lit": "odd", "known": "odd", "size": "inspect"}[stage]
    about, reads = record.record["stages"][stage], ["width", "height"] if stage == "size" else ["brightness", "number"]
    table = done.workspace.table("one", before, [*reads, *(["holes"] if stage != "size" else [])]).table
    assert found.band("reached").rows == len(table)
    now = found.band("now").rows
    for at in found.edges:
        parameters = about["parameters"] | {moved.parameter: moved.value(float(at))}
        kept = make_stage(about["op"], **parameters).keep(table).null_count
        bands = [found.band(name, at) for name in ("alive", "gained", "lost")]
        assert [band.rows for band in bands] == [kept, max(0, kept - now), max(0, now - kept)]
        assert all(band.low == band.high == band.rows for band in bands)
    below, above = found.outside()
    decided = len(table) - found.always.sum() - found.never.sum()
    assert below + above + sum(found.heights()) == decided


def test_a_sample_is_replaced_by_exact_counts(record: RunRecord, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distribution, "LEAST", 8)
    moved = rule(record, "lit", "brightness")
    first = sampled(record, moved, seconds=0.0)
    assert len(first.rows) == 8 and first.shards == ROWS // SHARD_ROWS and not first.exact
    exact = counted(record, first)
    assert exact.exact and (exact.edges == first.edges).all()
    bands = [(first.band("alive", at), exact.band("alive", at).rows) for at in first.edges]
    assert np.mean([band.low <= rows <= band.high for band, rows in bands]) >= 0.95
    assert any(band.low < band.high for band, _ in bands)


def test_a_new_rule_over_any_column_or_expression(record: RunRecord, done: Run) -> None:
    numbers = done.workspace.table("one", "bright", ["brightness"]).table["brightness"].to_numpy()
    for column, factor in (("brightness", 1.0), ("brightness * 2", 2.0), ("bright.brightness", 1.0)):
        found = sampled(record, Rule("bright", column, "<="), at=127.5)
        assert found.band("alive", 127.5).rows == (numbers * factor <= 127.5).sum()
        assert found.band("lost", 127.5).rows == (numbers * factor > 127.5).sum()
        assert found.band("gained", 127.5).rows == 0
        for passes, _, which in found.borders(127.5):
            table = done.slice(which, ["brightness"], limit=1000, seconds=60.0).table
            assert len(table) and all((row * factor <= 127.5) == passes for row in table["brightness"].to_pylist())


def test_nan_constant_and_missing_values(record: RunRecord) -> None:
    gone = sampled(record, Rule("odd", "gone", ">="), at=3.0)
    assert gone.band("alive", 3.0).rows == gone.band("reached").rows == ROWS  # NaN is greater than every number
    assert sum(gone.heights()) == 0 and gone.borders(3.0) == []
    constant = sampled(record, Rule("odd", "constant", ">="), at=0.1)
    assert [constant.band("alive", at).rows for at in (constant.edges[0], 0.1, constant.edges[-1])] == [ROWS, ROWS, 0]
    holes = sampled(record, Rule("odd", "holes", "<="), at=100.0)
    assert holes.band("alive", 100.0).rows == ROWS / 3  # neither null nor NaN


def test_a_border_never_crosses_the_present_threshold(record: RunRecord, done: Run) -> None:
    found = sampled(record, rule(record, "lit", "brightness"))
    place = found.place(125)
    for at in found.edges[place - 3 : place + 4]:
        for passes, _, which in found.borders(float(at)):
            table = done.slice(which, ["brightness", "number"], limit=1000, seconds=60.0).table
            for row in table.to_pylist():
                assert (row["brightness"] > at) == passes and row["number"] < 200
                assert (row["brightness"] > 125) == (row["reason"] is None)


@pytest.mark.parametrize(
    ("column", "message"),
    [
        ("brightnes", "did you mean 'brightness'?"), ("least(width", "not an SQL expression"),
        ("caption", "expected a column of numbers"), ("lower(caption)", "not a number"),
        ("(select 1)", "a subquery"), ("brightness > 3", "not a number"), ("1", "names no column"),
    ],
)  # fmt: skip
def test_a_wrong_column_is_one_line(record: RunRecord, column: str, message: str) -> None:
    with pytest.raises(InputError, match=r"^column: ") as caught:
        sampled(record, Rule("bright", column))
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_what_sets_another_threshold(record: RunRecord) -> None:
    assert sets(record, rule(record, "lit", "brightness"), 127.5) == ['lit.keep="brightness > 127.5 and number < 200"']
    assert sets(record, rule(record, "size", "least(width, height)"), 6.0) == ["size.min_side=6"]
    filtered, *readers = sets(record, Rule("odd", "number", "<="), 100)
    name, _, stage = filtered.partition("=")
    assert (name, sorted(readers)) == ("odd_kept", ['known.from="odd_kept"', 'lit.from="odd_kept"'])
    wanted = {"op": "filter.where", "from": "odd", "keep": "number <= 100", "reason": "too_high"}
    assert json.loads(stage) == wanted


@pytest.mark.parametrize(
    ("keep", "columns"),
    [
        ("width * height > 1600", []), ("width + number > 20", []), ("-number > 3", []), ("2*number > 1", []),
        ("number > 3 + 1", []), ("(number > 3) = false", []), ("(number > 3) is false", []), ("abs(number > 3)", []),
        ("coalesce(number > 3, true)", []), ("length(caption) / width > 2 or number > 3", ["number"]),
        ("number > 3 and (width > 2 or height <= 9.5) AND \"meta.a\" < -1", ["number", "width", "height", "meta.a"]),
        ("(number > 3 and width > 2) = (height > 1)", []), ("true = (number > 3 and width > 2)", []),
        (f"number > {2**53}", []), (f"number > {2**53 - 1}", ["number"]),
    ],
)  # fmt: skip
def test_only_a_whole_comparison_has_a_threshold(record: RunRecord, keep: str, columns: list[str]) -> None:
    about = record.record["stages"]["lit"]
    stages = {"lit": about | {"parameters": about["parameters"] | {"keep": keep}}}
    found = rules(RunRecord(record.storage, record.record | {"stages": stages}, record.result))
    assert [one.column for one in found] == columns
    for one in found:
        assert "".join((one.words[0], keep[len(one.words[0]) : len(keep) - len(one.words[1])], one.words[1])) == keep


def test_a_rule_that_does_not_decide_alone_is_one_line(record: RunRecord) -> None:
    wrong = Rule("lit", "holes", "<", 0.5, "keep", ("brightness > 125 and number < ", ""))
    with pytest.raises(InputError, match=r"^column: holes < 0\.5 does not alone decide what lit rejects"):
        sampled(record, wrong)


def test_shards_that_are_lost_are_left_out_and_counted(done: Run, tmp_path: Path) -> None:
    place = tmp_path / "workspace"
    shutil.copytree(done.workspace.url, place)
    found = Workspace(str(place)).run("one").record
    facts = sorted((place / "facts/toy.brightness").rglob("0*.parquet"))
    for file in facts[:3]:
        file.unlink()
    bright = rule(found, "lit", "brightness")
    whole, first = counted(done.record, sampled(done.record, bright)), sampled(found, bright)
    some = counted(found, first)
    assert (first.lost, some.lost, some.shards, some.exact) == (3, 3, ROWS // SHARD_ROWS - 3, True)
    assert whole.band("reached").rows - some.band("reached").rows == 3 * SHARD_ROWS
    for file in facts[3:]:
        file.unlink()
    with pytest.raises(CorruptError, match="this table of facts is corrupt or missing"):
        sampled(found, bright)
