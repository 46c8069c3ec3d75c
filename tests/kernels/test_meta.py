from __future__ import annotations

from curate.kernels.meta import field_at


def test_a_name_comes_before_a_path() -> None:
    fields = {"a.b": 1, "a": {"b": 2, "c": {"d": None}}, "e": "text"}
    assert [field_at(fields, path) for path in ("a.b", "a.c", "e")] == [1, {"d": None}, "text"]


def test_a_missing_field_gives_none() -> None:
    assert [field_at({"a": {"b": 1}, "e": "text"}, path) for path in ("x", "a.x", "a.b.c", "e.f", "")] == [None] * 5
