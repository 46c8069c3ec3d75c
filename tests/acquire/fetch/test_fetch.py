"""Redirects, hosts' turns, pauses, retries, and what an image is. See test_faults.py for hosts that misbehave."""

from __future__ import annotations

import gzip
import hashlib
import time
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest

from curate.acquire.fetch import fetch as module
from curate.acquire.fetch.fetch import Fetcher
from curate.acquire.fetch.settings import FetchSettings
from tests.acquire.fetch.scripted import IMAGE, SETTINGS, Scripted, path_of, redirect, response


def test_what_is_fetched_and_what_is_sent() -> None:
    began = time.monotonic()
    with Scripted(response(IMAGE, "Content-Type: image/png")) as server, nullcontext(server.fetcher()) as fetcher:
        found = fetcher.fetch(server.url("/ä.png?b#c"), sha256=hashlib.sha256(IMAGE).hexdigest().upper())
    assert (found.status, found.code, found.detail, found.tries) == ("done", "done", "", 1)
    assert (found.data, found.ext, found.content_type, found.host) == (IMAGE, "jpg", "image/png", "127.0.0.1")
    assert found.bytes > len(IMAGE) and 0 < found.seconds <= time.monotonic() - began
    line, *headers = server.requests[0].decode().splitlines()
    assert line == "GET /%C3%A4.png?b HTTP/1.1"
    assert sorted(headers) == [
        "Accept-Encoding: identity",
        "Accept: */*",
        "Connection: close",
        f"Host: 127.0.0.1:{server.port}",
        f"User-Agent: {SETTINGS.agent}",
    ]


def test_the_user_agent_says_who_asks() -> None:
    assert SETTINGS.agent.startswith("curate/") and SETTINGS.agent.endswith(" (+curator@example.com)")
    assert SETTINGS.product == "curate"
    own = replace(SETTINGS, user_agent="Mozilla/5.0 (compatible; OurBot/1.0)")
    assert (own.agent, own.product) == ("Mozilla/5.0 (compatible; OurBot/1.0)", "mozilla")


def test_the_host_of_the_first_request(tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text("denied.example\n")
    with nullcontext(Fetcher(replace(SETTINGS, deny_hosts=str(tmp_path / "hosts")))) as fetcher:
        assert fetcher.first_host("https://A.Example./b") == "a.example"
        for url in ("http://www.denied.example/", "http://a.example:81/", "ftp://a.example/", "http://\ud800/"):
            assert fetcher.first_host(url) == ""


# --- redirects ---


@pytest.mark.parametrize(
    ("location", "code"),
    [
        ("http://denied.example/", "denied_host"),
        ("/denied", "denied_url"),
        ("/a.jpg", "redirects"),
        ("http://127.0.0.1:22/", "port"),
        ("http://user@127.0.0.1/", "credentials"),
        ("/\x7f", "bad_url"),
        ("", "http_302"),
    ],
)
def test_each_redirect_is_checked(location: str, code: str, tmp_path: Path) -> None:
    with Scripted(redirect(location)) as server:
        (tmp_path / "hosts").write_text("denied.example\n")
        (tmp_path / "urls").write_text(server.url("/denied"))
        files = {"deny_hosts": str(tmp_path / "hosts"), "deny_urls": str(tmp_path / "urls")}
        with nullcontext(server.fetcher(**files)) as fetcher:
            found = fetcher.fetch(server.url())
    assert (found.code, found.tries, len(server.requests)) == (code, 1, 1)


def test_opt_outs_of_a_redirect_do_not_count_those_of_the_image_do() -> None:
    answers = {
        "/a": redirect("/b", "X-Robots-Tag: noai"),
        "/b": response(),
        "/c": redirect("/d"),
        "/d": response(IMAGE, "X-Robots-Tag: noai"),
    }
    with Scripted(lambda head: answers[path_of(head)]) as server, nullcontext(server.fetcher()) as fetcher:
        assert fetcher.fetch(server.url("/a")).code == "done"
        found = fetcher.fetch(server.url("/c"))
        assert (found.code, found.detail) == ("opt_out_x_robots_tag", "x-robots-tag: noai")


# --- turns and pauses ---


def test_each_further_request_waits_for_its_turn() -> None:
    answers = {"/a": redirect("http://127.0.0.1/b"), "/b": response()}
    turns: list[tuple[str, bool]] = []

    def move(host: str, seconds: float) -> bool:
        turns.append((host, 0 < seconds <= 60.0))
        return True

    seen: list[str] = []

    def script(head: bytes) -> bytes:
        seen.append(path_of(head))
        if seen == ["/a"]:
            return response(b"", status="503 Busy")
        return redirect(f"http://localhost:{server.port}/b") if seen[-1] == "/a" else answers["/b"]

    with Scripted(script) as server, nullcontext(server.fetcher(lookup=lambda host: ["127.0.0.1"])) as fetcher:
        found = fetcher.fetch(server.url("/a"), move=move)
    assert (found.code, found.tries, found.host) == ("done", 2, "localhost")
    assert seen == ["/a", "/a", "/b"]
    assert turns == [("127.0.0.1", True), ("localhost", True)]


def test_a_turn_that_does_not_come() -> None:
    with Scripted(redirect("/b")) as server, nullcontext(server.fetcher()) as fetcher:
        found = fetcher.fetch(server.url("/a"), move=lambda host, seconds: False)
    assert (found.code, found.detail) == ("deadline", "127.0.0.1 is busy, or asks for a pause")
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    ("headers", "parked"),
    [
        (["Retry-After: 3600"], 3600.0),
        (["Retry-After: 999999999999"], 86_400.0),
        (["Date: Sun, 22 Nov 2026 10:00:00 GMT", "Retry-After: Sun, 22 Nov 2026 11:00:00 GMT"], 3600.0),
    ],
)
@pytest.mark.parametrize("status", ["429 Too Many Requests", "503 Busy"])
def test_a_long_pause_parks_the_host_and_ends_the_fetch(status: str, headers: list[str], parked: float) -> None:
    pauses: list[tuple[str, float]] = []
    with (
        Scripted(response(b"", *headers, status=status)) as server,
        nullcontext(server.fetcher(park=lambda host, seconds: pauses.append((host, seconds)))) as fetcher,
    ):
        found = fetcher.fetch(server.url())
    assert (found.code, found.tries) == (f"http_{status[:3]}", 1)
    assert pauses == [("127.0.0.1", parked)]


@pytest.mark.parametrize("value", ["0", "Sun, 22 Nov 2020 10:00:00 GMT", "Sunday, 22-Nov-20 10:00:00 GMT"])
def test_a_pause_that_is_over(value: str) -> None:
    pauses: list[float] = []

    def script(head: bytes) -> bytes:
        return response() if pauses else response(b"", f"Retry-After: {value}", status="429 Too Many Requests")

    with (
        Scripted(script) as server,
        nullcontext(server.fetcher(park=lambda host, seconds: pauses.append(seconds))) as fetcher,
    ):
        found = fetcher.fetch(server.url())
    assert (found.code, found.tries, pauses) == ("done", 2, [0.0])


@pytest.mark.parametrize("value", ["soon", "-5", "1.5", "", "Sun, 99 Nov 2020 10:00:00 GMT", "²"])
def test_an_unreadable_pause_is_ignored(value: str) -> None:
    pauses: list[float] = []
    with (
        Scripted(response(b"", f"Retry-After: {value}", status="503 Busy")) as server,
        nullcontext(server.fetcher(park=lambda host, seconds: pauses.append(seconds))) as fetcher,
    ):
        assert fetcher.fetch(server.url()).tries == 3
    assert pauses == []


def test_a_pause_of_what_does_not_pass_is_ignored() -> None:
    pauses: list[float] = []
    with (
        Scripted(response(b"", "Retry-After: 5", status="404 Not Found")) as server,
        nullcontext(server.fetcher(park=lambda host, seconds: pauses.append(seconds))) as fetcher,
    ):
        assert fetcher.fetch(server.url()).tries == 1
    assert pauses == []


def test_no_retry_begins_that_cannot_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LONGEST_BACKOFF_SECONDS", 3600.0)
    monkeypatch.setattr(module.random, "uniform", lambda low, high: high)
    with (
        Scripted(response(b"", status="500 Oops")) as server,
        nullcontext(server.fetcher(backoff_seconds=3600.0, deadline_seconds=1000.0)) as fetcher,
    ):
        found = fetcher.fetch(server.url())
    assert (found.code, found.tries) == ("http_500", 1) and found.seconds < 100


# --- images ---


def test_a_false_encoding_and_a_true_one() -> None:
    answers = {
        "/false": response(IMAGE, "Content-Encoding: utf-8"),
        "/true": response(gzip.compress(IMAGE), "Content-Encoding: gzip"),
        "/bad": response(b"abc", "Content-Encoding: gzip"),
    }
    with Scripted(lambda head: answers[path_of(head)]) as server, nullcontext(server.fetcher()) as fetcher:
        found = [fetcher.fetch(server.url(path)) for path in answers]
    assert [(one.code, one.data) for one in found] == [("done", IMAGE), ("done", IMAGE), ("encoding", b"")]


@pytest.mark.parametrize(
    ("body", "detail"),
    [
        (b"<!DOCTYPE html><html>", "b'<!DOCTYPE html><', sent as 'image/jpeg'"),
        (b"<svg xmlns='x'/>", "'svg', sent as 'image/jpeg'"),
        (b"", "b'', sent as 'image/jpeg'"),
    ],
)
def test_what_is_not_an_image(body: bytes, detail: str) -> None:
    with Scripted(response(body, "Content-Type: image/jpeg")) as server, nullcontext(server.fetcher()) as fetcher:
        found = fetcher.fetch(server.url())
    assert (found.code, found.detail, found.tries) == ("not_image", detail, 1)


@pytest.mark.parametrize("name", ["sha256", "md5"])
def test_bytes_that_changed(name: str) -> None:
    with Scripted(response()) as server, nullcontext(server.fetcher()) as fetcher:
        found = fetcher.fetch(server.url(), **{name: "0" * 32})
    assert (found.status, found.code, found.detail, found.data) == ("unusable", "changed", f"{name} differs", b"")


# --- errors of ours, settings ---


def test_an_error_of_ours_is_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(data: bytes) -> str:
        raise MemoryError("no\nmore")

    monkeypatch.setattr(module, "sniff", broken)
    with Scripted(response()) as server, nullcontext(server.fetcher()) as fetcher:
        found = fetcher.fetch(server.url())
    assert (found.status, found.code, found.detail) == ("error", "unexpected", "MemoryError: no more")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"allow_networks": ("10.0.0.1/8",)}, "'10.0.0.1/8' is not a network"),
        ({"proxy": "socks5://proxy:1080"}, "proxy: not an http URL"),
        ({"user_agent": "a\r\nb"}, "user_agent: "),
        ({"opt_out": ("robots",)}, "opt_out: 'robots' is unknown"),
    ],
)
def test_settings_that_cannot_be_used(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Fetcher(replace(SETTINGS, **settings))  # type: ignore[arg-type]


def test_settings_from_json() -> None:
    read = FetchSettings.of({"contact": "a@example.com", "allow_ports": [8080], "image_size": 256})
    assert read == FetchSettings(contact="a@example.com", allow_ports=(8080,))


def test_details_are_short() -> None:
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: " + b"9" * 4000 + b"\r\n\r\n"
    with Scripted(answer) as server, nullcontext(server.fetcher()) as fetcher:
        found = fetcher.fetch(server.url())
    assert found.code == "too_large" and len(found.detail) == 300
