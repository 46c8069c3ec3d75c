"""Rows whose items go on one by one: the ledger, the files, what packs and reports see of them."""

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

from curate.core import tombstones
from curate.core.contracts import Batch, Map, Report, Select, Table
from curate.core.errors import CurateError
from curate.core.items import PER_ITEM
from curate.core.pipeline import Pipeline
from curate.core.storage import open_storage, open_workspace
from curate.engine import shuffle
from curate.engine.explain import explain
from curate.engine.record import latest
from curate.engine.run import Result, run
from curate.pack.webdataset import PackWebDataset
from tests.engine import toys

ROWS = 40


class Words(Map):
    """Number n of the pool has n % 4 words; the second of three is not there."""

    op: ClassVar[str] = "toy.words"

    def reads(self) -> tuple[str, ...]:
        return ("caption",)

    def writes(self) -> tuple[str, ...]:
        return ("words",)

    def schema(self) -> pa.Schema:
        return pa.schema([pa.field("words", pa.list_(pa.string()), metadata=PER_ITEM)])

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
            if word is not None or not words
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


def made(**pack: Any) -> Pipeline:
    pipeline = Pipeline().add("pool", toys.Numbers(namespace="toys", rows=ROWS)).add("words", Words(), "pool")
    pipeline.add("pick", Pick(), "words")
    pipeline.add("dataset", PackWebDataset(name="words", shard_rows=7, **pack), "pick")
    return pipeline.add("shown", Shown(), "dataset").check()


def carried(workspace: Path) -> Result:
    return run(made(text="words", carry={"word": "words"}), str(workspace))


def there() -> Counter[str]:
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
    assert (entry.items, entry.copies) == (len(there()), there().total())
    every = sum(word is not None for number in range(ROWS) for word in words_of(number))
    refused = Counter(items=every + wordless, items_no_word=wordless, items_fives=every - len(there()))
    assert entry.counters == refused
    assert result.ledger["dataset"].before == len(there()) and result.ledger["dataset"].copies == there().total()


def test_a_sample_has_the_text_of_its_item(workspace: Path) -> None:
    result = carried(workspace)
    storage = open_storage(result.outputs["dataset"])
    rows = storage.read_table("index.parquet").to_pylist()
    assert Counter(row["word"] for row in rows) == there()
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
    table = next(iter(found.storage.read_table(f"{found.outputs['pick']['base']}/buckets/000000.parquet").to_batches()))
    row = next(r for r in table.to_pylist() if r["copies"] and r["item"] == "2")
    facts = next(facts for name, _, facts in explain(found, row["key"]) if name == "pick")
    assert facts["reject"] is None and facts["items"][-1].startswith("2: ") and facts["copies"] >= 2


def test_another_text_for_items_is_refused(workspace: Path) -> None:
    with pytest.raises(CurateError, match=r"'caption' has one text a row, but item 1 of .* name the list column"):
        run(made(), str(workspace))


def test_buried_rows_are_refused_whole(workspace: Path) -> None:
    first = carried(workspace)
    index = open_storage(first.outputs["dataset"]).read_table("index.parquet")
    key = next(row["key"] for row in index.to_pylist() if row["item"] == "2")
    tombstones.bury(open_workspace(str(workspace), create=False), [key], "asked for")
    second = carried(workspace)
    assert second.ledger["pick"].rejected["tombstone"] == 1
    left = open_storage(second.outputs["dataset"]).read_table("index.parquet").column("key").to_pylist()
    assert key not in left and len(left) < index.num_rows


def test_both_engines_agree(tmp_path: Path, on_ray: Any) -> None:
    a = run(made(text="words"), str(tmp_path / "a"))
    b = run(made(text="words"), str(tmp_path / "b"), engine=on_ray)
    one, two = (io.BytesIO(open_storage(r.outputs["dataset"]).read("index.parquet")) for r in (a, b))
    assert one.getvalue() == two.getvalue()
