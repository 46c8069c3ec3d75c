"""Tokens of servers in the user's configuration, and what servers people may write."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from curate.client import logins
from curate.client.address import is_loopback, server_url
from curate.client.logins import Login
from curate.core.errors import CurateError

LAB = Login("https://lab.example", "cur_lab", "lab", "ada")


@pytest.fixture(autouse=True)
def _configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("CURATE_TOKEN", raising=False)


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("https://lab.example/", "https://lab.example"),
        ("lab.example:8443", "https://lab.example:8443"),
        ("http://Lab.Example", "http://lab.example"),
        ("localhost:8080", "http://localhost:8080"),
        ("127.0.0.1", "http://127.0.0.1"),
        ("[::1]:80", "http://[::1]:80"),
        ("https://localhost", "https://localhost"),
    ],
)
def test_servers(text: str, url: str) -> None:
    assert server_url(text) == url
    assert is_loopback(url) == (url.split("//")[1].startswith(("localhost", "127", "[::1]")))


@pytest.mark.parametrize(
    "text", ["", "ftp://x", "https://x/path", "https://u:secret@x", "x y", "https://x?q=1", "x:port", "https://"]
)
def test_other_texts_are_errors_that_show_no_password(text: str) -> None:
    with pytest.raises(CurateError, match="expected http") as raised:
        server_url(text)
    assert "secret" not in str(raised.value)


def test_a_login_is_found_by_name_and_by_url() -> None:
    logins.save(LAB)
    logins.save(Login("http://localhost:1", "cur_here"))
    assert logins.find("lab") == logins.find("https://lab.example/") == logins.find("lab.example") == LAB
    assert logins.find("localhost:1").token == "cur_here"
    assert stat.S_IMODE(logins.path().stat().st_mode) == 0o600


def test_a_login_replaces_that_of_its_url_and_takes_the_name() -> None:
    logins.save(LAB)
    logins.save(Login(LAB.url, "cur_new", "lab"))
    logins.save(Login("https://other.example", "cur_other", "lab"))
    assert [login.token for login in logins.load().values()] == ["cur_other"]


def test_the_environment_takes_precedence(monkeypatch: pytest.MonkeyPatch) -> None:
    logins.save(LAB)
    monkeypatch.setenv("CURATE_TOKEN", "cur_env\n")
    assert (logins.find("lab").url, logins.find("lab").token) == (LAB.url, "cur_env")
    assert logins.find("new.example").token == "cur_env"


def test_without_a_token_the_error_says_what_to_do() -> None:
    logins.save(LAB)
    with pytest.raises(CurateError, match=r"no token; run `curate login x.example`.*lab \(https://lab.example\)"):
        logins.find("x.example")


def test_logging_out_forgets_the_token() -> None:
    logins.save(LAB)
    assert logins.remove("lab") == LAB and logins.load() == {}
    with pytest.raises(CurateError, match="not logged in"):
        logins.remove("lab")


@pytest.mark.parametrize("content", ["", "[]", '{"servers": [{"url": 1}]}', '{"servers": 3}', "\0"])
def test_a_corrupt_file_is_one_line(content: str) -> None:
    logins.save(LAB)
    logins.path().write_text(content)
    with pytest.raises(CurateError, match=r"not a file of `curate login`.*remove it"):
        logins.find("lab")


def test_a_file_that_others_may_read_is_not_used() -> None:
    logins.save(LAB)
    logins.path().chmod(0o644)
    with pytest.raises(CurateError, match=r"mode 0644.*chmod 600"):
        logins.find("lab")


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", "/proc/nowhere")
    with pytest.raises(CurateError, match="cannot be written"):
        logins.save(LAB)


@pytest.mark.parametrize("text", ["", "two words", "cur_\x1b[31m", "cur_ä", "a" * 600])
def test_what_is_not_a_token_is_rejected_without_showing_it(text: str) -> None:
    with pytest.raises(CurateError, match="expected one line") as raised:
        logins.checked_token(text, "token")
    assert not text or text not in str(raised.value)


def test_a_login_hides_its_token() -> None:
    assert "cur_lab" not in repr(LAB)
