"""/login: exchanges a token for a session of this browser; /logout ends it."""

from __future__ import annotations

from fastapi import Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse

from curate.core.errors import CurateError
from curate.service.auth import sessions
from curate.service.pages.kit import Form, Visiting, render, shown, words
from curate.service.problems import NotLoggedInProblem, Problem
from curate.service.rest.deps import ByWord, Served

router = ByWord()


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
