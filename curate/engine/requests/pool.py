"""The pool of an endpoint in a process: its URLs, how many requests are in flight, and what each failure means.

All units and stages of the process share it. Requests start in order of arrival. One starts once the window, the limits
of the run and a URL have room for it, and goes to the URL with the fewest requests in flight among those that answer.
It is retried after errors that may be temporary: at once if there is another URL, otherwise after a random time up to
an exponential bound. Retry-After pauses the URL. A request that gets no answer in time, while its URL answers others,
costs its place in the window until then and nothing else.

Failures that no request can cause do not use up its attempts: no connection, 429 and 503. While no URL answers,
requests wait, up to the endpoint's `patience_seconds`. A request may also bring a server down. When a server falls, the
requests that were in flight are sent again one at a time; the request during which it falls again is the cause.
"""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from curate.core.contracts import NoAnswer
from curate.core.endpoints import CHAT, Endpoint
from curate.core.errors import CurateError
from curate.core.spend import Spend
from curate.engine.requests import answers, costs
from curate.engine.requests.asking import Asking, BudgetUsedUpError, SuspectError, Url
from curate.engine.requests.http import UNKNOWN_MODEL, RefusedError, Retryable, backoff, fault, post
from curate.engine.requests.notes import Notes
from curate.engine.requests.preflight import ask
from curate.engine.requests.share import EndpointShare, Ticket
from curate.engine.requests.window import Window

if TYPE_CHECKING:
    import aiohttp

KEEP_ALIVE_SECONDS = 4.0
"""A connection that is idle for longer is not used again: many servers close it after 5 s."""
FALL_SECONDS = 0.5
"""How long a server may take to fall after it has reset a request."""
RESET_SECONDS = 1.0
"""A connection reset so soon after sending was probably idle before: one such failure does not count."""
UNCOUNTED = {"connect", "http_429", "http_503"}
"""Failures that no request can cause."""
OVERLOADED = {"connect", "timeout", "http_429", "http_503", "http_504"}
"""Failures that halve the window."""
DOWN = {"connect", "reset", "timeout"}
"""Failures that count against a URL, in addition to statuses of 500 and more."""
CHARGED = {"timeout", "not_json", "http_504"}
"""Failures of requests that the endpoint has worked on."""
BLAMED = {"http_500", "http_501"}
"""Failures of a server that works: after two of them the request is the cause, if the URL answers others."""
SUSPECT_SECONDS = 60.0
"""After so long with these failures only, a server that answers another question is no longer the suspect."""
MOST_ASIDE = 8
"""Requests that may be set aside without an answer between them; then the server is the cause."""
TELL_SECONDS = 10.0
"""Without an answer for so long, the log has a line about what is waited for, and again after as long."""


class Pool:
    """The event loop's thread uses it. `join` before `post`, `leave` afterwards."""

    def __init__(
        self, name: str, endpoint: Endpoint, limiter: Mapping[str, Any] | None, loop: asyncio.AbstractEventLoop
    ) -> None:
        self.name, self.endpoint, self.users = name, endpoint, 0
        self.urls = [Url(base) for base in endpoint.base_urls] or [Url("")]
        self.window = Window(1)
        self.share = EndpointShare(name, endpoint, limiter, self._wake)
        self._loop = loop
        self._headers: dict[str, str] = {}
        self._http: aiohttp.ClientSession | None = None
        self._turn = asyncio.Lock()
        """Requests start in the order of their arrival."""
        self._alone = asyncio.Lock()
        """Held by the one request in flight that may have brought a server down."""
        self._changed = asyncio.Event()
        self._waiting = 0
        self._down_since: float | None = None
        """Since when requests have waited because no URL answers."""
        self._last: Retryable | None = None
        """The last failure since the last answer."""
        self._suspecting = False
        """Whether failures are the requests' own: no URL has answered for some time, but one lists its models."""
        self._aside = 0
        """Requests that were taken for the cause, or used up their attempts, since the last answer."""
        self._quiet_since = self._told_at = 0.0
        """Since when there has been no answer, though requests wait."""
        self._teller: asyncio.TimerHandle | None = None
        self._filtered = 0
        """Requests that a filter has rejected before any answer."""
        self._notes = Notes(name)
        self._server: Any = None
        """For an endpoint that is launched: the server of this process."""

    def join(self, in_flight: int) -> None:
        """A stage is going to ask, with up to so many requests in flight."""
        import aiohttp  # takes 0.2 s, and most workers send no request

        self.users += 1
        self.window.most = max(self.window.most, in_flight)
        if self._http is None:
            if self.endpoint.key is not None:
                self._headers = {"Authorization": f"Bearer {self.endpoint.key.value()}"}
            if self.endpoint.launch is not None:
                from curate.engine import servers  # for the few endpoints that are launched

                self._server = servers.join(self.name, self.endpoint)
            connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_ALIVE_SECONDS)  # the window bounds it
            self._http = aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar())
        self.share.join()
        if self._teller is None:
            self._quiet_since = self._loop.time()
            self._teller = self._loop.call_later(TELL_SECONDS, self._tell)

    def _tell(self) -> None:
        """Say what is waited for while nothing succeeds."""
        self._teller = self._loop.call_later(TELL_SECONDS / 10, self._tell)
        now = self._loop.time()
        seconds = now - self._quiet_since
        if self._idle or now - max(self._quiet_since, self._told_at) < TELL_SECONDS:
            return
        self._told_at = now
        since = time.strftime("%H:%M:%S", time.localtime(time.time() - seconds))
        last = f"; last failure: {self._last}" if self._last is not None else ""
        text = "no answer since %s (%.0f s); waiting for %s%s"
        self._notes.say(text, since, seconds, self._awaited(), last, name=f"endpoint {self.name}")

    @property
    def _idle(self) -> bool:
        return not (self._waiting or self.window.in_flight)

    def _awaited(self) -> str:
        paused = min(url.paused for url in self.urls) - self._loop.time()
        if self.window.in_flight:
            return f"{self.window.in_flight} requests in flight"
        if all(url.breaker.open for url in self.urls):
            return "a URL that answers"
        if paused > 0:
            return f"Retry-After, {paused:.0f} s more"
        return "its server to start" if self._server is not None else "a retry, or its limits"

    async def leave(self) -> None:
        self.users -= 1
        if self.users:
            return
        self.share.close()
        if self._teller is not None:
            self._teller.cancel()
            self._teller = None
        http, server, self._http, self._server = self._http, self._server, None, None
        if server is not None:
            server.leave()
        if http is not None:
            await http.close()

    def _wake(self) -> None:
        with suppress(RuntimeError):  # the loop is closed: the process ends
            self._loop.call_soon_threadsafe(self._changed.set)

    # --- requests ---

    async def post(self, asking: Asking) -> Any:
        """The decoded answer. Raises NoAnswer, CurateError if every request would fail, or BudgetUsedUpError."""
        if self._idle:  # no request has waited meanwhile
            self._quiet_since = self._loop.time()
            self._down_since = self._down_since and self._quiet_since
        self._wait_for(asking, 1)
        try:
            while True:
                asking.alone = asking.deaths > 0
                try:
                    if not asking.alone:
                        return await self._attempt(asking)
                    async with self._alone:
                        return await self._attempt_alone(asking)
                except SuspectError:
                    continue
                except Retryable:
                    if asking.counted >= asking.attempts:
                        self._aside += 1
                        raise
                    await asyncio.sleep(asking.pause)
        finally:
            self._wait_for(asking, -1)

    def _wait_for(self, asking: Asking, more: int) -> None:
        self._waiting += more
        asking.owner.waiting += more
        self.share.want(min(self._waiting, self.window.limit))

    async def _attempt_alone(self, asking: Asking) -> Any:
        try:
            return await self._attempt(asking)
        except (Retryable, NoAnswer):
            await asyncio.sleep(FALL_SECONDS)  # a server that falls may still reset the next request
            raise

    async def _attempt(self, asking: Asking) -> Any:
        assert self._http is not None
        url, ticket, number = await self._start(asking)
        began = self._loop.time()
        asking.began = began if asking.began is None else asking.began
        spend = costs.free(self.endpoint)
        try:
            headers = {**self._headers, **asking.headers}
            with asking.deadline.attempt(2 ** max(asking.counted - 1, 0)) as limit:
                known = url.breaker.answered > 0
                answer = await post(self._http, url.base + asking.path, asking.data, headers, limit, known)
            if (error := answers.error_in(answer, asking.path.endswith(CHAT))) is not None:
                raise fault(url.base + asking.path, error[0], {}, error[1], bool(url.breaker.answered))
            spend = costs.of_answer(self.endpoint, asking.guess, answer)
            self.window.answered(number, self._loop.time() - began)
            asking.deadline.answered(self._loop.time() - began)
            self._answered(url, answer)
            return answer
        except Retryable as error:
            seconds = self._loop.time() - began
            if error.reason in CHARGED or (error.reason == "reset" and seconds > RESET_SECONDS):
                spend = costs.expected(self.endpoint, asking.guess)
            self._failed(asking, url, error, number, seconds)
            raise
        except BaseException as error:  # whatever it is, what the request held must be given back
            self.window.ended(number)
            url.breaker.left(asking)
            if isinstance(error, RefusedError):
                raise self._refused(url, error) from error
            if isinstance(error, (asyncio.CancelledError, NoAnswer)):  # stopped, or too long an answer
                spend = costs.expected(self.endpoint, asking.guess)
            raise
        finally:
            self._end(asking, url, ticket, spend)

    async def _start(self, asking: Asking) -> tuple[Url, Ticket, int]:
        """Wait until the request may start; its URL, and what the share and the window know it by."""
        async with self._turn:
            while True:
                self._changed.clear()
                seconds, url = await self._look(asking)
                if url is not None:
                    break
                timer = None if seconds == math.inf else self._loop.call_later(seconds, self._changed.set)
                await self._changed.wait()
                if timer is not None:
                    timer.cancel()
            url.breaker.started(asking)
            url.in_flight += 1
            self._wait_for(asking, -1)
            return url, self.share.start(asking.guess), self.window.begin()

    def _end(self, asking: Asking, url: Url, ticket: Ticket, spend: Spend) -> None:
        url.in_flight -= 1
        asking.owner.ended += 1
        asking.spend += spend
        self.share.settle(ticket, spend)
        self._wait_for(asking, 1)
        self._changed.set()

    async def _look(self, asking: Asking) -> tuple[float, Url | None]:
        """The URL to ask now; or None, and the seconds until the next look (infinite: when `_changed` is set)."""
        if self.share.over:
            raise BudgetUsedUpError("a ceiling of the run is used up")
        if self.share.error is not None:
            raise self.share.error
        patience = await self._patience_left()
        if not self.window.free:
            return patience, None
        if self._server is not None:
            self._move(await self._server.base_url())
        if asking.deaths > 1:
            raise NoAnswer("endpoint_refuses", f"its server fell {asking.deaths} times while it worked on this request")
        if asking.deaths and not asking.alone:
            raise SuspectError
        wait, url = self._choose(asking)
        wait = max(wait, self.share.wait(asking.guess)) if url is not None else wait
        return (0.0, url) if not wait else (min(wait, patience), None)

    def _move(self, base: str) -> None:
        """The server that is launched is at this URL now: at another URL if it was restarted."""
        url = self.urls[0]
        if url.base and url.base != base:
            url.falls += 1
            self.urls = [Url(base)]
            self._down_since = None
        url.base = url.base or base

    def _choose(self, asking: Asking) -> tuple[float, Url | None]:
        """(seconds until a URL may be asked, the best of those that may be): the least loaded one, and one that has not
        failed on this request if there is any."""
        now = self._loop.time()
        several = random.sample(self.urls, len(self.urls)) if len(self.urls) > 1 else self.urls
        ready = [url for url in several if url.wait(now) <= 0.0]
        if ready:
            return 0.0, min(ready, key=lambda url: (url in asking.tried, url.in_flight))
        return min(url.wait(now) for url in self.urls), None

    async def _patience_left(self) -> float:
        """Seconds until a server is asked another question, or the run ends, because no URL answers; infinite while one
        may. Raises CurateError at the end."""
        since, patience = self._down_since, self.endpoint.patience_seconds
        if since is None or not all(url.breaker.open for url in self.urls):
            return math.inf
        seconds = self._loop.time() - since
        limit = min(patience, SUSPECT_SECONDS if self._last is not None and self._last.reason in BLAMED else patience)
        if seconds < limit:
            return limit - seconds
        if self._aside < MOST_ASIDE and await self._is_there():
            self._suspecting, self._down_since = True, None
            for url in self.urls:
                url.breaker.alive()
            return math.inf
        if seconds < patience:
            return patience - seconds
        ago = f"{seconds / 60:.0f} min" if seconds >= 60 else f"{seconds:.0f} s"
        raise CurateError(
            f"endpoint {self.name}: none of its URLs answers since {ago} (last: {self._last}); "
            "start it and run the same command"
        )

    async def _is_there(self) -> bool:
        """Whether a server lists its models, or says that it does not."""
        assert self._http is not None
        models = [ask(self._http, "GET", f"{url.base}/models", headers=self._headers) for url in self.urls]
        return any(0 < reply.status < 500 for reply in await asyncio.gather(*models))

    # --- answers and failures ---

    def _succeeded(self, url: Url) -> None:
        url.breaker.succeeded()
        self._quiet_since = self._loop.time()
        self._aside, self._down_since, self._last, self._suspecting = 0, None, None, False

    def _answered(self, url: Url, answer: Any) -> None:
        self._succeeded(url)
        url.answered = self._quiet_since
        self._notes.of_answer(answer)

    def _refused(self, url: Url, error: RefusedError) -> Exception:
        """The error for a request that the endpoint rejects; it may reject every request."""
        answered = any(one.breaker.answered for one in self.urls)
        if error.status == 400 and not answered and UNKNOWN_MODEL.search(str(error)):
            return CurateError(f"endpoint {self.name}: {error}; check its model, {self.endpoint.model!r}")
        setting = answers.setting_of(str(error))
        if error.status in (400, 422) and not answered and setting is not None:
            return CurateError(f"endpoint {self.name}: {error}; set {setting}")
        self._succeeded(url)
        if not error.filtered:
            return NoAnswer("endpoint_refuses", str(error))
        self._filtered += all(one.answered == -math.inf for one in self.urls)
        if self._filtered == MOST_ASIDE:
            self._notes.say("its filter rejects all of %d requests so far (last: %s)", self._filtered, error)
        return NoAnswer("refused", str(error))

    def _failed(self, asking: Asking, url: Url, error: Retryable, number: int, seconds: float) -> None:
        """Note a failure, and when to retry. Raises NoAnswer if the request is the cause."""
        now, reason, self._last = self._loop.time(), error.reason, error
        hung = reason == "timeout" and url.answered > now - seconds  # it answers others
        if reason in OVERLOADED and not hung:
            self.window.overloaded(number)
        else:
            self.window.ended(number)
        others = [one for one in self.urls if one not in (url, *asking.tried) and one.wait(now) <= 0.0]
        alone = url.breaker.only(asking)
        if self._suspecting and reason != "connect":
            self._set_aside(asking, error)
            url.breaker.left(asking)
        elif (reason in DOWN and not hung) or reason.startswith("http_5"):
            if url.breaker.failed(asking, now, unreached=reason == "connect"):
                url.falls += 1
                answering = any(not one.breaker.open for one in self.urls)
                self._down_since = None if answering else now
                then = (
                    "asking the others" if answering else f"waiting up to {self.endpoint.patience_seconds:g} s for it"
                )
                self._notes.say("%s does not answer (%s); %s", url.base, error, then)
        elif reason.startswith("http_"):
            url.breaker.alive()
        else:
            url.breaker.left(asking)
        if error.after is not None:
            url.paused = max(url.paused, now + error.after)
        asking.blamed += reason in BLAMED
        if reason in BLAMED and asking.blamed > 1 and alone:
            raise NoAnswer("endpoint_refuses", f"it failed {asking.blamed} times on this request: {error.detail}")
        if reason == "reset" and asking.alone:
            raise NoAnswer(
                "endpoint_refuses", f"a server fell while it worked on this request, and now: {error.detail}"
            )
        self._plan_retry(asking, url, reason, seconds, bool(others) or hung, now)

    def _set_aside(self, asking: Asking, error: Retryable) -> None:
        """Raise NoAnswer if a request has failed twice: its server answers another question."""
        if asking.failures:
            self._aside += 1
            self._suspecting = self._aside < MOST_ASIDE
            raise NoAnswer(error.reason, error.detail)

    def _plan_retry(self, asking: Asking, url: Url, reason: str, seconds: float, at_once: bool, now: float) -> None:
        asking.failing_since = asking.failing_since or now
        if reason == "reset":
            asking.resets.add((url, url.falls - url.breaker.open))
        if reason == "reset" and asking.free_reset and seconds < RESET_SECONDS:
            asking.free_reset, asking.pause = False, 0.0
            return
        asking.failures += 1
        if reason not in UNCOUNTED:
            asking.counted += 1
        elif now - asking.failing_since > self.endpoint.patience_seconds:
            asking.counted = asking.attempts
        asking.tried.add(url)
        if at_once or url.breaker.open:  # or when the breaker allows it
            asking.pause = 0.0
        else:
            asking.tried.clear()
            asking.pause = backoff(asking.failures)
