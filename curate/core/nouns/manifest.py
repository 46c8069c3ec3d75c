"""Manifests: the file whose creation commits a noun, and reading what a manifest lists."""

from __future__ import annotations

import errno
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any, Self

import pyarrow as pa

from curate.core.errors import AlreadyExistsError, CorruptError, PinnedError, StorageError
from curate.core.ledger import Entry
from curate.core.store.storage import Storage


@dataclass
class Manifest:
    """Description of a committed noun."""

    noun: str
    op: str
    version: int
    fingerprint: str
    parameters: dict[str, Any] = field(default_factory=dict)
    identity: dict[str, Any] = field(default_factory=dict)
    inputs: dict[str, Any] = field(default_factory=dict)
    ledger: dict[str, Any] = field(default_factory=dict)
    rows: int = 0
    bytes: int = 0
    seconds: float = 0.0
    """Wall seconds of the build. Times and dates are never part of a fingerprint."""
    built_rows: int = 0
    """Rows computed in that time; the others existed."""
    content: str = ""
    """Digest of an artifact's content, on which the stages that read it depend."""
    extra: dict[str, Any] = field(default_factory=dict)

    @property
    def entry(self) -> Entry:
        return Entry.from_json(self.ledger) if self.ledger else Entry()

    @classmethod
    def load(cls, storage: Storage, base: str) -> Self | None:
        try:
            return cls(**storage.read_json(f"{base}/manifest.json"))
        except FileNotFoundError:
            return None
        except (ValueError, TypeError) as error:
            path, text = storage.url_of(f"{base}/manifest.json"), f"{type(error).__name__}: {error}"
            raise StorageError(f"{path}: cannot read the manifest ({text}); remove it and rerun the recipe") from error

    def commit(self, storage: Storage, base: str, shards: Sequence[Mapping[str, Any]] | pa.Table = ()) -> Manifest:
        """Publish `shards.parquet`, then create the manifest; if it exists, return the existing one."""
        existing = Manifest.load(storage, base)
        if existing is None:
            if len(shards):
                table = shards if isinstance(shards, pa.Table) else pa.Table.from_pylist([dict(s) for s in shards])
                storage.publish_table(f"{base}/shards.parquet", table)
            try:
                storage.create_json(f"{base}/manifest.json", asdict(self))
                return self
            except AlreadyExistsError:
                existing = Manifest.load(storage, base)
        if existing is None or existing.fingerprint != self.fingerprint:
            found = existing.fingerprint if existing else "nothing"
            raise PinnedError(f"{base}: contains {found}, not {self.fingerprint}; choose another name")
        return existing


GONE = (None, errno.ENOENT, errno.ENOTDIR, errno.EISDIR)
"""Numbers of OSErrors for missing files, and for files that Parquet cannot parse (which have none)."""


@contextmanager
def reading(storage: Storage, path: str, what: str, remedy: str) -> Iterator[None]:
    """Turns errors of reading a file into one line: CorruptError if it is corrupt or missing, StorageError if the file
    system fails (which is retried)."""
    try:
        yield
    except (OSError, pa.ArrowException, KeyError, TypeError, ValueError) as error:
        text = "no such file" if isinstance(error, FileNotFoundError) else " ".join(str(error).split())[:200]
        if isinstance(error, OSError) and error.errno not in GONE:
            raise StorageError(
                f"{storage.url_of(path)}: cannot read this {what} ({text}); fix that and rerun the same command"
            ) from error
        raise CorruptError(f"{storage.url_of(path)}: this {what} is corrupt or missing ({text}); {remedy}") from error


def read_lines(storage: Storage, base: str, columns: list[str] | None = None, file: str = "shards.parquet") -> pa.Table:
    """The lines of a noun's `shards.parquet`, one per shard."""
    with reading(storage, f"{base}/{file}", "list of shards", f"remove the folder {base} and rerun the recipe"):
        return storage.read_table(f"{base}/{file}", columns=columns)


def read_results(storage: Storage, base: str, file: str = "shards.parquet") -> pa.Table:
    """The lines of a noun with the `result` of each shard (JSON), a column that earlier versions called `said`."""
    table = read_lines(storage, base, file=file)
    return table.rename_columns(["result" if name == "said" else name for name in table.column_names])


def read_index(storage: Storage, base: str, columns: list[str] | None = None, **options: Any) -> pa.Table:
    """The index of a committed dataset."""
    path, remedy = f"{base}/index.parquet", f"remove the folder {base} and rerun the recipe"
    with reading(storage, path, "index of a dataset", remedy):
        return storage.read_table(path, columns=columns, **options)
