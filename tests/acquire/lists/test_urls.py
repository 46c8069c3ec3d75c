from __future__ import annotations

import re
import string

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from curate.acquire.fetch.target import LONGEST_URL
from curate.acquire.lists.urls import _NORMAL, KEPT_CHARACTERS, REASONS, examine, normalise, shortened

SAME = [
    ("HTTP://Example.COM/a", "http://example.com/a"),
    ("http://example.com:80/a", "http://example.com/a"),
    ("https://example.com:443/a", "https://example.com/a"),
    ("https://example.com:/a", "https://example.com/a"),
    ("http://example.com./a", "http://example.com/a"),
    ("http://example.com", "http://example.com/"),
    ("http://example.com?q=1", "http://example.com/?q=1"),
    ("http://example.com/a#top", "http://example.com/a"),
    ("http://example.com/%7Euser/%41%2d", "http://example.com/~user/A-"),
    ("http://bücher.example/ü", "http://xn--bcher-kva.example/%C3%BC"),
    ("http://BÜCHER.example/", "http://xn--bcher-kva.example/"),
    ("http://example.com/a b", "http://example.com/a%20b"),
    ("  http://example.com/a\n", "http://example.com/a"),
    ("http://[2606:4700::0]/a", "http://[2606:4700::]/a"),
]
DIFFERENT = [
    ("http://example.com/a", "https://example.com/a"),
    ("http://example.com/a", "http://example.com/A"),
    ("http://example.com/a", "http://example.com/a/"),
    ("http://example.com/?a&b", "http://example.com/?b&a"),
    ("http://example.com/a%2Fb", "http://example.com/a/b"),
    ("http://example.com/a/../b", "http://example.com/b"),
    ("http://example.com:8080/", "http://example.com/"),
    ("http://www.example.com/", "http://example.com/"),
]
BAD = {
    "": "bad_url",
    "example.com/a.jpg": "bad_url",
    "/a.jpg": "bad_url",
    "//example.com/a.jpg": "bad_url",
    "http:///a.jpg": "bad_url",
    "http:a.jpg": "bad_url",
    "http://exa mple.com/": "bad_url",
    "http://a..b/": "bad_url",
    "http://example.com:99999/": "bad_url",
    "http://example.com/a\x00b": "bad_url",
    "http://127.1/": "bad_url",
    "file:///etc/passwd": "scheme",
    "data:image/png;base64,AAAA": "scheme",
    "ftp://example.com/a.jpg": "scheme",
    "http://user:password@example.com/": "credentials",
    "http://user@example.com/": "credentials",
    f"http://example.com/{'a' * LONGEST_URL}": "url_too_long",
}


@pytest.mark.parametrize(("url", "expected"), SAME)
def test_spellings_of_one_url(url: str, expected: str) -> None:
    assert examine(url) == (expected, None)
    assert examine(expected) == (expected, None)


@pytest.mark.parametrize("pair", DIFFERENT)
def test_urls_that_a_server_may_answer_differently(pair: tuple[str, str]) -> None:
    assert examine(pair[0])[0] != examine(pair[1])[0]


@pytest.mark.parametrize(("url", "reason"), BAD.items(), ids=range(len(BAD)))
def test_urls_that_cannot_be_fetched_are_unchanged(url: str, reason: str) -> None:
    assert examine(url) == (url, reason)
    assert reason in REASONS


def test_columns_of_urls() -> None:
    urls = [*BAD, *(url for url, _ in SAME), *(url for pair in DIFFERENT for url in pair)]
    found = normalise(pa.array(urls))
    assert found.kept.to_pylist() == [shortened(url) for url in urls]
    compared = dict(enumerate(urls)) | dict(zip(found.odd.tolist(), found.normalised.to_pylist(), strict=True))
    assert list(compared.values()) == [shortened(examine(url)[0]) for url in urls]
    assert found.reject.to_pylist() == [examine(url)[1] for url in urls]


@pytest.mark.parametrize("count", [0, 3])
def test_columns_without_an_odd_url(count: int) -> None:
    urls = pa.array(["https://cdn.example.com/a%2Fb.jpg?w=1&h=%20"] * count, pa.string())
    found = normalise(urls)
    assert found.kept.equals(urls) and not len(found.odd) and not len(found.normalised)
    assert found.reject.null_count == len(found.reject) == count


def test_sliced_columns() -> None:
    urls = pa.array(["HTTP://a.example/", "http://b.example/", "ftp://c.example/", "http://d.example/"])
    found = normalise(urls.slice(1, 2))
    assert (found.odd.tolist(), found.normalised.to_pylist()) == ([1], ["ftp://c.example/"])
    assert found.kept.to_pylist() == ["http://b.example/", "ftp://c.example/"]
    assert found.reject.to_pylist() == [None, "scheme"]


def test_a_long_url_is_cut() -> None:
    urls = [f"http://example.com/{letter * 10_000_000}" for letter in "ab"]
    found = normalise(pa.array(urls))
    kept = found.kept.to_pylist()
    assert all(
        text.startswith(url[:KEPT_CHARACTERS]) and len(text) < 2200 for text, url in zip(kept, urls, strict=True)
    )
    assert "(10000019 characters, sha256 " in kept[0] and kept[0] != kept[1]
    assert found.reject.to_pylist() == ["url_too_long"] * 2


WORDS = (
    "http https HTTP ftp :// : // / ? # @ % %41 %2F %7e [::1] 127.0.0.1 a A ü .. . - _ 80 443 a.example xn--a \\ é 日本"
)
PIECES = st.sampled_from([*WORDS.split(), " ", "\n"])
TEXTS = st.lists(PIECES, max_size=12).map("".join) | st.text(max_size=30)


@given(TEXTS | TEXTS.map(lambda text: f"http://a.example/{text}") | TEXTS.map(lambda text: f"http://{text}"))
def test_a_url_that_looks_normal_is_normalised(url: str) -> None:
    normal = pa.compute.match_substring_regex(pa.array([url]), _NORMAL)[0].as_py()
    if normal and len(url) <= LONGEST_URL:
        assert examine(url) == (url, None)


@given(st.text(alphabet=string.hexdigits, min_size=2, max_size=2))
def test_unreserved_characters_are_not_escaped(digits: str) -> None:
    character = chr(int(digits, 16))
    unreserved = re.fullmatch(r"[A-Za-z0-9._~-]", character) is not None
    path = character if unreserved else f"%{digits}"
    assert examine(f"http://example.com/%{digits}")[0] == f"http://example.com/{path}"
