"""`acquire.download`: fetches the images and videos of a URL list into a pool."""

from __future__ import annotations

import contextlib
import ipaddress
import json
import re
import threading
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from sys import intern
from tempfile import TemporaryFile
from typing import IO, Annotated, Any, ClassVar, Literal

import fsspec
from pydantic import Field, PrivateAttr, field_validator, model_validator

from curate.acquire import img2dataset
from curate.acquire.download import environment
from curate.acquire.download.runner import Answer, Runner, Stopped
from curate.acquire.fetch.codes import CODES
from curate.acquire.fetch.deny import Denied
from curate.acquire.kinds import ONLY_IMAGES, Media, check_used
from curate.acquire.lists.urls import examine
from curate.core.contracts import Added, Artifact, Fetch, Incoming, Location, Portion, Runtime, Source
from curate.core.errors import RESUMES, DrainedError, InputError

REASONS = {code: meaning for code, (_, meaning) in CODES.items() if code != "done"}
"""Every reason that this source gives, with its meaning."""
OPT_OUT = "opt_out_"
"""Beginning of the codes whose detail, the header, is kept in `meta`."""
_CONTACT = re.compile(r"[^@\s/]+@[^@\s/]+\.[^@\s/.]+|https?://[^\s/.]+\.[^\s]+")


class AcquireDownload(Source):
    """Fetch the images or videos of a URL list. Every URL has a row; a failed one has a reason instead of an image.

    The fetch is polite and safe: it honours opt-outs, limits requests by host over the whole run, and connects only to
    public addresses. Images are stored as they come, or re-encoded by img2dataset's resizer with its options. Failures
    that may pass (`error`) can be fetched again: `curate retry RECIPE STAGE`. Rows of one URL share one image. With
    `media: [video]`, videos are written to the disk while they are fetched, in the temporary folder (TMPDIR), which
    holds those of a portion; they are stored as they come.
    """

    op: ClassVar[str] = "acquire.download"
    ports: ClassVar[dict[str, str]] = {"list": "list"}
    unique_keys: ClassVar[bool] = True
    repeatable: ClassVar[bool] = False
    limited: ClassVar[bool] = True

    namespace: str = Field(description="enters every key: the same URL in another namespace is another sample")
    contact: Annotated[str, Runtime()] = Field(
        description="your e-mail address or URL, which every host receives as part of the user agent"
    )

    # --- what is stored ---
    media: Media = Field(ONLY_IMAGES, description="what is fetched: image, video, or both; the bytes tell which")
    image_size: int = Field(256, ge=1, description="side to resize to; pixels")
    resize_mode: Literal["no", "border", "keep_ratio", "keep_ratio_largest", "center_crop"] = Field(
        "no", description="img2dataset's resize mode; `no` keeps the size"
    )
    disable_all_reencoding: bool | None = Field(
        None, description="store the bytes as they come; default: true with `resize_mode: no`"
    )
    resize_only_if_bigger: bool = Field(False, description="do not enlarge images")
    upscale_interpolation: Literal["nearest", "linear", "cubic", "lanczos", "lanczos4", "area"] = Field(
        "lanczos", description="how images are enlarged"
    )
    downscale_interpolation: Literal["nearest", "linear", "cubic", "lanczos", "lanczos4", "area"] = Field(
        "area", description="how images are reduced"
    )
    encode_quality: int = Field(95, ge=0, le=100, description="quality of re-encoded images (jpg, webp); png: 0 to 9")
    encode_format: Literal["jpg", "png", "webp"] = Field("jpg", description="format of re-encoded images")
    skip_reencode: bool = Field(False, description="keep the bytes of images that are not resized")
    min_image_size: int = Field(0, ge=0, description="re-encoding rejects images with a shorter side; pixels")
    max_image_area: float | None = Field(None, gt=0, description="re-encoding rejects larger images; pixels")
    max_aspect_ratio: float | None = Field(None, ge=1, description="re-encoding rejects longer or taller images")
    extract_exif: bool = Field(False, description="keep the EXIF data in `meta`")
    max_bytes: int = Field(64 << 20, ge=1, description="larger bodies are rejected as too_large; bytes")
    max_video_bytes: Annotated[int, Added()] = Field(
        2 << 30, ge=1, description="the same for videos, which go to the disk while they are fetched; bytes"
    )
    max_pixels: int = Field(1 << 28, ge=1, description="images with more are rejected as too_many_pixels; pixels")

    # --- what the hosts allow ---
    opt_out: tuple[Literal["x-robots-tag", "tdm-reservation", "content-usage"], ...] = Field(
        ("x-robots-tag", "tdm-reservation", "content-usage"), description="response headers by which hosts opt out"
    )
    disallowed_header_directives: tuple[str, ...] = Field(
        ("noai", "noimageai", "noindex", "noimageindex"), description="directives of X-Robots-Tag that reject an image"
    )
    robots_txt: Literal["off", "cached"] = Field("off", description="cached: ask for each host's robots.txt once a day")

    # --- how it is fetched ---
    user_agent: Annotated[str | None, Runtime()] = Field(None, description="default: curate/VERSION (+CONTACT)")
    timeout: Annotated[float, Runtime()] = Field(
        10.0, gt=0, description="limit of a connect, a TLS handshake or a silent read; seconds"
    )
    deadline_seconds: Annotated[float, Runtime()] = Field(
        60.0, gt=0, description="limit of one URL with its redirects and retries; seconds"
    )
    video_deadline_seconds: Annotated[float, Runtime()] = Field(
        1800.0, gt=0, description="the same for a URL whose first bytes are those of a video; seconds"
    )
    shard_deadline_seconds: Annotated[float, Runtime()] = Field(
        3600.0, gt=0, description="limit of a shard; rows answered before it are kept; seconds"
    )
    retries: Annotated[int, Runtime()] = Field(2, ge=0, description="further tries after failures that may pass")
    thread_count: Annotated[int, Runtime()] = Field(64, ge=1, description="requests at once, per worker")
    host_connections: Annotated[int, Runtime()] = Field(
        4, ge=1, description="requests at once to one host, over the whole run"
    )
    host_rate: Annotated[float | None, Runtime()] = Field(
        None, gt=0, description="requests per second to one host, over the whole run"
    )
    requests_per_second: Annotated[float | None, Runtime()] = Field(
        None, gt=0, description="limit for the whole run; `curate limit` changes it during the run"
    )
    bytes_per_second: Annotated[float | None, Runtime()] = Field(
        None, gt=0, description="limit for the whole run; `curate limit` changes it during the run"
    )
    max_redirects: Annotated[int, Runtime()] = Field(5, ge=0, description="more are rejected as redirects")
    allow_ports: Annotated[tuple[int, ...], Runtime()] = Field((80, 443), description="ports that may be asked")
    allow_networks: Annotated[tuple[str, ...], Runtime(), Location("network")] = Field(
        (), description="networks such as 10.1.0.0/16 that may be asked although they are not public"
    )
    proxy: Annotated[str | None, Runtime(), Location("proxy")] = Field(
        None, description="http://HOST:PORT of a proxy, which then decides what addresses are reached"
    )
    deny_hosts: Annotated[str | None, Runtime(), Location()] = Field(
        None, description="file of hosts that are never asked, one per line; path or URL"
    )
    deny_urls: Annotated[str | None, Runtime(), Location()] = Field(
        None, description="file of URLs that are never fetched, one per line; path or URL"
    )
    ignore_ssl: Annotated[bool, Runtime()] = Field(False, description="accept invalid certificates")
    dns_seconds: Annotated[float, Runtime()] = Field(300.0, ge=0, description="how long an address is kept; seconds")

    _list: Any = PrivateAttr(None)
    _runners: Any = PrivateAttr(None)
    _denied: Any = PrivateAttr(None)

    @field_validator("contact")
    @classmethod
    def _reachable(cls, value: str) -> str:
        if not _CONTACT.fullmatch(value) or not _in_header(value):
            raise ValueError("expected an e-mail address or a URL, by which hosts can reach you")
        return value

    @field_validator("user_agent")
    @classmethod
    def _named(cls, value: str | None) -> str | None:
        if value is not None and (not _in_header(value) or not value[:1].isalnum()):
            raise ValueError("expected ASCII in one line that begins with a name, such as mybot/1.0 (+CONTACT)")
        return value

    @field_validator("allow_networks")
    @classmethod
    def _networks(cls, values: tuple[str, ...]) -> tuple[str, ...]:
        for value in values:
            try:
                ipaddress.ip_network(value)
            except ValueError:
                raise ValueError(f"{value!r} is not a network; expected one such as 10.1.0.0/16") from None
        return values

    @field_validator("allow_ports")
    @classmethod
    def _port_numbers(cls, values: tuple[int, ...]) -> tuple[int, ...]:
        for value in values:
            if not 0 < value < 1 << 16:
                raise ValueError(f"{value} is not a port; expected 1 to 65535")
        return values

    @field_validator("proxy")
    @classmethod
    def _proxy_url(cls, value: str | None) -> str | None:
        if value is not None and not re.fullmatch(r"http://[^\s/@]+:[0-9]{1,5}/?", value):
            raise ValueError("expected http://HOST:PORT, without user and password")
        return value

    @model_validator(mode="after")
    def _consistent(self) -> AcquireDownload:
        of_images = "image_size", "resize_mode", "encode_quality", "encode_format", "extract_exif", "max_pixels"
        of_videos = "max_video_bytes", "video_deadline_seconds"
        check_used(self, self.media, dict.fromkeys(of_images, "image") | dict.fromkeys(of_videos, "video"))
        if self.disable_all_reencoding and self.resize_mode != "no":
            raise ValueError(f"disable_all_reencoding: true, but resize_mode is {self.resize_mode!r}; remove one")
        if self.encode_format == "png" and self.encode_quality > 9:
            raise ValueError("encode_quality: for png, expected 0 to 9 (img2dataset's compression level)")
        return self

    def preflight(self) -> list[str]:
        try:
            self._denied_files()
        except InputError as error:
            return [str(error)]
        return []

    def preflight_on_worker(self) -> list[str]:
        problem = environment.problem()
        return [problem] if problem else []

    def setup(self, artifacts: Mapping[str, Artifact]) -> None:
        self._list = artifacts["list"]
        self._denied, self._runners = self._denied_files(), _Runners()

    def plan(self) -> list[Portion]:
        lines = self._list["portions"].select(["digest", "rows", "base", "file", "index"])
        return [
            Portion({"rows": of}, rows, place={"base": intern(base), "file": intern(file), "index": index})
            for batch in lines.to_batches(max_chunksize=1 << 10)
            for of, rows, base, file, index in zip(*(column.to_pylist() for column in batch), strict=True)
        ]

    def read(self, portion: Portion) -> Iterator[Incoming]:
        fetches = list(_fetches(self._list.portion(portion.place).to_pylist(), portion.only))
        wanted = {number: fetch for number, fetch in enumerate(fetches) if fetch[0]["reject"] is None}
        held: dict[int, Answer] = {}
        with contextlib.ExitStack() as stack:
            answers: Iterator[Answer] = iter(())
            if wanted:
                runner = stack.enter_context(self._taken(portion.limiter))
                answers = self._answers(runner, wanted, portion)
                stack.enter_context(contextlib.closing(answers))  # type: ignore[type-var]
            for number, rows in enumerate(fetches):
                if number in wanted:
                    while number not in held:
                        answer = next(answers)
                        held[answer.row] = answer
                    first = _sample(held.pop(number), runner)
                else:
                    first = Incoming("", reject=rows[0]["reject"], status="unusable")
                yield from _of_rows(first, rows)

    def _answers(
        self, runner: Runner, wanted: Mapping[int, list[dict[str, Any]]], portion: Portion
    ) -> Iterator[Answer]:
        asked = [
            {"row": n, "url": f[0]["url"], "sha256": f[0]["sha256"], "md5": f[0]["md5"]} for n, f in wanted.items()
        ]
        try:
            for answer in runner.run(asked, self.shard_deadline_seconds, portion.stopped):
                status = answer.status if answer.status in ("done", "error") else "unusable"
                size = answer.fetch.bytes if answer.fetch else 0
                portion.received(len(wanted[answer.row]), status, answer.code, size)
                yield answer
        except Stopped:
            raise DrainedError(f"stopped in the middle of a shard; {RESUMES}") from None

    def _taken(self, limiter: Mapping[str, Any] | None) -> contextlib.AbstractContextManager[Runner]:
        runners: _Runners = self._runners
        return runners.taken(self._settings(), limiter, [file.fileno() for file in self._denied.values()])

    def _settings(self) -> dict[str, Any]:
        """All parameters, as the runner reads them."""
        values: dict[str, Any] = json.loads(self.model_dump_json())
        values |= {name: _path(file) for name, file in self._denied.items()}
        if values["disable_all_reencoding"] is None:
            values["disable_all_reencoding"] = self.resize_mode == "no"
        return values

    def _denied_files(self) -> _Copies:
        """Local copies of the files of denied hosts and URLs, without names. Raises InputError if one cannot be read or
        has a line that is neither."""
        found = _Copies()
        for name in ("deny_hosts", "deny_urls"):
            url = getattr(self, name)
            if url is None:
                continue
            copy = found[name] = TemporaryFile()  # noqa: SIM115 - `_Copies` closes it
            place = _path(copy)
            try:
                with fsspec.open(url, "rb") as file:
                    copy.write(file.read())
                copy.flush()
                Denied.from_files(place if name == "deny_hosts" else None, place if name == "deny_urls" else None)
            except OSError as error:
                raise InputError(f"{name}: {url}: {error.strerror or error}; give a file that can be read") from None
            except ValueError as error:
                said = str(error).removeprefix(f"{place}, ")
                raise InputError(f"{name}: {url}: {said}; give one {name[5:-1]} per line") from None
        return found


class _Copies(dict[str, IO[bytes]]):
    """Open files without names, by the parameter that they are copies for."""

    def __del__(self) -> None:
        for file in self.values():
            file.close()


class _Runners:
    """The runners of a process: each thread that reads a portion takes one."""

    def __init__(self) -> None:
        self._idle: list[Runner] = []
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def taken(
        self, settings: dict[str, Any], limiter: Mapping[str, Any] | None, files: Sequence[int]
    ) -> Iterator[Runner]:
        """A runner with these settings and this limiter: an idle one, or a new one that starts when it is used."""
        found = None
        with self._lock:
            idle, self._idle = self._idle, []
            for runner in idle:
                if found is None and (runner.settings, runner.limiter) == (settings, limiter):
                    found = runner
                else:
                    runner.close()
        found = found or Runner(settings, limiter, files=files)
        try:
            yield found
        finally:
            with self._lock:
                self._idle.append(found)

    def __del__(self) -> None:
        for runner in self._idle:
            runner.close()


def _in_header(text: str) -> bool:
    """Whether an HTTP header can have it."""
    return text.isascii() and text.isprintable()


def _path(file: IO[bytes]) -> str:
    """Path of an open file without a name, here and in processes that inherit it."""
    return f"/dev/fd/{file.fileno()}"


def _fetches(rows: Iterable[dict[str, Any]], only: Container[str] | None) -> Iterator[list[dict[str, Any]]]:
    """The rows of a portion, without those that are not in `only`, by what is fetched for them."""
    for _, of_group in groupby(rows, key=lambda row: row["group"]):
        together = list(of_group)
        urls = {row["url"] for row in together}
        # the group is a hash: different URLs may have the same one, by chance or by intent
        same = {url: examine(url)[0] for url in urls} if len(urls) > 1 else {}
        by_fetch: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
        for row in together:
            row["source_id"] = img2dataset.source_id(row["url"], row["caption"])
            if only is None or row["source_id"] in only:
                key = (same.get(row["url"]), row["sha256"], row["md5"], row["reject"])
                by_fetch.setdefault(key, []).append(row)
        yield from by_fetch.values()


def _sample(answer: Answer, runner: Runner) -> Incoming:
    """What was fetched, without the row's own fields."""
    sample = Incoming("", ext=answer.ext, meta=dict(answer.meta))
    fetch = answer.fetch or Fetch("", 0)
    if answer.code == "done":
        sample.data = runner.read(answer)
    else:
        sample.reject, sample.status = answer.code, "error" if answer.status == "error" else "unusable"
        if answer.code.startswith(OPT_OUT):
            sample.meta["detail"] = answer.detail
    sample.fetch = replace(fetch, detail=answer.detail)
    return sample


def _of_rows(first: Incoming, rows: list[dict[str, Any]]) -> Iterator[Incoming]:
    """A sample for each row: the first with the image, which the others share."""
    for place, row in enumerate(rows):
        meta = {name: value for name, value in json.loads(row["meta"] or "{}").items() if value is not None}
        yield Incoming(
            row["source_id"], ext=first.ext, data=None if place else first.data, caption=row["caption"], url=row["url"],
            meta=meta | first.meta, reject=first.reject, status=first.status,
            same_member=bool(place) and first.data is not None, fetch=None if place else first.fetch,
        )  # fmt: skip
