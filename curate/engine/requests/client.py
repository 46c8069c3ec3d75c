"""Requests to endpoints: one event loop per process, and the only layer of retries.

A request to a named endpoint goes through its pool (`pool.py`). A request to a plain URL is retried after errors that
may be temporary: no connection, a connection reset, a time-out, an answer that is not JSON, and the statuses 408, 409,
425, 429 and 5xx. It waits for a random time up to an exponential bound, or for the time in `Retry-After`.
"""

from __future__ import annotations

import asyncio
import atexit
import json
import logging
import os
import threading
from collections.abc import Hashable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import tenacity

from curate.core.contracts import AsyncMap, NoAnswer
from curate.core.endpoints import Endpoint
from curate.core.errors import CurateError, Reject
from curate.core.nouns.facts import DONE, ERROR, UNUSABLE
from curate.core.shares import LimiterGoneError
from curate.core.spend import Spend, combined
from curate.engine.requests import costs, http
from curate.engine.requests.asking import Asking, BudgetUsedUpError
from curate.engine.requests.deadline import Deadline
from curate.engine.requests.http import RefusedError, Retryable
from curate.engine.requests.pool import Pool

if TYPE_CHECKING:
    import aiohttp

IDLE_SECONDS = 30.0
"""How long a session without users keeps its connections open."""
JSON = {"Content-Type": "application/json"}
Limiter = Mapping[str, Any]
"""Host, port and key of the run's limiter."""
log = logging.getLogger("curate")


@dataclass
class Answered:
    """Result of one request of a stage."""

    columns: dict[str, Any] | None = None
    status: int = DONE
    reason: str | None = None
    message: str = ""
    requests: int = 0
    sent_bytes: int = 0
    spend: dict[str, Spend] = field(default_factory=dict)
    """Endpoint -> what requests to it cost."""
    seconds: float = 0.0
    """From the first attempt to the end; 0 for plain URLs."""
    fatal: Exception | None = None
    """An error that every request would get. A CurateError ends the run; without its limiter, the unit is retried."""
    over: str = ""
    """The run's budget was used up, so that the row has no result."""

    @property
    def has_result(self) -> bool:
        return not (self.fatal or self.over)


def in_flight(stage: AsyncMap) -> int:
    """Most requests of a stage in flight per worker."""
    return max([stage.max_in_flight, *(one.max_in_flight or 0 for one in stage.asks().values())])


class Session:
    """The connections of one stage in this process, shared by its units; used in the event loop's thread only."""

    def __init__(self, stage: AsyncMap, limiter: Limiter | None, process: _Process) -> None:
        self.stage, self.limiter, self.users = stage, limiter, 0
        self.slots = asyncio.Semaphore(stage.max_in_flight)
        """For plain URLs."""
        self._process = process
        self._asks = stage.asks()
        self.pools: dict[str, Pool] = {}
        self._deadlines: dict[str, Deadline] = {}
        self._http: aiohttp.ClientSession | None = None

    def http(self) -> aiohttp.ClientSession:
        """For plain URLs."""
        import aiohttp  # takes 0.2 s, and most workers send no request

        if self._http is None:
            self._http = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))  # `slots` bounds it
        return self._http

    def pool(self, name: str) -> Pool:
        """The pool of one of the stage's endpoints."""
        if name not in self.pools:
            if name not in self._asks:
                raise CurateError(f"{self.stage.op}: asks() has no endpoint {name!r}; add it there")
            pool = self._process.pool(name, self._asks[name], self.limiter)
            pool.join(self._asks[name].max_in_flight or self.stage.max_in_flight)
            self.pools[name] = pool
        return self.pools[name]

    def deadline(self, name: str) -> Deadline:
        """For one of the stage's endpoints; other stages may wait for longer answers."""
        seconds = self._asks[name].timeout_seconds or self.stage.timeout_seconds
        return self._deadlines.setdefault(name, Deadline(seconds))

    def reconnect(self) -> None:
        """Connect the pools to the limiter again if it was gone."""
        for pool in self.pools.values():
            pool.share.join()

    async def close(self) -> None:
        pools, self.pools = self.pools, {}
        for pool in pools.values():
            await pool.leave()
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
    spend: dict[str, Spend] = field(default_factory=dict)
    began: float | None = None
    """When the first attempt at an endpoint began."""

    async def post(
        self, url: str, body: Any, headers: Mapping[str, str] | None = None, *, endpoint: str | None = None
    ) -> Any:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        headers = {**JSON, **headers} if headers else JSON
        if endpoint is not None:
            return await self._ask(endpoint, url, data, headers)
        retrying = tenacity.AsyncRetrying(
            stop=tenacity.stop_after_attempt(self.session.stage.attempts),
            retry=tenacity.retry_if_exception_type(Retryable),
            wait=_seconds_to_wait,
            reraise=True,
        )
        try:
            return await retrying(self._send, url, data, headers)
        except RefusedError as error:
            raise Reject(f"refused_{error.status}", str(error)) from error

    async def _ask(self, name: str, path: str, data: bytes, headers: Mapping[str, str]) -> Any:
        stage, pool = self.session.stage, self.session.pool(name)
        deadline = self.session.deadline(name)
        asking = Asking(self.requester, path, data, headers, deadline, stage.attempts, costs.guess(data))
        try:
            return await pool.post(asking)
        finally:
            self.requests += asking.spend.requests
            self.sent_bytes += asking.spend.requests * len(data)
            self.spend = combined(self.spend, {name: asking.spend}) if self.spend else {name: asking.spend}
            self.began = asking.began if self.began is None else self.began

    async def _send(self, url: str, data: bytes, headers: Mapping[str, str]) -> Any:
        async with self.session.slots:
            self.requests += 1
            self.sent_bytes += len(data)
            try:
                limit = asyncio.timeout(self.session.stage.timeout_seconds)
                return await http.post(self.session.http(), url, data, headers, limit)
            finally:
                self.requester.ended += 1


def _seconds_to_wait(state: tenacity.RetryCallState) -> float:
    error = state.outcome.exception() if state.outcome else None
    log.debug("attempt %d: %s", state.attempt_number, error)
    after = error.after if isinstance(error, Retryable) else None
    return http.backoff(state.attempt_number) if after is None else after + http.backoff(1)


async def _answer(session: Session, requester: Requester, request: Any) -> Answered:
    """Result of one request; errors are part of it."""
    client, found = CountingClient(session, requester), Answered()
    try:
        found.columns = await session.stage.answer(request, client)
    except Reject as reject:
        found.status, found.reason, found.message = UNUSABLE, reject.reason, reject.detail
    except (CurateError, LimiterGoneError) as error:
        found.fatal = error
    except BudgetUsedUpError as error:
        found.over = str(error)
    except NoAnswer as error:
        found.status, found.reason, found.message = ERROR, error.reason, str(error)
    except Exception as error:  # noqa: BLE001 - the sample boundary: one bad answer is one row's status
        found.status, found.reason = ERROR, type(error).__name__
        found.message = f"{type(error).__name__}: {error}"
    found.requests, found.sent_bytes, found.spend = client.requests, client.sent_bytes, client.spend
    if client.began is not None:
        found.seconds = asyncio.get_running_loop().time() - client.began
    return found


# --- the process's loop -----------------------------------------------------------------------------------------------


@dataclass
class _Process:
    """The event loop, whose thread starts with the first request, the stages' sessions and the endpoints' pools."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    loop: asyncio.AbstractEventLoop | None = None
    sessions: dict[tuple[int, str], Session] = field(default_factory=dict)
    """id() of the stage after its `setup`, and key of the limiter -> session, which keeps the stage alive."""
    pools: dict[tuple[str, Endpoint, str], Pool] = field(default_factory=dict)

    def running(self) -> asyncio.AbstractEventLoop:
        with self.lock:
            if self.loop is None:
                self.loop = asyncio.new_event_loop()
                threading.Thread(target=self.loop.run_forever, daemon=True, name="requests").start()
            return self.loop

    def session(self, stage: AsyncMap, limiter: Limiter | None) -> Session:
        return self.sessions.setdefault((id(stage), _key(limiter)), Session(stage, limiter, self))

    def pool(self, name: str, endpoint: Endpoint, limiter: Limiter | None) -> Pool:
        assert self.loop is not None
        place = (name, endpoint, _key(limiter))
        if place not in self.pools:
            self.pools = {old: pool for old, pool in self.pools.items() if pool.users}
            self.pools[place] = Pool(name, endpoint, limiter, self.loop)
        return self.pools[place]

    async def end(self, session: Session) -> None:
        self.sessions.pop((id(session.stage), _key(session.limiter)), None)
        await session.close()


def _key(limiter: Limiter | None) -> str:
    return limiter["key"] if limiter else ""


_process = _Process()


def _reset() -> None:
    """A forked child has no event loop: threads of the parent do not survive the fork."""
    global _process
    _process = _Process()


os.register_at_fork(after_in_child=_reset)


class Requester:
    """Sends one unit's requests through its stage's session: `send` from the unit's thread, `close` at its end.
    limiter: of the run; without one, the stage's endpoints have their limits for this process alone."""

    def __init__(self, stage: AsyncMap, limiter: Limiter | None = None) -> None:
        self.ended = 0
        """Attempts that have ended, with or without an error."""
        self.waiting = 0
        """Requests that wait to start, for an endpoint or for the limits of the run, or to be retried."""
        self._process, self._loop = _process, _process.running()
        self._session = asyncio.run_coroutine_threadsafe(self._join(stage, limiter), self._loop).result()

    async def _join(self, stage: AsyncMap, limiter: Limiter | None) -> Session:
        session = self._process.session(stage, limiter)
        session.users += 1
        session.reconnect()
        return session

    def send(self, request: Hashable) -> Future[Answered]:
        return asyncio.run_coroutine_threadsafe(_answer(self._session, self, request), self._loop)

    def close(self) -> None:
        """Returns once the run's limiter knows what the answers cost, so that it knows no less than the unit's task."""
        for pool in list(self._session.pools.values()):
            pool.share.report()
        self._loop.call_soon_threadsafe(self._leave)

    def _leave(self) -> None:
        self._session.users -= 1
        if not self._session.users:
            self._loop.call_later(IDLE_SECONDS, self._end_later)

    def _end_later(self) -> None:
        self._ending = self._loop.create_task(self._end())  # the loop itself would let it be collected

    async def _end(self) -> None:
        if not self._session.users:
            await self._process.end(self._session)


@atexit.register
def close_all() -> None:
    """Close the sessions before the interpreter ends."""
    loop, sessions = _process.loop, list(_process.sessions.values())

    async def end() -> None:
        for session in sessions:
            await session.close()

    if loop is not None and sessions:
        asyncio.run_coroutine_threadsafe(end(), loop).result(timeout=5)
