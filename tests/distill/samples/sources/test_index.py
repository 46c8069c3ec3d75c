"""Integer columns of an index, in memory or mapped from the cache."""

import errno
import fcntl
import json
import logging
import os
import shutil
from itertools import count

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from curate.core.errors import InputError, StorageError
from curate.core.hashing import make_key
from distill.samples.batches.draws import TEXT, Draws, lowest
from distill.samples.sources import dataset as datasets
from distill.samples.sources import index
from distill.samples.sources.dataset import open_dataset
from distill.samples.sources.members import MemberReader
from distill.samples.sources.mixture import as_mixture
from distill.samples.sources.split import held_out, held_out_rows
from tests.distill.datasets import drawn_items, write_dataset


@pytest.fixture
def large(tmp_path, monkeypatch):
    """The cache folder, with every dataset counting as large."""
    monkeypatch.setenv("CURATE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(index, "_IN_MEMORY", 0)
    monkeypatch.setattr(datasets, "_BATCH", 7)
    return tmp_path / "cache" / "index"


def test_mapped_arrays_equal_those_in_memory(folder, dataset, large, monkeypatch):
    mapped = open_dataset(str(folder))
    assert mapped.fingerprint == dataset.fingerprint
    for name in ("shard", "row", "copy", "offset", "size", "width", "height", "text_offset", "item"):
        held, found = dataset.index.numbers(name), mapped.index.numbers(name)
        assert np.array_equal(held, found) and not found.flags.writeable and isinstance(found.base, np.ndarray)
    assert np.array_equal(dataset.index.words, mapped.index.words)
    assert np.array_equal(dataset.index.sets, mapped.index.sets)
    (kept,) = large.glob("[!.]*")
    assert sum(path.stat().st_size for path in kept.iterdir()) < 60 * 110 + 2000
    monkeypatch.setattr(index, "_write", None)
    assert len(open_dataset(str(folder))) == 60


@pytest.mark.parametrize("harm", ["cut", "gone", "meta", "others", "flipped"])
def test_corrupt_arrays_are_rebuilt_and_logged(folder, large, caplog, harm):
    offsets = open_dataset(str(folder)).integers("offset").copy()
    (kept,) = large.glob("[!.]*")
    array, meta = kept / "offset.int64", kept / "meta.json"
    if harm == "cut":
        array.write_bytes(array.read_bytes()[:-8])
    elif harm == "gone":
        array.unlink()
    elif harm == "flipped":
        data = array.read_bytes()
        array.write_bytes(data[:100] + bytes([data[100] ^ 255]) + data[101:])
    elif harm == "meta":
        meta.write_text("[]")
    else:
        values = json.loads(meta.read_text())
        for path in kept.glob("*int*"):
            path.write_bytes(path.read_bytes() * 2)
        files = {path.name: index._check(path) for path in kept.glob("*int*")}
        meta.write_text(json.dumps({**values, "files": files}))
    with caplog.at_level(logging.WARNING, "distill"):
        again = open_dataset(str(folder))
    (record,) = caplog.records
    assert "corrupt" in record.message and "rebuilding it" in record.message
    assert np.array_equal(again.integers("offset"), offsets)


def test_a_read_only_cache_is_a_one_line_error(folder, large):
    large.parent.write_text("a file in its place")
    with pytest.raises(StorageError, match=r"cannot write the index .*; set CURATE_CACHE"):
        open_dataset(str(folder))


def test_two_machines_may_write_the_same_arrays(folder, dataset, large, monkeypatch):
    rename, first = os.rename, []

    def late(source, target):
        first.append(shutil.copytree(source, target).stat().st_ino)
        rename(source, target)

    def flock(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(os, "rename", late)
    monkeypatch.setattr(fcntl, "flock", flock)
    assert open_dataset(str(folder)).fingerprint == dataset.fingerprint
    (kept,) = (path for path in large.iterdir() if path.name != ".lock")
    assert [kept.stat().st_ino] == first


def test_arrays_of_old_versions_are_removed_when_unused(tmp_path, folder, large):
    place = shutil.copytree(folder, tmp_path / "d")
    open_dataset(str(folder))
    for number in range(4):
        manifest = json.loads((place / "manifest.json").read_text())
        (place / "manifest.json").write_text(json.dumps({**manifest, "number": number}))
        before = set(large.glob("[!.]*"))
        open_dataset(str(place))
        (new,) = set(large.glob("[!.]*")) - before
        if number == 1:
            for old in [*large.glob("[!.]*"), shutil.copytree(new, new.with_name(f".{new.name}.killed"))]:
                os.utime(old, (0, 0))
            open_dataset(str(place))  # used again
    assert len(set(large.iterdir())) == 1 + 1 + 3  # the lock, the other dataset, the folders used today


def test_arrays_that_cannot_be_kept_are_a_one_line_error(folder, large, monkeypatch):
    counts = count()
    monkeypatch.setattr(index, "_check", lambda path: [next(counts)])
    with pytest.raises(StorageError, match="corrupt right after it was written; set CURATE_CACHE"):
        open_dataset(str(folder))


@pytest.mark.parametrize("name", ["index.parquet", "sizes.json", "manifest.json"])
@pytest.mark.parametrize("harm", ["cut", "empty", "gone", "type", "bytes"])
def test_damaged_files_of_a_dataset_are_one_line_errors(tmp_path, folder, name, harm):
    copy = shutil.copytree(folder, tmp_path / "copy")
    file = copy / name
    data = file.read_bytes()
    if harm == "gone":
        file.unlink()
    else:
        other = b"[1, 2]" if name.endswith("json") else b"PAR1 these are words"
        file.write_bytes({"cut": data[: len(data) // 2], "empty": b"", "type": other, "bytes": b"\xff\xfe" * 99}[harm])
    expected = "has no manifest.json" if (name, harm) == ("manifest.json", "gone") else f"{name}: cannot read it"
    with pytest.raises(InputError, match=expected) as error:
        open_dataset(str(copy))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("column", "values", "said"),
    [
        ("width", "wide", "Failed to parse string: 'wide'"),
        ("key", "short", "each must be 32 hex characters"),
        ("key", None, ""),
        ("shard", -1, "rows are not in tar order"),
        ("offset", [1], "cast"),
    ],
)
def test_columns_of_other_types_are_one_line_errors(tmp_path, folder, column, values, said):
    copy = shutil.copytree(folder, tmp_path / "copy")
    table = pq.read_table(copy / "index.parquet")
    place = table.column_names.index(column)
    pq.write_table(table.set_column(place, column, pa.array([values] * 60)), copy / "index.parquet")
    with pytest.raises(InputError, match=rf"index\.parquet: .*{said}.*; write the dataset again with pack"):
        open_dataset(str(copy))


def test_words_and_strings_give_the_same_splits_and_samples(dataset):
    mixture = as_mixture(dataset)
    sides = held_out(dataset.strings("key"), dataset.strings("duplicate_set"), seed=3, fraction=0.3)
    assert np.array_equal(held_out_rows(mixture, seed=3, fraction=0.3), sides)
    assert not held_out_rows(mixture, seed=3, fraction=0.0).any()
    chosen = lowest(mixture, ~sides, 9, seed=3, salt=4)
    whole = lowest(mixture, ~sides, 999, seed=3, salt=4)
    assert len(chosen) == 9 and chosen.tolist() == whole[:9].tolist()
    assert sorted(whole.tolist()) == np.flatnonzero(~sides).tolist()


def test_items_of_one_key_are_drawn_independently(tmp_path):
    """An image with several texts has a row per text."""
    items = drawn_items(8)
    for number, item in enumerate(items):
        item.key, item.columns["item"] = make_key("t", str(number // 4)), str(number % 4)
    draws = Draws(as_mixture(open_dataset(str(write_dataset(tmp_path / "d", items)))), seed=1)
    assert len(set(draws.ranks(TEXT, np.arange(8), 0).tolist())) == 8


def test_carried_columns_may_have_any_name_and_type(tmp_path):
    carried = {"shirt_size": "XL", "file_size": 1.5, "members": "a", "x_offset": [1, 2], "json_size": None}
    items = drawn_items(9)
    for item in items:
        item.columns |= carried
    found = open_dataset(str(write_dataset(tmp_path / "d", items, documents=[{"a": 1}] * 9)))
    for name, value in carried.items():
        assert found.values(name, np.array([8, 0])) == [value] * 2
    members = MemberReader(found)
    assert members.member(3, "x") is None and b'"a": 1' in members.member(3, "json")


def test_values_of_some_rows_in_one_pass(tmp_path, monkeypatch):
    items = drawn_items(40)
    for number, item in enumerate(items):
        item.columns["said"] = (None, "", "yes")[number % 3]
    place = write_dataset(tmp_path / "d", items)
    monkeypatch.setattr(datasets, "_BATCH", 7)
    found, passes, parts = open_dataset(str(place)), [], []
    whole, real = found.strings("key"), datasets._batches

    def batches(*given):
        passes.append(given)
        for batch in real(*given):
            parts.append(len(batch))
            yield batch

    monkeypatch.setattr(datasets, "_batches", batches)
    rows = np.array([13, 2, 13, 0, 6, 7])
    assert found.values("key", rows) == [whole[row] for row in rows]
    assert len(passes) == 1 and parts == [7, 7]
    assert found.values("key", rows[:0]) == []
    assert found.has_value("said").tolist() == [number % 3 == 2 for number in range(40)]
    pq.write_table(pq.read_table(place / "index.parquet").slice(0, 5), place / "index.parquet")
    with pytest.raises(InputError, match="the dataset shrank after it was opened"):
        found.values("key", rows)
