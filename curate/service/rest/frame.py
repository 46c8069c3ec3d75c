"""What every request passes, and every answer gets: an id, a host that is ours, a bounded body, headers for browsers,
the time that it took. Plain ASGI, so that streams pass through it."""

from __future__ import annotations

import logging
import re
import time
import uuid
from urllib.parse import urlsplit

from fastapi import Request
from sse_starlette.sse import SendTimeoutError
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from curate.service.auth.dependency import PUBLIC
from curate.service.auth.sessions import COOKIE, SECURE_COOKIE
from curate.service.auth.tokens import not_logged_in
from curate.service.problems import TooLargeProblem
from curate.service.rest.errors import HTTPProblem, answer, unexpected
from curate.service.settings import Settings

log = logging.getLogger("curate.service")
REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
"""Names that no foreign page can take, so that they are always ours."""
ANY_HOST = ("/healthz", "/readyz", "/metrics")
"""For monitoring, which reaches each replica by its address."""
HEADERS = {
    "Content-Security-Policy": "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'; "
    "object-src 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",  # with no-referrer, forms would send `Origin: null`
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
HSTS = "max-age=31536000"


class Frame:
    """Has to enclose the application's handlers of errors."""

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self.app = app
        self.body_bytes = settings.limits.body_bytes
        self.hosts = LOOPBACK | {urlsplit(settings.url).hostname or "", settings.host.lower()}
        self.headers = HEADERS | ({"Strict-Transport-Security": HSTS} if settings.secure else {})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        began, started = time.monotonic(), False
        given = Headers(scope=scope)
        request_id = given.get("x-request-id", "")
        request_id = request_id if REQUEST_ID.fullmatch(request_id) else uuid.uuid4().hex
        scope.setdefault("state", {})["request_id"] = request_id

        async def send_framed(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                headers = MutableHeaders(scope=message)
                for name, value in self.headers.items():
                    headers.setdefault(name, value)
                headers["X-Request-ID"] = request_id
                headers["Server-Timing"] = f"app;dur={1000 * (time.monotonic() - began):.1f}"
            await send(message)

        request = Request(scope, receive)
        try:
            problem = self._problem(scope, given)
            if problem is None:
                await self.app(scope, receive, send_framed)
            else:
                if "transfer-encoding" not in given:
                    await self._discard_body(request)
                refusal = answer(request, problem)
                refusal.headers["Connection"] = "close"  # where the body ends may be in doubt
                await refusal(scope, receive, send_framed)
        except SendTimeoutError:
            log.info("request %s: a client of a stream was too slow", request_id)
        except ClientDisconnect:
            log.info("request %s: the client went away before its body was read", request_id)
        except Exception as error:  # noqa: BLE001 - whatever it is, the client gets an answer and the log the rest
            response = unexpected(request, error)
            if not started:
                await response(scope, receive, send_framed)

    async def _discard_body(self, request: Request) -> None:
        """Reads a body to its end, if it has at most twice what the service takes: a proxy that is still sending when
        the connection closes says 502 in place of the answer."""
        if int(request.headers.get("content-length", "0")[:20]) <= 2 * self.body_bytes:
            async for _ in request.stream():
                pass

    def _problem(self, scope: Scope, headers: Headers) -> HTTPProblem | TooLargeProblem | None:
        """What is wrong with the frame of a request; bodies without a length are counted as they arrive."""
        length = headers.get("content-length", "")
        if length and "transfer-encoding" in headers:  # h11 reads the chunks; a proxy may have read the length
            return HTTPProblem(400, "Content-Length and Transfer-Encoding: send one of them")
        if length.isdecimal() and int(length[:20]) > self.body_bytes:
            return TooLargeProblem(f"the body has {length[:20]} bytes; the service takes at most {self.body_bytes}")
        if "\0" in scope["path"] or b"%00" in scope["query_string"]:
            return HTTPProblem(400, "NUL: not allowed in an address")
        if scope["path"] not in ANY_HOST and _host(headers.get("host", "")) not in self.hosts:
            return HTTPProblem(400, "Host: not a name of this service; use the address that its settings name as `url`")
        return None


def _host(header: str) -> str | None:
    try:
        return urlsplit(f"//{header}").hostname
    except ValueError:
        return None


class Closed:
    """Requests with neither a token nor a session end here, before their body is read, regardless of their address. The
    dependency `auth.dependency.principal` judges all others: FastAPI reads a JSON body before it asks dependencies."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive) if scope["type"] == "http" else None
        if request is None or scope["path"] in PUBLIC or _says_who(request):
            await self.app(scope, receive, send)
        else:
            await answer(request, not_logged_in())(scope, receive, send)


def _says_who(request: Request) -> bool:
    return "authorization" in request.headers or not {COOKIE, SECURE_COOKIE}.isdisjoint(request.cookies)
