"""What is put right later is right everywhere: after a retry, after a bug is fixed, after a reason has changed."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Annotated, Any, ClassVar

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from curate.core.contracts import Batch, Filter, Map, Report, Runtime, Table
from curate.core.errors import CurateError
from curate.core.ledger import SET_ASIDE
from curate.core.nouns import facts
from curate.core.recipe.pipeline import Pipeline
from curate.core.store.storage import open_workspace
from curate.engine.passes.answers import lookup
from curate.engine.record.explain import explain
from curate.engine.record.runs import RunRecord
from curate.engine.run import Result, run
from curate.engine.state import Options
from tests.engine import toys, workspaces

LOSSES = Options(failure_budget=1.0)


def retry(stage: str, *reasons: str) -> Options:
    return Options(failure_budget=1.0, retry={stage: reasons})


def numbers_of(batch: Batch) -> list[int]:
    return [int(caption.split()[-1]) for caption in batch.column("caption")]


# --- a retry under keep_null ------------------------------------------------------------------------------------------


class Text(Map):
    """The caption. Numbers below `fails` fail, number 7 has no text."""

    op: ClassVar[str] = "toy.text"
    fails: Annotated[int, Runtime()] = 0
    reason: Annotated[str, Runtime()] = "http_503"

    def reads(self) -> tuple[str, ...]:
        return ("caption",)

    def schema(self) -> pa.Schema:
        return pa.schema([pa.field("text", pa.string())])

    def process(self, batch: Batch) -> dict[str, Any]:
        for row, number in enumerate(numbers_of(batch)):
            if number < self.fails:
                batch.fail(row, self.reason)
        batch.unusable((row for row, number in enumerate(numbers_of(batch)) if number == 7), "no_text")
        return {"text": list(batch.column("caption"))}


class Unit(Map):
    """One unit for all."""

    op: ClassVar[str] = "toy.unit"

    def schema(self) -> pa.Schema:
        return pa.schema([pa.field("unit_of", pa.int64())])

    def process(self, batch: Batch) -> dict[str, Any]:
        return {"unit_of": [0] * len(batch)}


class About(Map):
    """Costly, and has a value for nulls too."""

    op: ClassVar[str] = "toy.about"
    costly: ClassVar[bool] = True

    def reads(self) -> tuple[str, ...]:
        return ("text",)

    def schema(self) -> pa.Schema:
        return pa.schema([pa.field("answer", pa.string())])

    def process(self, batch: Batch) -> dict[str, Any]:
        return {"answer": [f"about {text}" for text in batch.column("text")]}


def costly_after_nulls(fails: int, later: bool) -> Pipeline:
    """A costly stage in the pass of the stage whose nulls it reads, or in a `later` one."""
    made = Pipeline().add("pool", toys.Numbers(namespace="toys", rows=20, shard_rows=10))
    made.add("text", Text(fails=fails), "pool", keep_null=True).add("unit", Unit(), "text")
    if later:
        made.add("even", toys.Even(each=20), "unit")
    return made.add("about", About(), "even" if later else "unit").check()


@pytest.mark.parametrize("later", [False, True], ids=["one pass", "a later pass"])
def test_a_row_computed_from_a_null_is_computed_again_as_if_it_never_had_been(
    workspace: Path, memory: Path, later: bool
) -> None:
    """Number 7's null is final, and so is the answer to it: no other row may take that one."""
    run(costly_after_nulls(4, later), str(workspace), options=LOSSES)
    result = run(costly_after_nulls(0, later), str(workspace), options=retry("text"))
    assert (result.counts["text"].computed, result.counts["about"].computed) == (4, 4)
    clean = memory / f"never-failed-{later}"
    run(costly_after_nulls(0, later), str(clean), options=LOSSES)
    assert workspaces.facts(workspace) == workspaces.facts(clean)
    rows = rows_of(workspace, "toy.about")
    assert {row["answer"] for row in rows} == {f"about picture {n}" for n in range(20) if n != 7} | {"about None"}
    for row in rows:
        text = None if row["answer"] == "about None" else row["answer"].removeprefix("about ")
        assert [row[facts.INPUT]] == lookup.inputs_of(pa.table({"text": [text]}), ["text"], None)
        assert (row[facts.STATUS_COLUMN], row[facts.MARKED]) == (facts.DONE, False)
    for given, path in workspaces.index_lines(workspace, "toy.about"):
        table = pq.read_table(workspace / path, partitioning=None)
        [answer] = [row for row in table.to_pylist() if row[facts.INPUT] == given]
        assert not answer[facts.MARKED]


# --- a retry that fails otherwise -------------------------------------------------------------------------------------


def failing(fails: int, reason: str = "http_503") -> Pipeline:
    made = Pipeline().add("pool", toys.Numbers(namespace="toys", rows=20, shard_rows=10))
    made.add("text", Text(fails=fails, reason=reason), "pool").add("unit", Unit(), "text")
    return made.add("even", toys.Even(each=3), "unit").check()


def assert_recorded(workspace: Path, result: Result, reason: str, attempts: int) -> None:
    """Numbers 0 .. 3 failed with this reason alone in the table, manifest, mask, ledger and `explain`."""
    assert result.ledger["text"].error == Counter({reason: 4})
    [tables] = workspaces.facts(workspace, "toy.text").values()
    rows = [row for shard in tables.values() for row in shard if row[facts.STATUS_COLUMN] == facts.ERROR]
    assert [row[facts.REASON] for row in rows] == [reason] * 4
    [lines] = [lines for path, lines in workspaces.fixed(workspace).items() if path.startswith("toy.text")]
    assert sum(line[-1] for line in lines) == 4
    [masks] = workspaces.masks(workspace).values()
    said = Counter(str(row["unit.reason"]) for shard in masks.values() for row in shard if row["unit.stage"] == "text")
    assert said == Counter({reason: 4, "no_text": 1})
    found = RunRecord.load(open_workspace(str(workspace), create=False), result.run_id)
    for number in range(4):
        about = {name: about for name, _, about in explain(found, f"{number:06d}")}["text"]
        assert about["reject"] == about["reason"] == reason
        assert (about["status"], about["attempts"]) == ("error", attempts)


def test_a_retry_that_fails_for_another_reason_is_recorded_everywhere(workspace: Path) -> None:
    first = run(failing(4), str(workspace), options=LOSSES)
    assert_recorded(workspace, first, "http_503", 1)
    second = run(failing(4, "http_429"), str(workspace), options=retry("text"))
    assert second.counts["text"].computed == 4
    assert_recorded(workspace, second, "http_429", 2)
    again = run(failing(4), str(workspace), options=LOSSES)
    assert again.reused["text"] and again.ledger["text"] == second.ledger["text"]
    assert_recorded(workspace, again, "http_429", 2)


def test_a_retry_finds_rows_by_the_reason_that_they_failed_for_last(workspace: Path) -> None:
    run(failing(4), str(workspace), options=LOSSES)
    run(failing(4, "http_429"), str(workspace), options=retry("text"))
    none = run(failing(0), str(workspace), options=retry("text", "http_503"))
    assert none.counts["text"].computed == 0 and none.ledger["text"].error == Counter(http_429=4)
    found = run(failing(0), str(workspace), options=retry("text", "http_429"))
    assert found.counts["text"].computed == 4 and not found.ledger["text"].error


# --- a stage with a bug -----------------------------------------------------------------------------------------------


class Flawed(Filter):
    """Passes everything, raises for image 33, or returns no reason for it."""

    op: ClassVar[str] = "toy.flawed"
    flaw: Annotated[str, Runtime()] = ""

    def reads(self) -> tuple[str, ...]:
        return ("dear", "caption")

    def keep(self, table: Table) -> Any:
        bad = "picture 33" in table.column("caption").to_pylist()
        if bad and self.flaw == "raises":
            raise ValueError("boom")
        return [None] * (table.num_rows - (bad and self.flaw == "few"))


class Late(Map):
    """Returns its column; for image 33, another column, none, a short one, or words for numbers."""

    op: ClassVar[str] = "toy.late"
    flaw: Annotated[str, Runtime()] = ""

    def reads(self) -> tuple[str, ...]:
        return ("dear", "caption")

    def schema(self) -> pa.Schema:
        return pa.schema([pa.field("late", pa.int64())])

    def process(self, batch: Batch) -> dict[str, Any]:
        ones = [1] * len(batch)
        flaw = self.flaw if 33 in numbers_of(batch) else ""
        wrong = {
            "wrong": {"wrong": ones},
            "lacks": {},
            "short": {"late": ones[1:]},
            "words": {"late": ["one"] * len(ones)},
        }
        return wrong.get(flaw, {"late": ones})


BUGS = [
    pytest.param(Flawed, "raises", r"toy.flawed failed on these rows \(ValueError: boom\); reject them ", id="raises"),
    pytest.param(Flawed, "few", r"toy.flawed: keep returned \d+ reasons for \d+ rows", id="few"),
    pytest.param(Late, "wrong", r"toy.late: process returned columns \['wrong'\] that are not in", id="wrong"),
    pytest.param(Late, "lacks", r"toy.late: process returned no 'late'; fix the stage", id="lacks"),
    pytest.param(Late, "short", r"toy.late: late has \d+ values for a batch of \d+ rows; fix the stage", id="short"),
    pytest.param(Late, "words", r"toy.late: .*'one'", id="words"),
]


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize(("stage", "flaw", "message"), BUGS)
def test_a_bug_ends_the_run_and_loses_nothing_costly(
    workspace: Path, tmp_path: Path, stage: type[Flawed | Late], flaw: str, message: str
) -> None:
    def flawed(flaw: str) -> Pipeline:
        pipeline = Pipeline().add("pool", toys.Numbers(namespace="toys", rows=40))
        pipeline.add("dear", toys.Costly(log=str(tmp_path / "log")), "pool")
        return pipeline.add("later", stage(flaw=flaw), "dear", place="recipe.yaml:7").check()

    with pytest.raises(CurateError, match=rf"^recipe\.yaml:7: later: {message}") as caught:
        run(flawed(flaw), str(workspace), options=LOSSES)
    assert "\n" not in str(caught.value)
    durable = rows_of(workspace)
    paid = (tmp_path / "log").read_text().split()
    assert 0 < len(paid) == len(durable) and {row[facts.STATUS_COLUMN] for row in durable} == {facts.DONE}
    result = run(flawed(""), str(workspace))
    assert result.ledger["later"].after == 40 and SET_ASIDE not in {row[facts.REASON] for row in rows_of(workspace)}
    paid = (tmp_path / "log").read_text().split()
    assert len(paid) == len(set(paid)) == 40 == result.counts["dear"].computed + len(durable)


def rows_of(workspace: Path, op: str = "toy.costly") -> list[dict[str, Any]]:
    return [row for shards in workspaces.facts(workspace, op).values() for rows in shards.values() for row in rows]


# --- reasons ----------------------------------------------------------------------------------------------------------


class Swap(Filter):
    """Rejects numbers 0 and 1, for two reasons, either way round."""

    op: ClassVar[str] = "toy.swap"
    swapped: bool = False

    def reads(self) -> tuple[str, ...]:
        return ("caption",)

    def keep(self, table: Table) -> Any:
        reasons = {"picture 0": "dull", "picture 1": "dim"}
        if self.swapped:
            reasons = {"picture 0": "dim", "picture 1": "dull"}
        return [reasons.get(caption) for caption in table.column("caption").to_pylist()]


class Lines(Report):
    op: ClassVar[str] = "toy.lines"

    def render(self, view: Any) -> dict[str, bytes]:
        rows = [row for table in view.tables(["caption", "reject_reason"]) for row in table.to_pylist()]
        said = sorted(f"{row['caption']}: {row['reject_reason']}" for row in rows if row["reject_reason"])
        return {"lines.txt": "\n".join(said).encode()}


def test_a_report_shows_reasons_that_two_rows_have_swapped(workspace: Path) -> None:
    def reported(swapped: bool) -> tuple[list[str], Result]:
        made = (
            Pipeline().add("pool", toys.Numbers(namespace="toys", rows=20)).add("swap", Swap(swapped=swapped), "pool")
        )
        made.add("unit", Unit(), "swap").add("even", toys.Even(each=18), "unit").add("pack", toys.PlainPack(), "even")
        result = run(made.add("lines", Lines(), "pack").check(), str(workspace))
        page = Path(re.sub("^file://", "", result.outputs["lines"]), "lines.txt")
        return page.read_text().splitlines(), result

    assert reported(False)[0] == ["picture 0: dull", "picture 1: dim"]
    lines, result = reported(True)
    assert lines == ["picture 0: dim", "picture 1: dull"] and not result.reused["lines"]
    assert result.reused["even"] and result.reused["pack"]
    lines, result = reported(True)
    assert lines == ["picture 0: dim", "picture 1: dull"] and result.reused["lines"]
