import pytest
from hypothesis import given
from hypothesis import strategies as st

from curate.acquire.fetch.codes import Failure
from curate.acquire.fetch.target import LONGEST_URL, follow, parse


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://example.com/a.jpg", "http://example.com/a.jpg"),
        ("HTTPS://Example.COM:443/A.jpg?b=C#part", "https://example.com/A.jpg?b=C"),
        ("http://example.com:8080", "http://example.com:8080/"),
        ("http://example.com:?q", "http://example.com/?q"),
        ("  http://example.com./a \n", "http://example.com/a"),
        ("http://bücher.example/ä b", "http://xn--bcher-kva.example/%C3%A4%20b"),
        ("http://例え。テスト/", "http://xn--r8jz45g.xn--zckzah/"),
        ("http://a_b.example/100%/%41?%zz|", "http://a_b.example/100%/%41?%zz|"),
        ("http://[2001:DB8:0::1]:81/", "http://[2001:db8::1]:81/"),
        ("http://[::ffff:1.2.3.4]/", "http://[::ffff:102:304]/"),
        ("http://1.2.3.4./", "http://1.2.3.4/"),
        ("http://1.2.3.4.example/", "http://1.2.3.4.example/"),
        ("http://１２７.0.0.1/", "http://127.0.0.1/"),
        ("http://Bücher。example．/", "http://xn--bcher-kva.example/"),
        ("http://www.straße.de/", "http://www.xn--strae-oqa.de/"),
        ("http://βόλος.com/", "http://xn--nxasmm1c.com/"),
        ("http://ΒΌΛΟΣ.com/", "http://xn--nxasmq6b.com/"),
    ],
)
def test_where_a_url_leads(url: str, expected: str) -> None:
    target = parse(url)
    assert target.url == expected
    assert parse(target.url) == target


def test_a_literal_is_known_as_one() -> None:
    assert parse("http://1.2.3.4/").literal and parse("http://[::1]/").literal
    assert not parse("http://example.com/").literal


@pytest.mark.parametrize(
    ("url", "code"),
    [
        ("", "bad_url"),
        ("image.jpg", "bad_url"),
        ("/image.jpg", "bad_url"),
        ("//example.com/image.jpg", "bad_url"),
        ("http:/example.com", "bad_url"),
        ("http://", "bad_url"),
        ("http:///a", "bad_url"),
        ("http://:80/", "bad_url"),
        ("http://a b/", "bad_url"),
        ("http://a..b/", "bad_url"),
        ("http://.example.com/", "bad_url"),
        (f"http://{'a' * 64}.example/", "bad_url"),
        (f"http://{'a.' * 127}example/", "bad_url"),
        (f"http://{'ä' * 64}.example/", "bad_url"),
        ("http://127.0.0.1%00.example.com/", "bad_url"),
        ("http://%31%32%37.0.0.1/", "bad_url"),
        ("http://example.com\\@127.0.0.1/", "credentials"),
        ("http://127.0.0.1\\.example.com/", "bad_url"),
        ("http://example.com:65536/", "bad_url"),
        ("http://example.com:-1/", "bad_url"),
        ("http://example.com:８０/", "bad_url"),
        ("http://example.com/a\nHost: b", "bad_url"),
        ("http://example.com/\x00", "bad_url"),
        ("http://example.com/\ud800", "bad_url"),
        ("http://user@example.com/", "credentials"),
        ("http://user:password@example.com/", "credentials"),
        ("file:///etc/passwd", "scheme"),
        ("data:image/png;base64,AAAA", "scheme"),
        ("ftp://example.com/", "scheme"),
        ("javascript:alert(1)", "scheme"),
        ("http://127.1/", "bad_url"),
        ("http://2130706433/", "bad_url"),
        ("http://0x7f.1/", "bad_url"),
        ("http://0x7f000001/", "bad_url"),
        ("http://0177.0.0.1/", "bad_url"),
        ("http://127.0.0.0x1/", "bad_url"),
        ("http://256.1.1.1/", "bad_url"),
        ("http://[::1/", "bad_url"),
        ("http://::1/", "bad_url"),
        ("http://[::1]x/", "bad_url"),
        ("http://[fe80::1%25eth0]/", "bad_url"),
        ("http://[127.0.0.1]/", "bad_url"),
        ("http://example.com/" + "a" * LONGEST_URL, "url_too_long"),
    ],
)
def test_urls_that_are_not_fetched(url: str, code: str) -> None:
    with pytest.raises(Failure) as caught:
        parse(url)
    assert caught.value.code == code
    assert len(str(caught.value)) < 300 and "\n" not in str(caught.value)


@given(st.text() | st.text().map("http://{}".format) | st.text().map("http://example.com/{}".format))
def test_any_text_has_an_answer(url: str) -> None:
    try:
        target = parse(url)
    except Failure:
        return
    request_line = f"GET {target.path} HTTP/1.1\r\nHost: {target.authority}\r\n"
    assert request_line.isascii() and request_line.count("\r\n") == 2 and request_line.count(" ") == 3
    assert parse(target.url) == target


@pytest.mark.parametrize(
    ("location", "expected"),
    [
        ("/b?c", "http://example.com/b?c"),
        ("b", "http://example.com/x/b"),
        ("?c", "http://example.com/x/a?c"),
        ("//other.example/b", "http://other.example/b"),
        ("https://other.example", "https://other.example/"),
        (" /b ", "http://example.com/b"),
        ("/ä".encode().decode("latin-1"), "http://example.com/%C3%A4"),
        ("/\xe4", "http://example.com/%C3%A4"),
        ("/\\other.example/", "http://example.com/\\other.example/"),
        ("http://[/", "bad_url"),
        ("file:///etc/passwd", "scheme"),
        ("//user@example.com", "credentials"),
    ],
)
def test_where_a_redirect_leads(location: str, expected: str) -> None:
    try:
        found = follow(parse("http://example.com/x/a?b"), location).url
    except Failure as failure:
        found = failure.code
    assert found == expected
