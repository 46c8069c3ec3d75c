"""Several arrays in one file: readable by numpy, memory-mapped on disk, rows by one ranged read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from curate.core.store.arrays import ALIGNED_BYTES, members, read_arrays, read_rows, write_arrays
from curate.core.store.storage import open_storage
from tests.core.store.object_store import new_bucket

KINDS = ("<f2", "<f4", "<f8", "<i8", "<u8", "|u1", "|b1", "|S5")
some = st.dictionaries(
    st.text("abcdefgh_1", min_size=1, max_size=12),
    st.sampled_from(KINDS).flatmap(lambda kind: arrays.arrays(kind, arrays.array_shapes(max_dims=3, min_side=0))),
    max_size=4,
)


@given(some)
def test_arrays_are_read_back(tmp_path_factory: pytest.TempPathFactory, given_arrays: dict[str, np.ndarray]) -> None:
    storage = open_storage(str(tmp_path_factory.mktemp("arrays")))
    write_arrays(storage, "a.npz", given_arrays)
    found = read_arrays(storage, "a.npz")
    with np.load(storage.path("a.npz")) as plain:
        for name, array in given_arrays.items():
            for other in (found[name], plain[name]):
                assert (other.dtype, other.shape, other.tobytes()) == (array.dtype, array.shape, array.tobytes())
    assert list(found) == list(given_arrays)
    assert all(member.offset % ALIGNED_BYTES == 0 for member in members(storage, "a.npz").values())
    assert not any(array.flags.writeable for array in found.values() if array.size)


@given(st.integers(0, 30), st.data())
def test_rows_in_another_order(tmp_path_factory: pytest.TempPathFactory, rows: int, data: st.DataObject) -> None:
    storage = open_storage(str(tmp_path_factory.mktemp("arrays")))
    order = np.array(data.draw(st.permutations(range(rows))), dtype=np.int64)
    x = np.arange(rows * 3, dtype=np.float32).reshape(rows, 3)
    write_arrays(storage, "a.npz", {"x": x}, order, head={"head": np.arange(2)})
    start = data.draw(st.integers(0, rows))
    stop = data.draw(st.integers(start, rows))
    assert np.array_equal(read_rows(storage, "a.npz", "x", start, stop), x[order][start:stop])
    assert read_arrays(storage, "a.npz")["head"].tolist() == [0, 1]


def test_the_same_bytes_from_other_layouts(tmp_path: Path) -> None:
    storage = open_storage(str(tmp_path))
    x = np.arange(12, dtype=np.int32).reshape(3, 4)
    write_arrays(storage, "a.npz", {"x": x})
    write_arrays(storage, "b.npz", {"x": np.asfortranarray(x)})
    write_arrays(storage, "c.npz", {"x": np.repeat(x, 2, axis=0)[::2]})
    assert storage.read("a.npz") == storage.read("b.npz") == storage.read("c.npz")


def test_arrays_of_objects_are_rejected(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="x: cannot write Python objects; convert the array"):
        write_arrays(open_storage(str(tmp_path)), "a.npz", {"x": np.array([None])})


def test_on_an_object_store(object_store: Any) -> None:
    storage = open_storage(f"s3://{new_bucket(object_store)}/deep")
    x = np.arange(40_000, dtype=np.float32).reshape(-1, 2)
    write_arrays(storage, "a/b.npz", {"x": x, "none": x[:0]})
    assert np.array_equal(read_arrays(storage, "a/b.npz")["x"], x)
    assert np.array_equal(read_rows(storage, "a/b.npz", "x", 17, 1017), x[17:1017])
    assert read_rows(storage, "a/b.npz", "none", 0, 0).shape == (0, 2)
