from __future__ import annotations

import io
import tarfile
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
import s3fs
from hypothesis import given
from hypothesis import strategies as st

from curate.codec.tars import MEMBER_REASONS, Member, TarWriter, is_unsafe, members, read_spans
from curate.core.errors import StorageError

NAMES = st.text(st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="/\\:"), min_size=1, max_size=90)
FILES = st.dictionaries(NAMES.filter(lambda name: name.strip(".")), st.binary(max_size=1500), max_size=6)


def written(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with TarWriter(buffer) as tar:
        for name, data in files.items():
            tar.add(name, data)
    return buffer.getvalue()


def listed(data: bytes) -> list[Member]:
    return list(members(io.BytesIO(data)))


@given(FILES)
def test_written_tars_are_listed_and_read_by_tarfile(files: dict[str, bytes]) -> None:
    data = written(files)
    found = listed(data)
    assert {member.name: data[member.offset : member.offset + member.size] for member in found} == files
    assert all(member.reject is None for member in found)
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        assert {info.name: tar.extractfile(info).read() for info in tar} == files  # type: ignore[union-attr]


def test_bytes_depend_only_on_names_and_contents() -> None:
    data = written({"a.jpg": b"abc"})
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        info = tar.getmember("a.jpg")
    assert (info.mtime, info.uid, info.gid, info.uname, info.gname, info.mode) == (0, 0, 0, "", "", 0o644)
    assert (data[257:265], len(data)) == (b"ustar\x0000", 512 * 4)
    assert written({"a.jpg": b"abc"}) == data


@pytest.mark.parametrize("name", ["n" * 101, "folder/" * 30 + "n.jpg", "é" * 200, "a/" * 400 + "n"])
def test_long_names_are_kept(name: str) -> None:
    data = written({name: b"1", "next": b"2"})
    assert data == written({name: b"1", "next": b"2"})
    assert [(member.name, data[member.offset : member.offset + 1]) for member in listed(data)] == [
        (name, b"1"),
        ("next", b"2"),
    ]


def test_add_returns_the_offset_of_the_bytes() -> None:
    buffer = io.BytesIO()
    tar = TarWriter(buffer)
    first, second = tar.add("a", b"x" * 513), tar.add("b" * 200, b"yy")
    tar.close()
    value = buffer.getvalue()
    assert (value[first : first + 513], value[second : second + 2]) == (b"x" * 513, b"yy")
    assert [member.offset for member in listed(value)] == [first, second]
    assert tar.offset == len(value)


def test_a_writer_that_fails_leaves_no_end_mark() -> None:
    buffer = io.BytesIO()
    with pytest.raises(TypeError), TarWriter(buffer) as tar:
        tar.add("a", tar.add("b", b"1"))  # type: ignore[arg-type]
    assert [member.reject for member in listed(buffer.getvalue())] == [None, "truncated_tar"]


FILES_3 = {"one.jpg": b"1" * 700, "two.jpg": b"2" * 10, "three.jpg": b"3" * 512}


@pytest.mark.parametrize("length", [0, 1, 511, 512, 900, 1400, 1536, 1800, 2048, 2100, 2560, 3100, 3584, 4095])
def test_a_truncated_tar_yields_intact_members_and_the_place(length: int) -> None:
    whole = written(FILES_3)
    assert len(whole) == 4608
    *good, last = listed(whole[:length])
    ends = {member.name: member.offset + member.size for member in listed(whole)}
    assert {member.name for member in good} == {name for name, end in ends.items() if end <= length}
    assert all(member.reject is None for member in good)
    assert last.reject == "truncated_tar"
    assert last.name or all(repr(member.name) in last.detail for member in good[-1:])


def test_a_truncated_member_is_named() -> None:
    assert [(member.name, member.reject) for member in listed(written(FILES_3)[:2050])] == [
        ("one.jpg", None),
        ("two.jpg", "truncated_tar"),
    ]


def test_other_files_are_corrupt_tars() -> None:
    assert [member.reject for member in listed(b"hello " * 1000)] == ["corrupt_tar"]
    damaged = bytearray(written(FILES_3))
    damaged[1536:1700] = b"x" * 164
    assert [(member.name, member.reject) for member in listed(bytes(damaged))] == [
        ("one.jpg", None),
        ("", "corrupt_tar"),
    ]


def test_unsafe_members_are_rejected_and_others_pass() -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name in ("../up.jpg", "/etc/passwd", "a/../../b", "C:\\x.jpg", "fine.jpg"):
            tar.addfile(tarfile.TarInfo(name))
        for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE, tarfile.DIRTYPE):
            info = tarfile.TarInfo("special")
            info.type, info.linkname = kind, "/etc/passwd"
            tar.addfile(info)
    assert [member.reject for member in listed(buffer.getvalue())] == [
        *["unsafe_path"] * 4,
        None,
        *["not_a_file"] * 4,
    ]


@pytest.mark.parametrize(("name", "unsafe"), [("a..b", False), ("a/...", False), (".", True), ("", True), ("..", True)])
def test_unsafe_paths(name: str, unsafe: bool) -> None:
    assert is_unsafe(name) == unsafe


def test_names_that_are_not_utf8_are_escaped() -> None:
    data = written({"caf\udce9.jpg": b"1", "\udcff/a.jpg": b"2"})
    assert [(member.name, member.reject) for member in listed(data)] == [("caf\\xe9.jpg", None), ("\\xff/a.jpg", None)]


@given(st.integers(0, 4607), st.binary(min_size=1, max_size=40))
def test_damage_never_raises(place: int, patch: bytes) -> None:
    damaged = bytearray(written(FILES_3))
    damaged[place : place + len(patch)] = patch
    for member in members(io.BytesIO(bytes(damaged))):
        assert member.reject in (None, *MEMBER_REASONS)
        assert member.reject or 0 <= member.offset <= member.offset + member.size <= len(damaged)


@pytest.fixture(scope="module")
def blob() -> bytes:
    return np.random.default_rng(0).bytes(3 << 20)


@pytest.fixture(scope="module")
def s3(object_store_server: str) -> Iterator[s3fs.S3FileSystem]:
    """A bucket of moto's server."""
    fs = s3fs.S3FileSystem(
        key="test", secret="test", client_kwargs={"endpoint_url": object_store_server, "region_name": "us-east-1"}
    )
    fs.call_s3("create_bucket", Bucket="tars")
    yield fs
    s3fs.S3FileSystem.clear_instance_cache()


@pytest.fixture(params=["file", "memory", "s3"])
def stored(request: pytest.FixtureRequest, blob: bytes, tmp_path: Path) -> tuple[Any, str]:
    fs = request.getfixturevalue("s3") if request.param == "s3" else fsspec.filesystem(request.param)
    path = {"file": str(tmp_path / "x.tar"), "memory": "/x.tar", "s3": "tars/x.tar"}[request.param]
    fs.pipe_file(path, blob)
    return fs, path


@pytest.mark.parametrize("step", [4096, 300_000])
def test_spans_are_in_order_streamed_or_fetched(stored: tuple[Any, str], blob: bytes, step: int) -> None:
    spans = [(start, 2000) for start in range(0, len(blob) - 2000, step)] + [(17, 0), (5, 9)]
    assert (sum(size for _, size in spans) > len(blob) / 10) == (step == 4096)
    expected = [blob[offset : offset + size] for offset, size in spans]
    assert list(read_spans(*stored, spans, len(blob))) == expected
    assert list(read_spans(*stored, spans[::-1], len(blob))) == expected[::-1]


@given(st.lists(st.tuples(st.integers(0, 900), st.integers(0, 100)), max_size=12), st.sampled_from([1, 10**6]))
def test_any_spans(spans: list[tuple[int, int]], total: int) -> None:
    fs = fsspec.filesystem("memory")
    data = bytes(range(250)) * 4
    fs.pipe_file("/y.tar", data)
    assert list(read_spans(fs, "/y.tar", spans, total)) == [data[start : start + size] for start, size in spans]


@pytest.mark.parametrize("total", [1, 10**9])
def test_a_file_that_ends_early_is_an_error_that_names_it(stored: tuple[Any, str], blob: bytes, total: int) -> None:
    with pytest.raises(StorageError, match="expected 100"):
        list(read_spans(*stored, [(0, 10), (len(blob) - 50, 100)], total))


@pytest.mark.parametrize("size", [400_000, 1_000])
def test_memory_does_not_grow_with_the_tar(tmp_path: Path, size: int) -> None:
    path = tmp_path / "big.tar"
    with path.open("wb") as file:
        file.truncate(400 << 20)
    spans = [(start, size) for start in range(0, 390 << 20, 1 << 20)]
    tracemalloc.start()
    for data in read_spans(fsspec.filesystem("file"), str(path), spans, 400 << 20):
        assert len(data) == size
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 40 << 20
