from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.svg_metadata import UnreadableSvgError, Work, read_work

TEXT = st.text(st.characters(codec="utf-8", exclude_categories=("Cc", "Cs"), exclude_characters="\ufffe\uffff"))


def svg(work: str, *, head: str = "", tail: str = "</svg>") -> bytes:
    return f"<?xml version='1.0' encoding='utf-8'?>{head}<svg><metadata><cc:Work>{work}</cc:Work>{tail}".encode()


def escape(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace("]]>", "]]&gt;")


@given(title=TEXT, description=TEXT, keywords=st.lists(TEXT))
def test_reads_what_was_written(title: str, description: str, keywords: list[str]) -> None:
    items = "".join(f"<rdf:li>{escape(keyword)}</rdf:li>" for keyword in keywords)
    work = (
        f"<dc:title>{escape(title)}</dc:title><dc:description>{escape(description)}</dc:description>"
        f"<dc:subject><rdf:Bag>{items}</rdf:Bag></dc:subject>"
    )
    kept = [keyword for keyword in keywords if keyword.strip()]
    assert read_work(svg(work, tail="</metadata></svg>")) == Work(title, description, kept)


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_rejected(data: bytes) -> None:
    with suppress(UnreadableSvgError):
        assert isinstance(read_work(data), Work)


def test_titles_of_people_and_parts_are_ignored() -> None:
    work = "<dc:title>mine</dc:title><dc:creator><cc:Agent><dc:title>a person</dc:title></cc:Agent></dc:creator>"
    assert read_work(svg(work)).title == "mine"
    assert read_work(b"<svg><g><title>a part</title></g></svg>") == Work()


def test_errors_after_the_metadata_are_ignored() -> None:
    assert read_work(svg("<dc:title>t</dc:title>", tail="<path d='</no>")).title == "t"


def test_entities_that_name_a_namespace_are_fine() -> None:
    head = "<!DOCTYPE svg PUBLIC 'a' 'http://x.invalid/svg10.dtd' [<!ENTITY ns 'http://x.invalid/svg'>]>"
    assert read_work(svg("<dc:title>&ns;</dc:title>", head=head)).title == "http://x.invalid/svg"


@pytest.mark.parametrize(
    ("head", "what"),
    [
        ("<!DOCTYPE s [<!ENTITY a 'ha'><!ENTITY b '&a;&a;'>]>", "unsafe entity"),
        ("<!DOCTYPE s [<!ENTITY a SYSTEM 'file:///etc/hostname'>]>", "unsafe entity"),
        ("<!DOCTYPE s [<!ENTITY % a 'ha'>]>", "unsafe entity"),
        (f"<!DOCTYPE s [<!ENTITY a '{'x' * 300}'>]>", "unsafe entity"),
        (f"<!DOCTYPE s [<!ENTITY a '{'x' * 250}'>]>", "metadata too long"),
    ],
)
def test_unsafe_entities_are_rejected(head: str, what: str) -> None:
    with pytest.raises(UnreadableSvgError, match=what):
        read_work(svg(f"<dc:title>{'&a;' * 5000}</dc:title>", head=head))


def test_an_unknown_encoding_is_rejected() -> None:
    with pytest.raises(UnreadableSvgError, match="unknown encoding"):
        read_work(b"<?xml version='1.0' encoding='klingon'?><svg/>")
