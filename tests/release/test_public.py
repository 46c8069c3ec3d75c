from __future__ import annotations

from collections import Counter

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from curate.core.addresses import networks
from curate.release.public import REASONS, public_nested, public_texts, public_urls

PUBLIC = (
    "https://example.org/a.jpg",
    "HTTP://Example.ORG:8080/a%20b.jpg?size=large&key=7#top",
    "http://8.8.8.8/a.jpg",
    "https://münchen.example/ü.jpg",
    "https://a-b_c.example.co.uk",
    "https://example.org/@user/photo.jpg?next=http://10.0.0.1/",
    "http://[2606:4700::1111]/a.jpg",
    "https://example.org/a@2x.jpg",
    "https://example.org/A%27b%40c d.jpg?author=me&tokens=3&keyword=abcdefghijklmnopqrstuvw",
    "https://lan.example.org/home/data/x.jpg",
)
SECRETS = ("token", "api-key", "api_key", "client_secret", "jwt", "access_token", "accessToken", "X%2DAmz%2DSignature")
PRIVATE = {
    "scheme": ("file:///etc/passwd", "s3://bucket/a.jpg", "/data/a.jpg", "ftp://example.org/a",
        "data:image/png;base64,", ""),
    "credentials": (
        "https://me:secret@example.org/a.jpg", "https://me@example.org/a.jpg", "https://example.org/a?X-Amz-Signature=1",
        "https://a.blob.example.org/c/a.jpg?sv=1&sig=abc", "https://example.org/a.jpg#access_token=x",
        *(f"https://example.org/a.jpg?{name}=x" for name in SECRETS), "https://example.org/a?key=AIzaSyD-1234567890",
        "https://example.org/a?u=http://user:pw@h/", "https://example.org/a?u=http%3A%2F%2Fuser%3Apw%40h%2F",
        "https://example.org\\@10.0.0.1/",
    ),
    "private_address": (
        "http://10.0.0.1/a.jpg", "http://127.0.0.1:9000/a", "http://169.254.169.254/latest", "http://localhost/a",
        "http://nas/a.jpg", "https://photos.corp/a.jpg", "https://a.internal:8443/a", "http://printer.local./a",
        "http://[::1]/a.jpg", "http://[::ffff:10.0.0.1]/", "http://2130706433/", "http://127.1/a", "http://0x7f.1/a",
        "http://10.0.0.1.", "http://router.home.arpa/a", "http://foo.lan:/x", "http://foo.lan\\x", "http://foo.lan。/",
        "http://foo.l\u00adan/", "http://ⓕoo.lan/", "http://a.intra/", "http://fritz.box/", "http:/\\10.0.0.1/",
    ),
    "bad_url": (
        "https://example.org/a\nhttp://10.0.0.1/", "https://example.org/a\n", "http://foo%2elan/",
        "http://", "https:///a.jpg", "http://exa mple.org/a", "http://[::1/a",
    ),
}  # fmt: skip

ORDINARY = (
    "and/or 3/4 /r/pics", "w/ a dog", "24/7", "~50 people", "CC BY/SA 4.0", "AC/DC", "n/a / none", "US$/EUR $5", "100%",
    "5'/6\" \\o/", "\\alpha + \\beta", "Photo by X (https://example.org/#/home/me).", "ok.../no",
    "e.g. http://example.org.",
)  # fmt: skip
WITHHELD = {
    "local_path": (
        "..\\x", " /home/me", "see /mnt/me/x", "$HOME/x", "%USERPROFILE%\\x", '{"p":"/home/me"}', '["~/x"]',
        '{"p": "C:\\\\Users"}', "see \\\\nas\\x", "(/mnt/x)", "a=/data/x", "见/home/me",
    ),
    "private_address": ("at http://10.0.0.1/x, or", "(http://foo.lan)", "[x](http://foo.lan)", "see http://[::1]."),
    "credentials": ("see https://me:pw@example.org", "https://example.org/a_(b)?token=x"),
    "scheme": ('{"u":"s3://bucket/x"}', "file:/home/x"),
}  # fmt: skip


@pytest.mark.parametrize("url", PUBLIC)
def test_public_urls_stay(url: str) -> None:
    found, reasons = public_urls(pa.array([url, None]))
    assert found.to_pylist() == [url, None] and not reasons


@pytest.mark.parametrize(("reason", "url"), [(reason, url) for reason, urls in PRIVATE.items() for url in urls])
def test_others_become_null_with_a_reason(reason: str, url: str) -> None:
    found, reasons = public_urls(pa.array([PUBLIC[0], url, None]))
    assert found.to_pylist() == [PUBLIC[0], None, None] and reasons == {reason: 1}
    assert reason in REASONS


def test_a_network_may_be_allowed() -> None:
    urls = pa.array(["http://10.1.2.3/a.jpg", "http://10.2.2.3/a.jpg", "http://me:pw@10.1.2.3/a.jpg"])
    found, reasons = public_urls(urls, networks(["10.1.0.0/16"]))
    assert found.to_pylist() == ["http://10.1.2.3/a.jpg", None, None]
    assert reasons == {"private_address": 1, "credentials": 1}


def test_texts_of_a_source_lose_paths_and_private_urls() -> None:
    texts = ["Agence France-Presse", "https://creativecommons.org/licenses/by/4.0/", *ORDINARY, None]
    found, reasons = public_texts(pa.array(texts))
    assert found.to_pylist() == texts and not reasons
    bad = ["/data/photos", "~/photos", "C:\\photos", "../photos", "\\\\nas\\photos", "file:///a", "s3://bucket/a"]
    found, reasons = public_texts(pa.array([*bad, "http://10.0.0.1/"]))
    assert found.null_count == 8 and reasons == Counter(local_path=5, scheme=2, private_address=1)


@pytest.mark.parametrize(("reason", "text"), [(reason, text) for reason, texts in WITHHELD.items() for text in texts])
def test_a_path_or_url_within_a_text(reason: str, text: str) -> None:
    found, reasons = public_texts(pa.array([text]))
    assert found.to_pylist() == [None] and reasons == {reason: 1}


WORDS = st.lists(st.sampled_from(["and/or", "3/4", "/r/pics", "w/", "a", "~50", "1..2", "US$/EUR", "n/a", "5'/6\""]))


@given(
    WORDS, st.sampled_from(["/home/me", "~/x", "..\\x", "C:\\x", "\\\\nas\\x", "$HOME/x"]), st.sampled_from(" \"'(=:[")
)
def test_only_the_path_matters(words: list[str], path: str, before: str) -> None:
    text = " ".join(["one", *words])
    assert not public_texts(pa.array([text]))[1]
    assert public_texts(pa.array([f"{text}{before}{path}"]))[1] == {"local_path": 1}
    assert public_texts(pa.array([path]))[1] == {"local_path": 1}


@pytest.mark.parametrize(
    ("kind", "value", "clean"),
    [
        (pa.list_(pa.string()), ["a", "/home/x", None], ["a", None, None]),
        (
            pa.struct({"a": pa.string(), "b": pa.list_(pa.string())}),
            {"a": "s3://b", "b": ["x"]},
            {"a": None, "b": ["x"]},
        ),
        (pa.list_(pa.struct({"n": pa.int8(), "a": pa.string()})), [{"n": 1, "a": "~/x"}], [{"n": 1, "a": None}]),
        (pa.large_string(), "/home/x", None),
    ],
)
def test_texts_within_lists_and_structs(kind: pa.DataType, value: object, clean: object) -> None:
    found, reasons = public_nested(pa.array([None, value], kind))
    assert found.type == kind and found.to_pylist() == [None, clean] and reasons.total() == 1
    again, reasons = public_nested(found)
    assert again.equals(found) and not reasons
