"""Paths as people write them for shards (a folder, a file, a glob, `{000..127}`, a list) -> files below a root.

The root is read off the text alone, so that planning and reading agree on it without listing anything twice.
"""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

from fsspec.core import has_magic

from curate.acquire.extensions import extension
from curate.acquire.listing import Found, Root, entry, is_hidden, list_files, open_root, store_errors, unreachable
from curate.core.errors import InputError

THREADS = 16
"""Requests side by side while an object store is asked about single files."""


def expand(paths: str | Iterable[str]) -> list[str]:
    """Every path with its braces spelled out, in order."""
    from braceexpand import UnbalancedBracesError, braceexpand

    given = [paths] if isinstance(paths, str) else list(paths)
    try:
        return [path for text in given for path in braceexpand(text)]
    except UnbalancedBracesError as error:
        raise InputError(f"path: {paths!r}: {error}; close each brace or remove it") from None


def root_of(paths: str | Iterable[str], suffix: str, place: str) -> Root:
    """The deepest folder that surely holds all that the paths can name: what comes before any wildcard or brace."""
    given = [paths] if isinstance(paths, str) else list(paths)
    if not given:
        raise InputError(f"{place}: an empty list; give a folder, a URL or a pattern")
    roots = [open_root(_folder(path, suffix), place) for path in given]
    if any(root.fs is not roots[0].fs for root in roots):
        raise InputError(f"{place}: {paths!r} lies on several file systems; import each as a pool of its own")
    return Root(roots[0].fs, _common([root.path for root in roots]), roots[0].local)


def find_files(root: Root, paths: str | Iterable[str], suffix: str, place: str) -> list[Found]:
    """Files with the suffix that the paths name, relative to the root, each once, by path.

    Raises InputError for a path that names nothing.
    """
    expanded = expand(paths)
    if len(expanded) > 1 and not root.local:
        with ThreadPoolExecutor(THREADS) as threads:
            parts = list(threads.map(lambda path: _find(root, path, suffix, place), expanded))
    else:
        parts = [_find(root, path, suffix, place) for path in expanded]
    found = {file.path: file for part in parts for file in part}
    return [found[path] for path in sorted(found)]


def _folder(path: str, suffix: str) -> str:
    """The part of a path before any wildcard or brace and before the file's name."""
    if not _is_pattern(path):
        is_file = extension(path) == suffix
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


def _find(root: Root, path: str, suffix: str, place: str) -> list[Found]:
    inside = root.fs._strip_protocol(path)
    if has_magic(path):
        found = _entries(root, _glob(root, inside, path, place))
        return _some([file for file in found if extension(file.path) == suffix], place, f"{path!r} matches no", suffix)
    if extension(path) == suffix:
        return [_one(root, path, inside, place)]
    below = Root(root.fs, inside.rstrip("/") or "/", root.local)
    prefix = below.path[len(root.path.rstrip("/")) + 1 :]
    found = [
        replace(file, path=f"{prefix}/{file.path}" if prefix else file.path)
        for file in list_files(below, place)
        if file.folder or extension(file.path) == suffix
    ]
    return _some(found, place, f"{path!r} holds no", suffix)


def _entries(root: Root, infos: dict[str, dict[str, Any]]) -> list[Found]:
    found = [_found(root, path, info) for path, info in infos.items() if info["type"] == "file"]
    return [file for file in found if not is_hidden(file.path)]


def _one(root: Root, path: str, inside: str, place: str) -> Found:
    try:
        info = root.fs.info(inside)
    except FileNotFoundError:
        raise InputError(f"{place}: {path!r} does not exist; check the path or the pattern's range") from None
    except (OSError, *store_errors(root.fs)) as error:
        raise unreachable(place, path, error) from None
    return _found(root, inside, info)


def _glob(root: Root, inside: str, path: str, place: str) -> dict[str, dict[str, Any]]:
    try:
        root.fs.invalidate_cache()
        return root.fs.glob(inside, detail=True)  # type: ignore[no-any-return]
    except (OSError, *store_errors(root.fs)) as error:
        raise unreachable(place, path, error) from None


def _found(root: Root, path: str, info: dict[str, Any]) -> Found:
    found = entry(root, path, info)
    return replace(found, stamp=Path(path).stat().st_mtime_ns) if root.local else found


def _some(found: list[Found], place: str, what: str, suffix: str) -> list[Found]:
    if found:
        return found
    raise InputError(f"{place}: {what} .{suffix} file; give a folder, a URL, a glob or {{000..127}} pattern of them")
