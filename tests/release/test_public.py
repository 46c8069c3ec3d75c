from __future__ import annotations

from collections import Counter

import pyarrow as pa
import pytest

from curate.core.addresses import networks
from curate.release.public import REASONS, public_texts, public_urls

PUBLIC = (
    "https://example.org/a.jpg",
    "HTTP://Example.ORG:8080/a%20b.jpg?size=large&key=7#top",
    "http://8.8.8.8/a.jpg",
    "https://münchen.example/ü.jpg",
    "https://a-b_c.example.co.uk",
    "https://example.org/@user/photo.jpg?next=http://10.0.0.1/",
    "http://[2606:4700::1111]/a.jpg",
)
PRIVATE = {
    "scheme": ("file:///etc/passwd", "s3://bucket/a.jpg", "/data/a.jpg", "ftp://example.org/a",
        "data:image/png;base64,", ""),
    "credentials": (
        "https://me:secret@example.org/a.jpg", "https://me@example.org/a.jpg", "https://example.org/a?X-Amz-Signature=1",
        "https://a.blob.example.org/c/a.jpg?sv=1&sig=abc", "https://example.org/a.jpg?access_token=x",
    ),
    "private_address": (
        "http://10.0.0.1/a.jpg", "http://127.0.0.1:9000/a", "http://169.254.169.254/latest", "http://localhost/a",
        "http://nas/a.jpg", "https://photos.corp/a.jpg", "https://a.internal:8443/a", "http://printer.local./a",
        "http://[::1]/a.jpg", "http://[::ffff:10.0.0.1]/", "http://2130706433/", "http://127.1/a", "http://0x7f.1/a",
        "http://10.0.0.1.", "http://router.home.arpa/a",
    ),
    "bad_url": ("http://", "https:///a.jpg", "http://exa mple.org/a", "http://[::1/a"),
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
    texts = ["Agence France-Presse", "https://creativecommons.org/licenses/by/4.0/", "CC BY/SA 4.0", None]
    found, reasons = public_texts(pa.array(texts))
    assert found.to_pylist() == texts and not reasons
    bad = ["/data/photos", "~/photos", "C:\\photos", "../photos", "\\\\nas\\photos", "file:///a", "s3://bucket/a"]
    found, reasons = public_texts(pa.array([*bad, "http://10.0.0.1/"]))
    assert found.null_count == 8 and reasons == Counter(local_path=5, scheme=2, private_address=1)
