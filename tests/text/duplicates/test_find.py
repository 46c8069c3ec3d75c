from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from curate.core.contracts import Artifact, Batch
from curate.core.errors import CurateError
from curate.core.group import MemoryGroup
from curate.core.hashing import make_key, ranks
from curate.text.duplicates import find
from curate.text.duplicates.copies import DropTextDuplicates, TextCopies
from curate.text.duplicates.find import FindTextDuplicates
from curate.text.duplicates.kernels import normalised
from tests.core.stored import Stored

SAME = [
    ("A Dog!", "a  dog"),
    ("STRASSE", "Straße"),
    ("ＦＵＬＬ width", "full width"),
    ("Cafe\u0301", "café"),
    ("it's", "its"),
    ("AC/DC", "ac - dc"),
    ("\u202bdog\u202c", "dog"),
    ("a\0b", "a b"),
]
DIFFERENT = [
    ("dog", "dogs"),
    ("कि", "का"),
    ("photo 12", "photo 13"),
    ("😀", "😁"),
    ("é", "e"),
    ("C#", "D"),
    ("x2", "x²a"),
]


@pytest.mark.parametrize(("one", "other"), SAME)
def test_what_counts_as_one_text(one: str, other: str) -> None:
    assert normalised(one) == normalised(other) != ""


@pytest.mark.parametrize(("one", "other"), DIFFERENT)
def test_what_counts_as_two(one: str, other: str) -> None:
    assert normalised(one) != normalised(other)


def test_settings() -> None:
    assert normalised("A dog!", punctuation=True) != normalised("A dog", punctuation=True)
    assert (
        normalised("photo 12", digits=False)
        == normalised("Photo 97", digits=False)
        != normalised("photo 1", digits=False)
    )
    assert normalised("!!!") == "!!!" and normalised(" \u200b\n") == ""


@given(st.text(st.characters(), max_size=60), st.booleans(), st.booleans())
def test_normalising_twice_changes_nothing(text: str, punctuation: bool, digits: bool) -> None:
    once = normalised(text, punctuation=punctuation, digits=digits)
    assert normalised(once, punctuation=punctuation, digits=digits) == once


@pytest.mark.parametrize("piece", ["a", "!", "\u0301\u0323", "😀", "ﷺ", "\ud800"])
@pytest.mark.timeout(60)
def test_a_megabyte_is_linear(piece: str) -> None:
    """It only must end: half a second if linear, hours if quadratic."""
    normalised(piece * (1_000_000 // len(piece.encode("utf-8", "surrogatepass"))))


def table(texts: list[str | None], start: int = 0) -> pa.Table:
    keys = [make_key("texts", str(start + place)) for place in range(len(texts))]
    return pa.table({"key": keys, "text": pa.array(texts, pa.string())})


def found(texts: list[str | None], cuts: tuple[int, ...] = (), **parameters: Any) -> Stored:
    """Each range of rows is a separate shard: `shard 0`, `shard 1` ..."""
    stage = FindTextDuplicates(**parameters)
    whole = table(texts)
    edges = [0, *cuts, len(texts)]
    shards = [
        whole.slice(a, b - a).replace_schema_metadata({"shard": f"shard {number}"})
        for number, (a, b) in enumerate(pairwise(edges))
    ]
    group = MemoryGroup([stage.load(shard) for shard in shards])
    return Stored(stage.fit(group), group)


def copies_of(
    texts: list[str | None], artifact: Artifact, cuts: tuple[int, ...] | None = None, **parameters: Any
) -> Any:
    """`text_count` and `text_copy` of each row; with `cuts`, the Map knows the rows' shards."""
    stage = TextCopies(**parameters)
    before = stage.schema()
    stage.setup({"sets": artifact})
    assert stage.schema().equals(before) and not stage.schema().equals(before, check_metadata=True)
    whole = table(texts)
    if cuts is not None:
        edges = [0, *cuts, len(texts)]
        shards = [f"shard {number}" for number, (a, b) in enumerate(pairwise(edges)) for _ in range(b - a)]
        whole = whole.append_column("shard", pa.array(shards, pa.string()).dictionary_encode())
    return pa.table(stage.process(Batch(whole)), schema=stage.schema())


def dropped(texts: list[str | None], artifact: Artifact, copies: int = 1) -> list[str | None]:
    return DropTextDuplicates(copies=copies).keep(copies_of(texts, artifact)).to_pylist()


TEXTS = ["Stock photo", None, "stock photo!", "", "a dog", "STOCK PHOTO", "A dog.", "a cat", "😀"]


def test_sets_and_what_stays() -> None:
    artifact = found(TEXTS, keepers=2)
    assert artifact["texts"].column("count").to_pylist() == [3, 2]
    assert artifact["summary"] == {
        "rows": 7,
        "texts": 4,
        "repeated": 2,
        "surplus": 3,
        "largest": 3,
        "made": {"column": "text", "punctuation": False, "digits": True, "keepers": 2},
        "buckets": 1,
    }
    columns = copies_of(TEXTS, artifact)
    assert columns["text_count"].to_pylist() == [3, None, 3, None, 2, 3, 2, 1, 1]
    copies = columns["text_copy"].to_pylist()
    assert [copies[row] for row in (1, 3, 7, 8)] == [None, None, 1, 1]
    assert sorted(copies[row] for row in (0, 2, 5)) == [1, 2, 3] and sorted(copies[row] for row in (4, 6)) == [1, 2]
    reasons = dropped(TEXTS, artifact)
    kept = Counter(normalised(text) for text, reason in zip(TEXTS, reasons, strict=True) if text and not reason)
    assert kept == {"stock photo": 1, "a dog": 1, "a cat": 1, "😀": 1}
    assert Counter(dropped(TEXTS, artifact, copies=2)) == {None: 8, "text_duplicate": 1}
    with pytest.raises(CurateError, match=r"text.drop_duplicates.copies: 3, but the sets list 2 .* `keepers: 3`"):
        dropped(TEXTS, artifact, copies=3)
    with pytest.raises(
        CurateError,
        match=r"text.drop_duplicates: column 'text_copy' has no metadata .*; use the column of `text.copies`",
    ):
        DropTextDuplicates().keep(pa.table({"text_copy": [1]}))
    with pytest.raises(CurateError, match=r"text.copies.column: 'caption', but its sets are of .* 'text'"):
        copies_of(TEXTS, artifact, column="caption")


def test_the_smallest_hashes_stay() -> None:
    texts: list[str | None] = ["the same"] * 9
    keys = table(texts).column("key").to_pylist()
    for seed in (0, 1):
        artifact = found(texts, seed=seed, keepers=3)
        expected = [keys[place] for place in np.argsort(ranks(seed, keys))[:3]]
        assert artifact["texts"].column("keys").to_pylist() == [expected]
        copies = copies_of(texts, artifact)["text_copy"].to_pylist()
        assert [copies[keys.index(key)] for key in expected] == [1, 2, 3] and sorted(copies)[3:] == [4] * 6


@given(st.lists(st.sampled_from(["a", "A!", "b", "c c", "C  c", "d", "", None]), max_size=30), st.data())
def test_however_rows_are_cut(texts: list[str | None], data: st.DataObject) -> None:
    cuts = tuple(sorted(data.draw(st.lists(st.integers(0, len(texts)), max_size=3))))
    whole, parts = found(texts, keepers=2), found(texts, cuts, keepers=2)
    assert whole["texts"].equals(parts["texts"]) and whole["summary"] == parts["summary"]
    by_shard = copies_of(texts, parts, cuts)
    assert by_shard.equals(copies_of(texts, parts)) and by_shard.equals(copies_of(texts, whole))
    counts, reasons = copies_of(texts, whole)["text_count"].to_pylist(), dropped(texts, whole, copies=2)
    truth = Counter(normalised(text) for text in texts if text)
    assert counts == [truth[normalised(text)] if text else None for text in texts]
    kept = Counter(normalised(text) for text, reason in zip(texts, reasons, strict=True) if text and not reason)
    assert kept == {text: min(2, count) for text, count in truth.items()}


def test_many_buckets_are_the_same_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    texts: list[str | None] = [f"text {number % 50}" for number in range(200)]
    one = found(texts)
    monkeypatch.setattr(find, "BUCKET_ROWS", 16)
    many = found(texts, (20, 150))
    assert many["summary"]["buckets"] > 1 and many["texts"].equals(one["texts"])
    for cuts in ((20, 150), None):
        assert copies_of(texts, many, cuts).equals(copies_of(texts, one))
    monkeypatch.setattr(find, "LISTED", 5)
    assert found(texts, (20, 150))["texts"].equals(one["texts"].slice(0, 5))


def test_rows_missing_from_the_sets_are_found_by_their_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a shard of the sets, and in another shard."""
    monkeypatch.setattr(find, "BUCKET_ROWS", 2)
    texts: list[str | None] = ["a", "b", "b", "c", "d", "d", "d", "e"]
    artifact = found(texts, (3,), keepers=2)
    more: list[str | None] = [*texts, "D!", "new", "b"]
    for cuts in ((3,), (3, 8), None):
        rows = copies_of(more, artifact, cuts)
        assert rows["text_count"].to_pylist() == [1, 2, 2, 1, 3, 3, 3, 1, 3, 1, 2]
        assert rows["text_copy"].to_pylist()[8:] == [3, 1, 3]
        assert rows.slice(0, 8).equals(copies_of(texts, artifact, (3,)))


def test_a_row_is_looked_up_in_the_range_of_its_shard_only() -> None:
    artifact = found(["a", "b", "b", "c", "d", "d"], (3,))
    looked: set[tuple[str, int]] = set()
    artifact.part = lambda name, index: (looked.add((name, index)), Stored.part(artifact, name, index))[1]  # type: ignore
    stage = TextCopies()
    stage.setup({"sets": artifact})
    shard = pa.array(["shard 1"] * 3).dictionary_encode()
    stage.process(Batch(table(["c", "d", "d"], 3).append_column("shard", shard)))
    assert looked == {("counts", 1), ("named", 1)}


def test_sets_of_an_older_version_are_rejected() -> None:
    with pytest.raises(CurateError, match=r"text.copies.sets: written by an older version .*; rerun text.duplicates"):
        TextCopies().setup({"sets": {"summary": {"made": {"column": "text"}}}})


def test_a_pool_without_texts() -> None:
    artifact = found([None, ""])
    assert artifact["texts"].num_rows == 0 and artifact["summary"]["rows"] == 0
    assert copies_of([None, "", "new"], artifact)["text_copy"].to_pylist() == [None, None, 1]
    assert dropped([None, "", "new"], artifact) == [None] * 3 and dropped([], artifact) == []
    assert found([])["summary"]["texts"] == 0


def test_examples_are_whole_characters() -> None:
    [example] = found(["語" * 200] * 2)["texts"].column("example").to_pylist()
    assert example == "語" * 32
