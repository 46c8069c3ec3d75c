"""Files of a source, given as a folder, a file, a glob, a brace pattern (`{000..127}`) or a list of these.

The root folder follows from the text alone, so that planning and reading agree on it without listing files twice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

from braceexpand import braceexpand
from fsspec.core import has_magic

from curate.codec.listing import (
    FileInfo,
    NoFolderError,
    cannot_read,
    extension,
    file_info,
    list_files,
    open_root,
    passed_over,
    read_errors,
)
from curate.core.errors import InputError
from curate.core.store.storage import Storage, open_storage

THREADS = 16
"""Concurrent requests for the info of single files on an object store."""
SHOWN_SUFFIXES = 3
"""More are named once in a message."""
Suffix = str | tuple[str, ...]
"""Extension of the files of a source, or several: `tar`, `csv.gz`; in lower case, without the first dot."""
_COMPRESSED = (".tar.gz", ".tgz", ".tar.zst", ".tar.xz", ".tar.bz2")
_DECOMPRESS = "decompress them: samples are read at random positions"


class NoFilesError(InputError):
    """A folder or glob without a file of the expected extension."""


def suffixes(suffix: Suffix) -> tuple[str, ...]:
    return (suffix,) if isinstance(suffix, str) else suffix


def has_suffix(path: str, suffix: Suffix) -> bool:
    """Whether a file has the extension, or one of them."""
    name = path.rpartition("/")[2].lower()
    return name[1:].endswith(tuple(f".{one}" for one in suffixes(suffix)))


def expand(paths: str | Iterable[str], place: str = "path") -> list[str]:
    """Every path with its braces expanded, in order."""
    given = [paths] if isinstance(paths, str) else list(paths)
    try:
        return [path for text in given for path in braceexpand(text)]
    except ValueError as error:
        raise InputError(f"{place}: {paths!r}: {error}; close each brace or remove it") from None


def root_of(paths: str | Iterable[str], suffix: Suffix, place: str) -> Storage:
    """The deepest folder that is certain to contain all files named: the path before any wildcard or brace."""
    given = [paths] if isinstance(paths, str) else list(paths)
    if not given:
        raise InputError(f"{place}: an empty list; give a folder, a URL or a pattern")
    fixed = [path for text in given for path in (expand(text, place) if text.startswith("{") else [text])]
    roots = [open_root(_folder(path, suffix), place) for path in fixed]
    if any(root.fs is not roots[0].fs for root in roots):
        raise InputError(f"{place}: {paths!r} spans several file systems; import each as a separate pool")
    return open_storage(str(roots[0].fs.unstrip_protocol(_common([root.root for root in roots]))))


def find_files(
    root: Storage,
    paths: str | Iterable[str],
    suffix: Suffix,
    place: str,
    *,
    follow_links: bool = False,
    skipped: dict[str, str] | None = None,
) -> list[FileInfo]:
    """Files of the given extension, relative to the root, each once, sorted by path; `list_files` says which of a
    folder. `skipped` gets the reason of each other file there.

    Raises InputError if a path names no file, and NoFilesError if a folder or glob has none of the extension.
    """
    given = [paths] if isinstance(paths, str) else list(paths)
    named = {path: _named(path, text) for text in given for path in expand(text, place)}
    find = partial(_find, root, suffix=suffix, place=place, follow_links=follow_links)
    unused = [dict[str, str]() for _ in named]
    if len(named) > 1 and not root.local:
        with ThreadPoolExecutor(THREADS) as threads:
            parts = list(threads.map(find, named.keys(), named.values(), unused))
    else:
        parts = list(map(find, named.keys(), named.values(), unused))
    found = {file.path: file for part in parts for file in part}
    if skipped is not None:
        skipped |= {name: reason for part in unused for name, reason in part.items() if name not in found}
    return [found[path] for path in sorted(found)]


def _named(path: str, text: str) -> str:
    """A path in messages, with the pattern it comes from."""
    return repr(path) if path == text else f"{path!r} of {text!r}"


def _folder(path: str, suffix: Suffix) -> str:
    """The path before any wildcard or brace, without the file name."""
    if not _is_pattern(path):
        is_file = has_suffix(path, suffix)
        return path.rpartition("/")[0] or ("/" if path.startswith("/") else ".") if is_file else path
    parts = path.split("/")
    fixed = next(i for i, part in enumerate(parts) if _is_pattern(part))
    return "/".join(parts[:fixed]) or ("/" if path.startswith("/") else ".")


def _is_pattern(path: str) -> bool:
    return "{" in path or bool(has_magic(path))


def _common(paths: list[str]) -> str:
    split = [path.split("/") for path in paths]
    shared = 0
    while all(len(parts) > shared for parts in split) and len({parts[shared] for parts in split}) == 1:
        shared += 1
    return "/".join(split[0][:shared]) or "/"


def _find(
    root: Storage, path: str, name: str, skipped: dict[str, str], *, suffix: Suffix, place: str, follow_links: bool
) -> list[FileInfo]:
    inside = str(root.fs._strip_protocol(path))
    if root.local:
        inside = str(Path(inside).absolute())  # without `//` and `/./`, like the root
    if has_magic(path):
        matched = _glob(root, inside, path, place, skipped)
        found = [file for file in matched if has_suffix(file.path, suffix)]
        skipped |= {file.path: "other_extension" for file in matched if not has_suffix(file.path, suffix)}
        if not found:
            raise NoFilesError(f"{place}: {name} matches no {_dotted(suffix)} file; {_expected(suffix)}")
        return found
    if has_suffix(path, suffix):
        return [_one(root, path, name, inside, place, suffix)]
    below = open_storage(str(root.fs.unstrip_protocol(inside)))
    try:
        others: dict[str, str] = {}
        listed = list_files(below, place, follow_links=follow_links, remedy=_expected(suffix), skipped=others)
    except NoFolderError:
        if not extension(path):
            raise
        remedy = _DECOMPRESS if suffix == "tar" and path.lower().endswith(_COMPRESSED) else _expected(suffix)
        raise NoFolderError(f"{place}: {name} is neither a folder nor a {_dotted(suffix)} file; {remedy}") from None
    found = [file for file in listed if file.folder or has_suffix(file.path, suffix)]
    if not found:
        raise NoFilesError(f"{place}: {name} has no {_dotted(suffix)} file ({_contents(listed, suffix)}")
    prefix = f"{below.root[len(root.root.rstrip('/')) + 1 :]}/".removeprefix("/")
    others |= {file.path: "other_extension" for file in listed if not file.folder and not has_suffix(file.path, suffix)}
    skipped |= {f"{prefix}{path}": reason for path, reason in others.items()}
    return [replace(file, path=f"{prefix}{file.path}") for file in found]


def _one(root: Storage, path: str, name: str, inside: str, place: str, suffix: Suffix) -> FileInfo:
    try:
        info = root.fs.info(inside)
        if info["type"] == "directory":
            raise InputError(f"{place}: {name} is a folder; add a slash to its end to read the files in it")
        return file_info(root, inside, info)
    except FileNotFoundError:
        raise InputError(f"{place}: {name} does not exist; check the path or the pattern's range") from None
    except read_errors(root) as error:
        raise cannot_read(place, path, error) from None


def _glob(root: Storage, inside: str, path: str, place: str, skipped: dict[str, str]) -> list[FileInfo]:
    try:
        root.fs.invalidate_cache()
        matches: dict[str, dict[str, Any]] = root.fs.glob(inside, detail=True)
        found = [file_info(root, match, info) for match, info in matches.items() if info["type"] == "file"]
    except read_errors(root) as error:
        raise cannot_read(place, path, error) from None
    skipped |= {file.path: reason for file in found if (reason := passed_over(file.path)) is not None}
    return [file for file in found if file.path not in skipped]


def _contents(files: Sequence[FileInfo], suffix: Suffix) -> str:
    """The end of a message about a folder without the expected files."""
    kinds = Counter("".join(PurePosixPath(file.path).suffixes[-2:]) or file.path for file in files)
    held = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common(3)) or "nothing"
    compressed = suffix == "tar" and any(kind.lower().endswith(_COMPRESSED) for kind in kinds)
    remedy = _DECOMPRESS if compressed else _expected(suffix)
    return f"found {held}); {remedy}"


def _expected(suffix: Suffix) -> str:
    pattern = f"part-{{000..127}}.{suffixes(suffix)[0]}"
    kind = _dotted(suffix) if len(suffixes(suffix)) <= SHOWN_SUFFIXES else "such"
    return f"give a folder of {kind} files, a glob or a pattern such as {pattern}"


def _dotted(suffix: Suffix) -> str:
    return ", ".join(f".{one}" for one in suffixes(suffix))
