"""Rows whose items are judged individually: the ledger, the files, and their view in packs and reports."""

from __future__ import annotations

import io
import json
from collections import Counter
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pytest
from numpy.typing import NDArray

from curate.core.contracts import Batch, Filter, Map, Report, Select, Table
from curate.core.errors import CurateError
from curate.core.items import places_of
from curate.core.nouns import tombstones
from curate.core.recipe.pipeline import Pipeline
from curate.core.store.storage import open_storage, open_workspace
from curate.engine.record.explain import explain
from curate.engine.record.runs import latest
from curate.engine.run import Result, run
from curate.engine.units import shuffle
from curate.pack.webdataset import PackWebDataset
from tests.engine import toys

ROWS = 40


class Words(Map):
    """Number n of the pool has n % 4 words; the second of three is null."""

    op: ClassVar[str] = "toy.words"

    def reads(self) -> tuple[str, ...]:
        return ("caption",)

    def schema(self) -> pa.Schema:
        return pa.schema([pa.field("words", pa.list_(pa.string()), metadata=places_of("words"))])

    def process(self, batch: Batch) -> dict[str, Any]:
        numbers = [int(caption.split()[-1]) for caption in batch.column("caption")]
        return {"words": [words_of(number) for number in numbers]}


def words_of(number: int) -> list[str | None]:
    words: list[str | None] = [f"{number}-{place}" for place in range(number % 4)]
    return [words[0], None, words[2]] if len(words) == 3 else words


DEALT = pa.schema([("row", pa.int64()), ("item", pa.string()), ("word", pa.string())])


class Pick(Select):
    """Every word once, last words twice; words of numbers divisible by 5 never."""

    op: ClassVar[str] = "toy.pick"

    def reads(self) -> tuple[str, ...]:
        return ("words",)

    def deal(self, table: Table) -> Table:
        found = [
            {"row": row, "item": str(place), "word": word}
            for row, words in enumerate(table.column("words").to_pylist())
            for place, word in enumerate(words or [None])
            if word is not None or (place == 0 and not any(words or ()))
        ]
        return pa.Table.from_pylist(found, DEALT)

    def plan(self, counts: NDArray[np.int64]) -> NDArray[np.int64]:
        return counts

    def pick(self, lines: Table, counts: NDArray[np.int64], quotas: NDArray[np.int64]) -> dict[str, Any]:
        said = [-1 if word is None else copies(word) for word in lines.column("word").to_pylist()]
        return {
            "copies": [max(count, 0) for count in said],
            "reject": [None if count > 0 else "no_word" if count < 0 else "fives" for count in said],
            "expected": [max(count, 0) + 0.5 for count in said],
        }


def copies(word: str) -> int:
    number, place = map(int, word.split("-"))
    return 0 if number % 5 == 0 else 2 if place == number % 4 - 1 else 1


class Shown(Report):
    op: ClassVar[str] = "toy.shown"

    def render(self, view: Any) -> dict[str, bytes]:
        names = ["words", "copies", "item_copies", "item_expected", "rejected_by", "reject_reason"]
        rows = [row for table in view.tables(names) for row in table.to_pylist()]
        return {"rows": json.dumps(rows).encode()}


def word_pipeline(**pack: Any) -> Pipeline:
    pipeline = Pipeline().add("pool", toys.Numbers(namespace="toys", rows=ROWS)).add("words", Words(), "pool")
    pipeline.add("pick", Pick(), "words")
    pipeline.add("dataset", PackWebDataset(name="words", shard_rows=7, **pack), "pick")
    return pipeline.add("shown", Shown(), "dataset").check()


def carried(workspace: Path) -> Result:
    return run(word_pipeline(text="words", carry={"word": "words"}), str(workspace))


def distinct_words() -> Counter[str]:
    """Copies of each word that has any."""
    words = [word for number in range(ROWS) for word in words_of(number) if word is not None]
    return +Counter({word: copies(word) for word in words})


def test_the_ledger_counts_rows_items_and_copies(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shuffle, "LEAST_ROWS", 16)  # several buckets
    result = carried(workspace)
    entry = result.ledger["pick"]
    wordless = sum(number % 4 == 0 for number in range(ROWS))
    fives = sum(number % 5 == 0 and number % 4 > 0 for number in range(ROWS))
    assert (entry.before, entry.rejected) == (ROWS, Counter(no_word=wordless, fives=fives))
    assert (entry.items, entry.copies) == (len(distinct_words()), distinct_words().total())
    every = sum(word is not None for number in range(ROWS) for word in words_of(number))
    refused = Counter(items=every + wordless, items_no_word=wordless, items_fives=every - len(distinct_words()))
    assert entry.counters == refused
    assert (
        result.ledger["dataset"].before == len(distinct_words())
        and result.ledger["dataset"].copies == distinct_words().total()
    )


def test_a_sample_has_the_text_of_its_item(workspace: Path) -> None:
    result = carried(workspace)
    storage = open_storage(result.outputs["dataset"])
    rows = storage.read_table("index.parquet").to_pylist()
    assert Counter(row["word"] for row in rows) == distinct_words()
    tars = [storage.read(name) for name in sorted(storage.list("")) if name.endswith(".tar")]
    for row in rows:
        text = tars[row["shard"]][row["text_offset"] :][: row["text_size"]].decode()
        assert text == row["word"] and text.endswith(f"-{row['item']}")


def test_a_report_sees_items(workspace: Path) -> None:
    result = carried(workspace)
    rows = json.loads((Path(result.outputs["shown"]) / "rows").read_text())
    assert len(rows) == ROWS
    for row in rows:
        words = row["words"]
        counts = [0 if word is None else copies(word) for word in words]
        assert row["item_copies"] == (counts or [0]) and row["copies"] == sum(counts)
        expected = [0 if word is None else copies(word) + 0.5 for word in words]
        assert row["item_expected"] == (expected or [0.5])
        assert (row["rejected_by"] is None) == (sum(counts) > 0)


def test_explain_names_items(workspace: Path) -> None:
    carried(workspace)
    found = latest(open_workspace(str(workspace), create=False), None)
    table = next(
        iter(found.storage.read_table(f"{found.outputs['pick']['base']}/rows/000000-0000.parquet").to_batches())
    )
    row = next(r for r in table.to_pylist() if r["copies"] and r["item"] == "2")
    facts = next(facts for name, _, facts in explain(found, row["key"]) if name == "pick")
    assert facts["reject"] is None and facts["items"][-1].startswith("2: ") and facts["copies"] >= 2


def test_another_text_for_items_is_rejected(workspace: Path) -> None:
    with pytest.raises(CurateError, match=r"'caption' has one text per row, but item 1 of .* give the list column"):
        run(word_pipeline(), str(workspace))


def test_tombstoned_rows_are_rejected_with_all_items(workspace: Path) -> None:
    first = carried(workspace)
    index = open_storage(first.outputs["dataset"]).read_table("index.parquet")
    key = next(row["key"] for row in index.to_pylist() if row["item"] == "2")
    tombstones.add(open_workspace(str(workspace), create=False), [key], "asked for")
    second = carried(workspace)
    assert second.ledger["pick"].rejected["tombstone"] == 1
    left = open_storage(second.outputs["dataset"]).read_table("index.parquet").column("key").to_pylist()
    assert key not in left and len(left) < index.num_rows


def test_both_engines_agree(tmp_path: Path, on_ray: Any) -> None:
    a = run(word_pipeline(text="words"), str(tmp_path / "a"))
    b = run(word_pipeline(text="words"), str(tmp_path / "b"), engine=on_ray)
    one, two = (io.BytesIO(open_storage(r.outputs["dataset"]).read("index.parquet")) for r in (a, b))
    assert one.getvalue() == two.getvalue()


# --- filters that judge items -----------------------------------------------------------------------------------------


class Judge(Filter):
    """Rejects the word at one place of each row, and null words."""

    op: ClassVar[str] = "toy.judge"
    place: int = 0

    def reads(self) -> tuple[str, ...]:
        return ("words",)

    def places(self) -> str | None:
        return "words"

    def keep(self, table: Table) -> list[list[str | None] | None]:
        return [[self._why(place, word) for place, word in enumerate(row)] for row in table.column("words").to_pylist()]

    def _why(self, place: int, word: str | None) -> str | None:
        return "not_there" if word is None else f"place_{self.place}" if place == self.place else None


def left(*places: int) -> dict[int, dict[int, str]]:
    """Number -> place -> word, of the words that no judge of these places rejects."""
    return {
        number: {p: word for p, word in enumerate(words_of(number)) if word is not None and p not in places}
        for number in range(ROWS)
    }


def filtered_words(*inputs: str) -> Pipeline:
    """Words, judged by two filters in turn (`later`) and in another branch (`last`)."""
    pipeline = Pipeline().add("pool", toys.Numbers(namespace="toys", rows=ROWS)).add("words", Words(), "pool")
    pipeline.add("first", Judge(), "words").add("later", Judge(place=2), "first")
    pipeline.add("last", Judge(place=2), "words").add("pick", Pick(), inputs)
    pipeline.add("dataset", PackWebDataset(name="words", shard_rows=7, text="words", carry={"word": "words"}), "pick")
    return pipeline.add("shown", Shown(), "dataset").check()


def test_the_ledger_counts_items_on_their_own(workspace: Path) -> None:
    ledger = run(filtered_words("later"), str(workspace)).ledger
    words = {number: words_of(number) for number in range(ROWS)}
    first, later = ledger["first"], ledger["later"]
    ones = sum(len(row) == 1 for row in words.values())
    assert first.rejected == Counter(no_items=sum(not row for row in words.values()), place_0=ones)
    items = first.of_items["words"]
    with_any = sum(bool(row) for row in words.values())
    assert items.rejected == Counter(place_0=with_any)  # where no word is, none is rejected
    assert items.before == sum(word is not None for row in words.values() for word in row)
    assert items.after == sum(map(len, left(0).values()))
    assert later.before == first.after == sum(bool(row) for row in left(0).values())
    assert later.of_items["words"].before == items.after
    threes = sum(len(row) == 3 for row in words.values())
    assert later.of_items["words"].rejected == Counter(place_2=threes)
    assert later.rejected == Counter(not_there=threes)  # the first reason that the filter gives of the row's items


@pytest.mark.parametrize("inputs", [("later",), ("last",), ("later", "last"), ("first", "last")])
def test_rejected_items_are_not_selected_and_places_stay(workspace: Path, inputs: tuple[str, ...]) -> None:
    """Where branches meet, an item passes if both branches pass it."""
    places = {"first": (0,), "later": (0, 2), "last": (2,)}
    words = left(*(place for name in inputs for place in places[name]))
    result = run(filtered_words(*inputs), str(workspace))
    index = open_storage(result.outputs["dataset"]).read_table("index.parquet").to_pylist()
    expected = +Counter({(word, str(p)): copies(word) for row in words.values() for p, word in row.items()})
    assert Counter((row["word"], row["item"]) for row in index) == expected and expected
    assert all(row["word"].endswith(f"-{row['item']}") for row in index)
    entry = result.ledger["pick"]
    assert entry.before == result.ledger["later"].after if inputs == ("later",) else entry.before <= ROWS
    assert entry.rejected["fives"] == sum(bool(row) for number, row in words.items() if number % 5 == 0)


def test_reports_and_explain_show_rejected_items(workspace: Path) -> None:
    result = run(filtered_words("later"), str(workspace))
    by = Counter(row["rejected_by"] for row in json.loads((Path(result.outputs["shown"]) / "rows").read_text()))
    assert by["first"] == result.ledger["first"].lost.total() and by["later"] == result.ledger["later"].lost.total()
    found = latest(open_workspace(str(workspace), create=False), None)
    ways = {n: {name: about for name, _, about in explain(found, f"{n:06d}")} for n in (1, 3)}
    known = {"words rejected up to here": ["0: place_0"]}
    assert ways[1]["first"]["reject"] == "place_0" and ways[1]["later"] == {"not judged": "first: place_0"} | known
    assert ways[3]["first"] == {"reject": None}
    assert {"0: place_0", "2: place_2"} <= set(ways[3]["later"]["words rejected up to here"])


def test_explain_attributes_a_reject_to_its_own_filter(workspace: Path) -> None:
    """A mask has reasons of items, not who gave them: they are shown once, where the ways meet."""
    run(filtered_words("first", "last"), str(workspace))
    found = latest(open_workspace(str(workspace), create=False), None)
    way = {name: about for name, _, about in explain(found, "000003")}
    assert way["first"] == {"reject": None}
    known = "words rejected where first and last meet"
    assert way["last"].keys() == {"reject", known} and {"0: place_0", "2: place_2"} <= set(way["last"][known])


def test_another_filter_computes_no_word_again(workspace: Path) -> None:
    """A selection is rebuilt only if it receives other items."""
    run(filtered_words("first", "last"), str(workspace))
    result = run(filtered_words("first"), str(workspace))
    assert result.counts["words"].computed == 0 and not result.reused["pick"]
    again = run(filtered_words("first", "last"), str(workspace))
    assert again.counts["words"].computed == 0 and again.reused["pick"] and again.reused["dataset"]
