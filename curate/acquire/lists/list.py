"""`acquire.list`: lists of URLs and captions, of any length, in portions for `acquire.download`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, replace
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, field_validator

from curate.acquire.lists.columns import NAMES, Layout
from curate.acquire.lists.read import FORMATS, ListFile
from curate.acquire.lists.rows import broken, finished
from curate.codec.listing import FileInfo, file_info
from curate.codec.patterns import find_files, has_suffix, root_of
from curate.core.contracts import Added, Collect, Location, Portion, Runtime, Table
from curate.core.errors import InputError
from curate.core.ledger import skips_of
from curate.core.store.storage import Storage

PART_BYTES = 256 << 20
"""Larger parquet files are read in shares."""
EXPANSION = 4
"""About how many bytes a byte of gzip or zstd is."""


class AcquireList(Collect):
    """Read lists of URLs: parquet, CSV (with a line of names) or JSON lines, also compressed by gzip or zstd.

    Columns of the URL, caption and digest are found by name unless given; the others go into `meta`. Rows of one URL
    are in one portion. URLs are the same if they differ only in ways that no server sees; the URL of the list is kept.
    A row without a URL is dropped and counted; a URL that cannot be fetched keeps its row and has a reject.
    """

    op: ClassVar[str] = "acquire.list"
    version: ClassVar[int] = 2
    kind: ClassVar[str] = "list"

    path: Annotated[str | tuple[str, ...], Runtime(), Location()] = Field(
        description="lists: a folder, a file, a glob, a pattern such as part-{000..127}.parquet, or several of these"
    )
    format: Literal["auto", "parquet", "csv", "jsonl"] = Field("auto", description="auto: by the files' extension")
    columns: dict[str, str | None] = Field(
        default_factory=dict,
        description="name of the column for url, caption, sha256 or md5, null for none; default: found by name",
    )
    keep: tuple[str, ...] | None = Field(None, description="other columns that go into `meta`; null: all others")
    delimiter: str | None = Field(
        None, pattern=r"^[\t -~]$", description="between the values of CSV; default: a tab in .tsv, else a comma"
    )
    quotes: Annotated[bool | None, Added()] = Field(
        None,
        description="whether a quote at the beginning of a value of CSV encloses it, so that it may have the delimiter "
        "and line breaks; default: not in .tsv, where a quote is text",
    )
    portion_rows: int = Field(10_000, ge=1, description="about the most rows of a portion, which becomes a shard")

    @field_validator("columns")
    @classmethod
    def _known(cls, columns: dict[str, str | None]) -> dict[str, str | None]:
        for name, value in columns.items():
            if name not in NAMES or (name == "url" and value is None):
                raise ValueError(f"{name}: {value!r}; expected a column's name for one of {', '.join(NAMES)}")
        return columns

    # --- planning ---

    def plan(self) -> list[Portion]:
        root = self._root()
        skipped: dict[str, str] = {}
        files = find_files(root, self.path, self._suffixes, self._place, skipped=skipped)
        for file in files:
            if file.reject:
                raise InputError(f"{root.url_of(file.path)}: {file.reject}; make it readable or remove it")
        formats = {file.path: self._format_of(file.path) for file in files}
        if len(set(formats.values())) > 1:
            found = ", ".join(sorted(set(formats.values())))
            raise InputError(
                f"{self._place}: {self.path!r} has files of several formats ({found}); "
                "convert them to one, or set `format` to read those of one format"
            )
        layouts = (self._open(root, file.path).layout(self.columns, self.keep) for file in files if file.size)
        layout = next((found for found in layouts if found is not None), None)
        if layout is None:
            raise InputError(f"{self._place}: {self.path!r} has no rows; give lists with rows")
        shared = FORMATS[next(iter(formats.values()))].shared
        first, *others = [part for file in files if file.size for part in _parts(file, layout, shared)]
        return [replace(first, skipped=skips_of(skipped)), *others]

    @property
    def _place(self) -> str:
        return f"{self.op}: path"

    @property
    def _suffixes(self) -> tuple[str, ...]:
        chosen = FORMATS.values() if self.format == "auto" else [FORMATS[self.format]]
        return tuple(suffix for one in chosen for suffix in one.suffixes)

    def _root(self) -> Storage:
        return root_of(self.path, self._suffixes, self._place)

    def _format_of(self, path: str) -> str:
        return next(name for name, one in FORMATS.items() if has_suffix(path, one.suffixes))

    def _open(self, root: Storage, path: str) -> ListFile:
        return FORMATS[self._format_of(path)](root, path, self.delimiter, self.quotes)

    # --- reading ---

    def read(self, portion: Portion) -> Iterator[Table]:
        content = portion.content
        root = self._root()
        _same(root, content)
        try:
            yield from self._tables(self._open(root, content["path"]), content)
        except InputError:
            _same(root, content)
            raise
        _same(root, content)

    def _tables(self, file: ListFile, content: dict[str, Any]) -> Iterator[Table]:
        meta = content["columns"]["meta"]
        layout = Layout(**content["columns"] | {"meta": None if meta is None else tuple(meta)})
        file.check(layout, self.columns, self.keep)
        for rows in file.rows(layout, tuple(content["share"])):
            if file.broken:
                yield broken(file.broken)
                file.broken.clear()
            if len(rows.url):
                yield finished(rows)


def _parts(file: FileInfo, layout: Layout, shared: bool) -> list[Portion]:
    shares = max(1, -(-file.size // PART_BYTES)) if shared else 1
    expansion = EXPANSION if has_suffix(file.path, ("gz", "zst")) else 1
    columns = asdict(layout)
    columns["meta"] = None if layout.meta is None else list(layout.meta)
    content: dict[str, Any] = {"path": file.path, "size": file.size, "stamp": file.stamp, "columns": columns}
    size = file.size * expansion // shares
    return [Portion(content | {"share": [number, shares]}, bytes=size) for number in range(shares)]


def _same(root: Storage, content: dict[str, Any]) -> None:
    """Raises InputError if the file is not the one that was planned."""
    root.fs.invalidate_cache()
    path = root.path(content["path"])
    try:
        now = file_info(root, path, root.fs.info(path))
    except FileNotFoundError:
        raise InputError(f"{root.url_of(content['path'])}: deleted while it was read; run again") from None
    if (now.size, now.stamp) != (content["size"], content["stamp"]):
        raise InputError(f"{root.url_of(content['path'])}: changed while it was read; run again")
