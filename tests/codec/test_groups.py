from __future__ import annotations

import io
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from webdataset.tariterators import group_by_keys, tar_file_expander

from curate.codec.groups import MemberGroup, group_members, pick_member, split_name
from curate.codec.tars import Member, TarWriter, members


def group(*names: str, mark: str | None = None) -> list[MemberGroup]:
    found = [Member(name, 512 * i, 10) for i, name in enumerate(names)]
    return list(group_members([*found, Member("", 0, 0, mark)] if mark else found))


def summary(groups: list[MemberGroup]) -> list[tuple[str, list[str], str | None]]:
    return [(one.stem, list(one.members), one.reject) for one in groups]


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("1.jpg", ("1", "jpg")),
        ("a/b/1.seg.PNG", ("a/b/1", "seg.png")),
        ("a.b/1.jpg", ("a.b/1", "jpg")),
        ("README", None),
        ("._1.jpg", None),
        ("a/.hidden", None),
        ("__meta__/1.jpg", None),
    ],
)
def test_a_name_is_split_at_the_first_dot_of_its_last_part(path: str, expected: tuple[str, str] | None) -> None:
    assert split_name(path) == expected


names = st.lists(
    st.tuples(st.sampled_from(["", "x/", "x.y/", "__m__/"]), st.sampled_from(["1", "2", "a b", "", "é"]),
              st.sampled_from([".jpg", ".JPG", ".txt", ".a.png", "", "."])).map("".join),
    max_size=12,
)  # fmt: skip


@given(names.map(lambda values: [value for value in dict.fromkeys(values) if value.strip("/")]))
def test_groups_equal_those_of_the_webdataset_library(values: list[str]) -> None:
    """Except if that library fails (one suffix twice in a row) or uses an empty key."""
    values = [value for value in values if not value.rpartition("/")[2].startswith(".")]
    values = list({value.lower(): value for value in values}.values())
    sink = io.BytesIO()
    with TarWriter(sink) as tar:
        for value in values:
            tar.add(value, b"x")
    theirs = group_by_keys(tar_file_expander([{"url": "", "stream": io.BytesIO(sink.getvalue())}]))
    expected = [(item["__key__"], [name for name in item if not name.startswith("__")]) for item in theirs]
    assert [(one.stem, list(one.members)) for one in group_members(members(sink))] == expected


def test_members_that_are_not_consecutive_are_separate_samples() -> None:
    assert summary(group("1.jpg", "2.jpg", "1.txt")) == [
        ("1", ["jpg"], None),
        ("2", ["jpg"], None),
        ("1", ["txt"], None),
    ]
    assert summary(group("1.jpg", "1.jpg")) == [("1", ["jpg"], None)] * 2


def test_a_truncated_tar_rejects_an_incomplete_last_sample() -> None:
    whole = [("1", ["jpg", "txt"], None), ("2", ["jpg", "txt"], None)]
    mark = ("", [], "truncated_tar")
    assert summary(group("1.jpg", "1.txt", "2.jpg", mark="truncated_tar")) == [
        whole[0],
        ("2", ["jpg"], "truncated_tar"),
    ]
    assert summary(group("1.jpg", "1.txt", "2.jpg", "2.txt", mark="truncated_tar")) == [*whole, mark]
    assert summary(group("1.jpg", mark="truncated_tar")) == [("1", ["jpg"], None), mark]
    assert summary(group(mark="corrupt_tar")) == [("", [], "corrupt_tar")]


def test_a_rejected_member_rejects_only_its_sample() -> None:
    found: list[Any] = [Member("1.jpg", 0, 1), Member("1.txt", 0, 1, "not_a_file", "a link"), Member("2.jpg", 0, 1)]
    assert [(one.reject, one.detail) for one in group_members(found)] == [("not_a_file", "a link"), (None, "")]


@pytest.mark.parametrize(
    ("suffixes", "expected"),
    [
        (["txt", "jpg"], "jpg"),
        (["seg.png", "jpg"], "jpg"),
        (["left.png", "right.png"], "left.png"),
        (["txt", "json"], None),
        (["mp4"], None),
    ],
)
def test_a_plain_suffix_is_preferred_for_the_image(suffixes: list[str], expected: str | None) -> None:
    one = MemberGroup("1", {suffix: Member(f"1.{suffix}", i, 1) for i, suffix in enumerate(suffixes)})
    found = pick_member(one, ("jpg", "png"))
    assert (found and found[1].name) == (expected and f"1.{expected}")
    assert found is None or found[0] == expected.rpartition(".")[2]
