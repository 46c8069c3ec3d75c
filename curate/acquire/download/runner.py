"""The parent's handle of a runner: the process that fetches portions in img2dataset's environment.

Rows, images and videos travel in the spool, a file without a name in the temporary folder, which vanishes with the
processes that hold it open. Everything else is JSON lines: see `curate/acquire/runner/main.py`.
"""

from __future__ import annotations

import builtins
import io
import json
import logging
import os
import re
import struct
import tempfile
import time
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import IO, Any

from curate.acquire.download.child import Child, DiedError, Stopped, disk_error
from curate.acquire.download.environment import clean_environment, environment
from curate.acquire.fetch.codes import CODES
from curate.codec.formats import DECODED, EXTENSION_OF
from curate.codec.video.containers import EXTENSION_OF as VIDEO_EXTENSIONS
from curate.core.contracts.source import Fetch
from curate.core.errors import PreflightError
from curate.core.reader import RawFile, Reader

log = logging.getLogger(__name__)

START_SECONDS = 120.0
"""Limit of the start, most of which is imports, from a cold disk."""
QUIET_SECONDS = 60.0
"""A process that says nothing for so long, or decodes one image for so long, hangs."""
BEATS = 20
"""How often it says something within that time."""
MARK = struct.Struct("<q")
"""Start of the spool: the row whose image is being decoded, or -1."""
MEMORY_BYTES = 8 << 30
"""Address space of the process, beside the images that its threads hold."""
EXTENSIONS = {"", *(EXTENSION_OF.get(name, name) for name in DECODED), *VIDEO_EXTENSIONS.values()}
"""Extensions that an answer may have."""

_SHA256 = re.compile("[0-9a-f]{64}")

__all__ = ["Answer", "Runner", "Stopped"]


@dataclass(frozen=True, slots=True)
class Answer:
    """What became of a row. `Runner.read` returns the image of a row that is done, and a reader of its video."""

    row: int
    status: str
    code: str
    detail: str = ""
    ext: str = ""
    offset: int = 0
    size: int = 0
    meta: dict[str, Any] = field(default_factory=dict)
    fetch: Fetch | None = None
    """None if the row was not fetched, as far as this process knows."""
    extents: list[tuple[int, int]] = field(default_factory=list)
    """The parts of a video: offset and size in the spool."""
    sha256: str = ""
    """That of a video, computed while it came."""


class SpoolReader(Reader):
    """A video in the spool, which is never held in memory as a whole. It can be read until its iterator ends."""

    def __init__(self, file: int, answer: Answer) -> None:
        self._file, self._extents, self._sha256 = file, answer.extents, answer.sha256
        self._starts = list(accumulate((size for _, size in answer.extents), initial=0))
        self.size = answer.size

    def read_at(self, offset: int, size: int) -> builtins.bytes:
        parts, end = list[builtins.bytes](), min(offset + size, self.size)
        while offset < end:
            number = bisect_right(self._starts, offset) - 1
            start, length = self._extents[number]
            inside = offset - self._starts[number]
            part = os.pread(self._file, min(end - offset, length - inside), start + inside)
            assert part, "the iterator has ended"
            parts.append(part)
            offset += len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def bytes(self) -> builtins.bytes:
        return self.read_at(0, self.size)

    def sha256(self) -> str:
        return self._sha256

    def open(self) -> IO[builtins.bytes]:
        return io.BufferedReader(RawFile(self))


class Runner:
    """Runs one portion at a time in a process that it starts when needed and keeps. For one thread."""

    def __init__(
        self,
        settings: Mapping[str, Any],
        limiter: Mapping[str, Any] | None = None,
        quiet_seconds: float = QUIET_SECONDS,
        files: Sequence[int] = (),
    ) -> None:
        """settings: parameters of acquire.download by name. limiter: see `Portion.limiter`. files: descriptors of open
        files that settings name as /dev/fd/N."""
        self.settings, self.limiter, self.quiet_seconds = dict(settings), limiter, quiet_seconds
        self.files = tuple(files)
        self._child: Child | None = None
        self._spool: IO[bytes] | None = None

    def run(
        self, rows: Sequence[Mapping[str, Any]], deadline_seconds: float, stopped: Callable[[], bool] = lambda: False
    ) -> Iterator[Answer]:
        """Exactly one answer per row ({"row": its number, "url", and optionally "sha256", "md5"}), in any order.

        At the deadline the process is killed, and rows without an answer are in error: deadline. A process that dies is
        replaced. In error, runner_died, are a row whose image was being decoded at two deaths and, after two deaths
        while no image was, all rows that are left.

        Raises Stopped soon after `stopped` says so, PreflightError if no process starts, StorageError if the temporary
        folder is full, RuntimeError if the process reports that it cannot continue.
        """
        end = time.monotonic() + deadline_seconds
        left = {row["row"]: row for row in rows}
        deaths: Counter[int | None] = Counter()
        try:
            while left:
                try:
                    for answer in self._attempt(left, end, stopped):
                        del left[answer.row]
                        yield answer
                        if not left:
                            return
                    lost, code, detail = list(left), "deadline", f"the shard had {deadline_seconds:g} s"
                except DiedError as death:
                    suspect = self._marked(left)
                    deaths[suspect] += 1
                    log.warning("the runner %s; rows left: %d, row being decoded: %s", death, len(left), suspect)
                    if deaths[suspect] < 2:
                        continue
                    lost, code, detail = list(left) if suspect is None else [suspect], "runner_died", f"it {death}"
                for row in lost:
                    del left[row]
                    yield Answer(row, CODES[code][0], code, detail)
        finally:
            if left:
                self._end()
            self._empty()

    def read(self, answer: Answer) -> bytes | SpoolReader:
        """The image or video of an answer, until the iterator that gave it ends."""
        assert self._spool
        if answer.extents:
            return SpoolReader(self._spool.fileno(), answer)
        data = os.pread(self._spool.fileno(), answer.size, answer.offset)
        assert len(data) == answer.size, "the iterator has ended"
        return data

    def close(self) -> None:
        """End the process and remove the spool."""
        self._end()
        if self._spool:
            self._spool.close()
            self._spool = None

    def __enter__(self) -> Runner:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _attempt(
        self, left: Mapping[int, Mapping[str, Any]], end: float, stopped: Callable[[], bool]
    ) -> Iterator[Answer]:
        """Answers of one process until the deadline; `left` are the rows without one. Raises DiedError."""
        spool = self._opened()
        if self._child and not self._child.alive:
            self._end()
        child = self._child = self._child or self._start(spool, stopped)
        child.send(_write(spool, list(left.values())))
        try:
            for message in child.messages(end, stopped):
                yield from _answers([message], left, spool)
            child.kill()
            yield from _answers(child.rest(), left, spool)
        except DiedError:
            self._end()
            raise
        self._end()

    def _opened(self) -> IO[bytes]:
        if self._spool is None:
            self._spool = tempfile.TemporaryFile("w+b")  # noqa: SIM115 - `close` closes it
        return self._spool

    def _start(self, spool: IO[bytes], stopped: Callable[[], bool]) -> Child:
        """Raises PreflightError."""
        pixels, threads, size = (self.settings[name] for name in ("max_pixels", "thread_count", "max_bytes"))
        # beside our own check of the header, in case cv2 reads another size from it
        variables = clean_environment({"OPENCV_IO_MAX_IMAGE_PIXELS": str(pixels)})
        child = Child(environment(), variables, (spool.fileno(), *self.files))
        child.send(
            {
                "settings": self.settings,
                "limiter": self.limiter,
                "spool": spool.fileno(),
                "beat_seconds": self.quiet_seconds / BEATS,
                "memory_bytes": MEMORY_BYTES + 2 * threads * size,
            }
        )
        reason = f"did not start within {START_SECONDS:g} s"
        try:
            for message in child.messages(time.monotonic() + START_SECONDS, stopped):
                if "ready" in message:
                    child.quiet_seconds = self.quiet_seconds
                    return child
        except (DiedError, RuntimeError) as error:
            reason = str(error)
        except BaseException:  # whatever ends this must not leave the process running
            child.close()
            raise
        child.close()
        raise PreflightError(f"the runner of img2dataset cannot be started: {reason}")

    def _end(self) -> None:
        if self._child:
            self._child.close()
            self._child = None

    def _empty(self) -> None:
        if self._spool:
            os.ftruncate(self._spool.fileno(), 0)

    def _marked(self, left: Mapping[int, Any]) -> int | None:
        """The row whose image was being decoded when the process ended."""
        (row,) = MARK.unpack(os.pread(self._opened().fileno(), MARK.size, 0))
        return row if row in left else None


def _write(spool: IO[bytes], rows: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """Append the rows to the spool: the order to fetch them."""
    try:
        os.pwrite(spool.fileno(), MARK.pack(-1), 0)
        offset = spool.seek(0, os.SEEK_END)
        size = spool.write("".join(json.dumps(row) + "\n" for row in rows).encode())
        spool.flush()
    except OSError as error:
        raise disk_error(error) from error
    return {"offset": offset, "size": size}


def _answers(messages: Iterable[Mapping[str, Any]], left: Container[int], spool: IO[bytes]) -> Iterator[Answer]:
    """The process decodes what strangers sent, so its answers are checked. Raises DiedError."""
    for message in messages:
        if "row" in message:
            fetch = Fetch(**message["fetch"], detail=message["detail"]) if message["fetch"] else None
            answer = Answer(**{**message, "fetch": fetch})
            known = answer.row in left and CODES.get(answer.code, ("", ""))[0] == answer.status
            inside = _inside(answer, os.fstat(spool.fileno()).st_size)
            if not (known and inside and answer.ext in EXTENSIONS):
                raise DiedError(f"gave an answer that makes no sense: {str(message)[:300]}")
            yield answer


def _inside(answer: Answer, end: int) -> bool:
    """Whether an answer's bytes are in a spool that ends there."""
    if not answer.extents:
        return 0 <= answer.offset <= answer.offset + answer.size <= end
    whole = sum(size for _, size in answer.extents) == answer.size and _SHA256.fullmatch(answer.sha256)
    return bool(whole) and all(0 <= offset < offset + size <= end for offset, size in answer.extents)
