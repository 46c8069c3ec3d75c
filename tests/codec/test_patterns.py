from __future__ import annotations

from pathlib import Path

import pytest

from curate.codec.patterns import expand, find_files, root_of
from curate.core.errors import InputError
from tests.acquire.helpers import write


@pytest.mark.parametrize(
    ("paths", "root"),
    [
        ("/data/shards", "/data/shards"),
        ("/data/shards/", "/data/shards"),
        ("/data/shards/1.tar", "/data/shards"),
        ("/data/shards/*.tar", "/data/shards"),
        ("/data/*/x/*.tar", "/data"),
        ("/data/{a,b}/{0..3}.tar", "/data"),
        (["/data/a/x", "/data/ab/y.tar"], "/data"),
        (["/a", "/b"], "/"),
        ("s3://bucket/a/{000..127}.tar", "bucket/a"),
        (("s3://bucket/a/*.tar", "s3://bucket/b"), "bucket"),
        ("https://host/a/{0..3}.tar", "https://host/a"),
    ],
)
def test_the_root_follows_from_the_text(paths: str | list[str], root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    assert root_of(paths, "tar", "path").root == root


def test_relative_paths_start_at_the_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, {"a/1.tar": "", "2.tar": ""})
    monkeypatch.chdir(tmp_path)
    for path, expected in (
        ("a", ["1.tar"]),
        (".", ["2.tar", "a/1.tar"]),
        ("2.tar", ["2.tar"]),
        ("*/*.tar", ["a/1.tar"]),
    ):
        root = root_of(path, "tar", "path")
        assert [file.path for file in find_files(root, path, "tar", "path")] == expected


@pytest.mark.parametrize("scheme", ["", "file://"])
@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/./a//b/*.tar", ["1.tar", "2.tar"]),
        ("//a/./b/{1,2}.tar", ["1.tar", "2.tar"]),
        ("/a/b/./*.tar", ["1.tar", "2.tar"]),
        ("/a/b//*.tar", ["1.tar", "2.tar"]),
        ("//a/b/./1.tar", ["1.tar"]),
        ("/a/b//1.tar", ["1.tar"]),
        ("//a//.//b//", ["1.tar", "2.tar"]),
        ("//*/.//*.tar", ["a/3.tar"]),
    ],
)
def test_empty_and_dot_parts_of_a_path_do_not_matter(
    tmp_path: Path, scheme: str, path: str, expected: list[str]
) -> None:
    write(tmp_path, {"a/b/1.tar": "", "a/b/2.tar": "", "a/3.tar": ""})
    path = f"{scheme}{tmp_path}{path}"
    root = root_of(path, "tar", "path")
    assert [file.path for file in find_files(root, path, "tar", "path")] == expected


def test_hidden_files_are_skipped_and_repeated_files_listed_once(tmp_path: Path) -> None:
    write(tmp_path, {".x/1.tar": "", "a/.2.tar": "", "a/3.tar": "", "a/4.tar.gz": ""})
    paths = [str(tmp_path), f"{tmp_path}/a/3.tar", f"{tmp_path}/*/*.tar"]
    root = root_of(paths, "tar", "path")
    assert [file.path for file in find_files(root, paths, "tar", "path")] == ["a/3.tar"]


def test_braces_are_expanded_in_order() -> None:
    assert expand("s3://b/{08..11}.tar") == [f"s3://b/{i}.tar" for i in ("08", "09", "10", "11")]
    assert expand(["x{a,b}", "y"]) == ["xa", "xb", "y"]


def test_an_open_brace_is_a_one_line_error() -> None:
    with pytest.raises(InputError, match="close each brace"):
        expand("/a/{0..3.tar")


@pytest.mark.parametrize(
    ("paths", "message"),
    [
        ([], "an empty list"),
        (["/a", "memory://b"], "several file systems"),
        ("nosuch://a", "Protocol not known"),
    ],
)
def test_invalid_paths_are_one_line_errors(paths: str | list[str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        root_of(paths, "tar", "import: path")


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("a-{0..1}.tgz", "path: 'a-0.tgz' of 'a-{0..1}.tgz' is neither a folder nor a .tar file; decompress them: "),
        ("a.png", "path: 'a.png' is neither a folder nor a .tar file; give a folder of .tar files"),
        ("b/{0..1}.tar", "path: 'b/0.tar' of 'b/{0..1}.tar' does not exist; check the path or the pattern's range"),
        ("{a,b}/*.tar", "path: 'a/*.tar' of '{a,b}/*.tar' matches no .tar file"),
    ],
)
def test_messages_name_the_path_as_given(
    path: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, {"a.png": ""})
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError) as caught:
        find_files(root_of(path, "tar", "path"), path, "tar", "path")
    assert str(caught.value).startswith(message)


def test_paths_below_the_root_of_the_file_system() -> None:
    root = root_of(["/a", "/b"], "tar", "path")
    assert (root.path("a/1.tar"), root.url_of("b/2.tar")) == ("/a/1.tar", "/b/2.tar")
