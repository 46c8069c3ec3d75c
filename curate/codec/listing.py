"""Files below a folder, local or on an object store: relative paths with sizes and stamps.

Only relative paths enter fingerprints, so a folder that was moved is still the same source. Every entry is listed; one
that cannot be read carries the reason.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO, Any

from curate.core.errors import InputError, StorageError
from curate.core.store.storage import Storage, open_storage

Stamp = int | str | None
"""Modification time in nanoseconds (local), ETag or modification time (object stores); None if unknown."""

REASONS = {
    "unreadable": "the file or folder exists but cannot be read",
    "outside_root": "a symbolic link that leads out of the source's root; it is not followed",
    "dangling_link": "a symbolic link whose target does not exist",
    "not_a_file": "a pipe, socket or device",
    "name_not_utf8": "the path's bytes are not UTF-8",
}
"""Reasons in FileInfo.reject, with their meaning."""
SKIPPED = {
    "hidden": "its name, or that of its folder, begins with a dot",
    "system_file": "a thumbnail, an index or the bin of a NAS or of an operating system",
    "other_extension": "its extension is not one that the source reads",
}
"""Why a listed file is not looked at, with the meaning."""
_SYSTEM = re.compile(
    r"(@eaDir|@Recycle|@Recently-Snapshot|#recycle|#snapshot|__MACOSX|\$RECYCLE\.BIN|System Volume Information)$|"
    r"lost\+found$|(Thumbs|ehthumbs(_vista)?)\.db$|SYNO(FILE|PHOTO|VIDEO)_|(desktop|Picasa)\.ini$|Icon\r$",
    re.IGNORECASE,
)
"""Names of files, or of whole folders, that Synology, QNAP, macOS, Windows and Picasa write beside photos."""

_STAMPS = ("ETag", "etag", "md5Hash", "content_md5", "blob_id", "LastModified", "last_modified", "mtime", "created")
_BLOCK_BYTES = 5 << 20


class NoFolderError(InputError):
    """The root of a listing is a file or does not exist."""


@dataclass(frozen=True)
class FileInfo:
    """A file below a folder, or an entry that cannot be read."""

    path: str
    """Relative to the folder, with `/` between parts."""
    size: int = 0
    stamp: Stamp = None
    reject: str | None = None
    folder: bool = False
    """A folder that cannot be entered; only with a reject."""


def extension(path: str) -> str:
    """In lower case, without the dot; "" if there is none."""
    name = path.rpartition("/")[2]
    return name.rpartition(".")[2].lower() if "." in name[1:] else ""


def open_root(url: str, place: str = "path") -> Storage:
    """Raises InputError, which starts with `place`, if no file system handles the URL."""
    try:
        return open_storage(url)
    except StorageError as error:
        raise InputError(f"{place}: {error}") from None
    except ValueError as error:
        raise InputError(f"{place}: {url!r}: {error}; give a local path or a URL such as s3://bucket/folder") from None


def open_file(root: Storage, path: str) -> IO[bytes]:
    """A seekable binary file; on an object store it reads ahead in blocks of 5 MiB."""
    if root.local:
        return open(root.path(path), "rb")
    return root.fs.open(root.path(path), "rb", block_size=_BLOCK_BYTES, cache_type="readahead")


def list_files(
    root: Storage,
    place: str,
    *,
    follow_links: bool = False,
    remedy: str = "give the folder it is in",
    skipped: dict[str, str] | None = None,
) -> list[FileInfo]:
    """All entries below the root that are neither hidden nor a system's, sorted by path. `skipped` gets the others,
    and why.

    follow_links: follow symbolic links that lead out of the root; otherwise they are rejects. A link to a folder inside
    the root is skipped, since its files are listed there. Raises NoFolderError if the root is not a folder, or
    InputError if it cannot be read.
    """
    try:
        if root.local:
            found = list(_walk(root.root, follow_links))
        else:
            root.fs.invalidate_cache()
            found = [file_info(root, path, info) for path, info in root.fs.find(root.root, detail=True).items()]
    except NotADirectoryError:
        raise NoFolderError(f"{place}: {root.root!r} is a file; {remedy}") from None
    except FileNotFoundError:
        raise NoFolderError(f"{place}: {root.root!r} does not exist; give an existing folder or URL") from None
    except read_errors(root) as error:
        raise cannot_read(place, root.root, error) from None
    listed = list[FileInfo]()
    for file in sorted((file for file in found if file.path), key=lambda file: file.path):
        reason = passed_over(file.path)
        if reason is None:
            listed.append(file)
        elif skipped is not None:
            skipped[file.path] = reason
    return listed


def file_info(root: Storage, path: str, info: dict[str, Any]) -> FileInfo:
    """From the path and info of fsspec."""
    relative = path[len(root.root.rstrip("/")) + 1 :]
    stamp = os.stat(path).st_mtime_ns if root.local else _stamp(info)
    return FileInfo("" if relative.endswith("/") else relative, int(info.get("size") or 0), stamp)


def _stamp(info: dict[str, Any]) -> Stamp:
    """The first of ETag, checksum and modification time that the object store reports."""
    value = next((info[name] for name in _STAMPS if info.get(name)), None)
    return value if value is None else str(value).strip('"')


def passed_over(path: str) -> str | None:
    """Why a file is not looked at, regardless of its extension; None if it is."""
    parts = path.split("/")
    if any(part.startswith(".") for part in parts):
        return "hidden"
    return "system_file" if any(map(_SYSTEM.match, parts)) else None


def cannot_read(place: str, path: str, error: Exception) -> InputError:
    return InputError(f"{place}: cannot read {path!r} ({error}); check the path, its permissions and credentials")


def read_errors(root: Storage) -> tuple[type[Exception], ...]:
    """OSError and the errors of the object store's client."""
    protocols = root.fs.protocol if isinstance(root.fs.protocol, tuple) else (root.fs.protocol,)
    if "s3" in protocols:
        from botocore.exceptions import BotoCoreError

        return OSError, BotoCoreError
    if "hf" in protocols:
        from httpx2 import HTTPError

        return OSError, HTTPError
    if "http" in protocols:
        from aiohttp import ClientError

        return OSError, ClientError
    return (OSError,)


# --- local folders ---


def _walk(root: str, follow_links: bool) -> Iterator[FileInfo]:
    real_root = os.path.realpath(root)
    todo, followed = [""], set[str]()
    while todo:
        folder = todo.pop()
        try:
            with os.scandir(f"{root}/{folder}" if folder else root) as entries:
                listed = list(entries)
        except PermissionError:
            if not folder:
                raise
            yield FileInfo(folder, reject="unreadable", folder=True)
            continue
        for item in listed:
            path = f"{folder}/{item.name}" if folder else item.name
            if item.is_dir(follow_symlinks=False) or (follow_links and _is_new_folder(item, real_root, followed)):
                todo.append(path)
            elif (one := _local(item, path, "/" if follow_links else real_root)) is not None:
                yield one


def _is_new_folder(item: os.DirEntry[str], root: str, followed: set[str]) -> bool:
    """Whether a link leads to a folder outside the root that was not followed before."""
    if not item.is_symlink() or not os.path.isdir(item.path):  # item.is_dir() raises OSError for a loop
        return False
    target = os.path.realpath(item.path)
    if target in followed or _is_inside(target, root):
        return False
    followed.add(target)
    return True


def _local(item: os.DirEntry[str], path: str, root: str) -> FileInfo | None:
    """None for a link to a folder below `root`."""
    if not path.isascii() and (spelled := os.fsencode(path).decode("utf-8", "backslashreplace")) != path:
        return FileInfo(spelled, reject="name_not_utf8")
    try:
        info = item.stat()
    except OSError:
        return FileInfo(path, reject="dangling_link" if item.is_symlink() else "unreadable")
    if item.is_symlink() and not _is_inside(os.path.realpath(item.path), root):
        return FileInfo(path, reject="outside_root", folder=stat.S_ISDIR(info.st_mode))
    if stat.S_ISDIR(info.st_mode):
        return None
    if not stat.S_ISREG(info.st_mode):
        return FileInfo(path, reject="not_a_file")
    if not os.access(item.path, os.R_OK, effective_ids=os.access in os.supports_effective_ids):
        return FileInfo(path, info.st_size, info.st_mtime_ns, "unreadable")
    return FileInfo(path, info.st_size, info.st_mtime_ns)


def _is_inside(path: str, root: str) -> bool:
    return path == root or path.startswith(root.rstrip("/") + "/")
