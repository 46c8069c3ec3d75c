"""Requests to endpoints: one event loop per process, one HTTP session per stage, and the only layer of retries.

A request is retried after errors that may be temporary: no connection, a connection reset, a time-out, an answer that
is not JSON, and the statuses 408, 409, 425, 429 and 5xx. It waits for a random time up to an exponential bound, or for
the time in `Retry-After`.
"""

from __future__ import annotations

import asyncio
import atexit
import email.utils
import json
import logging
import os
import random
import threading
import time
from collections.abc import Hashable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from http.client import responses
from typing import TYPE_CHECKING, Any

import tenacity

from curate.core.contracts import AsyncMap, NoAnswer
from curate.core.errors import CurateError, Reject
from curate.core.nouns.facts import DONE, ERROR, UNUSABLE

if TYPE_CHECKING:
    import aiohttp

BACKOFF_SECONDS = 0.5
"""Upper bound of the first wait; it doubles with each attempt."""
LONGEST_BACKOFF = 60.0
LONGEST_RETRY_AFTER = 120.0
"""Seconds; a longer Retry-After is cut to this."""
RETRIED = {408, 409, 425, 429}
"""Statuses below 500 to retry."""
FATAL = {401: "check the key", 403: "check what the key allows", 404: "check the URL and the model's name"}
"""Statuses that every request would get, and what to do about them."""
ANSWER_BYTES = 16 << 20
"""The largest answer accepted."""
IDLE_SECONDS = 30.0
"""How long a session without users keeps its connections open."""
QUOTED = 200
"""Characters of an answer quoted in a message."""
log = logging.getLogger("curate")


@dataclass
class Answered:
    """Result of one request."""

    columns: dict[str, Any] | None = None
    status: int = DONE
    reason: str | None = None
    message: str = ""
    requests: int = 0
    sent_bytes: int = 0
    fatal: CurateError | None = None
    """An error that every request would get: it ends the run."""


class Retryable(NoAnswer):
    """A temporary error: retry, after `after` seconds if the endpoint gave a time."""

    def __init__(self, reason: str, detail: str = "", after: float | None = None) -> None:
        super().__init__(reason, detail)
        self.after = after


class Session:
    """The connections of one stage in this process, shared by its units; used in the event loop's thread only."""

    def __init__(self, stage: AsyncMap) -> None:
        self.stage, self.users = stage, 0
        self.slots = asyncio.Semaphore(stage.max_in_flight)
        self._http: aiohttp.ClientSession | None = None

    def http(self) -> aiohttp.ClientSession:
        import aiohttp  # takes 0.2 s, and most workers send no request

        if self._http is None:
            limit = aiohttp.TCPConnector(limit=0)  # `slots` bounds what is in flight
            timeout = aiohttp.ClientTimeout(total=self.stage.timeout_seconds)
            self._http = aiohttp.ClientSession(connector=limit, timeout=timeout)
        return self._http

    async def close(self) -> None:
        if self._http is not None:
            await self._http.close()
            self._http = None


@dataclass
class CountingClient:
    """The `Client` of one `answer`, which counts what it sends."""

    session: Session
    requester: Requester
    requests: int = 0
    sent_bytes: int = 0

    async def post(self, url: str, body: Any, headers: Mapping[str, str] | None = None) -> Any:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        retrying = tenacity.AsyncRetrying(
            stop=tenacity.stop_after_attempt(self.session.stage.attempts),
            retry=tenacity.retry_if_exception_type(Retryable),
            wait=_seconds_to_wait,
            reraise=True,
        )
        return await retrying(self._send, url, data, {"Content-Type": "application/json"} | dict(headers or {}))

    async def _send(self, url: str, data: bytes, headers: Mapping[str, str]) -> Any:
        import aiohttp

        async with self.session.slots:
            self.requests += 1
            self.sent_bytes += len(data)
            try:
                sent = self.session.http().post(url, data=data, headers=headers, allow_redirects=False)
                async with sent as response:
                    return _decoded(url, response.status, response.headers, await _read(response))
            except TimeoutError:
                raise Retryable("timeout", f"no answer in {self.session.stage.timeout_seconds:g} s") from None
            except aiohttp.InvalidURL:
                raise CurateError(f"{url!r} is not a valid URL; expected http://HOST/PATH") from None
            except aiohttp.ClientConnectorCertificateError as error:
                raise CurateError(f"{url}: its certificate is not valid ({error}); check the URL") from error
            except aiohttp.ClientConnectorError as error:
                raise Retryable("connect", str(error)) from error
            except (aiohttp.ClientError, OSError) as error:
                raise Retryable("reset", f"{type(error).__name__}: {error}") from error
            finally:
                self.requester.ended += 1


async def _read(response: aiohttp.ClientResponse) -> bytes:
    parts, size = [], 0
    async for part in response.content.iter_any():
        parts.append(part)
        size += len(part)
        if size > ANSWER_BYTES:
            raise NoAnswer("answer_too_large", f"more than {ANSWER_BYTES:,} bytes")
    return b"".join(parts)


def _decoded(url: str, status: int, headers: Mapping[str, str], body: bytes) -> Any:
    """The decoded answer. Raises Retryable, CurateError or Reject by its status."""
    if 200 <= status < 300:
        try:
            return json.loads(body)
        except ValueError:
            raise Retryable("not_json", f"{url}: {_quoted(body)!r}") from None
    named = f"{status} {responses.get(status, '')}".rstrip()
    text = f"{url}: {named} ({_quoted(body)})"
    if status in RETRIED or status >= 500:
        raise Retryable(f"http_{status}", text, retry_after(headers))
    if status in FATAL:
        raise CurateError(f"{text}; {FATAL[status]}")
    if status < 400:
        raise CurateError(f"{text}; it redirects to {headers.get('Location', 'nowhere')!r}; give that URL instead")
    raise Reject(f"refused_{status}", text)


def _quoted(body: bytes) -> str:
    return " ".join(body[: 4 * QUOTED].decode("utf-8", "replace").split())[:QUOTED] or "no text"


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds to wait, given by the endpoint as milliseconds, seconds or a date; at most LONGEST_RETRY_AFTER."""
    for name, factor in (("retry-after-ms", 1e-3), ("Retry-After", 1.0)):
        value = headers.get(name, "").strip()
        seconds = None
        try:
            seconds = float(value) * factor
        except ValueError:
            date = email.utils.parsedate_tz(value)
            seconds = email.utils.mktime_tz(date) - time.time() if date else None
        if seconds is not None and seconds == seconds:  # not NaN
            return min(max(seconds, 0.0), LONGEST_RETRY_AFTER)
    return None


def _seconds_to_wait(state: tenacity.RetryCallState) -> float:
    error = state.outcome.exception() if state.outcome else None
    bound = min(BACKOFF_SECONDS * 2 ** (state.attempt_number - 1), LONGEST_BACKOFF)
    after = error.after if isinstance(error, Retryable) else None
    log.debug("attempt %d: %s", state.attempt_number, error)
    return random.uniform(0, bound) if after is None else after + random.uniform(0, BACKOFF_SECONDS)


async def _answer(session: Session, requester: Requester, request: Any) -> Answered:
    """Result of one request; errors are part of it."""
    client, found = CountingClient(session, requester), Answered()
    try:
        found.columns = await session.stage.answer(request, client)
    except Reject as reject:
        found.status, found.reason, found.message = UNUSABLE, reject.reason, reject.detail
    except CurateError as error:
        found.fatal = error
    except NoAnswer as error:
        found.status, found.reason, found.message = ERROR, error.reason, str(error)
    except Exception as error:  # noqa: BLE001 - the sample boundary: one bad answer is one row's status
        found.status, found.reason = ERROR, type(error).__name__
        found.message = f"{type(error).__name__}: {error}"
    found.requests, found.sent_bytes = client.requests, client.sent_bytes
    return found


# --- the process's loop -----------------------------------------------------------------------------------------------


@dataclass
class _Process:
    """The event loop, whose thread starts with the first request, and the stages' sessions."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    loop: asyncio.AbstractEventLoop | None = None
    sessions: dict[int, Session] = field(default_factory=dict)
    """id() of the stage after its `setup` -> session; the session keeps the stage alive."""

    def running(self) -> asyncio.AbstractEventLoop:
        with self.lock:
            if self.loop is None:
                self.loop = asyncio.new_event_loop()
                threading.Thread(target=self.loop.run_forever, daemon=True, name="requests").start()
            return self.loop


_process = _Process()


def _reset() -> None:
    """A forked child has no event loop: threads of the parent do not survive the fork."""
    global _process
    _process = _Process()


os.register_at_fork(after_in_child=_reset)


class Requester:
    """Sends one unit's requests through its stage's session: `send` from the unit's thread, `close` at its end."""

    def __init__(self, stage: AsyncMap) -> None:
        self.ended = 0
        """Attempts that have ended, with or without an error."""
        self._process, self._loop = _process, _process.running()
        self._session = asyncio.run_coroutine_threadsafe(self._join(stage), self._loop).result()

    async def _join(self, stage: AsyncMap) -> Session:
        session = self._process.sessions.setdefault(id(stage), Session(stage))
        session.users += 1
        return session

    def send(self, request: Hashable) -> Future[Answered]:
        return asyncio.run_coroutine_threadsafe(_answer(self._session, self, request), self._loop)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._leave)

    def _leave(self) -> None:
        self._session.users -= 1
        if not self._session.users:
            self._loop.call_later(IDLE_SECONDS, self._end_later)

    def _end_later(self) -> None:
        self._ending = self._loop.create_task(self._end())  # the loop itself would let it be collected

    async def _end(self) -> None:
        if not self._session.users:
            self._process.sessions.pop(id(self._session.stage), None)
            await self._session.close()


@atexit.register
def close_all() -> None:
    """Close the sessions before the interpreter ends."""
    loop, sessions = _process.loop, list(_process.sessions.values())

    async def end() -> None:
        for session in sessions:
            await session.close()

    if loop is not None and sessions:
        asyncio.run_coroutine_threadsafe(end(), loop).result(timeout=5)
