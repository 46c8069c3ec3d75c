"""Which tars a folder, a glob or a pattern with braces names."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import PurePosixPath

from braceexpand import UnbalancedBracesError, braceexpand
from fsspec.core import has_magic

from curate.core.errors import InputError
from curate.core.store.storage import Storage, open_storage
from distill.samples.sources.dataset import NoDataset

_THREADS = 8
_EXPECTED = "give a folder of tars, a pattern (photos-{000..099}.tar, photos-*.tar), or a dataset folder of curate"


@dataclass(frozen=True)
class Tar:
    name: str
    """Relative to the storage's root."""
    size: int
    stamp: str
    """Time of the last change, or the etag."""


def is_tar(name: str) -> bool:
    return name.lower().endswith(".tar")


def find_tars(url: str) -> tuple[Storage, list[Tar]]:
    """The tars that a folder, a glob or a pattern names, by name; at least one.

    Raises InputError for what names none, or one that is not there; NoDataset for a folder without any.
    """
    try:
        paths = list(braceexpand(url)) if "{" in url else [url]
    except UnbalancedBracesError as error:
        raise InputError(f"data.sources: {url!r}: {error}; close each brace or remove it") from None
    others = [path for path in paths if not is_tar(path)]
    if others and len(paths) > 1:
        raise InputError(f"data.sources: {url!r} names {others[0]!r}, which is no .tar; {_EXPECTED}")
    if others:
        return _in_folder(url)
    storage = open_storage(_folder(paths))
    found = []
    for path in paths:
        inside = str(storage.fs._strip_protocol(path))
        matches = storage.fs.glob(inside) if has_magic(path) else [inside]
        found += [match[len(storage.root.rstrip("/")) + 1 :] for match in matches]
    if not found:
        raise InputError(f"data.sources: {url!r} matches no tar; check the path")
    return storage, _tars(storage, found, url)


def _in_folder(url: str) -> tuple[Storage, list[Tar]]:
    storage = open_storage(url)
    names = list(storage.list(""))
    tars = [name for name in names if is_tar(name)]
    if tars:
        return storage, _tars(storage, tars, url)
    kinds = Counter("".join(PurePosixPath(name).suffixes[-2:]) or name for name in names)
    held = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common(3)) or "nothing"
    packed = any(kind.lower().endswith((".tar.gz", ".tgz", ".tar.zst", ".tar.xz", ".tar.bz2")) for kind in kinds)
    remedy = "decompress them: samples are read out of the middle" if packed else _EXPECTED
    raise NoDataset(f"data.sources: {url!r} holds no .tar and no manifest.json of a dataset, but {held}; {remedy}")


def _folder(paths: Sequence[str]) -> str:
    """The deepest folder that holds all of the paths, as far as they have no wildcard."""
    parts = [path.split("/")[:-1] for path in paths]
    shared = 0
    while all(len(part) > shared and part[shared] == parts[0][shared] for part in parts):
        if has_magic(parts[0][shared]):
            break
        shared += 1
    return "/".join(parts[0][:shared]) or ("/" if paths[0].startswith("/") else ".")


def _tars(storage: Storage, names: list[str], url: str) -> list[Tar]:
    def stat(name: str) -> Tar:
        try:
            info = storage.fs.info(storage.path(name))
        except FileNotFoundError:
            raise InputError(
                f"data.sources: {storage.url_of(name)} of {url!r} does not exist; check the path or the range"
            ) from None
        if info.get("type") == "directory":
            raise InputError(f"data.sources: {storage.url_of(name)} of {url!r} is a folder; {_EXPECTED}")
        stamp = next((info[key] for key in ("ETag", "etag", "mtime", "LastModified") if info.get(key)), "")
        return Tar(name, int(info["size"]), str(stamp))

    with ThreadPoolExecutor(_THREADS) as threads:
        return list(threads.map(stat, sorted(names)))
