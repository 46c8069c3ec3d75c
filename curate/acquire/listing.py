"""What lies below a root, local or on an object store: relative paths with the size and stamp that tell a change.

The root is where a source happens to be; only relative paths leave this file, so that a moved folder stays the same
source. Nothing found is dropped without a word: what cannot be read is listed with the reason.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO, Any

import fsspec
from fsspec.implementations.local import LocalFileSystem

from curate.core.errors import InputError, Reject

Stamp = int | str | None
"""Modification time in nanoseconds (local), ETag or modification time (object stores); None where there is neither."""

REASONS = {
    "unreadable": "the file or folder exists but cannot be read",
    "outside_root": "a symbolic link that leads out of the source's root; it is not followed",
    "dangling_link": "a symbolic link to nothing",
    "not_a_file": "a pipe, socket or device",
    "name_not_utf8": "the path's bytes are not UTF-8",
    "vanished": "listed, then gone before it was read",
    "changed": "its size or time differ from what was listed; import again",
}
"""Reasons that listing and fetching files give, with their meaning."""

_STAMPS = ("ETag", "etag", "md5Hash", "content_md5", "LastModified", "last_modified", "mtime", "created")


@dataclass(frozen=True)
class Found:
    """A file below the root, or something in its place."""

    path: str
    """Relative to the root, `/` between parts."""
    size: int = 0
    stamp: Stamp = None
    reject: str | None = None
    folder: bool = False
    """A folder that cannot be entered; only with a reject."""


@dataclass(frozen=True)
class Root:
    """A folder on some file system."""

    fs: Any
    path: str
    local: bool

    def at(self, relative: str) -> str:
        return f"{self.path.rstrip('/')}/{relative}" if relative else self.path

    def url(self, relative: str) -> str:
        return self.at(relative) if self.local else str(self.fs.unstrip_protocol(self.at(relative)))

    def open(self, relative: str) -> IO[bytes]:
        """A seekable binary file, read ahead in 5 MiB blocks where that costs requests."""
        if self.local:
            return open(self.at(relative), "rb")
        return self.fs.open(self.at(relative), "rb", block_size=5 << 20, cache_type="readahead")  # type: ignore[no-any-return]


def open_root(url: str, place: str = "path") -> Root:
    """Raises InputError naming `place` for a URL that no file system answers to."""
    try:
        fs, path = fsspec.core.url_to_fs(url)
    except (ValueError, ImportError) as error:
        raise InputError(f"{place}: {url!r}: {error}; give a local path or a URL such as s3://bucket/folder") from None
    return Root(fs, path.rstrip("/") or "/", isinstance(fs, LocalFileSystem))


def list_files(root: Root, place: str) -> list[Found]:
    """Everything below the root that is not hidden, sorted by path. Raises InputError when there is no such folder."""
    try:
        if root.local:
            found = list(_walk(root.path))
        else:
            root.fs.invalidate_cache()
            found = [entry(root, path, info) for path, info in root.fs.find(root.path, detail=True).items()]
    except NotADirectoryError:
        raise InputError(f"{place}: {root.path!r} is a file; give the folder it is in") from None
    except FileNotFoundError:
        raise InputError(f"{place}: {root.path!r} does not exist; give an existing folder or URL") from None
    except (OSError, *store_errors(root.fs)) as error:
        raise unreachable(place, root.path, error) from None
    return sorted((file for file in found if file.path and not is_hidden(file.path)), key=lambda file: file.path)


def entry(root: Root, path: str, info: dict[str, Any]) -> Found:
    """A file system's own path and info -> Found."""
    relative = path[len(root.path.rstrip("/")) + 1 :]
    return Found("" if relative.endswith("/") else relative, int(info.get("size") or 0), stamp_of(info))


def stamp_of(info: dict[str, Any]) -> Stamp:
    """What changes when an object does: the first of ETag, checksum, time that its store tells."""
    value = next((info[name] for name in _STAMPS if info.get(name)), None)
    return value if value is None else str(value).strip('"')


def is_hidden(path: str) -> bool:
    return any(part.startswith(".") for part in path.split("/"))


def unreachable(place: str, path: str, error: Exception) -> InputError:
    return InputError(f"{place}: {path!r} cannot be read ({error}); check the path, its permissions and credentials")


def store_errors(fs: Any) -> tuple[type[Exception], ...]:
    """What an object store's client raises besides OSError."""
    protocols = fs.protocol if isinstance(fs.protocol, tuple) else (fs.protocol,)
    if "s3" in protocols:
        from botocore.exceptions import BotoCoreError

        return (BotoCoreError,)
    if "http" in protocols:
        from aiohttp import ClientError

        return (ClientError,)
    return ()


# --- local folders ---


def _walk(root: str) -> Iterator[Found]:
    real_root = os.path.realpath(root)
    todo = [""]
    while todo:
        folder = todo.pop()
        try:
            with os.scandir(f"{root}/{folder}" if folder else root) as entries:
                listed = list(entries)
        except PermissionError:
            if not folder:
                raise
            yield Found(folder, reject="unreadable", folder=True)
            continue
        for item in listed:
            path = f"{folder}/{item.name}" if folder else item.name
            if item.name.startswith("."):
                continue
            if item.is_dir(follow_symlinks=False):
                todo.append(path)
            elif (one := _local(item, path, real_root)) is not None:
                yield one


def _local(item: os.DirEntry[str], path: str, real_root: str) -> Found | None:
    """None for a link to a folder inside the root: its files are listed where they are."""
    if not path.isascii() and (spelled := _spelled(path)) != path:
        return Found(spelled, reject="name_not_utf8")
    try:
        info = item.stat()
    except OSError:
        return Found(path, reject="dangling_link" if item.is_symlink() else "unreadable")
    if item.is_symlink() and not _is_inside(os.path.realpath(item.path), real_root):
        return Found(path, reject="outside_root", folder=stat.S_ISDIR(info.st_mode))
    if stat.S_ISDIR(info.st_mode):
        return None
    if not stat.S_ISREG(info.st_mode):
        return Found(path, reject="not_a_file")
    if not os.access(item.path, os.R_OK, effective_ids=os.access in os.supports_effective_ids):
        return Found(path, info.st_size, info.st_mtime_ns, "unreadable")
    return Found(path, info.st_size, info.st_mtime_ns)


def _is_inside(path: str, root: str) -> bool:
    return path == root or path.startswith(root.rstrip("/") + "/")


def _spelled(path: str) -> str:
    return os.fsencode(path).decode("utf-8", "backslashreplace")


# --- reading ---


def read_local(root: Root, file: Found) -> bytes:
    """All bytes of a listed file. Raises Reject: unreadable, vanished, changed."""
    try:
        with open(root.at(file.path), "rb") as opened:
            info = os.fstat(opened.fileno())
            if (info.st_size, info.st_mtime_ns) != (file.size, file.stamp):
                raise Reject("changed", f"{info.st_size} bytes, {file.size} were listed")
            data = opened.read(file.size + 1)
    except FileNotFoundError:
        raise Reject("vanished", file.path) from None
    except (PermissionError, IsADirectoryError, NotADirectoryError) as error:
        raise Reject("unreadable", error.strerror or "") from None
    if len(data) != file.size:
        raise Reject("changed", f"{len(data)} bytes, {file.size} were listed")
    return data


def read_files(root: Root, files: list[Found]) -> list[bytes | Reject]:
    """Bytes of each file, or why not; side by side where a request takes longer than its bytes.

    Failures of the store itself (time-outs, refused connections) are raised: they pass, and the work is done again.
    """
    if root.local:
        return [_read_or_reject(root, file) for file in files]
    paths = [root.at(file.path) for file in files]
    got: dict[str, Any] = root.fs.cat(paths, on_error="return") if paths else {}
    if len(paths) == 1 and not isinstance(got, dict):
        got = {paths[0]: got}
    return [_checked(file, got[path]) for file, path in zip(files, paths, strict=True)]


def _read_or_reject(root: Root, file: Found) -> bytes | Reject:
    try:
        return read_local(root, file)
    except Reject as reject:
        return reject


def _checked(file: Found, value: bytes | Exception) -> bytes | Reject:
    if isinstance(value, FileNotFoundError):
        return Reject("vanished", file.path)
    if isinstance(value, PermissionError):
        return Reject("unreadable", str(value))
    if isinstance(value, Exception):
        raise value
    if len(value) != file.size:
        return Reject("changed", f"{len(value)} bytes, {file.size} were listed")
    return bytes(value)
