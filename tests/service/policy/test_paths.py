import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from curate.service.policy.paths import OutsideError, admitted, parse

ROOTS = {
    "photos": "/data/photos/",
    "bucket": "s3://images/public",
    "web": "https://Data.example/sets",
    "listed": "file:///data/lists",
}

BELOW = [
    ("/data/photos", "/data/photos"),
    ("/data/photos/2024/a.parquet", "/data/photos/2024/a.parquet"),
    ("/data//photos/./2024/", "/data/photos/2024"),
    ("file:///data/photos/2024", "/data/photos/2024"),
    ("/data/lists/urls.csv", "/data/lists/urls.csv"),
    ("photos", "/data/photos"),
    ("photos/2024", "/data/photos/2024"),
    ("photos/part-{000..127}.tar", "/data/photos/part-{000..127}.tar"),
    ("photos/{train,test}/*.tar", "/data/photos/{train,test}/*.tar"),
    ("s3://images/public", "s3://images/public"),
    ("s3://images/public/2024/", "s3://images/public/2024/"),
    ("S3://images/public/x", "S3://images/public/x"),
    ("bucket/2024/{00..99}.tar", "s3://images/public/2024/{00..99}.tar"),
    ("https://data.example/sets/urls.csv", "https://data.example/sets/urls.csv"),
    ("photos/猫 & dogs", "/data/photos/猫 & dogs"),
]

OUTSIDE = [
    "", "/", "/etc", "/data", "/data/photosynthesis", "/data/photos/../lists/../../etc", "photos/../../etc", "..",
    "photos/..", "../photos", "~", "~/x", "~root/x", "photo", "./photos", "unknown/x", "file:/data/photos",
    "file://data/photos", "file://~/x", "file:///etc", "FILE:///etc", "local:///data/photos", "memory://x", "data:,x",
    "/data/photos\0/x", "/data/photos\n", "photos/\x7f", "photos/\u202e", "/data/photos/a\\..\\b", "photos/\\{a\\}",
    "simplecache::s3://images/public/x", "zip://x::file:///data/photos/a.zip", "/data/photos/{a,/etc}",
    "photos/{.,x}{.,x}/y", "photos/{..}/x", "photos/{a,}", "photos/{a", "photos/{a,{b,c}}",
    "photos/{0..9999999999999}", "photos/{0..1000000}", "photos/{0..999}/{0..1000}", "photos/*a*a*a*a",
    "photos/**/a/**",
    "s3://images", "s3://images/", "s3://images/publicity", "s3://images//public/x", "s3://images/public//x",
    "s3://images/public/./x", "s3://images/public/../x", "s3://images/public/%2e%2e/x", "s3://images/public%2Fx",
    "s3://images/public/%252e%252e/x", "s3://images/public/%00", "s3://other/public", "s3:///images/public",
    "s3a://images/public/x", "s3://images@other/public/x", "https://data.example@evil.example/sets/x",
    "https://data.example:8443/sets/x", "https://evil.example/data.example/sets", "http://data.example/sets/x",
    "https://data.example?/sets/x", "https://data.example#/sets/x", "https://data.example/sets?x=/../y",
    "https://data.example\\@evil.example/sets/x", "photos/" + "x" * 5000,
]  # fmt: skip


@pytest.mark.parametrize(("text", "read"), BELOW)
def test_below_a_root(text: str, read: str) -> None:
    assert admitted(text, ROOTS) == read


@pytest.mark.parametrize("text", OUTSIDE)
def test_outside_of_all_roots(text: str) -> None:
    with pytest.raises(OutsideError):
        admitted(text, ROOTS)


def test_nothing_is_admitted_without_roots_or_by_a_root_of_no_valid_form() -> None:
    for roots in ({}, {"x": "relative"}, {"x": "/data/../etc"}, {"x": ""}):
        with pytest.raises(OutsideError):
            admitted("/data/photos", roots)


@given(st.text(alphabet="ab./%2e{},~:\\*\0", max_size=30))
def test_what_is_admitted_has_no_way_up(tail: str) -> None:
    try:
        read = admitted(f"photos/{tail}", ROOTS)
    except OutsideError:
        return
    assert os.path.normpath(read) == "/data/photos" or os.path.normpath(read).startswith("/data/photos/")
    assert parse(read).below(parse(ROOTS["photos"]))


# --- symbolic links ---------------------------------------------------------------------------------------------------


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """root/inside.tar, and links root/out -> ../secret, root/deep/link.tar -> ../../secret/a.tar, root/in -> deep."""
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "a.tar").touch()
    made = tmp_path / "root"
    (made / "deep").mkdir(parents=True)
    (made / "inside.tar").touch()
    (made / "out").symlink_to(tmp_path / "secret")
    (made / "deep" / "link.tar").symlink_to(tmp_path / "secret" / "a.tar")
    (made / "in").symlink_to(made / "deep")
    return made


LEAVING = ["out", "out/a.tar", "out/*.tar", "*/a.tar", "deep/link.tar", "deep/*.tar", "in/*.tar", "*/*.tar", "**/*.tar",
           "**", "o{ut,x}/a.tar", "deep/l[i]nk.tar", "missing/../out"]  # fmt: skip


@pytest.mark.parametrize("tail", LEAVING)
def test_a_link_must_not_lead_out_of_the_root(root: Path, tail: str) -> None:
    for text in (f"{root}/{tail}", f"mine/{tail}"):
        with pytest.raises(OutsideError):
            admitted(text, {"mine": str(root)})


@pytest.mark.parametrize(
    "tail", ["inside.tar", "in", "*.tar", "d*/missing-{0..9}.tar", "inside-{0..9}.tar", "new/x.tar"]
)
def test_links_inside_of_the_root_and_files_that_do_not_exist_yet(root: Path, tail: str) -> None:
    assert admitted(f"mine/{tail}", {"mine": str(root)}) == f"{root}/{tail}"


def test_a_root_may_itself_be_a_link(root: Path, tmp_path: Path) -> None:
    (tmp_path / "alias").symlink_to(root)
    assert admitted("mine/inside.tar", {"mine": str(tmp_path / "alias")}) == f"{tmp_path}/alias/inside.tar"
