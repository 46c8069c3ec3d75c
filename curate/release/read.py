"""Reads a release, which may come from anywhere: nothing of it is run, and everything is checked."""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from curate.codec.listing import open_root
from curate.core.contracts.stage import PLAIN_NAME
from curate.core.errors import InputError, StorageError
from curate.core.hashing import KEY_HEX
from curate.core.store.storage import Storage
from curate.release import layout
from curate.release.keys import Keys, words_of

BATCH_ROWS = 1 << 16
BLOCK_BYTES = 1 << 22
_KEY = rf"^[0-9a-f]{{{KEY_HEX}}}$"
_LINE = re.compile(r"([0-9a-f]{64})  (\S.*)")
_NAME = re.compile(r"[A-Za-z0-9_-]{1,200}")
_DATA = re.compile(rf"{layout.DATA}/[A-Za-z0-9_-]+\.parquet")


@dataclass(frozen=True)
class Release:
    storage: Storage
    about: dict[str, Any]
    sums: dict[str, str]
    """File -> its sha256."""

    @property
    def url(self) -> str:
        return self.storage.url

    @property
    def digest(self) -> str:
        """Digest of all files but removed.parquet."""
        return hashlib.sha256(json.dumps(sorted(self.sums.items())).encode()).hexdigest()

    @cached_property
    def files(self) -> list[str]:
        """The files of rows."""
        return sorted(name for name in self.sums if _DATA.fullmatch(name))

    def verify(self) -> None:
        """Compare every file with its checksum. Raises InputError for the first that differs."""
        for name, wanted in self.sums.items():
            if (found := self._sha256(name)) != wanted:
                what = "is missing" if found is None else f"has the sha256 {found}, not {wanted}"
                raise InputError(f"{self.storage.url_of(name)}: {what}, which {layout.SUMS} gives; get it again")

    def _sha256(self, name: str) -> str | None:
        hasher = hashlib.sha256()
        try:
            with self.storage.open(name) as file:
                while block := file.read(BLOCK_BYTES):
                    hasher.update(block)
        except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
            return None
        return hasher.hexdigest()

    def rows(self, columns: Sequence[str]) -> Iterator[pa.Table]:
        """Columns of all rows. Raises InputError for a file that lacks one, or is not parquet."""
        for name in self.files:
            for table in _batches(self.storage, name, columns):
                if "key" in columns:
                    keys = table.column("key")
                    wrong = keys.filter(pc.invert(pc.fill_null(pc.match_substring_regex(keys, _KEY), False)))
                    if len(wrong):
                        found = str(wrong[0].as_py())[:80]
                        raise InputError(
                            f"{self.storage.url_of(name)}: key {found!r}: expected {KEY_HEX} hex characters"
                        )
                yield table

    def check(self) -> None:
        """Raises InputError for a file whose columns are not those that a fetch needs."""
        if not self.files:
            raise InputError(f"{self.url}: {layout.SUMS} names no {layout.DATA}/*.parquet; expected files of rows")
        for name in self.files:
            next(_batches(self.storage, name, list(layout.REQUIRED)), None)

    def keys(self) -> Keys:
        parts = [words_of(table.column("key")) for table in self.rows(["key"])]
        return Keys(np.concatenate(parts) if parts else np.empty((0, 2), np.uint64))

    def removed(self) -> pa.Table:
        """The rows that must not be used any more; the file may be newer than the release."""
        if not self.storage.exists(layout.REMOVED):
            return layout.REMOVED_SCHEMA.empty_table()
        return read_removed(self.storage, layout.REMOVED)


def open_release(url: str) -> Release:
    """Raises InputError for a folder that is not a release."""
    storage = open_root(url, "release")
    expected = "expected a folder that `curate release` has made"
    try:
        about, lines = storage.read_json(layout.ABOUT), storage.read(layout.SUMS).decode().splitlines()
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
        raise InputError(f"{storage.url}: has no {layout.ABOUT} and {layout.SUMS}; {expected}") from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"{storage.url}: {layout.ABOUT} or {layout.SUMS} is corrupt ({error}); {expected}") from None
    found = about.get("format") if isinstance(about, dict) else None
    if found != layout.FORMAT or isinstance(found, bool):
        raise InputError(f"{storage.url}: format {found!r}; this version reads format {layout.FORMAT}")
    found_lines = [_LINE.fullmatch(line) for line in lines]
    wrong = next((line for line, one in zip(lines, found_lines, strict=True) if one is None or _outside(one[2])), None)
    if wrong is not None:
        raise InputError(f"{storage.url_of(layout.SUMS)}: {wrong[:80]!r}: expected SHA256, two spaces, a file in it")
    for name, plain in (("name", _NAME), ("namespace", PLAIN_NAME), ("dataset", PLAIN_NAME)):
        if not isinstance(about.get(name), str) or not plain.fullmatch(about[name]):
            raise InputError(f"{storage.url_of(layout.ABOUT)}: {name}: {about.get(name)!r}: expected a plain name")
    if not isinstance(about.get("media", []), list):
        raise InputError(f"{storage.url_of(layout.ABOUT)}: media: {str(about['media'])[:80]}: expected a list of media")
    return Release(storage, about, {one[2]: one[1] for one in found_lines if one})


def _outside(name: str) -> bool:
    return name.startswith("/") or ".." in name.split("/") or "\\" in name or "\0" in name


def read_removed(storage: Storage, name: str) -> pa.Table:
    """A `removed.parquet`. Raises InputError if it is not one."""
    tables = list(_batches(storage, name, layout.REMOVED_SCHEMA.names))
    return pa.concat_tables(tables) if tables else layout.REMOVED_SCHEMA.empty_table()


def _batches(storage: Storage, name: str, columns: Sequence[str]) -> Iterator[pa.Table]:
    place = storage.url_of(name)
    try:
        with storage.open(name) as opened:
            file = pq.ParquetFile(opened)
            names = Counter(file.schema_arrow.names)
            if twice := next((column for column, count in names.items() if count > 1), None):
                raise InputError(f"{place}: has the column {twice!r} {names[twice]} times; get it again")
            missing = [column for column in columns if column not in names]
            if missing:
                found = ", ".join(file.schema_arrow.names[:20])
                raise InputError(f"{place}: no column {missing[0]!r}; found {found}; get it again")
            for column in columns:
                kind = file.schema_arrow.field(column).type
                if not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
                    raise InputError(f"{place}: column {column!r} is {kind}; expected text")
            schema = pa.schema([pa.field(column, pa.string()) for column in columns])
            for batch in file.iter_batches(BATCH_ROWS, columns=list(columns)):
                yield pa.Table.from_batches([batch]).select(list(columns)).cast(schema)
    except FileNotFoundError:
        raise InputError(f"{place}: is missing; get it again") from None
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise StorageError(f"{place}: cannot be read ({error.strerror}); fix that and run it again") from None
        raise InputError(f"{place}: is not a parquet file ({str(error).splitlines()[0][:200]}); get it again") from None
