"""`curate text try`: which rule changed a caption."""

from __future__ import annotations

import io
import sys

import pytest

from curate.cli.text import _change, printable
from tests.e2e.commands import curate


def test_each_rule_that_changes_something_is_shown() -> None:
    said = curate("text", "try", "RT @jane: A dog!! &amp; [b]a cat[/b]. It #SleepsWell", "--also", "hashtag_words")
    assert (said.code, said.err) == (0, "")
    assert "entities RT @jane: A dog!! &amp; [b]a cat[/b]. It #SleepsWell RT @jane: A dog!! & [b]a cat" in said.words
    assert "punctuation ␠: A dog!! & [b]a cat[/b]. It Sleeps Well ␠: A dog! & [b]a cat" in said.words
    assert "text A dog! & [b]a cat[/b]. It Sleeps Well" in said.words
    assert "sentence 0 A dog! & [b]a cat[/b]. sentence 1 It Sleeps Well" in said.words
    assert "counted entities 1, hashtag_words 1, leftovers 1, mentions 1, punctuation 1" in said.words


def test_lines_of_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"a  b\n\xff\nclean\n")))
    words = curate("text", "try", "-").words
    assert "text a b" in words and "text (empty)" in words and "text clean (unchanged)" in words


def test_rules_by_name() -> None:
    words = curate(
        "text", "try", "a  &amp;\x00\ud800  b!!", "--rules", "entities, spaces,hidden", "--without", "spaces"
    ).words
    assert "hidden" in words and "\\x00" in words and "text a & b!!" in words
    assert (
        "--also: unknown rule 'spelling'; choose from quoting" in curate("text", "try", "x", "--also", "spelling").error
    )


def test_only_the_surroundings_of_a_change_are_shown() -> None:
    assert _change("a" * 99 + "xx" + "b" * 99, "a" * 99 + "b" * 99) == (
        "…" + "a" * 40 + "xx" + "b" * 40 + "…",
        "…" + "a" * 40 + "b" * 40 + "…",
    )
    assert len(_change("x" * 9999, "")[0]) < 300
    assert _change("aa", "a") == ("aa", "a")


def test_invisible_characters_are_escaped() -> None:
    assert printable(" a\n\u200b\x1b[31m é ") == "␠a\\n\\u200b\\x1b[31m é␠"
    assert (printable("  "), printable("")) == ("␠␠", "")
