"""What a browser gets for an error: a page in the look of the others, or the login page."""

from __future__ import annotations

from http import HTTPStatus

from fastapi import Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse

from curate.core.errors import CurateError
from curate.core.secrets import redact
from curate.service.pages.kit import NAVIGATION, Visit, link, render, shown

SAFE = ("GET", "HEAD")
NEXT = {
    403: "Ask an admin for a role that may do this, or log in with another token.",
    404: "It may have been removed, or it is in a workspace that you cannot see.",
    429: "Wait a moment, then reload the page.",
    503: "Wait a moment, then reload the page. The runs under way are not affected.",
}


def error_page(request: Request, error: CurateError, status: int) -> Response:
    """The answer to a page's request that failed with this error."""
    if status == 401:
        back = request.url.path if request.method in SAFE else ""
        back = f"{back}?{request.url.query}" if back and request.url.query else back
        return RedirectResponse(link("/login", next="" if back == "/" else back), 303)
    visit: Visit | None = getattr(request.state, "visit", None)
    known = {"user": visit.who.user, "token": visit.csrf, "navigation": NAVIGATION} if visit else {}
    values = known | {
        "title": HTTPStatus(status).phrase, "status": status, "text": redact(shown(error)["detail"]),
        "next": NEXT.get(status, ""), "request_id": getattr(request.state, "request_id", ""),
    }  # fmt: skip
    return HTMLResponse(render("error", values), status, {"Cache-Control": "no-store"})
