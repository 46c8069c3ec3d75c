from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pytest

from curate.core.errors import InputError
from curate.core.nouns.tombstones import Tombstones, add, history, load, remove
from curate.core.store.storage import Storage

KEY, SHA, URL = "0f" * 16, "ab" * 32, "https://example.org/cat.jpg"


def test_a_new_workspace_has_no_tombstones(storage: Storage) -> None:
    assert not load(storage) and load(storage).digest == ""
    table = pa.table({"key": [KEY], "url": [URL], "sha256": [SHA]})
    assert not load(storage).mask(table).any()


def test_the_kind_of_an_entry_follows_from_its_form(storage: Storage) -> None:
    assert add(storage, [KEY, "", "# a comment", f"  {URL} \n", SHA], "asked for") == 3
    found = load(storage)
    assert found.values == {"key": (KEY,), "url": (URL,), "sha256": (SHA,)}
    table = pa.table(
        {
            "key": [KEY, "00" * 16, "00" * 16, "00" * 16],
            "url": pa.array([None, URL, "https://example.org/", None], pa.string()),
            "sha256": pa.array([None, None, SHA, "00" * 32], pa.string()),
        }
    )
    assert found.mask(table).tolist() == [True, True, True, False]
    assert found.mask(table.slice(0, 0)).tolist() == []


def test_the_list_only_grows_and_its_digest_with_it(storage: Storage) -> None:
    add(storage, [KEY], "one")
    first = load(storage)
    add(storage, [KEY, URL], "two")
    second = load(storage)
    add(storage, [URL], "two again")
    assert sorted(storage.list("tombstones")) == ["000001.json", "000002.json", "000003.json"]
    assert first.digest != second.digest == load(storage).digest
    assert second.values["key"] == (KEY,)


def test_a_removal_needs_a_reason_and_keeps_both_entries(storage: Storage) -> None:
    add(storage, [KEY], "one")
    before = load(storage)
    add(storage, [URL], "asked for")
    assert remove(storage, [URL], "they agreed") == 1
    assert load(storage) == before and load(storage).digest == before.digest
    assert history(storage) == [
        ("key", KEY, "one", False), ("url", URL, "asked for", False), ("url", URL, "they agreed", True),
    ]  # fmt: skip
    add(storage, [URL], "asked again")
    assert load(storage).values["url"] == (URL,)
    for entries, why, said in [([SHA], "x", f"there is none for '{SHA}'"), ([URL], " ", "the reason is blank")]:
        with pytest.raises(InputError, match=said):
            remove(storage, entries, why)
    assert len(history(storage)) == 4


def test_concurrent_additions(storage: Storage) -> None:
    entries = [f"{i:032x}" for i in range(12)]
    with ThreadPoolExecutor(6) as threads:
        list(threads.map(lambda entry: add(storage, [entry], "at once"), entries))
    assert load(storage).values["key"] == tuple(entries)
    assert len(storage.list("tombstones")) == 12


@pytest.mark.parametrize("entry", ["cat.jpg", "0F" * 16, "ab" * 20, "example.org/cat.jpg"])
def test_an_unknown_kind_of_entry_rejects_the_whole_list(storage: Storage, entry: str) -> None:
    with pytest.raises(InputError, match=rf"tombstones: {entry!r} is not a key \(32 hex\), sha256 \(64 hex\) or URL"):
        add(storage, [KEY, entry], "a mistake")
    assert not load(storage)


def test_an_empty_list_is_a_mistake(storage: Storage) -> None:
    with pytest.raises(InputError, match="no entries; give keys, sha256 digests, URLs or source ids, one per line"):
        add(storage, ["", "# nothing"], "")


def test_the_digest_does_not_depend_on_the_order_of_entries() -> None:
    assert Tombstones({"key": ("a", "b")}).digest == Tombstones({"key": ("b", "a")}).digest
