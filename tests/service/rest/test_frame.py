"""What every request passes and every answer gets."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from curate.core import errors
from curate.service.pages import runs as run_pages
from curate.service.places import workspaces
from curate.service.problems import Problem, TooManyProblem, UnavailableProblem
from curate.service.rest.errors import STATUSES, status_of
from curate.service.rest.frame import Frame
from curate.service.settings import Settings
from tests.service.rest.site import Site

SECURED = ("content-security-policy", "x-content-type-options", "x-frame-options", "referrer-policy", "x-request-id")


@pytest.mark.parametrize("path", ["/healthz", "/api/v1/runs", "/api/v1/none", "/runs", "/static/service.css"])
def test_every_answer_is_framed(site: Site, path: str) -> None:
    answer = site.ask("GET", path)
    assert all(name in answer.headers for name in SECURED)
    assert "frame-ancestors 'none'" in answer.headers["content-security-policy"]
    assert re.fullmatch(r"app;dur=[\d.]+", answer.headers["server-timing"])
    assert path.startswith("/static") or answer.headers["cache-control"] == "no-store"
    assert "strict-transport-security" not in answer.headers
    assert "strict-transport-security" in {name.lower() for name in Frame(site.app, Settings(url="https://c")).headers}


@pytest.mark.parametrize(
    ("given", "kept"), [("abc-1.2_x", True), ("", False), ("x" * 65, False), ("a b", False), ("a\u00e9", False)]
)
def test_a_request_id_is_kept_if_it_is_plain(site: Site, given: str, kept: bool) -> None:
    answer = site.ask("GET", "none", headers={"X-Request-ID": given.encode("latin-1")})
    assert (answer.headers["x-request-id"] == given) is kept
    assert answer.json()["request_id"] == answer.headers["x-request-id"]


@pytest.mark.parametrize("host", ["evil.example", "", "testserver.evil.example", "[::1", "127.0.0.1.evil.example"])
def test_a_host_that_is_not_ours_is_rejected(site: Site, host: str) -> None:
    answer = site.ask("GET", "me", headers={"Host": host})
    assert (answer.status_code, answer.json()["code"]) == (400, "bad_request")
    assert site.ask("GET", "/healthz", headers={"Host": host}).status_code == 200


def test_probes_may_ask_for_the_head_only(site: Site) -> None:
    answer = site.client.head("/healthz")
    assert (answer.status_code, answer.content) == (200, b"")


@pytest.mark.parametrize("host", ["testserver", "TESTSERVER:8080", "localhost:1", "127.0.0.1:9", "[::1]:80"])
def test_our_names_and_loopback_are_ours(site: Site, host: str) -> None:
    assert site.ask("GET", "me", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize("path", ["runs/a%00b", "runs?query=%00", "runs?user=a%00"])
def test_nul_is_rejected_in_an_address(site: Site, path: str) -> None:
    answer = site.ask("GET", path)
    assert (answer.status_code, answer.json()["code"]) == (400, "bad_request")


def test_nul_is_rejected_in_a_body(site: Site) -> None:
    for order in ({"recipe": "a\0"}, {"recipe": "a", "title": "\0"}, {"recipe": "a", "set": ["a=\0"]}):
        answer = site.ask("POST", "runs", json={"workspace": "main"} | order)
        assert (answer.status_code, answer.json()["code"]) == (422, "invalid") and "NUL" in answer.json()["detail"]


def test_a_body_that_is_too_large_is_rejected_before_it_is_read(site: Site) -> None:
    answer = site.ask("POST", "runs", content=b" " * 100_001)
    assert (answer.status_code, answer.json()["code"]) == (413, "too_large")
    assert "100001 bytes" in answer.json()["detail"] and "at most 100000" in answer.json()["detail"]


def test_a_body_without_a_length_is_counted(site: Site) -> None:
    def chunks() -> Iterator[bytes]:
        yield from [b"[" + b"1," * 5_000] * 20

    answer = site.ask("POST", "runs", content=chunks(), headers={"Content-Type": "application/json"})
    assert (answer.status_code, answer.json()["code"]) == (413, "too_large")


def test_errors_are_problems_with_a_code(site: Site) -> None:
    admin, seen = site.people.admin, {}
    wrong, text = {"name": "../x", "address": 1, "token": "s3cret"}, {"Content-Type": "application/json"}
    for name, answer in {
        "path": site.ask("GET", "none"),
        "method": site.ask("PUT", "runs"),
        "field": site.ask("POST", "targets", admin, json=wrong),
        "json": site.ask("POST", "targets", admin, content=b"{", headers=text),
        "query": site.ask("GET", "runs?limit=-1"),
    }.items():
        assert answer.headers["content-type"] == "application/problem+json"
        found = answer.json()
        assert set(found) == {"type", "title", "status", "code", "detail", "request_id", "errors"}
        assert found["status"] == answer.status_code and "\n" not in found["detail"] and "s3cret" not in answer.text
        seen[name] = (answer.status_code, found["code"], [one["field"] for one in found["errors"]])
    assert seen == {
        "path": (404, "not_found", []),
        "method": (405, "method_not_allowed", []),
        "field": (422, "invalid", ["name", "address", "token"]),
        "json": (422, "invalid", ["body"]),
        "query": (422, "invalid", ["query.limit"]),
    }


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (errors.RecipeError("r"), 422, "recipe"),
        (errors.InputError("i"), 404, "input"),
        (errors.StorageError("s"), 503, "storage"),
        (errors.RunExistsError("e"), 409, "conflict"),
        (errors.CorruptError("c"), 500, "corrupt"),
        (UnavailableProblem("u"), 503, "unavailable"),
        (TooManyProblem("t", 2.5), 429, "too_many"),
        (errors.CurateError("one\n  line"), 500, "error"),
    ],
)
def test_errors_of_the_engine_have_a_status_and_a_code(
    site: Site, monkeypatch: pytest.MonkeyPatch, error: errors.CurateError, status: int, code: str
) -> None:
    def broken(*_: Any) -> Any:
        raise error

    monkeypatch.setattr(workspaces, "workspaces", broken)
    answer = site.ask("GET", "workspaces")
    assert (answer.status_code, answer.json()["code"]) == (status, code)
    assert answer.json()["detail"] == str(error)
    assert ("retry-after" in answer.headers) is (status in (429, 503))
    assert answer.headers.get("retry-after", "3") in ("3", "5")


def test_every_error_of_the_engine_has_a_separate_code() -> None:
    classes = [cls for cls in vars(errors).values() if isinstance(cls, type) and issubclass(cls, errors.CurateError)]
    assert len({cls.code for cls in classes}) == len(classes)
    assert all(re.fullmatch(r"[a-z_]+", cls.code) for cls in classes)
    assert set(STATUSES) == set(classes)
    assert status_of(errors.InputError("x"), "POST") == 422
    assert not issubclass(errors.CurateError, Problem)


@pytest.mark.parametrize("path", ["workspaces", "/runs"])
def test_a_bug_says_nothing_but_its_request(
    site: Site, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, path: str
) -> None:
    def broken(*_: Any) -> Any:
        raise ZeroDivisionError("s3cret detail")

    monkeypatch.setattr(workspaces, "workspaces", broken)
    monkeypatch.setattr(run_pages, "workspaces", broken)
    answer = site.ask("GET", path, headers={"X-Request-ID": "q-1"})
    assert answer.status_code == 500 and "s3cret" not in answer.text and "q-1" in answer.text
    assert "request q-1" in caplog.text and "ZeroDivisionError" in caplog.text
    if path == "workspaces":
        assert answer.json()["code"] == "bug"
    assert answer.headers["x-content-type-options"] == "nosniff"
