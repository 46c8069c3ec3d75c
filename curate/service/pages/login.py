"""/login: exchanges a token for a session of this browser; /logout ends it.

And the stylesheet, the script and the icon. They are routes, and not a mounted folder, so that the application's
authentication covers them; the stylesheet alone is open, because the login page needs it.
"""

from __future__ import annotations

from fastapi import Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse

from curate.core.errors import CurateError
from curate.service.auth import sessions
from curate.service.pages.forms import Form, words
from curate.service.pages.kit import Visiting, content, render, shown, version
from curate.service.problems import NotLoggedInProblem, Problem
from curate.service.rest.routing import ByWord, Served

router = ByWord()
TYPES = {"css": "text/css; charset=utf-8", "js": "text/javascript; charset=utf-8", "svg": "image/svg+xml"}


@router.get("/login")
def show(request: Request) -> Response:
    return _page(_own(request.query_params.get("next", "")))


@router.post("/login")
def log_in(request: Request, service: Served, form: Form) -> Response:
    target = _own(words(form, "next"))
    try:
        made = sessions.log_in(service, request, words(form, "token"))
    except NotLoggedInProblem as problem:
        return _page(target, problem, "This token is unknown, revoked or expired. Check that you pasted all of it.")
    except Problem as problem:
        return _page(target, problem)
    answer = RedirectResponse(target or "/runs", 303)
    sessions.set_cookie(answer, service, made)
    return answer


@router.post("/logout")
def log_out(visit: Visiting) -> Response:
    sessions.log_out(visit.service, visit.who, visit.request)
    answer = RedirectResponse("/login", 303)
    sessions.remove_cookie(answer, visit.service)
    return answer


def _page(target: str, problem: CurateError | None = None, text: str = "") -> Response:
    values = {"title": "Log in", "next": target, "problem": problem and shown(problem, text)}
    status = 200 if problem is None else getattr(problem, "status", 422)
    return HTMLResponse(render("login", values), status, {"Cache-Control": "no-store"})


def _own(target: str) -> str:
    """A path of this service; "" for anything that a browser could take for another site."""
    plain = target.startswith("/") and target[1:2] not in ("/", "\\") and target.isprintable()
    return target if plain and len(target) < 1000 else ""


@router.get("/static/service.css")
def style(request: Request) -> Response:
    return _file("service.css", request)


@router.get("/static/service.js")
def script(request: Request) -> Response:
    return _file("service.js", request)


@router.get("/static/grid.js")
def grid(request: Request) -> Response:
    return _file("grid.js", request)


@router.get("/static/map.js")
def map_script(request: Request) -> Response:
    return _file("map.js", request)


@router.get("/favicon.ico")  # asked for by browsers on pages without an icon
@router.get("/static/icon.svg")
def icon(request: Request) -> Response:
    return _file("icon.svg", request)


def _file(name: str, request: Request) -> Response:
    """Kept by browsers until it changes: pages name its version."""
    keep = "private, max-age=31536000, immutable" if request.url.query == version() else "no-cache"
    return Response(content(name), headers={"Cache-Control": keep}, media_type=TYPES[name.rpartition(".")[2]])
