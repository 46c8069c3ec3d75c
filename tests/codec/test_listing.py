"""Listing of a folder: every entry that is not hidden, with the reason if it cannot be read."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from curate.codec.listing import FileInfo, extension, list_files, open_file, open_root
from curate.core.errors import InputError
from tests.acquire.helpers import write


def listed(root: Path, **more: bool) -> dict[str, str | None]:
    """Path -> reject of every entry below a folder."""
    return {file.path: file.reject for file in list_files(open_root(str(root)), "path", **more)}


def test_files_are_sorted_and_have_size_and_stamp(tmp_path: Path) -> None:
    write(tmp_path, {"b/c/2": "two", "b.x": "", "a": "1"})
    os.utime(tmp_path / "a", ns=(1, 7))
    files = list_files(open_root(str(tmp_path)), "path")
    assert [(file.path, file.size) for file in files] == [("a", 1), ("b.x", 0), ("b/c/2", 3)]
    assert files[0] == FileInfo("a", 1, 7)
    with open_file(open_root(str(tmp_path)), "b/c/2") as file:
        assert file.read() == b"two"


def test_hidden_files_and_folders_are_skipped(tmp_path: Path) -> None:
    write(tmp_path, {".git/1.png": "", "._2.png": "", "3.png": "", "a/.4.png": ""})
    assert listed(tmp_path) == {"3.png": None}


@pytest.fixture
def links(tmp_path: Path) -> Path:
    """A folder with links into it, out of it and to nothing."""
    root = write(tmp_path / "root", {"a/1.png": ""})
    outside = write(tmp_path / "outside", {"2.png": "", "sub/3.png": ""})
    (root / "inside.png").symlink_to(root / "a/1.png")
    (root / "folder").symlink_to(root / "a")
    (root / "out.png").symlink_to(outside / "2.png")
    (root / "outs").symlink_to(outside)
    (root / "gone.png").symlink_to(root / "nowhere")
    (root / "loop.png").symlink_to(root / "loop.png")
    return root


def test_links_are_followed_only_inside_the_folder(links: Path) -> None:
    assert listed(links) == {
        "a/1.png": None, "gone.png": "dangling_link", "inside.png": None, "loop.png": "dangling_link",
        "out.png": "outside_root", "outs": "outside_root",
    }  # fmt: skip


def test_links_out_of_the_folder_may_be_followed(links: Path) -> None:
    (links / "a/again").symlink_to(links.parent / "outside")
    (links.parent / "outside/sub/back").symlink_to(links.parent / "outside")
    found = listed(links, follow_links=True)
    assert [name for name, reject in found.items() if reject] == ["gone.png", "loop.png"]
    assert {"a/1.png", "inside.png", "out.png"} < set(found)
    assert len([name for name in found if name.endswith("sub/3.png")]) == 1


def test_pipes_and_undecodable_names_are_rejects(tmp_path: Path) -> None:
    write(tmp_path, {"1.png": ""})
    os.mkfifo(tmp_path / "pipe.png")
    (tmp_path / os.fsdecode(b"\xff.png")).write_bytes(b"")
    assert listed(tmp_path) == {"1.png": None, "\\xff.png": "name_not_utf8", "pipe.png": "not_a_file"}


@pytest.fixture
def other_user() -> Iterator[Path]:
    """A folder that a test reads as another user."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)
        os.seteuid(0)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can read as another user")
def test_unreadable_files_are_rejects(other_user: Path) -> None:
    write(other_user, {"1.png": "", "2.png": "", "closed/3.png": ""})
    (other_user / "2.png").chmod(0)
    (other_user / "closed").chmod(0)
    os.seteuid(65534)
    assert listed(other_user) == {"1.png": None, "2.png": "unreadable", "closed": "unreadable"}
    os.seteuid(0)
    other_user.chmod(0)
    os.seteuid(65534)
    with pytest.raises(InputError, match="Permission denied"):
        listed(other_user)


@pytest.mark.parametrize(
    ("path", "message"),
    [("nowhere", "nowhere' does not exist; give an existing folder"), ("1.png", "1.png' is a file; give the folder")],
)
def test_what_is_not_a_folder_is_a_one_line_error(tmp_path: Path, path: str, message: str) -> None:
    write(tmp_path, {"1.png": ""})
    with pytest.raises(InputError, match=f"^path: .*{message}") as caught:
        listed(tmp_path / path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("path", "expected"),
    [("a/b.JPG", "jpg"), ("b.tar.gz", "gz"), ("a.b/c", ""), ("a/.hidden", ""), ("a.", ""), ("", "")],
)
def test_the_extension_of_a_path(path: str, expected: str) -> None:
    assert extension(path) == expected
