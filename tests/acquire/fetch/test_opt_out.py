from email.message import Message

import pytest
from hypothesis import given
from hypothesis import strategies as st

from curate.acquire.fetch.codes import Failure
from curate.acquire.fetch.opt_out import OptOut, forbids_training, is_reserved, robots_directives
from curate.acquire.fetch.settings import FetchSettings

DEFAULTS = FetchSettings(contact="a@example.com")
ALL = OptOut(DEFAULTS.opt_out, DEFAULTS.disallowed_header_directives, "curate")


def headers(*lines: str) -> Message:
    message = Message()
    for line in lines:
        name, _, value = line.partition(": ")
        message[name] = value
    return message


def code(opt_out: OptOut, *lines: str) -> str | None:
    try:
        opt_out.check(headers(*lines))
    except Failure as failure:
        return failure.code
    return None


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("noai", {"noai"}),
        ("NoAI, NoImageAI", {"noai", "noimageai"}),
        ("noindex,nofollow", {"noindex", "nofollow"}),
        ("none", {"noindex", "nofollow"}),
        ("otherbot: noai", set()),
        ("otherbot: noai, noindex", set()),
        ("otherbot: noindex, curate: noai", {"noai"}),
        ("nofollow, otherbot: noai, curate:noimageai, nosnippet", {"nofollow", "noimageai", "nosnippet"}),
        ("Curate: noai", {"noai"}),
        ("*: noai", {"noai"}),
        ("max-snippet: 20, noai", {"max-snippet: 20", "noai"}),
        ("otherbot: max-snippet: 20, noai", set()),
        ("curate: max-image-preview: large, noai", {"max-image-preview: large", "noai"}),
        ("unavailable_after: 25 Jun 2010 15:00:00 PST, noai", {"unavailable_after: 25 jun 2010 15:00:00 pst", "noai"}),
        ("", set()),
        (",, ,", set()),
    ],
)
def test_directives_that_concern_us(value: str, expected: set[str]) -> None:
    assert robots_directives(value, "curate") == expected


def test_a_date_with_commas_and_colons_is_not_a_bot() -> None:
    found = robots_directives("unavailable_after: Fri, 25 Jun 2010 15:00:00 PST, noai", "curate")
    assert "noai" in found
    assert code(ALL, "X-Robots-Tag: unavailable_after: Fri, 25 Jun 2010 15:00:00 PST") is None


@pytest.mark.parametrize(
    ("value", "forbidden"),
    [
        ("train-ai=n", True),
        ("train-ai=y", False),
        ("train-ai", False),
        ("train-ai=?0", False),
        ("search=y, train-ai=n", True),
        ("search=n", False),
        ("train-ai=n;exp=1;b", True),
        ("a;train-ai=n", False),
        ('a="x, train-ai=n", b=1', False),
        ('a="\\", train-ai=n", b=1', False),
        ("train-ai=n, train-ai=y", False),
        ("train-ai=y, train-ai=n", True),
        ("  train-ai=n  ,", True),
        ("no-train-ai=n", False),
        ("train-ai=no", False),
        ("", False),
    ],
)
def test_content_usage(value: str, forbidden: bool) -> None:
    assert forbids_training([value]) is forbidden


@pytest.mark.parametrize(
    ("value", "reserved"), [("1", True), (" 1 ", True), ("0, 1", True), ("0", False), ("10", False)]
)
def test_tdm_reservation(value: str, reserved: bool) -> None:
    assert is_reserved([value]) is reserved


def test_each_header_has_a_code() -> None:
    assert code(ALL, "X-Robots-Tag: all", "x-robots-tag: noimageindex") == "opt_out_x_robots_tag"
    assert code(ALL, "TDM-Reservation: 1", "tdm-policy: https://example.com/") == "opt_out_tdm_reservation"
    assert code(ALL, "Content-Usage: train-ai=n") == "opt_out_content_usage"
    assert code(ALL, "Content-Type: image/jpeg", "X-Robots-Tag: nofollow") is None


def test_each_line_stands_for_itself() -> None:
    """Robots: a bot's name ends with its line. A string that a line leaves open hides no other line."""
    bot, ours = "X-Robots-Tag: googlebot: nofollow", "X-Robots-Tag: noai"
    assert code(ALL, bot, ours) == code(ALL, ours, bot) == "opt_out_x_robots_tag"
    assert code(ALL, bot, "X-Robots-Tag: otherbot: noai", "X-Robots-Tag: all") is None
    assert code(ALL, "X-Robots-Tag: otherbot: none, curate: all", "X-Robots-Tag: none") == "opt_out_x_robots_tag"
    assert code(ALL, "TDM-Reservation: 0", "TDM-Reservation: 1") == "opt_out_tdm_reservation"
    assert code(ALL, "TDM-Reservation: 1", "TDM-Reservation: 0") == "opt_out_tdm_reservation"
    assert code(ALL, "Content-Usage: search=y", "Content-Usage: train-ai=n") == "opt_out_content_usage"
    opened = ('Content-Usage: a="x', "Content-Usage: train-ai=n", 'Content-Usage: b="')
    assert code(ALL, *opened) == "opt_out_content_usage"
    assert code(ALL, "Content-Usage: train-ai=n", "Content-Usage: train-ai=y") is None  # the last value of a key counts


@pytest.mark.parametrize("filler", ["x", "x, ", "otherbot: x, ", '"', '\\"', '"\\', ": ", " "])
def test_a_header_is_read_to_its_end(filler: str) -> None:
    """In time that grows with its length: the deadline of a fetch does not interrupt it."""
    long = filler * (300_000 // len(filler))
    assert code(ALL, f"X-Robots-Tag: {long}, *: noai") == "opt_out_x_robots_tag"
    assert code(ALL, *["X-Robots-Tag: all"] * 90, "X-Robots-Tag: " + "y, " * 20_000, "X-Robots-Tag: noai")
    assert code(ALL, f"TDM-Reservation: {long}, 1") == "opt_out_tdm_reservation"
    closed = f'a="{long}\\"' if filler == '"\\' else long
    assert code(ALL, f"Content-Usage: {closed}", "Content-Usage: train-ai=n") == "opt_out_content_usage"


def test_the_header_is_kept() -> None:
    with pytest.raises(Failure) as caught:
        ALL.check(headers("X-Robots-Tag: nofollow", "X-Robots-Tag: noai"))
    assert caught.value.detail == "x-robots-tag: nofollow; x-robots-tag: noai"
    with pytest.raises(Failure) as caught:
        ALL.check(headers("X-Robots-Tag: noai" + ", x" * 10_000))
    assert len(caught.value.detail) == 200


def test_what_is_switched_off_does_not_count() -> None:
    nothing = OptOut((), DEFAULTS.disallowed_header_directives, "curate")
    assert code(nothing, "X-Robots-Tag: noai", "tdm-reservation: 1", "Content-Usage: train-ai=n") is None
    assert code(OptOut(["x-robots-tag"], ["noai"], "curate"), "X-Robots-Tag: noindex") is None
    with pytest.raises(ValueError, match="opt_out: 'robots' is unknown; choose from x-robots-tag, tdm-reservation"):
        OptOut(["robots"], (), "curate")


@given(st.text())
def test_any_value_has_an_answer(value: str) -> None:
    assert all(directive == directive.strip().lower() for directive in robots_directives(value, "curate"))
    assert forbids_training([value]) in (True, False) and is_reserved([value]) in (True, False)
