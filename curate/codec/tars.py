"""Writes tars deterministically, indexes them by their headers alone, and reads spans of them.

No function holds a whole tar in memory or trusts a member's path.
"""

from __future__ import annotations

import tarfile
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from types import TracebackType
from typing import IO, Any, Self

from fsspec import AbstractFileSystem
from fsspec.utils import merge_offset_ranges

from curate.core.errors import StorageError
from curate.core.reader import Reader, as_reader

Span = tuple[int, int]
"""(offset, size) of some bytes in a file."""

STREAM_FRACTION = 0.10
"""Above this fraction of a file, reading it as a stream is cheaper than fetching ranges."""
_BLOCK_BYTES = 8 << 20
_BATCH_BYTES = 32 << 20
_GAP_BYTES = 64 << 10

MEMBER_REASONS = {
    "unsafe_path": "a member's path is empty, absolute or contains '..'",
    "not_a_file": "a member is a link, a device or sparse",
    "truncated_tar": "the tar ends within this member, or after it without an end mark",
    "corrupt_tar": "no tar header where one is expected; later members cannot be found",
}
"""All reject reasons of `members`, with their meaning."""


class TarWriter:
    """A ustar of regular files whose bytes depend on names and contents only (POSIX.1-1988; no times, no owners).

    As a context manager it writes the end mark only if the block succeeds; a tar without it counts as truncated.
    """

    def __init__(self, fileobj: IO[bytes]) -> None:
        self._file = fileobj
        self.offset = 0
        """Bytes written so far."""

    def add(self, name: str, data: bytes | Reader) -> int:
        """Append a member, a large one in blocks, and return the offset of its bytes. Names that do not fit ustar get
        a PAX header."""
        reader = as_reader(data)
        info = tarfile.TarInfo(name)
        info.size = reader.size
        info.mode = 0o644
        try:
            header = info.tobuf(tarfile.USTAR_FORMAT, "utf-8", "surrogateescape")
        except ValueError:
            header = info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")
        start = self.offset + len(header)
        self._write(header)
        for block in reader.blocks():
            self._write(block)
        self._write(bytes(-reader.size % tarfile.BLOCKSIZE))
        return start

    def truncate(self, offset: int) -> None:
        """Remove what was written from `offset` on."""
        self._file.seek(offset)
        self._file.truncate()
        self.offset = offset

    def close(self) -> None:
        """Write the end mark. The file object stays open, for its owner to publish."""
        self._write(bytes(2 * tarfile.BLOCKSIZE))

    def _write(self, data: bytes) -> None:
        self._file.write(data)
        self.offset += len(data)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None) -> None:
        if kind is None:
            self.close()


@dataclass(frozen=True)
class Member:
    """A file in a tar, or an error of the tar at this place."""

    name: str
    offset: int
    size: int
    reject: str | None = None
    """One of MEMBER_REASONS, or None; the bytes of a rejected member must not be read."""
    detail: str = ""


def members(fileobj: IO[bytes]) -> Iterator[Member]:
    """Files of a seekable tar in order, from the headers alone.

    Never raises for the tar's contents: an unsafe member carries a reason, and a truncated or corrupt tar yields its
    intact members and then one Member without a name that reports the error. Folders are skipped. Bytes of a name that
    are not UTF-8 are written as `\\xNN`.
    """
    total = fileobj.seek(0, 2)
    fileobj.seek(0)
    last = ""
    try:
        tar = tarfile.TarFile.open(fileobj=fileobj, mode="r:", encoding="utf-8", errors="surrogateescape")
        while (info := tar.next()) is not None:
            tar.members.clear()  # type: ignore[attr-defined]  # or it keeps every header
            if info.isdir():
                continue
            member = _member(info, total)
            last = member.name
            yield member
            if member.reject == "truncated_tar":
                return
    except tarfile.TarError as error:
        reason = "truncated_tar" if _is_truncation(str(error)) else "corrupt_tar"
        yield Member("", total, 0, reason, _place(last, str(error)))
        return
    yield from _end(fileobj, tar.offset, last)


def _member(info: tarfile.TarInfo, total: int) -> Member:
    reason, detail = None, ""
    name = info.name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    if info.isreg() and info.offset_data + info.size > total:
        missing = info.offset_data + info.size - total
        reason, detail = "truncated_tar", f"the tar ends {missing} bytes before this member does"
    elif not info.isreg() or info.issparse():
        reason, detail = "not_a_file", f"type {info.type.decode('latin-1')!r}; only plain files are read"
    elif is_unsafe(info.name):
        reason, detail = "unsafe_path", f"{name!r} leads out of the archive"
    return Member(name, info.offset_data, info.size, reason, detail)


def is_unsafe(name: str) -> bool:
    """Whether unpacking a member could write outside the target folder."""
    parts = PurePosixPath(name.replace("\\", "/")).parts
    return not parts or parts[0] == "/" or ".." in parts or parts[0].endswith(":") or "\0" in name


def _end(fileobj: IO[bytes], offset: int, last: str) -> Iterator[Member]:
    """Why the headers stopped at `offset`; nothing if the end mark, a zero block, is there."""
    fileobj.seek(offset)
    block = fileobj.read(tarfile.BLOCKSIZE)
    if len(block) < tarfile.BLOCKSIZE:
        yield Member("", offset, 0, "truncated_tar", _place(last, "no end mark"))
    elif block.strip(b"\0"):
        yield Member("", offset, 0, "corrupt_tar", _place(last, "no tar header"))


def _is_truncation(message: str) -> bool:
    return any(word in message for word in ("empty file", "truncated", "unexpected end", "end of file"))


def _place(last: str, what: str) -> str:
    return f"{what} after {last!r}" if last else f"{what} at the start"


def read_spans(fs: AbstractFileSystem, path: str, spans: Sequence[Span], total_bytes: int) -> Iterator[bytes]:
    """Bytes of each span (offset, size), in the given order; ascending offsets are fastest.

    More than STREAM_FRACTION of the file is streamed with a read-ahead of 8 MiB. Less is fetched as merged ranges,
    about 32 MiB at a time, concurrently if the file system supports it. Raises StorageError if the file ends early.
    """
    if sum(size for _, size in spans) > STREAM_FRACTION * total_bytes:
        return _stream(fs, path, spans)
    return _fetch(fs, path, spans)


def _stream(fs: AbstractFileSystem, path: str, spans: Sequence[Span]) -> Iterator[bytes]:
    with fs.open(path, "rb", block_size=_BLOCK_BYTES, cache_type="readahead") as file:
        for offset, size in spans:
            file.seek(offset)
            yield _whole(file.read(size), path, offset, size)


def _fetch(fs: AbstractFileSystem, path: str, spans: Sequence[Span]) -> Iterator[bytes]:
    for batch in _batches(spans):
        filled = [(offset, offset + size) for offset, size in batch if size]
        starts: list[Any] = [start for start, _ in filled]
        ends: list[Any] = [end for _, end in filled]
        paths, starts, ends = merge_offset_ranges([path] * len(filled), starts, ends, _GAP_BYTES, _BLOCK_BYTES)
        blocks = fs.cat_ranges(paths, starts, ends, on_error="raise") if filled else []
        for offset, size in batch:
            yield _cut_out(path, starts, blocks, offset, size) if size else b""


def _batches(spans: Sequence[Span]) -> Iterator[list[Span]]:
    batch: list[Span] = []
    held = 0
    for span in spans:
        if batch and held + span[1] > _BATCH_BYTES:
            yield batch
            batch, held = [], 0
        batch.append(span)
        held += span[1] + _GAP_BYTES
    if batch:
        yield batch


def _cut_out(path: str, starts: list[int], blocks: list[bytes], offset: int, size: int) -> bytes:
    """Cut a span out of the fetched blocks. Blocks may overlap, so an earlier block may be the one that covers it."""
    index = bisect_right(starts, offset) - 1
    while index > 0 and starts[index] + len(blocks[index]) < offset + size:
        index -= 1
    begin = offset - starts[index]
    return _whole(bytes(blocks[index][begin : begin + size]), path, offset, size)


def _whole(data: bytes, path: str, offset: int, size: int) -> bytes:
    if len(data) == size:
        return data
    raise StorageError(
        f"{path}: {len(data)} bytes at {offset}, expected {size}; the tar was changed or truncated after indexing: "
        "import it again"
    )
