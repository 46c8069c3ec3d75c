"""Requests with neither a token nor a session end here, before their body is read, regardless of their address. The
dependency `auth.dependency.principal` judges all others: FastAPI reads a JSON body before it asks dependencies."""

from __future__ import annotations

from fastapi import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from curate.service.auth.dependency import PUBLIC
from curate.service.auth.sessions import COOKIE, SECURE_COOKIE
from curate.service.auth.tokens import not_logged_in
from curate.service.rest.errors import answer


class Closed:
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
