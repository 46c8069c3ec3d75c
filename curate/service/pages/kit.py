"""Renders templates, and what every page gets: who asks, the service, and the token against forged forms."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from http import HTTPStatus
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote, urlencode

import jinja2
from fastapi import Depends, Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse
from markupsafe import Markup

from curate.core.errors import CurateError
from curate.core.secrets import redact
from curate.html import numbers
from curate.html.page import environment, with_kit
from curate.service.auth import audit
from curate.service.auth.roles import Principal
from curate.service.problems import InvalidProblem, TooManyProblem
from curate.service.rest.routing import Served, Who
from curate.service.runs.shapes import RunLine
from curate.service.samples import exports
from curate.service.service import Service

HERE = Path(__file__).parent
STATIC = HERE / "static"
LONGEST_QUERY = 1000
"""Characters of a parameter that a page reads."""
LIMIT = 50
"""Lines of a list on one page."""
NAVIGATION = (
    (("/runs", "Runs"), ("/datasets", "Datasets")),  # what explains data comes here
    (("/workspaces", "Workspaces"), ("/targets", "Targets"), ("/people", "People"), ("/audit", "Audit")),
)
TONES = {
    "queued": "idle", "submitting": "live", "starting": "live", "running": "live", "stopping": "warn", "done": "good",
    "failed": "bad", "stopped": "idle", "killed": "bad", "lost": "warn", "reused": "good", "waiting": "idle",
    "unfinished": "warn",
}  # fmt: skip
"""State of a run or a stage -> CSS class."""


@dataclass(frozen=True)
class Visit:
    """One request of a page."""

    request: Request
    service: Service
    who: Principal

    @property
    def csrf(self) -> str:
        return str(getattr(self.request.state, "csrf", ""))

    @property
    def args(self) -> tuple[Service, Principal]:
        """The first two arguments of every action."""
        return self.service, self.who

    def query(self, name: str) -> str:
        """A parameter of the URL; "" if it is absent."""
        return self.request.query_params.get(name, "").strip()[:LONGEST_QUERY]


async def _visit(request: Request, service: Served, who: Who) -> Visit:
    request.state.visit = Visit(request, service, who)  # for the page of an error
    return request.state.visit


Visiting = Annotated[Visit, Depends(_visit)]


def page(visit: Visit, name: str, status: int = 200, problem: CurateError | None = None, **values: Any) -> HTMLResponse:
    """The page NAME.html. `problem`: what its reader asked for and did not get."""
    if problem is not None:
        status = getattr(problem, "status", 422)
        if isinstance(problem, InvalidProblem):
            audit.malformed(visit.service, visit.who, visit.request.method, visit.request.url.path, problem)
    shared = {
        "user": visit.who.user, "token": visit.csrf, "navigation": _navigation(visit), "here": visit.request.url.path,
        "said": SAID.get(visit.query("said"), ""), "who": visit.who, "server": visit.service.settings.url,
    }  # fmt: skip
    text = render(name, shared | values | {"problem": problem and shown(problem)})
    later = {"Retry-After": f"{math.ceil(problem.retry_after)}"} if isinstance(problem, TooManyProblem) else {}
    return HTMLResponse(text, status, _headers() | later)


def fragment(visit: Visit, name: str, **values: Any) -> HTMLResponse:
    """Elements with ids, each of which replaces the one of the same id in the page."""
    return HTMLResponse(render(name, {"token": visit.csrf, "who": visit.who} | values), 200, _headers())


def _navigation(visit: Visit) -> Sequence[tuple[tuple[str, str], ...]]:
    return NAVIGATION[: 1 if visit.who.alone else None]


def _headers() -> dict[str, str]:
    return {"Cache-Control": "no-store"}


def render(name: str, values: Mapping[str, Any]) -> str:
    return templates().get_template(f"{name}.html").render(values)


NEXT = {
    403: "Ask an admin for a role that may do this, or log in with another token.",
    404: "It may have been removed, or it is in a workspace that you cannot see.",
    429: "Wait a moment, then reload the page.",
    503: "Wait a moment, then reload the page. The runs under way are not affected.",
}


def error_page(request: Request, error: CurateError, status: int) -> Response:
    """The answer to a page's request that failed with this error."""
    if status == 401:
        back = request.url.path if request.method in audit.SAFE else ""
        back = f"{back}?{request.url.query}" if back and request.url.query else back
        return RedirectResponse(link("/login", next="" if back == "/" else back), 303)
    visit: Visit | None = getattr(request.state, "visit", None)
    known = (
        {"user": visit.who.user, "token": visit.csrf, "navigation": _navigation(visit), "who": visit.who}
        if visit
        else {}
    )
    values = known | {
        "title": HTTPStatus(status).phrase, "status": status, "text": redact(shown(error)["detail"]),
        "next": NEXT.get(status, ""), "request_id": getattr(request.state, "request_id", ""),
    }  # fmt: skip
    return HTMLResponse(render("error", values), status, {"Cache-Control": "no-store"})


def shown(problem: CurateError, text: str = "") -> dict[str, str]:
    """A problem as the pages show it, in its own words or with `text`."""
    code = getattr(problem, "code", "error")
    return {"title": TITLES.get(code, "That did not work."), "detail": text or str(problem)}


TITLES = {
    "not_logged_in": "Not logged in.",
    "forbidden": "You may not do that.",
    "not_found": "Not found.",
    "conflict": "That is not possible now.",
    "changed": "It has changed meanwhile.",
    "invalid": "Please correct this.",
    "policy": "The recipe needs something that is not registered.",
    "too_many": "Too many.",
    "too_large": "Too large.",
    "unavailable": "The service cannot do that at the moment.",
}
SAID = {
    "stop": "A stop was requested. The run finishes what is under way, saves it and ends.",
    "kill": "A kill was requested. What the run has saved remains, and it can be resumed.",
    "resume": "The run was queued again. It continues from what it has saved.",
    "saved": "Saved.",
    "added": "Added.",
    "removed": "Removed.",
    "revoked": "The token is revoked.",
    "freed": "The storage was freed.",
    "excluded": "Excluded. No later run uses these samples; start a new run from this recipe to build without them.",
}
"""What a page says after a form, by the parameter `said`."""


def link(path: str, **query: str | None) -> str:
    """A path with those parameters that are not empty."""
    kept = {name: value for name, value in query.items() if value}
    return f"{path}?{urlencode(kept)}" if kept else path


@cache
def templates() -> jinja2.Environment:
    made = environment(HERE / "templates")
    made.filters |= {
        "duration": duration, "sentence": sentence, "when": when, "part": part, "tone": TONES.get, "short": short,
        "count": count, "address": address,
    }  # fmt: skip
    made.globals |= {
        "version": version(), "icons": icons, "link": link, "said": "", "problem": None, "user": "", "navigation": (),
        "here": "", "events": "", "most": exports.MOST,
    }  # fmt: skip
    return made


@cache
def icons() -> Markup:
    """The drawings that all pages refer to."""
    module: Any = templates().get_template("parts.html").module
    return Markup(module.icons())  # a macro's result, with nothing to escape


@cache
def version() -> str:
    """Changes with the static files, which browsers keep."""
    contents = (content(place.name) for place in sorted(STATIC.iterdir()))
    return hashlib.sha256(b"".join(contents)).hexdigest()[:12]


@cache
def content(name: str) -> bytes:
    """A static file; the stylesheet begins with the kit's."""
    place = STATIC / name
    return with_kit(place).encode() if place.suffix == ".css" else place.read_bytes()


def when(value: datetime | None, form: str = "minute") -> Markup:
    """A time in UTC; browsers with JavaScript show it in their own zone. `form`: minute, or clock for logs."""
    if value is None:
        return Markup("–")
    time = value.astimezone(UTC)
    exact = time.isoformat(timespec="seconds").replace("+00:00", "Z")
    text = exact[11:19] if form == "clock" else f"{time.day} {time:%b %Y, %H:%M}"
    return Markup(f'<time datetime="{exact}" data-form="{form}">{text}</time>')  # no text of others: nothing to escape


def address(run: RunLine) -> str:
    """The page of a run. The service's own ids are unique; others may be in several workspaces."""
    return link(f"/runs/{part(run.id)}", workspace=None if run.submitted else run.workspace)


def duration(seconds: float | None) -> str:
    """In whole units, for lists: 45 s, 12 min, 3 h 05 min, 2 d 4 h."""
    if seconds is None:
        return "–"
    if seconds < 90:
        return f"{max(0, round(seconds))} s"
    minutes = round(seconds / 60)
    if minutes < 90:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours < 48 else f"{hours // 24} d {hours % 24} h"


def sentence(text: str) -> str:
    """With a capital first letter, unless it begins with a name, a value or an address."""
    return text[:1].upper() + text[1:] if _WORD.match(text) else text


_WORD = re.compile(r"[a-z]+( |, |$)")


def short(value: float) -> str:
    """A rate or a count in a narrow place: 1,234 or 12.3 k or 4.56 M."""
    for size, unit in ((1e9, " G"), (1e6, " M"), (1e4, " k")):
        if abs(value) >= size:
            return f"{numbers.number(value / (1e3 if unit == ' k' else size))}{unit}"
    return numbers.number(value)


def count(value: int | None, one: str, many: str = "") -> str:
    """1 stage, 5 stages, – stages."""
    return f"{'–' if value is None else f'{value:,}'} {one if value == 1 else many or f'{one}s'}"


def part(value: object) -> str:
    """Text as one segment of a path."""
    return quote(str(value), safe="")
