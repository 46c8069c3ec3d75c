"""Which rows of a portion share a fetch."""

from __future__ import annotations

from typing import Any

from curate.acquire.download.download import _fetches


def row(url: str, caption: str | None = None, group: int = 1, **more: Any) -> dict[str, Any]:
    return {"url": url, "caption": caption, "group": group, "sha256": None, "md5": None, "reject": None} | more


def shared(rows: list[dict[str, Any]], only: frozenset[str] | None = None) -> list[list[str]]:
    return [[one["source_id"] for one in together] for together in _fetches(rows, only)]


def test_spellings_of_one_url_are_one_fetch() -> None:
    rows = [row("http://a.example/", "x"), row("HTTP://A.example:80", "y"), row("http://b.example/", group=2)]
    assert shared(rows) == [["http://a.example/\tx", "HTTP://A.example:80\ty"], ["http://b.example/"]]


def test_different_urls_with_one_hash_are_fetched_separately() -> None:
    rows = [row("http://a.example/"), row("http://b.example/"), row("http://a.example/", "x")]
    assert shared(rows) == [["http://a.example/", "http://a.example/\tx"], ["http://b.example/"]]


def test_different_digests_are_fetched_separately() -> None:
    rows = [row("http://a.example/"), row("http://a.example/", "x", md5="0" * 32), row("http://a.example/", "y")]
    assert shared(rows) == [["http://a.example/", "http://a.example/\ty"], ["http://a.example/\tx"]]


def test_a_later_generation_fetches_only_its_rows() -> None:
    rows = [row("http://a.example/", "x"), row("http://a.example/", "y"), row("http://b.example/", group=2)]
    assert shared(rows, frozenset({"http://a.example/\ty"})) == [["http://a.example/\ty"]]
