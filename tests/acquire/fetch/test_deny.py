from pathlib import Path

import pytest

from curate.acquire.fetch.codes import Failure
from curate.acquire.fetch.deny import Denied
from curate.acquire.fetch.target import parse


def code(denied: Denied, url: str) -> str | None:
    try:
        denied.check(parse(url))
    except Failure as failure:
        return failure.code
    return None


def test_a_host_denies_its_subdomains() -> None:
    denied = Denied(["Example.com", "*.bücher.example", "", "# a comment", "10.0.0.1", "::1"])
    for url in (
        "http://example.com/",
        "https://a.b.EXAMPLE.com.:81/x",
        "http://xn--bcher-kva.example/",
        "http://[::1]/",
    ):
        assert code(denied, url) == "denied_host"
    for url in ("http://notexample.com/", "http://com/", "http://example.com.org/", "http://0.0.0.1/"):
        assert code(denied, url) is None


def test_a_url_denies_every_way_to_write_it() -> None:
    denied = Denied((), ["http://example.com/%7Ea/%c3%a4.jpg?b=1"])
    for url in (
        "http://example.com/~a/%C3%A4.jpg?b=1",
        "https://EXAMPLE.com:443/%7ea/ä.jpg?b=1#part",
    ):
        assert code(denied, url) == "denied_url"
    for url in ("http://example.com/~a/%C3%A4.jpg?b=2", "http://example.com:81/~a/%C3%A4.jpg?b=1"):
        assert code(denied, url) is None


def test_from_files(tmp_path: Path) -> None:
    hosts, urls = tmp_path / "hosts", tmp_path / "urls"
    hosts.write_text("a.example\r\n")
    urls.write_text("http://b.example/1\n")
    denied = Denied.from_files(str(hosts), str(urls))
    assert code(denied, "http://a.example/") == "denied_host"
    assert code(denied, "http://b.example/1") == "denied_url"
    assert code(Denied.from_files(None, None), "http://a.example/") is None


def test_a_line_that_is_neither_is_named(tmp_path: Path) -> None:
    file = tmp_path / "urls"
    file.write_text("http://a.example/\nb.example\n")
    with pytest.raises(ValueError, match=r"urls, line 2: 'b\.example'"):
        Denied.from_files(None, str(file))
    for line in ("http://a.example/", "http://a.example", "a.example/images", "a.example:80"):
        file.write_text(f"\ufeff# hosts\n{line}\n")
        with pytest.raises(ValueError, match=f"urls, line 2: '{line}'"):
            Denied.from_files(str(file), None)
