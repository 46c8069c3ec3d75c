"""The user of a request. A dependency of the whole application, so that a new route is closed by default.

Bearer tokens and browser sessions work on every route; writes by a session need a CSRF token. Only the paths in
`PUBLIC` are open.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

from fastapi import Depends
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request

from curate.service.auth import audit, sessions, tokens
from curate.service.auth.roles import NOBODY, Principal
from curate.service.problems import ForbiddenProblem, NotLoggedInProblem, Problem

if TYPE_CHECKING:
    from curate.service.service import Service

THUMBNAIL = re.compile("/runs/[^/]+/thumbnails/")
PUBLIC = frozenset({"/healthz", "/login", "/static/service.css"})


async def principal(request: Request) -> Principal:
    """Raises NotLoggedInProblem, ForbiddenProblem (CSRF) or TooManyProblem. Sets `request.state.csrf` for forms."""
    request.state.csrf = ""
    path = request.scope["path"].removeprefix(request.scope.get("root_path", ""))
    if path in PUBLIC:
        return NOBODY
    service: Service = request.app.state.service
    who, csrf = await run_in_threadpool(_identified, service, request)
    request.state.who = who
    (service.limiter.thumbnail if THUMBNAIL.match(path) else service.limiter.request)(who.user_id)
    if csrf and request.method not in audit.SAFE:
        try:
            await sessions.check_write(service, request, csrf)
        except ForbiddenProblem as problem:
            await run_in_threadpool(_forged, service, who, request, problem)
            raise
    request.state.csrf = csrf
    return who


def still(service: Service, who: Principal) -> Principal:
    """The same person now, for streams that outlive a request. Raises NotLoggedInProblem once their token or session
    has ended."""
    if service.alone is not None:
        return who
    now = service.clock()
    with service.database.reading() as session:
        if who.session:
            found, _ = sessions.verified(session, who.session, now, service.settings.limits.session_seconds)
        else:
            found = tokens.by_id(session, who.token_id, now)
        return found.principal(who.request_id, who.session)


async def turn(request: Request, who: Annotated[Principal, Depends(principal)]) -> AsyncIterator[None]:
    """Holds one of the user's turns until the endpoint has returned. A dependency of the whole application."""
    if who is NOBODY:
        yield
        return
    service: Service = request.app.state.service
    async with service.limiter.turns.turn(who.user_id):
        yield


def _identified(service: Service, request: Request) -> tuple[Principal, str]:
    """(person, the session's CSRF token or "")."""
    if service.alone is not None:
        return replace(service.alone, request_id=getattr(request.state, "request_id", "")), service.csrf
    now = service.clock()
    given, cookie = request.headers.get("authorization"), sessions.given(service, request)
    if given is None and cookie is None:
        raise tokens.not_logged_in()
    csrf = login = ""
    try:
        with service.database.reading() as session:
            if given is not None:
                kind, _, text = given.partition(" ")
                found = tokens.verified(session, text.strip() if kind.lower() == "bearer" else "", now)
            else:
                longest = service.settings.limits.session_seconds
                login = tokens.digest(cookie or "")
                found, csrf = sessions.verified(session, login, now, longest)
    except NotLoggedInProblem as problem:
        if given is not None:  # a browser whose session has ended does not guess
            sessions.failed(service, request, "login", problem)
        raise
    if not tokens.is_used(found, now):
        with contextlib.suppress(Problem), service.database.write() as session:  # reading works without it
            tokens.note_use(session, found.id, now)
    return found.principal(getattr(request.state, "request_id", ""), login), csrf


def _forged(service: Service, who: Principal, request: Request, problem: Problem) -> None:
    audit.rejected(service, who, "csrf", problem, target=request.url.path)
