"""One HTTP request and what its answer means."""

from __future__ import annotations

import asyncio
import email.utils
import json
import random
import re
import time
from collections.abc import Mapping
from http.client import responses
from typing import TYPE_CHECKING, Any

from curate.core.contracts import NoAnswer
from curate.core.errors import CurateError, Reject
from curate.core.secrets import redact
from curate.engine.requests import answers

if TYPE_CHECKING:
    import aiohttp

RETRIED = {408, 409, 425, 429}
"""Statuses below 500 to retry."""
FATAL = {
    401: "check the key, or give one",
    402: "check the account's balance",
    403: "check what the key allows",
    404: "check the URL and the model's name",
}
"""Statuses that every request would get, and what to do about them."""
UNKNOWN_MODEL = re.compile(r"\bmodel\b.{0,200}?(does not exist|not found|not available|not loaded|unknown|pinned)|"
                           r"(unknown|invalid|unsupported) model|\bpinned\b", re.I | re.S)  # fmt: skip
"""What an endpoint says with status 400 about a model that it does not serve."""
BACKOFF_SECONDS = 0.5
"""Upper bound of the first wait before a retry; it doubles with each failure."""
LONGEST_BACKOFF = 30.0
LONGEST_RETRY_AFTER = 120.0
"""Seconds; a longer Retry-After is cut to this."""
ANSWER_BYTES = 16 << 20
"""The largest answer accepted."""
QUOTED = 200
"""Characters of an answer quoted in a message."""
READ = 8192
"""Bytes of an answer that are read for that."""


class Retryable(NoAnswer):
    """A temporary error: retry, after `after` seconds if the endpoint gave a time."""

    def __init__(self, reason: str, detail: str = "", after: float | None = None) -> None:
        super().__init__(reason, detail)
        self.after = after


class RefusedError(Exception):
    """An endpoint rejects this request: status 4xx, or any if its filter of contents does."""

    def __init__(self, status: int, text: str, *, filtered: bool = False) -> None:
        super().__init__(text)
        self.status, self.filtered = status, filtered


async def post(
    http: aiohttp.ClientSession, url: str, data: bytes, headers: Mapping[str, str], limit: asyncio.Timeout,
    answered: bool = False,
) -> Any:  # fmt: skip
    """The decoded answer. answered: whether it has accepted other requests.

    Raises Retryable, RefusedError, NoAnswer for one that is too large, or CurateError if every
    request would fail. Redirects are not followed: they would take the key along."""
    import aiohttp  # takes 0.2 s, and most workers send no request

    began, none = asyncio.get_running_loop().time(), aiohttp.ClientTimeout()
    try:
        async with limit, http.post(url, data=data, headers=headers, allow_redirects=False, timeout=none) as response:
            return _decoded(url, response.status, response.headers, await _read(response), answered)
    except TimeoutError:
        seconds = (limit.when() or began) - began
        raise Retryable("timeout", f"no answer in {seconds:.3g} s") from None
    except aiohttp.InvalidURL:
        raise CurateError(f"{url!r} is not a valid URL; expected http://HOST/PATH") from None
    except aiohttp.ClientConnectorCertificateError as error:
        raise CurateError(f"{url}: its certificate is not valid ({error}); check the URL") from error
    except aiohttp.ClientConnectorError as error:
        raise Retryable("connect", str(error)) from error
    except (aiohttp.ClientError, OSError) as error:
        raise Retryable("reset", f"{type(error).__name__}: {error}") from error


async def _read(response: aiohttp.ClientResponse) -> bytes:
    parts, size = [], 0
    async for part in response.content.iter_any():
        parts.append(part)
        size += len(part)
        if size > ANSWER_BYTES:
            raise NoAnswer("answer_too_large", f"more than {ANSWER_BYTES:,} bytes")
    return b"".join(parts)


def _decoded(url: str, status: int, headers: Mapping[str, str], body: bytes, answered: bool) -> Any:
    if 200 <= status < 300:
        try:
            return json.loads(body)
        except ValueError:
            raise Retryable("not_json", f"{url}: {quoted(body)!r}") from None
    raise fault(url, status, headers, body, answered)


def fault(url: str, status: int, headers: Mapping[str, str], body: bytes, answered: bool) -> Exception:
    """What an answer with this status means, or one that has an error with it inside."""
    text, after = f"{url}: {named(status)} ({quoted(body)})", retry_after(headers)
    if answers.has_no_money(status, body, after is not None):
        return CurateError(f"{text}; {FATAL[402]}")
    if answers.is_filtered(status, body):
        return RefusedError(status, text, filtered=True)
    if status in RETRIED or status >= 500:
        return Retryable(f"http_{status}", text, after)
    if status in FATAL and not (status == 403 and answered):
        return CurateError(f"{text}; {FATAL[status]}")
    if status < 400:
        where = redact(headers.get("Location", "nowhere"))
        return CurateError(f"{text}; it redirects to {where!r}; give that URL instead")
    return RefusedError(status, text)


def reject(error: RefusedError) -> Reject:
    return Reject(f"refused_{error.status}", str(error))


def named(status: int) -> str:
    return f"{status} {responses.get(status, '')}".rstrip()


def quoted(body: bytes) -> str:
    """The beginning of an answer, in one line, without secrets."""
    return " ".join(redact(body[:READ].decode("utf-8", "replace")).split())[:QUOTED] or "no text"


def backoff(failures: int) -> float:
    """Seconds to wait after `failures` failures: a random time, so that requests that failed together do not return
    together."""
    return random.uniform(0.0, min(BACKOFF_SECONDS * 2 ** (failures - 1), LONGEST_BACKOFF))


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
