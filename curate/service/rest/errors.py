"""Every error as an answer: application/problem+json (RFC 9457) for programs, a page for browsers.

`code` tells errors apart and never changes; `detail` is the error's own line. An unexpected exception says nothing but
its request id, under which the log has the rest.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Mapping
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.responses import Response

from curate.core import errors
from curate.core.secrets import redact, redacted
from curate.service.auth import audit
from curate.service.auth.dependency import principal
from curate.service.problems import InvalidProblem, Problem

if TYPE_CHECKING:
    from curate.service.service import Service

log = logging.getLogger("curate.service")
MEDIA_TYPE = "application/problem+json"
PROGRAMS = ("/api/", "/openapi.json", "/metrics", "/readyz", "/healthz")
"""Paths whose errors programs read."""
STATUSES: dict[type[errors.CurateError], int] = {
    errors.CurateError: 500,
    errors.RecipeError: 422,
    errors.InputError: 422,  # 404 where something was only to be read
    errors.StorageError: 503,
    errors.UnreachableError: 503,
    errors.AlreadyExistsError: 409,
    errors.CorruptError: 500,
    errors.RunExistsError: 409,
    errors.PinnedError: 409,
    errors.TargetError: 422,
    errors.BudgetError: 409,
    errors.PreflightError: 422,
    errors.StageError: 500,
    errors.DrainedError: 409,
    errors.CeilingError: 409,
    errors.LedgerError: 500,
    errors.Reject: 422,
    errors.Undecodable: 422,
}
BUG = "bug"
HTTP_CODES = {
    400: "bad_request", 401: "not_logged_in", 403: "forbidden", 404: "not_found", 405: "method_not_allowed",
    406: "not_acceptable", 412: "changed", 413: "too_large", 415: "unsupported_media_type", 422: "invalid",
    429: "too_many", 503: "unavailable",
}  # fmt: skip
MOST_MISTAKES = 20


class HTTPProblem(Problem):
    """An error of HTTP itself, such as a path that does not exist."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.code = HTTP_CODES.get(status, BUG if status >= 500 else "bad_request")


def status_of(error: errors.CurateError, method: str = "GET") -> int:
    if isinstance(error, Problem):
        return error.status
    if isinstance(error, errors.InputError) and method in ("GET", "HEAD"):
        return 404
    return next(STATUSES[cls] for cls in type(error).__mro__ if cls in STATUSES)


def answer(request: Request, error: errors.CurateError, mistakes: list[dict[str, str]] | None = None) -> Response:
    """The answer to a request that failed with this error."""
    status = status_of(error, request.method)
    headers = _headers(error, status)
    if not request.url.path.startswith(PROGRAMS):
        from curate.service.pages import error_page

        page: Response = error_page(request, error, status)
        page.headers.update(headers)
        return page
    body = described(request, status, error.code, redact(str(error)), mistakes)
    return Response(json.dumps(body), status, headers, MEDIA_TYPE)


def described(
    request: Request, status: int, code: str, detail: str, mistakes: list[dict[str, str]] | None = None
) -> dict[str, Any]:
    return {
        "type": "about:blank",
        "title": HTTPStatus(status).phrase,
        "status": status,
        "code": code,
        "detail": detail,
        "request_id": getattr(request.state, "request_id", ""),
        "errors": mistakes or [],
    }


def _headers(error: errors.CurateError, status: int) -> dict[str, str]:
    headers = {"Cache-Control": "no-store"}
    retry_after = getattr(error, "retry_after", 5.0 if status == 503 else None)
    if retry_after is not None:
        headers["Retry-After"] = str(max(1, math.ceil(retry_after)))
    if status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return headers


def handle(app: FastAPI) -> None:
    """Let the application answer errors this way."""
    app.add_exception_handler(errors.CurateError, _curate_error)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _http)


async def _curate_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, errors.CurateError)
    if status_of(error, request.method) == 500:
        log.error("request %s: %s", request.state.request_id, redact(str(error)))
    return await _malformed(request, error) if isinstance(error, InvalidProblem) else answer(request, error)


async def _invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    mistakes = [_mistake(one) for one in error.errors()[:MOST_MISTAKES]]
    first = mistakes[0] if mistakes else {"field": "body", "message": "invalid"}
    return await _malformed(request, HTTPProblem(422, f"{first['field']}: {first['message']}"), mistakes)


async def _malformed(
    request: Request, problem: errors.CurateError, mistakes: list[dict[str, str]] | None = None
) -> Response:
    """The answer to a request of the wrong form, which is in the audit if it is a write. FastAPI parses JSON before it
    asks who sends it: those whom it does not know learn no more than that."""
    try:
        who = getattr(request.state, "who", None) or await principal(request)
        service: Service = request.app.state.service
        await run_in_threadpool(audit.malformed, service, who, request.method, request.url.path, problem)
    except Problem as stranger:
        return answer(request, stranger)
    return answer(request, problem, mistakes)


def _mistake(found: Mapping[str, Any]) -> dict[str, str]:
    """Never the value itself: it may be a token."""
    if found["type"] == "json_invalid":
        return {"field": "body", "message": f"not JSON, at character {found['loc'][-1]}"}
    place = [str(part) for part in found["loc"]]
    field = ".".join(place[1:] if len(place) > 1 and place[0] == "body" else place)
    return {"field": field[:200], "message": str(found["msg"])[:300]}


async def _http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    problem = HTTPProblem(error.status_code, _SAID.get(error.status_code, str(error.detail)))
    made = await _malformed(request, problem) if problem.status == 400 else answer(request, problem)
    made.headers.update(error.headers or {})
    return made


_SAID = {
    404: "this address does not exist; /openapi.json lists those that do",
    405: "this address does not take the method; /openapi.json lists those that it takes",
    413: "the body is too large",
}


def unexpected(request: Request, error: BaseException) -> Response:
    """The answer to a bug."""
    request_id = getattr(request.state, "request_id", "")
    log.error("request %s: %s %r failed", request_id, request.method, request.url.path, exc_info=redacted(error))
    detail = f"an unexpected error, a bug; the service's log has it under request {request_id}"
    if not request.url.path.startswith(PROGRAMS):
        problem = HTTPProblem(500, detail)
        try:
            return answer(request, problem)
        except Exception:  # the error page itself may be the bug
            log.exception("request %s: the error page failed", request_id)
    return Response(json.dumps(described(request, 500, BUG, detail)), 500, {"Cache-Control": "no-store"}, MEDIA_TYPE)
