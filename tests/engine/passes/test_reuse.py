"""What is computed once is used again: answers of other tables, pools, rows and runs."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pytest

from curate.core.contracts import Batch, Map, Sample
from curate.core.nouns import facts
from curate.core.recipe.pipeline import Pipeline
from curate.core.store.storage import Storage, open_storage
from curate.engine.backends.local import LocalBackend
from curate.engine.context import Context
from curate.engine.passes.answers import index
from curate.engine.record import claims, gc
from curate.engine.run import Result, run
from curate.engine.state import Options
from tests.engine import toys, workspaces
from tests.engine.experiment import COSTLY_STAGES, IMAGES, SHARD_ROWS, Caption, Clean, Embed, Inspect, MinSide, Sizes
from tests.engine.workspaces import index_lines

LOSSES = Options(failure_budget=1.0)
SMALL = IMAGES // 4


# --- answers of other tables and pools --------------------------------------------------------------------------------


def costly_pipeline(
    side: int = 32, rule: bool = False, namespace: str = "one", shard_rows: int = SHARD_ROWS
) -> Pipeline:
    made = Pipeline().add("pool", Sizes(namespace=namespace, shard_rows=shard_rows))
    made.add("inspect", Inspect(), "pool").add("size", MinSide(min_side=side), "inspect")
    made.add("text", Clean(rule=rule), "size")
    return made.add("embed", Embed(), "text").add("caption", Caption(), "text").check()


def work(result: Result) -> dict[str, tuple[int, int]]:
    """Costly stage -> rows (computed, copied)."""
    return {name: (result.counts[name].computed, result.counts[name].copied) for name in COSTLY_STAGES}


def collect(workspace: Path) -> set[str]:
    storage = open_storage(str(workspace))
    with claims.exclusive(storage):
        garbage, runs = gc.unreachable(storage, keep=1)
        gc.collect(storage, garbage, runs)
    return set(garbage)


@pytest.mark.parametrize("shard_rows", [SHARD_ROWS, 8, IMAGES])
def test_answers_outlive_the_tables_that_they_were_first_in(
    workspace: Path, monkeypatch: pytest.MonkeyPatch, shard_rows: int
) -> None:
    """gc leaves each shard's highest table. The index leads to lower ones, whose rows that one has too."""
    run(costly_pipeline(side=64), str(workspace))
    run(costly_pipeline(side=32), str(workspace))
    gone = {path for path in collect(workspace) if path.endswith("/000001.parquet")}
    assert {path.split("/")[1] for path in gone} >= {"rules.embed", "rules.caption"}
    lost = [line for line in index_lines(workspace, "rules.*") if line[1] in gone]
    assert len(lost) == 2 * (IMAGES - SMALL)
    asked: Counter[str] = Counter()
    read = facts.read

    def counted(storage: Storage, folder: str, shard: str, number: int, columns: Any = None) -> pa.Table:
        asked[facts.table_path(folder, shard, number)] += 1
        return read(storage, folder, shard, number, columns)

    monkeypatch.setattr(facts, "read", counted)
    index.forget()  # as in another process
    result = run(costly_pipeline(namespace="two", shard_rows=shard_rows), str(workspace))
    assert work(result) == dict.fromkeys(COSTLY_STAGES, (0, IMAGES))
    assert gone & asked.keys() and max(asked.values()) <= 2, asked.most_common(6)


def test_a_table_that_gc_has_removed_with_all_that_follow_is_computed_again(workspace: Path) -> None:
    """The index still leads there."""
    run(costly_pipeline(), str(workspace))
    for folder in (workspace / "facts").glob("rules.caption/*/*/*/"):
        for path in folder.glob("0*.parquet"):
            path.unlink()
    assert work(run(costly_pipeline(namespace="two"), str(workspace))) == {"embed": (0, IMAGES), "caption": (IMAGES, 0)}


def test_copied_rows_add_no_lines_to_the_index(workspace: Path) -> None:
    run(costly_pipeline(rule=False), str(workspace))
    first = index_lines(workspace, "rules.*")
    assert len(first) == first.total() == 2 * IMAGES
    changed = IMAGES // 32
    assert work(run(costly_pipeline(rule=True), str(workspace))) == {
        "embed": (0, 0),
        "caption": (changed, IMAGES - changed),
    }
    second = index_lines(workspace, "rules.*")
    assert second.total() == first.total() + changed and not first - second
    assert work(run(costly_pipeline(namespace="two"), str(workspace))) == dict.fromkeys(COSTLY_STAGES, (0, IMAGES))
    assert index_lines(workspace, "rules.*") == second


def test_rows_with_one_input_have_one_line(workspace: Path) -> None:
    """Each image is there twice in each of four shards."""
    made = Pipeline().add("pool", Sizes(namespace="one", distinct=SHARD_ROWS // 2)).add("embed", Embed(), "pool")
    result = run(made.check(), str(workspace))
    assert result.counts["embed"].computed == SHARD_ROWS // 2
    lines = index_lines(workspace)
    assert len(lines) == lines.total() == SHARD_ROWS // 2
    assert workspaces.rows_of(workspace, "rules.embed") == IMAGES


# --- twins ------------------------------------------------------------------------------------------------------------


class Moody(Map):
    """Costly. The first `bad` rows fail or are unusable."""

    op: ClassVar[str] = "toy.moody"
    costly: ClassVar[bool] = True
    asked: ClassVar[int] = 0
    bad: ClassVar[int] = 0
    how: ClassVar[str] = "fail"

    def reads(self) -> tuple[str, ...]:
        return ("ext",)

    def schema(self) -> pa.Schema:
        return pa.schema([pa.field("mood", pa.string())])

    def process(self, batch: Batch) -> dict[str, Any]:
        for row in range(len(batch)):
            Moody.asked += 1
            if Moody.asked <= self.bad:
                batch.fail(row, "http_503") if self.how == "fail" else batch.unusable(row, "no_mood")
        return {"mood": ["bmp"] * len(batch)}


class OneByOne(Moody):
    op: ClassVar[str] = "toy.one_by_one"
    batch_rows: ClassVar[int] = 1


class Looking(Moody):
    """The same with images: those that wait are decoded already."""

    op: ClassVar[str] = "toy.looking"
    pixels: ClassVar[bool] = True
    batch_rows: ClassVar[int] = 4

    def reads(self) -> tuple[str, ...]:
        return ()

    def prepare(self, sample: Sample) -> bytes:
        return sample.data

    def process(self, batch: Batch) -> dict[str, Any]:
        assert all(len(data) == len(toys.image(0)) for data in batch.prepared)
        return super().process(batch)


def twins(
    workspace: Path, monkeypatch: pytest.MonkeyPatch, stage: type[Moody], bad: int, **options: Any
) -> tuple[int, Result]:
    """20 rows in two units, all with the same input; (rows that the stage was asked for, the result)."""
    monkeypatch.setattr(Moody, "asked", 0)
    monkeypatch.setattr(Moody, "bad", bad)
    made = Pipeline().add("pool", Alike(namespace="toys", rows=20, shard_rows=10)).add("moody", stage(), "pool")
    options = {"failure_budget": 1.0, "task_rows": 10} | options
    result = run(made.check(), str(workspace), options=Options(**options))
    return Moody.asked, result


class Alike(toys.Numbers):
    """The same image repeatedly."""

    op: ClassVar[str] = "toy.alike"

    def read(self, portion: Any) -> Any:
        for sample in super().read(portion):
            sample.data = toys.image(0)
            yield sample


STAGES: Sequence[type[Moody]] = (Moody, OneByOne, Looking)


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("bad", [0, 1, 3, 9, 13, 20])
def test_an_error_is_not_copied_to_a_twin(
    workspace: Path, monkeypatch: pytest.MonkeyPatch, stage: type[Moody], bad: int
) -> None:
    """Each twin of a row that failed is tried itself; the first that succeeds is computed for all that are left, in
    this unit and in the next one."""
    asked, result = twins(workspace, monkeypatch, stage, bad)
    computed = min(20, bad + 1)
    assert asked == computed == result.counts["moody"].computed
    assert result.counts["moody"].copied == 20 - computed
    assert result.ledger["moody"].error == (Counter(http_503=bad) if bad else Counter())
    rows = [row for shards in workspaces.facts(workspace).values() for rows in shards.values() for row in rows]
    assert Counter(row["mood"] for row in rows) == +Counter({"bmp": 20 - bad, None: bad})
    asked, result = twins(workspace, monkeypatch, stage, 0, retry={"moody": ()})
    assert asked == result.counts["moody"].computed == (bad == 20)
    assert result.counts["moody"].copied == bad - (bad == 20) and not result.ledger["moody"].error


@pytest.mark.parametrize("stage", STAGES)
def test_an_unusable_row_is_an_answer_for_its_twins(
    workspace: Path, monkeypatch: pytest.MonkeyPatch, stage: type[Moody]
) -> None:
    monkeypatch.setattr(Moody, "how", "unusable")
    asked, result = twins(workspace, monkeypatch, stage, 1)
    assert asked == 1 and result.ledger["moody"].unusable == Counter(no_mood=20)


# --- another run was first --------------------------------------------------------------------------------------------


class Raced(Map):
    """Costly. While the first batch is computed, `meanwhile` happens; numbers below 3 then come out `otherwise`."""

    op: ClassVar[str] = "toy.raced"
    costly: ClassVar[bool] = True
    batch_rows: ClassVar[int] = 20
    meanwhile: ClassVar[list[Callable[[], Any]]] = []
    otherwise: ClassVar[str] = ""

    def reads(self) -> tuple[str, ...]:
        return ("caption",)

    def schema(self) -> pa.Schema:
        return pa.schema([pa.field("unit_of", pa.int64()), pa.field("brightness", pa.float64())])

    def process(self, batch: Batch) -> dict[str, Any]:
        late = bool(self.meanwhile)
        if late:
            self.meanwhile.pop()()
        numbers = [int(caption.split()[-1]) for caption in batch.column("caption")]
        few = [row for row, number in enumerate(numbers) if late and number < 3]
        for row in few if self.otherwise == "error" else ():
            batch.fail(row, "http_503")
        batch.unusable(few if self.otherwise == "unusable" else (), "no_answer")
        dark = few if self.otherwise == "dark" else ()
        return {"unit_of": [0] * len(batch), "brightness": [float(row not in dark) for row in range(len(batch))]}


@pytest.mark.parametrize("otherwise", ["error", "unusable", "dark"])
def test_the_mask_is_of_the_values_that_stand(workspace: Path, monkeypatch: pytest.MonkeyPatch, otherwise: str) -> None:
    """A whole run fits into the first one's only batch: it passes all 20 rows and publishes first.
    Only the stage itself and a filter read these values, so nothing else is recomputed."""
    made = Pipeline().add("pool", toys.Numbers(namespace="toys", rows=20, shard_rows=20)).add("raced", Raced(), "pool")
    if otherwise == "dark":
        made.add("light", toys.Light(darkest=0.5), "raced")
    made.add("even", toys.Even(each=9), "light" if otherwise == "dark" else "raced").add(
        "pack", toys.PlainPack(), "even"
    )
    made.check()
    lease, inner = Context.lease, list[Result]()

    def without(self: Context, node: Any, output: str, *more: Any) -> Any:
        return contextlib.nullcontext(True) if output.startswith("facts/") else lease(self, node, output, *more)

    class Threads(LocalBackend):
        """Leaves no marks, by which the inner run would take the outer one for dead."""

        name = "threads"

    def whole_run() -> None:
        inner.append(run(made, str(workspace), engine=Threads(), options=LOSSES))

    monkeypatch.setattr(Context, "lease", without)
    monkeypatch.setattr(Raced, "meanwhile", [whole_run])
    monkeypatch.setattr(Raced, "otherwise", otherwise)
    outer = run(made, str(workspace), engine=Threads(), options=LOSSES)
    assert inner[0].counts["raced"].computed == 20 and outer.counts["raced"].repeated == 20
    assert outer.ledger == inner[0].ledger and outer.ledger["even"].before == 20
    assert outer.outputs["pack"] == inner[0].outputs["pack"]
    rows = [row for chain in workspaces.masks(workspace).values() for shard in chain.values() for row in shard]
    assert len(rows) == 20 and not any(value for row in rows for value in row.values())
    [tables] = workspaces.facts(workspace, "toy.raced").values()
    assert {row[facts.STATUS_COLUMN] for rows in tables.values() for row in rows} == {facts.DONE}
    third = run(made, str(workspace), engine=Threads())
    assert all(third.reused.values()) and third.ledger == outer.ledger
