"""Fetches images and videos from URLs that strangers wrote, from hosts that may misbehave.

`Fetcher.fetch` never raises and never hangs: what becomes of a URL is a code of `codes.CODES`, within
`deadline_seconds`. One Fetcher serves all threads of a process. Only the standard library is imported (and protego for
robots.txt), since this runs in the environment of the runner.
"""

from __future__ import annotations

import hashlib
import random
import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from email.message import Message

from curate.acquire.fetch import body
from curate.acquire.fetch.client import Answer, HttpClient, Large, Move, Sink, Trip, Want
from curate.acquire.fetch.codes import Failure, Status
from curate.acquire.fetch.connect import Connector
from curate.acquire.fetch.deny import Denied
from curate.acquire.fetch.dns import Lookup, Resolver, system_lookup
from curate.acquire.fetch.opt_out import OptOut
from curate.acquire.fetch.robots import MOST_BYTES, Robots
from curate.acquire.fetch.settings import FetchSettings
from curate.acquire.fetch.target import Target, follow, parse
from curate.codec.formats import EXTENSION_OF, sniff, sniff_other
from curate.codec.video import containers as videos

LONGEST_BACKOFF_SECONDS = 10.0
LONGEST_DETAIL = 300
_RETRIED = frozenset({"connect", "timeout", "reset", "truncated"})
"""Failures that are retried at once, beside passing HTTP statuses. `dns` is not: its answer is kept for a while."""

Park = Callable[[str, float], None]
"""(host, seconds): what Retry-After asks of everyone who would ask that host."""


@dataclass(frozen=True, slots=True)
class Fetched:
    """What became of a URL. `data` is empty unless the status is done, and for a video, which is in its sink."""

    status: Status
    code: str
    detail: str
    data: bytes
    ext: str
    """Usual extension of its format."""
    content_type: str
    host: str
    """The host of the last request. After a redirect it differs from the URL's."""
    tries: int
    seconds: float
    """Without pauses between tries and for the host's turn."""
    bytes: int
    """Bytes received, over all tries and redirects."""
    ended: float = field(default_factory=time.time)
    stored: bool = False
    """Whether the body was written to the sink."""


def _no_park(host: str, seconds: float) -> None:
    pass


def _anything(headers: Message) -> None:
    pass


class Fetcher:
    def __init__(
        self,
        settings: FetchSettings,
        park: Park = _no_park,
        lookup: Lookup = system_lookup,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """Raises ValueError, in one line, for settings that cannot be used, and OSError for a missing file."""
        self._settings = settings
        self._videos, self._images = "video" in settings.media, "image" in settings.media
        self._park = park
        self._client = HttpClient(settings, Connector(settings, Resolver(lookup, settings.dns_seconds), tls))
        self._denied = Denied.from_files(settings.deny_hosts, settings.deny_urls)
        self._ports = frozenset(settings.allow_ports)
        opt_out = OptOut(settings.opt_out, settings.disallowed_header_directives, settings.product)
        large = Large(settings.max_video_bytes, settings.video_deadline_seconds, self._is_large)
        self._medium = Want(settings.max_bytes, cut=False, inspect=opt_out.check, large=large if self._videos else None)
        self._rules = Want(MOST_BYTES, cut=True, inspect=_anything)
        self._robots = Robots(settings.product) if settings.robots_txt == "cached" else None

    def fetch(
        self,
        url: str,
        sha256: str | None = None,
        md5: str | None = None,
        move: Move | None = None,
        sink: Sink | None = None,
    ) -> Fetched:
        """Fetch the image or video at `url`, whose digests, in hex, are compared where they are given. A video goes to
        the sink while it comes; without a sink, only small videos are fetched."""
        trip = Trip(self._settings.deadline_seconds, move, sink)
        while True:
            trip.tries += 1
            try:
                answer = self._follow(parse(url), trip, self._medium)
                data, ext = self._checked(answer, {"sha256": sha256, "md5": md5}, sink)
                stored = sink is not None and not data
                return _fetched(trip, Failure("done"), data, ext, _content_type(answer.headers), stored)
            except Failure as error:
                failure = error
            except Exception as error:  # noqa: BLE001  # a fetch never raises: its row must have an answer
                failure = Failure("unexpected", " ".join(f"{type(error).__name__}: {error}".split())[:200])
            if sink:
                sink.clear()
            wait = self._wait_before_retry(failure, trip)
            if wait is None:
                return _fetched(trip, failure)
            with trip.pausing():
                time.sleep(wait)

    def first_host(self, url: str) -> str:
        """The host that a fetch of `url` asks first; empty if it asks none."""
        try:
            target = parse(url)
            self._permit(target)
        except Failure:
            return ""
        return target.host

    def _follow(self, target: Target, trip: Trip, want: Want) -> Answer:
        """The last answer of a chain of redirects, each of which is checked like a URL of the list."""
        seen = {target.url}
        for _ in range(self._settings.max_redirects + 1):
            self._admit(target, trip, want)
            trip.take_turn(target.host)
            answer = self._client.ask(target, trip, want)
            if answer.failure:
                if answer.failure.wait_seconds is not None:
                    self._park(target.host, answer.failure.wait_seconds)
                raise answer.failure
            if not answer.location:
                return answer
            target = follow(target, answer.location)
            if target.url in seen:
                raise Failure("redirects", "a loop")
            seen.add(target.url)
        raise Failure("redirects", f"more than {self._settings.max_redirects}")

    def _admit(self, target: Target, trip: Trip, want: Want) -> None:
        """Raises Failure: port, denied_host, denied_url, robots_txt, or why robots.txt cannot be read."""
        trip.host = target.host
        self._permit(target)
        if self._robots and want is self._medium:
            self._robots.check(target, trip.end, lambda place: self._rules_of(place, trip))

    def _permit(self, target: Target) -> None:
        """Raises Failure: port, denied_host, denied_url."""
        if target.port not in self._ports:
            raise Failure("port", f"{target.port} is not in allow_ports")
        self._denied.check(target)

    def _rules_of(self, place: Target, trip: Trip) -> bytes:
        answer = self._follow(place, trip, self._rules)
        return body.decode(answer.data, answer.headers.get("Content-Encoding", ""), MOST_BYTES)

    def _is_large(self, head: bytes, headers: Message) -> bool:
        """Whether a body is written to the sink. Raises Failure: not_a_video, for what is not worth reading."""
        if videos.sniff(head):
            return True
        if (self._images and sniff(head)) or headers.get("Content-Encoding"):
            return False
        raise self._unknown(head, headers)

    def _unknown(self, data: bytes, headers: Message) -> Failure:
        found = f"{sniff_other(data) or data[:16]!r}, sent as {_content_type(headers)!r}"
        return Failure("not_a_video" if self._videos else "not_image", found)

    def _format(self, data: bytes) -> str | None:
        """The usual extension of a body's format, if it is of the media that are wanted."""
        if self._images and (form := sniff(data)):
            return EXTENSION_OF.get(form, form)
        if self._videos and (form := videos.sniff(data)):
            return videos.EXTENSION_OF[form]
        return None

    def _checked(self, answer: Answer, digests: Mapping[str, str | None], sink: Sink | None) -> tuple[bytes, str]:
        """The image and its extension; no bytes if it is a video, and in the sink. Raises Failure: encoding, not_image,
        not_a_video, changed."""
        if answer.stored:
            assert sink is not None
            data, ext = b"", self._format(sink.head)
        else:
            data = answer.data
            ext = self._format(data)
            encoding = answer.headers.get("Content-Encoding")
            if encoding and ext is None:  # some servers announce an encoding and send a plain image
                data = body.decode(data, encoding, self._settings.max_bytes)
                ext = self._format(data)
            if ext is None:
                raise self._unknown(data, answer.headers)
            if sink and not sniff(data):
                sink.write(data)
                data = b""
        assert ext is not None
        for name, digest in digests.items():
            if not digest:
                continue
            found = hashlib.new(name, data, usedforsecurity=False).hexdigest() if data else sink and sink.digest(name)
            if found != digest.lower():
                raise Failure("changed", f"{name} differs")
        return data, ext

    def _wait_before_retry(self, failure: Failure, trip: Trip) -> float | None:
        """Seconds until the next try, or None if this was the last: as the host asks, otherwise a random part of an
        interval that doubles (full jitter), so that the URLs of one host do not return together."""
        if trip.tries > self._settings.retries:
            return None
        wait = failure.wait_seconds
        if wait is None:
            if failure.code not in _RETRIED and not (failure.status == "error" and failure.code.startswith("http_")):
                return None
            longest = self._settings.backoff_seconds * 2 ** (trip.tries - 1)
            wait = random.uniform(0, min(longest, LONGEST_BACKOFF_SECONDS))
        return wait if wait < trip.left() else None


def _content_type(headers: Message) -> str:
    return str(headers.get("Content-Type", ""))[:100]


def _fetched(
    trip: Trip, failure: Failure, data: bytes = b"", ext: str = "", content_type: str = "", stored: bool = False
) -> Fetched:
    return Fetched(
        status=failure.status,
        code=failure.code,
        detail=failure.detail[:LONGEST_DETAIL],
        data=data,
        ext=ext,
        content_type=content_type,
        host=trip.host,
        tries=trip.tries,
        seconds=trip.seconds(),
        bytes=trip.bytes,
        stored=stored,
    )
