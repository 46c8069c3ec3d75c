"""Files that can be rebuilt."""

from __future__ import annotations

from pathlib import Path

from curate.service.cached import Cached


def test_a_file_is_used_in_place(tmp_path: Path) -> None:
    kept = Cached(str(tmp_path), 100)
    assert kept.mapped("name") is None
    for data in (b"abc", b""):
        kept.put("name", data)
        found = kept.mapped("name")
        assert found is not None
        kept.drop("name")
        assert found.tobytes() == data
    kept.close()
