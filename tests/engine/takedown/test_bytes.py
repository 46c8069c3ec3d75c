"""An image's bytes are found in any file that has them, and nothing else is."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from curate.core.store.storage import Storage
from curate.engine.takedown import bytes as of_bytes
from curate.engine.takedown.bytes import CHUNK, mark_of, scan

sizes = st.integers(1, 3 * CHUNK)


def noise(size: int, seed: int = 0) -> bytes:
    return np.random.default_rng(seed).bytes(size)


@given(sizes, st.integers(0, 5000), st.integers(0, 5000))
def test_bytes_are_found_wherever_they_lie(size: int, before: int, after: int) -> None:
    data = noise(size)
    mark = mark_of(data)
    assert (mark.size, mark.length) == (size, min(size, CHUNK))
    assert mark.found_in(bytes(before) + data + noise(after, 1))
    if size > 32:
        assert not mark.found_in(bytes(before) + noise(size, 2) + noise(after, 1))


def test_the_middle_alone_is_enough_and_other_ends_do_not_hide_it() -> None:
    data = noise(50_000)
    middle = data[len(data) // 2 - CHUNK // 2 :][:CHUNK]
    assert mark_of(data).found_in(b"other" + middle) and not mark_of(data).found_in(middle[1:])
    assert len(bytes.fromhex(mark_of(data).word)) == 16


def test_a_flat_image_is_found_by_the_place_that_is_not_flat() -> None:
    data = bytes(9000) + b"only this differs" + bytes(9000)
    assert mark_of(data).found_in(bytes(20_000) + data + bytes(20_000))
    assert not mark_of(data).found_in(bytes(40_000))


@pytest.mark.parametrize("shift", [-CHUNK, -1, 0, 1, 5])
def test_a_scan_finds_bytes_across_the_blocks_that_it_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shift: int
) -> None:
    block = 1 << 16
    monkeypatch.setattr(of_bytes, "_BLOCK", block)
    data = noise(6000)
    (tmp_path / "in").mkdir()
    (tmp_path / "in/file").write_bytes(noise(2 * block - 3000 + shift, 1) + data + noise(block, 2))
    (tmp_path / "in/.file.0.tmp").write_bytes(data)
    (tmp_path / "in/other").write_bytes(noise(3 * block, 3))
    found = dict(scan(Storage(str(tmp_path)), "in", [mark_of(noise(99, 4)), mark_of(data)]))
    assert found == {str(tmp_path / "in" / name): name != "other" for name in (".file.0.tmp", "file", "other")}
