"""img2dataset's Downloader at work on portions of a list, with its fetch and its writer replaced by ours.

The Downloader keeps its threads, its resizer and its options. It calls our fetch once per row, which takes whichever
row may start now and returns that row's key. Every row gets one answer: img2dataset drops those whose writing raises.
"""

from __future__ import annotations

import contextlib
import inspect
import json
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from importlib.metadata import version
from typing import Any

import cv2
import fsspec
import pyarrow as pa
from fsspec.implementations.memory import MemoryFileSystem
from img2dataset import downloader, resizer

from curate.acquire.fetch.codes import CODES, Failure
from curate.acquire.fetch.fetch import Fetched, Fetcher
from curate.acquire.fetch.hosts import Hosts
from curate.acquire.fetch.settings import FetchSettings
from curate.acquire.runner.pixels import Image, Video, resizer_of
from curate.acquire.runner.spool import Spool, SpoolSink

VERSION = "1.47.0"
SIGNATURES: dict[str, tuple[Callable[..., Any], str]] = {
    "download_image_with_retry": (
        downloader.download_image_with_retry,
        "row timeout retries user_agent_token disallowed_header_directives",
    ),
    "Downloader": (
        downloader.Downloader,
        "sample_writer_class resizer thread_count save_caption extract_exif output_folder column_list timeout "
        "number_sample_per_shard oom_shard_count compute_hash verify_hash_type encode_format retries user_agent_token "
        "disallowed_header_directives blurring_bbox_col",
    ),
    "Resizer": (
        resizer.Resizer,
        "image_size resize_mode resize_only_if_bigger upscale_interpolation downscale_interpolation encode_quality "
        "encode_format skip_reencode disable_all_reencoding min_image_size max_image_area max_aspect_ratio blurrer",
    ),
}
"""What we replace or call, and its parameters."""
_OF_FETCH = ("host", "tries", "seconds", "bytes", "ended")
MEMORY = "memory://portion"
"""Folder of the Downloader's input and statistics, in this process."""


def check_img2dataset() -> None:
    """Raises RuntimeError unless this is the img2dataset that this file was written for."""
    found = version("img2dataset")
    if found != VERSION:
        raise RuntimeError(f"img2dataset {found}; expected {VERSION}")
    for name, (function, expected) in SIGNATURES.items():
        if (parameters := " ".join(inspect.signature(function).parameters)) != expected:
            raise RuntimeError(f"img2dataset's {name} takes ({parameters}); expected ({expected})")


class Work:
    def __init__(
        self,
        settings: Mapping[str, Any],
        limiter: Mapping[str, Any] | None,
        spool: int,
        send: Callable[[dict[str, Any]], None],
        fail: Callable[[str, int | None], None],
    ) -> None:
        check_img2dataset()
        cv2.setNumThreads(1)
        self.settings, self.send, self.fail = settings, send, fail
        self.spool = Spool(spool, fail)
        self.hosts = Hosts(settings, limiter)
        self.fetcher = Fetcher(FetchSettings.of(settings), self.hosts.park)
        self.resizer = resizer_of(settings, spool)
        downloader.download_image_with_retry = self.fetch

    def decoding_seconds(self) -> float | None:
        """How long the current image has been in the resizer."""
        since = self.resizer.since
        return None if since is None else time.monotonic() - since

    def portion(self, offset: int, size: int) -> None:
        """Answer each row of a portion; they are JSON lines at `offset` of the spool, which gets what is fetched."""
        self.rows = [json.loads(line) for line in os.pread(self.spool.file, size, offset).splitlines()]
        self.spool.begin()
        self.fetched: dict[int, Fetched] = {}
        self.sinks: dict[int, SpoolSink] = {}
        """Videos by row."""
        self.unanswered = set(range(len(self.rows)))
        self.hosts_of = [self.fetcher.first_host(row["url"]) for row in self.rows]
        self.hostless = [key for key, host in enumerate(self.hosts_of) if not host]
        """Rows that are answered without a request, and so wait for no host."""
        for key, host in enumerate(self.hosts_of):
            if host:
                self.hosts.add(key, host)
        try:
            self._download()
        finally:
            MemoryFileSystem.store.clear()
        for key in sorted(self.unanswered):
            self._answer(key, "unexpected", "img2dataset dropped the row; the runner's log has its message")

    def _download(self) -> None:
        # no URLs: `fetch` knows them, and not all are valid Unicode. To convert a list, pyarrow would import pandas
        table = pa.table({"url": pa.nulls(len(self.rows), pa.string())})
        with fsspec.open(f"{MEMORY}/rows", "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
            writer.write_table(table)
        downloader.Downloader(
            sample_writer_class=lambda *_: self,
            resizer=self.resizer,
            thread_count=self.settings["thread_count"],
            save_caption=False,
            extract_exif=self.settings["extract_exif"],
            output_folder=MEMORY,
            column_list=["url"],
            timeout=self.settings["timeout"],
            number_sample_per_shard=len(self.rows),
            oom_shard_count=1,
            compute_hash=None,
            verify_hash_type=None,
            encode_format=self.settings["encode_format"],
            retries=0,
            user_agent_token=None,
            disallowed_header_directives=None,
        ).download_shard((0, f"{MEMORY}/rows"))

    def fetch(self, row: tuple[int, str], **_: Any) -> tuple[int, Image | Video | None, str | None]:
        """In the place of `download_image_with_retry`: fetch a row that may start now, which need not be `row`."""
        try:
            key = self._next()
            fetched = self._fetched(key)
        except Exception as error:  # such as LimiterGoneError; the Downloader hangs if its fetch raises
            self.fail(f"{type(error).__name__}: {error}", None)
            raise
        self.fetched[key] = replace(fetched, data=b"")
        if fetched.stored:
            return key, Video(), None
        if fetched.status == "done":
            return key, Image(fetched.data, self.rows[key]["row"]), None
        return key, None, fetched.code

    def _next(self) -> int:
        """The key of a row that may start now. There is one for each call of `fetch`."""
        with contextlib.suppress(IndexError):
            return self.hostless.pop()
        key: int = self.hosts.next()
        return key

    def _fetched(self, key: int) -> Fetched:
        row, host = self.rows[key], self.hosts_of[key]
        if not host:
            return self.fetcher.fetch(row["url"])
        if seconds := self.hosts.parked(key):
            fetched = Fetched(CODES["parked"][0], "parked", f"for {seconds:.0f} s", b"", "", "", host, 0, 0.0, 0)
        else:
            move = partial(self.hosts.move, key)
            sink = self._sink(key) if "video" in self.settings.get("media", ()) else None
            fetched = self.fetcher.fetch(row["url"], row.get("sha256"), row.get("md5"), move, sink)
        self.hosts.done(key, fetched.bytes)
        return fetched

    def _sink(self, key: int) -> SpoolSink:
        digests = ("md5",) if self.rows[key].get("md5") else ()
        self.sinks[key] = sink = SpoolSink(self.spool, digests)
        return sink

    # --- what the Downloader's thread calls, as its writer

    def write(self, image: bytes | None, key: str, caption: str | None, meta: Mapping[str, Any]) -> None:
        """Answer a row. `key` is its place in the portion."""
        place = int(key)
        fetched = self.fetched[place]
        if fetched.stored:
            sink = self.sinks[place]
            video = {"extents": sink.extents(), "size": sink.size, "sha256": sink.digest("sha256")}
            self._answer(place, "done", "", ext=fetched.ext, **video)
        elif image is not None:
            self._store(place, image, meta)
        elif meta["status"] == "failed_to_resize":
            failure = self.resizer.failure or Failure("resize", meta["error_message"])
            self._answer(place, failure.code, failure.detail)
        else:
            self._answer(place, fetched.code, fetched.detail)

    def close(self) -> None:
        pass

    # --- answers

    def _store(self, key: int, image: bytes, meta: Mapping[str, Any]) -> None:
        names = ("original_width", "original_height", "exif")
        kept = {name: meta[name] for name in names if meta.get(name) is not None}
        offset = self.spool.append(image)
        ext = self.fetched[key].ext if self.resizer.disable_all_reencoding else self.settings["encode_format"]
        self._answer(key, "done", "", ext=ext, offset=offset, size=len(image), meta=kept)

    def _answer(self, key: int, code: str, detail: str, **stored: Any) -> None:
        self.unanswered.discard(key)
        self.sinks.pop(key, None)
        fetched = self.fetched.pop(key, None)
        self.send(
            {"row": self.rows[key]["row"], "status": CODES[code][0], "code": code, "detail": _plain(detail), **stored}
            | {"fetch": fetched and {name: getattr(fetched, name) for name in _OF_FETCH}}
        )


def _plain(text: str) -> str:
    """Text that can be stored and shown: short, without lone surrogates, and without control characters, which could
    forge lines or move the cursor of a terminal. URLs and headers may have brought them."""
    text = text[:500].encode(errors="backslashreplace").decode()
    return "".join(one if one.isprintable() else " " for one in text)
