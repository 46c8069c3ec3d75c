"""Text for people: times, durations, counts, links."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest
from starlette.datastructures import FormData

from curate.service.datasets.tags import NewTag
from curate.service.pages.forms import made, real, whole
from curate.service.pages.kit import TONES, count, duration, link, part, sentence, short, when
from curate.service.problems import InvalidProblem
from curate.service.states import State


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "–"), (0.2, "0 s"), (89.4, "89 s"), (90, "2 min"), (4_680, "78 min"), (11_100, "3 h 05 min"),
        (190_800, "2 d 5 h"),
    ],
)  # fmt: skip
def test_durations_have_the_units_that_matter(seconds: float | None, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (412.5, "412"), (9_120, "9,120"), (28_104, "28.1 k"), (1.25e6, "1.25 M"), (3e9, "3 G")],
)
def test_large_numbers_are_short_in_narrow_places(value: float, text: str) -> None:
    assert short(value) == text


def test_a_sentence_keeps_names_and_addresses() -> None:
    assert sentence("its driver died") == "Its driver died"
    for text in ("embed: out of memory", "http://old:8265 does not answer", "min_side=3 is wrong", "", "r-1 is done"):
        assert sentence(text) == text


def test_times_are_shown_in_utc() -> None:
    time = datetime(2026, 3, 1, 23, 5, tzinfo=timezone(timedelta(hours=-2)))
    assert when(time) == '<time datetime="2026-03-02T01:05:00Z" data-form="minute">2 Mar 2026, 01:05</time>'
    assert when(time, "clock") == '<time datetime="2026-03-02T01:05:00Z" data-form="clock">01:05:00</time>'
    assert when(None) == "–"


def test_links_are_quoted() -> None:
    assert link("/runs", q="a b&c", state="", user=None) == "/runs?q=a+b%26c" and link("/runs") == "/runs"
    assert part("../a b?") == "..%2Fa%20b%3F"
    assert (count(1, "stage"), count(2_000, "stage"), count(2, "child", "children")) == (
        "1 stage", "2,000 stages", "2 children",
    )  # fmt: skip


@pytest.mark.parametrize("value", ["inf", "nan", "1e999", "ten", "1,5"])
def test_what_is_not_a_number_is_rejected(value: str) -> None:
    with pytest.raises(InvalidProblem, match="is not a number"):
        real(FormData({"x": value}), "x")


def test_numbers_of_a_form() -> None:
    form = FormData({"a": " 2 ", "b": "2.5", "c": ""})
    assert (whole(form, "a"), real(form, "b"), whole(form, "c"), real(form, "d")) == (2, 2.5, None, None)
    with pytest.raises(InvalidProblem, match=r"b: 2\.5 is not an integer"):
        whole(form, "b")
    with pytest.raises(InvalidProblem, match="base: String should match pattern"):
        made(NewTag, base="../x")


def test_every_state_has_a_look() -> None:
    assert TONES.keys() >= set(State)
