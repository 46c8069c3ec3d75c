"""Browser sessions: a token is exchanged for a cookie, which ends with the token.

The cookie is HttpOnly and SameSite=Strict, and Secure behind TLS; only its digest is stored. A write also needs the
session's CSRF token and an Origin that is ours.
"""

from __future__ import annotations

import hmac
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from sqlalchemy import bindparam, delete, select
from sqlalchemy.orm import Session
from starlette.requests import Request
from starlette.responses import Response

from curate.service.auth import audit, tokens
from curate.service.auth.limiting import address
from curate.service.auth.roles import NOBODY, Principal
from curate.service.database.models import BrowserSession
from curate.service.problems import ForbiddenProblem, NotLoggedInProblem, Problem

if TYPE_CHECKING:
    from curate.service.service import Service

COOKIE = "curate_session"
SECURE_COOKIE = f"__Host-{COOKIE}"
"""Behind TLS: browsers take it from this host alone, and never over plain HTTP."""
FIELD = "csrf"
"""Of forms."""
HEADER = "x-csrf-token"
_QUERY = select(BrowserSession.token_id, BrowserSession.csrf, BrowserSession.expires).where(
    BrowserSession.digest == bindparam("digest")
)
OWN_SITES = frozenset({"same-origin", "none"})
"""Sec-Fetch-Site of requests by our own pages, and by people who reload or type an address."""


@dataclass(frozen=True)
class LoggedIn:
    """`cookie` and `csrf` are secrets of one browser."""

    cookie: str
    csrf: str
    seconds: float


def log_in(service: Service, request: Request, token: str) -> LoggedIn:
    """Raises NotLoggedInProblem, ForbiddenProblem for another site's form, or TooManyProblem after many failures."""
    now = service.clock()
    try:
        check_origin(service, request)
        with service.database.write() as session:
            found = tokens.verified(session, token.strip(), now)
            service.limiter.request(found.user_id)
            made = _made(session, found, now, service.settings.limits.session_seconds)
            audit.record(
                session, _principal(found, request), "login", target=address(request, service.settings.proxies)
            )
    except (NotLoggedInProblem, ForbiddenProblem) as problem:
        failed(service, request, "login", problem)
        raise
    return made


def _made(session: Session, found: tokens.Bearer, now: float, longest: float) -> LoggedIn:
    session.execute(delete(BrowserSession).where(BrowserSession.expires <= now))
    cookie, csrf = secrets.token_urlsafe(32), secrets.token_urlsafe(32)
    expires = min(now + longest, found.expires or float("inf"))
    session.add(
        BrowserSession(digest=tokens.digest(cookie), token_id=found.id, csrf=csrf, created=now, expires=expires)
    )
    return LoggedIn(cookie, csrf, expires - now)


def log_out(service: Service, who: Principal, request: Request) -> None:
    with audit.audited(service, who, "logout") as session:
        session.execute(delete(BrowserSession).where(BrowserSession.digest == who.session))


def verified(session: tokens.Reading, digest: str, now: float, longest: float) -> tuple[tokens.Bearer, str]:
    """The token of the session with this digest of its cookie, and its CSRF token. Raises NotLoggedInProblem.

    A session that would last longer than any was made before the clock went back: people log in again."""
    found = session.execute(_QUERY, {"digest": digest}).one_or_none()
    if found is None or not now < found.expires <= now + longest:
        raise tokens.not_logged_in()
    return tokens.by_id(session, found.token_id, now), found.csrf


def failed(service: Service, request: Request, action: str, problem: Problem) -> None:
    """Count a failed login and record it. Raises TooManyProblem beyond the limit, without recording: an attacker must
    not fill the database."""
    who = address(request, service.settings.proxies)
    service.limiter.failure(who)
    audit.rejected(service, NOBODY, action, problem, target=who)


def set_cookie(response: Response, service: Service, made: LoggedIn) -> None:
    response.set_cookie(
        cookie_name(service),
        made.cookie,
        max_age=int(made.seconds),
        httponly=True,
        samesite="strict",
        secure=service.settings.secure,
    )


def remove_cookie(response: Response, service: Service) -> None:
    response.delete_cookie(cookie_name(service), httponly=True, samesite="strict", secure=service.settings.secure)


async def check_write(service: Service, request: Request, csrf: str) -> None:
    """Raises ForbiddenProblem unless our own page sends the request, with the session's CSRF token."""
    check_origin(service, request)
    given = request.headers.get(HEADER, "")
    kind = request.headers.get("content-type", "").split(";")[0].strip().lower()
    if not given and kind in ("application/x-www-form-urlencoded", "multipart/form-data"):
        given = str((await request.form()).get(FIELD, ""))
    if not hmac.compare_digest(given.encode("utf-8", "surrogatepass"), csrf.encode()):
        raise ForbiddenProblem(
            f"the form's `{FIELD}` or X-CSRF-Token is not this session's; reload the page, then repeat"
        )


def check_origin(service: Service, request: Request) -> None:
    """Raises ForbiddenProblem if another site's page sends the request."""
    site, origin = request.headers.get("sec-fetch-site"), request.headers.get("origin")
    if (site is not None and site not in OWN_SITES) or (origin is not None and not _is_ours(service, request, origin)):
        raise ForbiddenProblem(f"a page of another site sent this; open {service.settings.url} and repeat it there")


def _is_ours(service: Service, request: Request, origin: str) -> bool:
    """The service's URL, or the name by which the browser itself reached it."""
    if origin == service.settings.url:
        return True
    try:
        parts = urlsplit(origin)
    except ValueError:
        return False
    secure = parts.scheme == "https" or (parts.scheme == "http" and not service.settings.secure)
    return secure and bool(parts.netloc) and parts.netloc == request.headers.get("host")


def cookie_name(service: Service) -> str:
    return SECURE_COOKIE if service.settings.secure else COOKIE


def given(service: Service, request: Request) -> str | None:
    """The cookie of a request. Behind TLS, one without the prefix is not ours: another host of the domain, or an
    attacker in the network, may have set it."""
    return request.cookies.get(cookie_name(service))


def _principal(found: tokens.Bearer, request: Request) -> Principal:
    return found.principal(getattr(request.state, "request_id", ""))
