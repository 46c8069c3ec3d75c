from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from curate.acquire.fetch import robots as module
from curate.acquire.fetch.codes import Failure
from curate.acquire.fetch.robots import Robots, with_few_agents
from curate.acquire.fetch.target import Target, parse
from tests.acquire.fetch.scripted import Scripted, response

pytest.importorskip("protego")

RULES = b"User-agent: *\nDisallow: /private/\nDisallow: /*.secret$\n\nUser-agent: curate\nDisallow: /ours/\n"


def served(rules: bytes, *headers: str, status: str = "200 OK") -> Scripted:
    """A host with this robots.txt, and with images everywhere else."""
    return Scripted(
        lambda head: response(rules, *headers, status=status) if head.startswith(b"GET /robots.txt ") else response()
    )


def asked(server: Scripted) -> list[str]:
    return [head.split()[1].decode() for head in server.requests]


def test_once_per_host() -> None:
    with served(RULES) as server, nullcontext(server.fetcher(robots_txt="cached")) as fetcher:
        codes = {path: fetcher.fetch(server.url(path)).code for path in ("/ours/a", "/private/a", "/b", "/ours")}
    assert codes == {"/ours/a": "robots_txt", "/private/a": "done", "/b": "done", "/ours": "done"}
    assert asked(server) == ["/robots.txt", "/private/a", "/b", "/ours"]


def test_wildcards() -> None:
    with served(RULES) as server, nullcontext(server.fetcher(robots_txt="cached", user_agent="other/1")) as fetcher:
        codes = {path: fetcher.fetch(server.url(path)).code for path in ("/a.secret", "/a.secret?b", "/private/a")}
    assert codes == {"/a.secret": "robots_txt", "/a.secret?b": "done", "/private/a": "robots_txt"}


def test_off() -> None:
    with served(RULES) as server, nullcontext(server.fetcher()) as fetcher:
        assert fetcher.fetch(server.url("/ours/a")).code == "done"
    assert asked(server) == ["/ours/a"]


def test_a_byte_order_mark_is_skipped() -> None:
    marked = served("\ufeffUser-agent: *\nDisallow: /".encode())
    with marked as server, nullcontext(server.fetcher(robots_txt="cached")) as fetcher:
        assert fetcher.fetch(server.url("/a")).code == "robots_txt"


@pytest.mark.parametrize("status", ["404 Not Found", "403 Forbidden", "410 Gone", "401 Unauthorized"])
def test_without_a_file_all_is_allowed(status: str) -> None:
    with served(b"", status=status) as server, nullcontext(server.fetcher(robots_txt="cached")) as fetcher:
        assert fetcher.fetch(server.url()).code == "done"


@pytest.mark.parametrize(("status", "code"), [("503 Busy", "http_503"), ("429 Too Many Requests", "http_429")])
def test_while_it_cannot_be_reached_nothing_is_fetched(status: str, code: str) -> None:
    with served(b"", status=status) as server, nullcontext(server.fetcher(robots_txt="cached")) as fetcher:
        found = [fetcher.fetch(server.url(path)) for path in ("/a", "/b")]
    assert [(one.status, one.code, one.tries) for one in found] == [("error", code, 1)] * 2
    assert asked(server) == ["/robots.txt"]


def test_its_redirects_are_followed_and_checked() -> None:
    def script(head: bytes) -> bytes:
        if head.startswith(b"GET /robots.txt "):
            return response(b"", "Location: /rules", status="301 Moved")
        return response(RULES) if head.startswith(b"GET /rules ") else response()

    with Scripted(script) as server, nullcontext(server.fetcher(robots_txt="cached")) as fetcher:
        assert fetcher.fetch(server.url("/ours/a")).code == "robots_txt"
    served_elsewhere = served(b"", "Location: http://10.0.0.1/robots.txt", status="302 Found")
    with served_elsewhere as server, nullcontext(server.fetcher(robots_txt="cached")) as fetcher:
        found = fetcher.fetch(server.url())
    assert (found.code, found.detail) == ("private_address", "robots.txt: 10.0.0.1 is private")


def test_a_loop_of_redirects_means_no_rules() -> None:
    served_in_circles = served(b"", "Location: /robots.txt", status="302 Found")
    with served_in_circles as server, nullcontext(server.fetcher(robots_txt="cached")) as fetcher:
        assert fetcher.fetch(server.url()).code == "done"


def test_the_end_of_a_long_file_is_ignored() -> None:
    rules = b"User-agent: *\nDisallow: /first/\n" + b"# padding\n" * 60_000 + b"Disallow: /last/\n"
    with served(rules) as server, nullcontext(server.fetcher(robots_txt="cached")) as fetcher:
        codes = [fetcher.fetch(server.url(path)).code for path in ("/first/a", "/last/a")]
    assert codes == ["robots_txt", "done"]


def test_threads_share_a_fetch() -> None:
    begun, go = threading.Event(), threading.Event()
    questions = []

    def get(place: Target) -> bytes:
        questions.append(place.url)
        begun.set()
        go.wait(60)
        return RULES

    robots = Robots("curate")
    target = parse("http://example.com:81/b?c")
    end = time.monotonic() + 120
    with ThreadPoolExecutor(4) as pool:
        waiting = [pool.submit(robots.check, target, end, get) for _ in range(4)]
        assert begun.wait(60)
        with pytest.raises(Failure, match=r"deadline: while robots\.txt was fetched"):
            robots.check(target, time.monotonic(), get)
        go.set()
        for future in waiting:
            future.result()
    assert questions == ["http://example.com:81/robots.txt"]


def test_kept_for_a_day_and_failures_for_minutes(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now))
    robots = Robots("curate")
    target = parse("http://example.com/ours/a")
    answers: list[bytes | Failure] = [Failure("http_503"), Failure("deadline"), RULES, b""]
    asked = []

    def get(place: Target) -> bytes:
        asked.append(now)
        answer = answers.pop(0)
        if isinstance(answer, Failure):
            raise answer
        return answer

    def code() -> str | None:
        try:
            robots.check(target, now + 60, get)
        except Failure as failure:
            return failure.code
        return None

    assert [code(), code()] == ["http_503", "http_503"]
    now += 300
    assert [code(), code(), code()] == ["deadline", "robots_txt", "robots_txt"]
    now += 86_400
    assert code() is None
    assert asked == [1000.0, 1300.0, 1300.0, 87_700.0]


def test_the_cache_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_HOSTS", 3)
    robots = Robots("curate")
    for number in range(10):
        robots.check(parse(f"http://{number}.example/"), time.monotonic() + 60, lambda place: b"")
    assert len(robots._entries) == 3


def test_rules_of_others_are_parsed_once_not_per_agent() -> None:
    text = "".join(f"User-agent: bot{number}\n" for number in range(1000))
    rules = "".join(f"Disallow: /{number}\n" for number in range(30_000))
    few = with_few_agents(f"{text}{rules}User Agent curate # us\nuser-agent: CURATE/2.0\nDisallow: /ours/\n", "curate")
    assert few.count("User-agent: -\n") == 1000 and "User Agent curate # us\n" in few
    robots = Robots("curate")
    target = parse("http://example.com/ours/a")
    with pytest.raises(Failure, match="robots_txt"):
        robots.check(target, time.monotonic() + 60, lambda place: few.encode())


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("User-agent: *", "User-agent: *"),
        (" user-agent : Cura*te", " user-agent : Cura*te"),
        ("User-agent: GPTBot # why", "User-agent: -"),
        ("User-agent: curate-images", "User-agent: -"),
        ("Useragent other", "Useragent -"),
        ("Disallow: /user-agent: x", "Disallow: /user-agent: x"),
    ],
)
def test_names_of_agents(line: str, expected: str) -> None:
    assert with_few_agents(line, "curate") == expected


def test_what_is_kept_is_bounded_in_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_CHARACTERS", 1000)
    robots = Robots("curate")
    for number in range(10):
        robots.check(parse(f"http://{number}.example/"), time.monotonic() + 60, lambda place: b"#" * 400)
    assert len(robots._entries) == 3 and robots._characters == 1200
