"""Requests to the service: the token, retries of what may be repeated, and problems as one-line errors."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import httpx2
from tenacity import RetryCallState, Retrying, retry_if_exception_type, stop_after_attempt, wait_exponential_jitter

from curate.client.address import is_loopback
from curate.core.errors import CurateError

ATTEMPTS = 5
LONGEST_WAIT = 60.0
"""A server that asks for a longer pause gets no further request."""
BUSY = frozenset({429, 502, 503, 504})
"""Statuses after which the same request may succeed."""
TIMEOUT = httpx2.Timeout(60.0, connect=10.0)
QUIET_SECONDS = 60.0
"""A stream that is silent for longer has broken: the service pings every 15 s."""


class ServerError(CurateError):
    """The server rejected the request, or did not answer. Programs may depend on `code`: one of the API's problems, or
    `unreachable`. `status` is HTTP's; 0 without an answer."""

    def __init__(self, text: str, code: str, status: int = 0, retry_after: float | None = None) -> None:
        super().__init__(text)
        self.code, self.status, self.retry_after = code, status, retry_after


class _TryAgain(Exception):
    """Carries the error of an attempt that may be repeated."""

    def __init__(self, error: ServerError) -> None:
        super().__init__(str(error))
        self.error = error


class Http:
    """A connection pool for one server. Thread-safe."""

    def __init__(self, url: str, token: str, transport: httpx2.BaseTransport | None = None) -> None:
        headers = {"Authorization": f"Bearer {token}", "User-Agent": "curate-client", "Accept": "application/json"}
        try:
            self._client = httpx2.Client(
                base_url=f"{url}/api/v1/",
                headers=headers,
                timeout=TIMEOUT,
                transport=transport,
                trust_env=not is_loopback(url),  # no proxy for this machine
            )
        except (ValueError, httpx2.InvalidURL) as error:
            raise CurateError(f"{url}: cannot be used ({error}); give http(s)://HOST[:PORT] and its token") from None
        self.url = url

    def close(self) -> None:
        self._client.close()

    def request(
        self,
        method: str,
        path: str,
        *,
        body: Any = None,
        query: Mapping[str, Any] | None = None,
        repeat: bool = False,
        version: int | None = None,
    ) -> Any:
        """The JSON of the answer. `version`: of the resource to change, as it was last seen. GET, and what may be
        asked twice (`repeat`), is repeated if the server is busy or does not answer."""
        headers = {} if version is None else {"If-Match": f'"{version}"'}
        repeatable = method == "GET" or repeat
        given = {name: value for name, value in (query or {}).items() if value is not None}

        def once() -> Any:
            try:
                answer = self._client.request(method, path, json=body, params=given, headers=headers)
                return self._json(answer)
            except httpx2.TransportError as error:
                raise self._again(self._no_answer(error), repeatable) from None
            except ServerError as error:
                raise self._again(error, repeatable and _passes(error)) from None

        try:
            return Retrying(
                stop=stop_after_attempt(ATTEMPTS), retry=retry_if_exception_type(_TryAgain), wait=_pause, reraise=True
            )(once)
        except _TryAgain as last:
            raise last.error from None

    @contextmanager
    def events(self, path: str, last: str = "") -> Iterator[Iterator[httpx2.ServerSentEvent]]:
        """Server-sent events from after the id `last`, until the connection ends. Raises ServerError; its code is
        `unreachable` if the connection broke."""
        headers = {"Last-Event-ID": last} if last else {}
        timeout = httpx2.Timeout(QUIET_SECONDS, connect=TIMEOUT.connect)
        try:
            with self._client.sse(path, headers=headers, timeout=timeout) as source:
                if source.response.status_code != 200:
                    source.response.read()
                    self._json(source.response)
                yield iter(source)
        except httpx2.TransportError as error:
            raise self._no_answer(error) from None

    @staticmethod
    def _again(error: ServerError, repeatable: bool) -> Exception:
        return _TryAgain(error) if repeatable else error

    def _no_answer(self, error: Exception) -> ServerError:
        why = " ".join(str(error).split())[:200] or type(error).__name__
        return ServerError(f"{self.url}: no answer ({why}); check the URL, and that the service runs", "unreachable")

    def _json(self, answer: httpx2.Response) -> Any:
        """The JSON of an answer. Raises ServerError for any status but 2xx."""
        found: Any = None
        if answer.content:
            try:
                found = answer.json()
            except (json.JSONDecodeError, UnicodeDecodeError):
                found = None
        if answer.is_success and (found is not None or not answer.content):
            return found
        retry = _seconds(answer.headers.get("Retry-After"))
        if isinstance(found, dict) and isinstance(found.get("code"), str) and not answer.is_success:
            raise ServerError(_detail(found), found["code"], answer.status_code, retry)
        where = f"{self.url}: HTTP {answer.status_code}"
        if answer.is_redirect:
            raise ServerError(
                f"{where} leads to {answer.headers.get('Location', 'another URL')}; give that server's URL instead",
                "redirect",
                answer.status_code,
            )
        raise ServerError(
            f"{where} without the service's JSON; check that a curate service answers at this URL",
            "not_the_service",
            answer.status_code,
            retry,
        )


def _detail(problem: Mapping[str, Any]) -> str:
    """A problem in one line; the mistakes of a request's body by field."""
    text = str(problem.get("detail") or problem.get("title") or problem["code"])
    errors = [item for item in problem.get("errors") or [] if isinstance(item, dict)]
    fields = [f"{item.get('field', '?')}: {item.get('message', '?')}" for item in errors[:3]]
    return "; ".join([text, *(line for line in fields if line not in text)])


def _passes(error: ServerError) -> bool:
    """Whether the server may answer the same request later."""
    return error.status in BUSY and (error.retry_after or 0) <= LONGEST_WAIT


def _seconds(header: str | None) -> float | None:
    try:
        return None if header is None else max(0.0, float(header))
    except ValueError:  # a date: wait as without the header
        return None


_backoff = wait_exponential_jitter(multiplier=0.25, max=8.0, jitter=0.5)


def _pause(state: RetryCallState) -> float:
    """What the server asks for, or longer each time; with jitter, so that clients do not return together."""
    error = state.outcome.exception() if state.outcome else None
    asked = error.error.retry_after if isinstance(error, _TryAgain) else None
    return max(_backoff(state), (asked or 0.0) * random.uniform(1, 1.1))
