"""A derived pool and columns of facts: a Derive that reads facts of its parents, facts of children that come back."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image
from pydantic import ValidationError

from curate.core.contracts import Batch, Child, Fit, Map, Reduce, Runtime, Sample
from curate.core.errors import CurateError, RecipeError
from curate.core.group import Group, Part
from curate.core.nouns import facts
from curate.core.nouns.pools import read_shards
from curate.core.recipe.pipeline import Pipeline
from curate.core.store.storage import open_storage
from curate.derive.roll_up import RollUp
from curate.engine.record import gc
from curate.engine.record.live import LiveRows
from curate.engine.record.runs import latest
from curate.engine.run import run
from curate.engine.state import Options
from curate.filter.where import Where
from curate.pack.webdataset import PackWebDataset
from tests.engine import derived, toys
from tests.engine.derived import ALL, members, number_of, rows
from tests.engine.output import Output


class Cuts(Map):
    """How often to cut an image; null for number 1, and in error for some."""

    op: ClassVar[str] = "toy.cuts"
    most: int = 3
    fails: Annotated[tuple[int, ...], Runtime()] = ()

    def reads(self) -> tuple[str, ...]:
        return ("caption",)

    def schema(self) -> pa.Schema:
        return pa.schema([pa.field("cuts", pa.int64())])

    def process(self, batch: Batch) -> dict[str, Any]:
        numbers = [int(caption.split()[-1]) for caption in batch.column("caption")]
        for row, number in enumerate(numbers):
            if number in self.fails:
                batch.fail(row, "flaky")
            if number == 1:
                batch.unusable(row, "seamless")
        return {"cuts": [number % self.most + 1 for number in numbers]}


class Clips(derived.Tiles):
    """As many tiles as there are cuts; one where the number is unknown."""

    op = "toy.clips"
    namespace: str = "clips"

    def reads(self) -> tuple[str, ...]:
        return ("cuts", "width")

    def children(self, sample: Sample) -> Iterator[Child]:
        assert sample.row["width"] == 8
        return derived.Tiles(each=sample.row["cuts"] or 1, log=self.log).children(sample)


def clips(most: int = 3, fails: tuple[int, ...] = (), log: str = "") -> Pipeline:
    made = Pipeline().add("pool", toys.Numbers(namespace="toys", rows=10, shard_rows=5))
    made.add("cuts", Cuts(most=most, fails=fails), "pool", keep_null=True)
    return made.add("tiles", Clips(log=log), "cuts").add("shade", toys.Brightness(), "tiles").check()


def test_a_derive_reads_columns_of_its_parents(workspace: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    run(clips(log=str(log)), str(workspace), options=ALL)
    assert Counter(map(number_of, rows(workspace))) == {n: 1 if n == 1 else n % 3 + 1 for n in range(10)}
    assert sorted(derived.computed(log)) == list(range(10))
    assert all(run(clips(log=str(log)), str(workspace), options=ALL).reused.values())
    run(clips(most=2, log=str(log)), str(workspace), options=ALL)  # other facts, other children
    assert sorted(derived.computed(log)) == list(range(10))
    assert Counter(map(number_of, rows(workspace))) == {n: 1 if n == 1 else n % 2 + 1 for n in range(10)}


def test_a_parent_whose_column_is_in_error_gets_children_once_it_is_retried(workspace: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    first = run(clips(fails=(3, 4), log=str(log)), str(workspace), options=ALL)
    assert first.ledger["tiles"].error == {"error_upstream": 2}
    assert sorted(derived.computed(log)) == [0, 1, 2, 5, 6, 7, 8, 9]
    assert run(clips(fails=(3, 4), log=str(log)), str(workspace), options=ALL).reused["tiles"]
    run(clips(fails=(4,), log=str(log)), str(workspace), options=Options(failure_budget=1.0, retry={"cuts": ()}))
    assert derived.computed(log) == [3] and Counter(map(number_of, rows(workspace)))[3] == 1
    last = run(clips(log=str(log)), str(workspace), options=Options(failure_budget=1.0, retry={"cuts": ()}))
    assert derived.computed(log) == [4] and not last.ledger["tiles"].error


def test_a_derive_that_reads_an_unknown_column_is_an_error_of_one_line() -> None:
    made = Pipeline().add("pool", toys.Numbers(namespace="toys")).add("tiles", Clips(), "pool")
    with pytest.raises(RecipeError, match=r"tiles: column 'cuts' is missing upstream; add a stage that writes it$"):
        made.check()


# --- columns of the parent --------------------------------------------------------------------------------------------


class Told(Map):
    """A text of a child and its parent."""

    op: ClassVar[str] = "toy.told"
    column: str = "parent.cuts"

    def reads(self) -> tuple[str, ...]:
        return (self.column, "parent.sha256", "parent")

    def schema(self) -> pa.Schema:
        return pa.schema([pa.field("told", pa.string())])

    def process(self, batch: Batch) -> dict[str, Any]:
        assert all(len(digest) == 64 for digest in batch.column("parent.sha256"))
        values = zip(batch.column("parent"), batch.column(self.column), strict=True)
        return {"told": [f"{key[:6]} {value}" for key, value in values]}


def telling(column: str = "parent.cuts", where: str = '"parent.cuts" > 1', **changes: Any) -> Pipeline:
    made = clips(**changes).add("told", Told(column=column), "shade")
    return made.add("long", Where(keep=where, reason="short"), "told")


def told(workspace: Path) -> Counter[str]:
    storage = open_storage(str(workspace))
    path = f"{latest(storage, None).outputs['told']['base'].rpartition('/versions/')[0]}"
    tables = [
        facts.read(storage, path, shard, number, ["told"]) for shard, number in facts.latest(storage.list(path)).items()
    ]
    return Counter(text for table in tables for text in table.column("told").to_pylist())


def test_a_child_reads_columns_of_its_parent(workspace: Path, on_ray: Any) -> None:
    result = run(telling().check(), str(workspace), options=ALL, engine=on_ray)
    keys = {row["parent"]: number_of(row) for row in rows(workspace)}
    cuts = {number: None if number == 1 else number % 3 + 1 for number in range(10)}
    assert told(workspace) == {f"{key[:6]} {cuts[n]}": cuts[n] or 1 for key, n in keys.items()}
    assert result.ledger["long"].rejected == {"short": 4, "short_null": 1}
    assert all(run(telling().check(), str(workspace), options=ALL).reused.values())
    other = run(telling(most=2).check(), str(workspace), options=ALL)
    assert not other.reused["told"] and other.ledger["long"].rejected == {"short": 5, "short_null": 1}


class Cut(Map):
    """A text of a tile of a tile, and of the image above both."""

    op: ClassVar[str] = "toy.cut"

    def reads(self) -> tuple[str, ...]:
        return ("caption", "parent.parent.cuts", "parent.parent.caption", "parent.told")

    def schema(self) -> pa.Schema:
        return pa.schema([pa.field("cut", pa.int64())])

    def process(self, batch: Batch) -> dict[str, Any]:
        assert batch.column("caption") == batch.column("parent.parent.caption")
        cuts = batch.column("parent.parent.cuts")
        assert [told.split()[1] for told in batch.column("parent.told")] == list(map(str, cuts))
        return {"cut": cuts}


class Most(Reduce):
    """The sum of a column of the parents."""

    op: ClassVar[str] = "toy.most"
    kind: ClassVar[str] = "most"

    def reads(self) -> tuple[str, ...]:
        return ("parent.cuts",)

    def partial(self, table: pa.Table) -> pa.Table:
        return pa.table({"sum": [sum(value or 0 for value in table.column("parent.cuts").to_pylist())]})

    def finish(self, state: pa.Table) -> dict[str, Any]:
        return {"sum": {"of": sum(state.column("sum").to_pylist())}}


class Highest(Fit):
    """The highest value of a column of the parents."""

    op: ClassVar[str] = "toy.highest"
    kind: ClassVar[str] = "highest"

    def reads(self) -> tuple[str, ...]:
        return ("parent.cuts",)

    def load(self, table: pa.Table) -> dict[str, Any]:
        return {"value": table.column("parent.cuts").fill_null(-1).to_numpy()}

    def fit(self, group: Group) -> dict[str, Any]:
        return {"values": np.sort(np.concatenate(list(group.each(all_of))))}


def all_of(part: Part, shared: Any) -> Any:
    return np.array(part.arrays["value"])


class Threes(derived.Every):
    """Tiles of images that have three."""

    op = "toy.threes"

    def reads(self) -> tuple[str, ...]:
        return ("parent.cuts",)

    def pick(self, lines: pa.Table, counts: Any, quotas: Any) -> dict[str, Any]:
        chosen = [value == 3 for value in lines.column("parent.cuts").to_pylist()]
        return {"copies": list(map(int, chosen)), "reject": [None if one else "few" for one in chosen]}


def family(fails: tuple[int, ...] = ()) -> Pipeline:
    """Images -> tiles -> their tiles, and stages of every contract over these that read columns of parents."""
    made = Pipeline().add("pool", toys.Numbers(namespace="toys", rows=10, shard_rows=5))
    made.add("cuts", Cuts(fails=fails), "pool", keep_null=True).add("tiles", derived.Tiles(), "cuts")
    made.add("most", Most(), "tiles").add("fit", Highest(), "tiles").add("threes", Threes(), "tiles")
    made.add("told", Told(), "tiles").add("small", derived.Tiles(namespace="small"), "told").add("cut", Cut(), "small")
    carry = ["parent.cuts", "parent.sha256"]
    made.add("dataset", PackWebDataset(name="tiles", carry=carry, shard_rows=8), "threes")
    made.add("where", Where(keep='"parent.parent.cuts" > 1', reason="few"), "cut")
    return made.check()


def test_a_retry_above_reaches_stages_of_every_contract(workspace: Path) -> None:
    """They read columns of the parents themselves, and are the same as in a workspace where nothing failed."""
    outputs = []
    for place, fails in (("clean", ()), ("retried", (3, 4, 5)), ("retried", ())):
        options = Options(failure_budget=1.0, retry={"cuts": ()} if outputs else {})
        first = run(family(fails), str(workspace / place), options=options)
        outputs.append((dict(first.outputs), Output(str(workspace / place), first)))
    for name in ("most", "fit", "threes", "dataset", "cut", "where"):
        values = [output.value(name, family().nodes[name].stage) for _, output in outputs]
        assert values[0] == values[2] != values[1], name
    assert all(run(family(), str(workspace / "clean"), options=ALL).reused.values())
    index = members(outputs[0][1].result)
    assert [row["parent.cuts"] for row in index] == [3] * 6 and all(len(row["parent.sha256"]) == 64 for row in index)


def test_a_parents_error_that_is_retried_reaches_its_children(workspace: Path) -> None:
    def pipeline(fails: tuple[int, ...]) -> Pipeline:
        made = Pipeline().add("pool", toys.Numbers(namespace="toys", rows=10, shard_rows=5))
        made.add("cuts", Cuts(fails=fails), "pool", keep_null=True).add("tiles", derived.Tiles(), "cuts")
        made.add("told", Told(), "tiles").add("long", Where(keep='"parent.cuts" > 1', reason="short"), "told")
        return made.check()

    first = run(pipeline((5,)), str(workspace), options=ALL)
    assert first.ledger["long"].rejected == {"short": 8, "short_null": 4}
    last = run(pipeline(()), str(workspace), options=Options(failure_budget=1.0, retry={"cuts": ()}))
    assert last.counts["told"].computed == 2 and last.counts["tiles"].computed == 0
    assert last.ledger["long"].rejected == {"short": 8, "short_null": 2}


@pytest.mark.parametrize(
    ("column", "stage", "problem"),
    [
        ("parent.cutz", "tiles", r"column 'parent.cutz' is missing upstream; did you mean 'parent.cuts'\?"),
        ("parent.meta.tile", "tiles", r"column 'parent.meta.tile' is missing upstream; did you mean 'parent.meta'\?"),
        (
            "parent.parent.cuts",
            "tiles",
            r"column 'parent.parent.cuts' is missing upstream; did you mean 'parent.parent'",
        ),
        ("cuts", "tiles", r"column 'cuts' is missing upstream; give 'parent.cuts'$"),
        ("parent.cuts", "cuts", r"column 'parent.cuts': rows of 'pool' have no parents; leave 'parent.' out"),
    ],
)
def test_a_wrong_column_of_the_parent_is_an_error_of_one_line(column: str, stage: str, problem: str) -> None:
    with pytest.raises(RecipeError, match=problem) as error:
        clips().add("told", Told(column=column), stage).check()
    assert "\n" not in str(error.value)


def test_a_filter_by_the_parent_is_judged_again_for_a_table(workspace: Path) -> None:
    """No mask has the rows that pass it alone: another filter, whose path joins later, comes first."""
    made = clips().add("light", toys.Light(darkest=127.0), "shade")
    made.add("long", Where(keep='"parent.cuts" > 1', reason="short"), "shade")
    made.add("every", derived.Every(), ("light", "long")).check()
    result = run(made, str(workspace), options=ALL)
    live = LiveRows(latest(open_storage(str(workspace)), None), "long")
    parents = [key for shard in live.shards for key in live.table(shard, ["parent"]).column(0).to_pylist()]
    keys = {row["parent"]: number_of(row) for row in rows(workspace)}
    assert Counter(keys[key] for key in parents) == {n: n % 3 + 1 for n in range(10) if n % 3 and n != 1}
    assert len(parents) == result.ledger["long"].after


def test_a_column_that_two_stages_above_the_children_write_names_both() -> None:
    made = Pipeline().add("pool", toys.Numbers(namespace="toys"))
    made.add("bright", toys.Brightness(), "pool").add("shifted", toys.Shifted(), "pool")
    made.add("tiles", derived.Tiles(), ("bright", "shifted")).add("told", Told(column="parent.brightness"), "tiles")
    with pytest.raises(RecipeError, match="column 'brightness' is written by 'bright' and 'shifted'; rename one"):
        made.check()


# --- columns of children ----------------------------------------------------------------------------------------------


def rolled(how: str = "list", column: str = "brightness", darkest: float = 0.0, **more: Any) -> Pipeline:
    """The brightness of tiles, of those that are light, as a column of their parents."""
    made = Pipeline().add("pool", toys.Numbers(namespace="toys", rows=10, shard_rows=5, refused=(2,)))
    made.add("tiles", derived.Tiles(none=(1,)), "pool").add("shade", toys.Brightness(), "tiles")
    made.add("lit", toys.Light(darkest=darkest), "shade")
    return made.add("rolled", RollUp(column=column, how=how, into="rolled", **more), "pool", children="lit")  # type: ignore[arg-type]


def values(workspace: Path, column: str = "rolled") -> dict[int, Any]:
    """Number of each image -> its value."""
    storage, found = open_storage(str(workspace)), dict[int, Any]()
    record = latest(storage, None)
    path = record.outputs["rolled"]["base"].rpartition("/versions/")[0]
    tables = facts.latest(storage.list(path))
    for shard in read_shards(storage, record.outputs["pool"]["base"]):
        names = storage.read_table(shard.table, columns=["caption"]).column("caption").to_pylist()
        table = facts.read(storage, path, shard.id, tables[shard.id], [facts.ROW, column])
        for row, value in zip(*(table.column(name).to_pylist() for name in (facts.ROW, column)), strict=True):
            found[int(names[row].split()[-1])] = value
    return found


def shades(workspace: Path, darkest: float) -> dict[int, list[float]]:
    """The same by hand, out of the bytes of the children."""
    found: dict[int, list[float]] = {number: [] for number in range(10) if number != 2}
    for row in rows(workspace):
        with Image.open(io.BytesIO(row["data"])) as image:
            shade = float(np.asarray(image.convert("RGB")).mean())
        found[number_of(row)] += [shade] if shade >= darkest else []
    return found


def test_values_of_alive_children_become_a_column_of_their_parent(workspace: Path, on_ray: Any) -> None:
    run(rolled(darkest=127.0).check(), str(workspace), options=ALL, engine=on_ray)
    expected = shades(workspace, 127.0)
    assert values(workspace) == expected and {len(found) for found in expected.values()} == {0, 2}
    assert all(run(rolled(darkest=127.0).check(), str(workspace), options=ALL).reused.values())
    run(rolled(darkest=0.0).check(), str(workspace), options=ALL)  # a looser filter of children
    assert values(workspace) == shades(workspace, 0.0)


@pytest.mark.parametrize(
    ("how", "of", "empty"),
    [
        ("count", len, 0),
        ("any", lambda found: True, False),
        ("min", min, None),
        ("max", max, None),
        ("sum", sum, 0),
        ("mean", lambda found: sum(found) / len(found), None),
        ("first", lambda found: found[0], None),
    ],
)
def test_each_summary(workspace: Path, how: str, of: Any, empty: Any) -> None:
    run(rolled(how, darkest=127.0).check(), str(workspace), options=ALL)
    expected = shades(workspace, 127.0)
    assert values(workspace) == {number: of(found) if found else empty for number, found in expected.items()}


def test_a_roll_up_decides_about_parents_and_gc_keeps_what_it_reads(workspace: Path) -> None:
    def judged() -> Pipeline:
        made = rolled("count", "key", 127.0).add("some", Where(keep="rolled > 0", reason="dark"), "rolled")
        return made.add("every", derived.Every(), "some").add("dataset", derived.Plain(), "every").check()

    first = run(judged(), str(workspace), options=ALL)
    lost = sum(not found for found in shades(workspace, 127.0).values())
    assert first.ledger["some"].rejected == {"dark": lost} and lost > 1
    assert gc.unreachable(open_storage(str(workspace)), keep=1) == ({}, [])
    assert all(run(judged(), str(workspace), options=ALL).reused.values())


@pytest.mark.parametrize(
    ("children", "column", "problem"),
    [
        ("other", "brightness", "children: the rows of 'other' are not made of those of 'pool'; give a stage after"),
        ("pool", "brightness", "children: 'pool' computes and filters no rows; give a stage after a Derive"),
        ("pin:mine", "brightness", "children: 'pin:mine' computes and filters no rows; give a stage after a Derive"),
        ("lit", "bright", "column 'children.bright' is missing upstream; did you mean 'children.brightness'"),
    ],
)
def test_a_wrong_roll_up_is_an_error_of_one_line(children: str, column: str, problem: str) -> None:
    made = rolled().add("others", toys.Numbers(namespace="others")).add("other", toys.Brightness(), "others")
    made.add("wrong", RollUp(column=column, how="max", into="wrong"), "pool", children=children)
    with pytest.raises(RecipeError, match=problem) as error:
        made.check()
    assert "\n" not in str(error.value)


class Words(Map):
    """A column whose type no schema knows before `setup`."""

    op: ClassVar[str] = "toy.words"
    _known: bool = False

    def setup(self, artifacts: Any) -> None:
        self._known = True

    def schema(self) -> pa.Schema:
        return pa.schema([pa.field("words", pa.string() if self._known else pa.null())])

    def process(self, batch: Batch) -> dict[str, Any]:
        return {"words": ["a"] * len(batch)}


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        (
            {"column": "caption"},
            r"`type: number` \(values of type string\); name a column of numbers, or set `type: text`",
        ),
        ({"type": "text"}, r"`type: text` \(values of type double\); name a column of texts, or set `type: number`"),
        ({"how": "mean", "column": "caption", "type": "text"}, r"name a column of numbers, or set `how: count`"),
        ({"how": "any", "column": "caption"}, r"name a column of numbers, or set `type: text`"),
    ],
)
def test_values_of_another_type_are_an_error_of_the_plan(changes: dict[str, Any], problem: str) -> None:
    given = {"how": "max", "column": "brightness"} | changes
    with pytest.raises(CurateError, match=rf"^pipeline: rolled: column: '{given['column']}' does not fit .*{problem}$"):
        rolled(**given).check()


def test_a_column_of_a_type_that_is_known_late_is_an_error_of_one_line(workspace: Path) -> None:
    made = rolled().add("late", Words(), "lit")
    made.add("wrong", RollUp(column="words", how="max", into="wrong"), "pool", children="late").check()
    with pytest.raises(CurateError, match="'words' does not fit `how: max`, `type: number`") as error:
        run(made, str(workspace), options=ALL)
    assert "\n" not in str(error.value)


def test_two_stages_that_write_a_column_and_names_of_the_engine() -> None:
    made = rolled().add("again", RollUp(how="count", into="rolled"), "rolled", children="lit")
    with pytest.raises(RecipeError, match="again: column 'rolled' is written by 'rolled' and 'again'; rename one"):
        made.check()
    for name in ("key", "parent.brightness", "children.brightness"):
        made = clips().add("bright", toys.Brightness(column=name), "shade")
        with pytest.raises(RecipeError, match=f"column '{name}': the engine uses this name; choose another"):
            made.check()
    made = rolled().add("again", RollUp(how="count", into="sha256"), "pool", children="lit")
    with pytest.raises(CurateError, match="into: 'sha256' is a column of every pool; give the new column another name"):
        made.check()
    made = rolled().add("without", RollUp(how="count", into="count"), "pool")
    with pytest.raises(RecipeError, match=r"port 'children' is missing; give the stage after which they count$"):
        made.check()
    for into in ("", "parent.count"):
        with pytest.raises(ValidationError, match="into"):
            RollUp(how="count", into=into)
