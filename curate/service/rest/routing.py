"""Routes: how an operation is called, and what it asks for by the type of a parameter.

An operation is a plain function of the service, the user and what was sent, so that pages and commands call it too. The
ETag of an answer is a weak one, of what it says. If-None-Match saves the body; If-Match names the version to change.
"""

from __future__ import annotations

import hashlib
import inspect
import re
from collections.abc import AsyncIterator, Callable
from functools import cached_property, wraps
from http import HTTPStatus
from typing import Annotated, Any, ClassVar, TypeVar

from fastapi import APIRouter, Depends, Header, Path, Query, Request, Response
from fastapi.routing import APIRoute
from pydantic import BaseModel
from starlette.concurrency import run_in_threadpool
from starlette.routing import Match
from starlette.types import Scope

from curate.service.auth.dependency import principal
from curate.service.auth.roles import Principal
from curate.service.problems import InvalidProblem
from curate.service.rest.paging import form
from curate.service.service import Service
from curate.service.shapes import NAME

API = "/api/v1"
Operation = TypeVar("Operation", bound=Callable[..., Any])
_ETAGGED: set[Callable[..., Any]] = set()


class ByWord(APIRouter):
    """Compares a path with its routes only if one of them begins with the same word. FastAPI tries all, twice."""

    below: ClassVar[str] = ""
    """Prefix that the application gives to the routes."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        path = scope["path"].removeprefix(scope.get("root_path", ""))
        if path.startswith(self.below) and _word(path.removeprefix(self.below)) in self._words:
            return super().matches(scope)
        return Match.NONE, {}

    @cached_property
    def _words(self) -> frozenset[str]:
        return frozenset(_word(route.path) for route in self.routes if isinstance(route, APIRoute))


class Router(ByWord):
    """Operations of the API. Calls the function of each in a thread, once: FastAPI itself would check its answer in a
    second one."""

    below: ClassVar[str] = API

    def add_api_route(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        super().add_api_route(path, _threaded(endpoint), **options)


def etagged(function: Operation) -> Operation:
    """An operation whose answer has an ETag."""
    _ETAGGED.add(function)
    return function


def _word(path: str) -> str:
    """The first word of a path."""
    return path.removeprefix("/").partition("/")[0]


def _threaded(function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    async def called(**values: Any) -> Any:
        return await run_in_threadpool(function, **values)

    @wraps(function)
    async def answered(_request: Request, **values: Any) -> Response:
        return tagged(_request, await run_in_threadpool(function, **values))

    if function not in _ETAGGED:
        return called
    known = inspect.signature(function)
    request = inspect.Parameter("_request", inspect.Parameter.KEYWORD_ONLY, annotation=Request)
    answered.__signature__ = known.replace(  # type: ignore[attr-defined]
        parameters=[*known.parameters.values(), request]
    )
    return answered


_TAG = re.compile(r'(?:W/)?"([^"]*+)"\s*+(?:,|$)')
_VERSION = re.compile(r"(\d{1,18})(?:-[0-9a-f]+)?")


def tagged(request: Request, shape: BaseModel) -> Response:
    """The answer with its ETag, W/"VERSION-DIGEST" or W/"DIGEST"; 304 without a body if the client has it."""
    body = shape.model_dump_json().encode()
    digest = hashlib.sha256(body).hexdigest()[:16]
    version = getattr(shape, "version", None)
    tag = digest if version is None else f"{version}-{digest}"
    headers = {"ETag": f'W/"{tag}"'}
    if request.method == "GET" and knows(request.headers.get("if-none-match", ""), tag):
        return Response(status_code=304, headers=headers)
    return Response(body, 200, headers, "application/json")


def knows(given: str, tag: str) -> bool:
    """Whether If-None-Match says that the client has what has this ETag."""
    return given.strip() == "*" or tag in _TAG.findall(given)


async def version_of(
    if_match: Annotated[str | None, Header(max_length=200, description="ETag of the version to change.")] = None,
) -> int | None:
    """The version that If-Match names; None without one. Raises InvalidProblem."""
    if if_match is None or if_match.strip() == "*":
        return None
    tags = _TAG.findall(if_match)
    found = _VERSION.fullmatch(tags[0]) if len(tags) == 1 else None
    if found is None:
        raise InvalidProblem("If-Match: expected the ETag of an earlier answer, or *")
    return int(found[1])


async def served(request: Request) -> Service:  # a plain function would cost a thread
    found: Service = request.app.state.service
    return found


Served = Annotated[Service, Depends(served)]
Who = Annotated[Principal, Depends(principal)]


async def _check_turn(service: Served, who: Who) -> AsyncIterator[None]:
    async with service.limiter.checks.turn(who.user_id):
        yield


CHECKS = [Depends(_check_turn, scope="function")]
"""`dependencies` of an operation that checks a recipe: it waits for its turn at the sandbox without a thread."""
Limit = Annotated[int, Query(ge=1, le=200, description="Most items of a page.")]
InWorkspace = Annotated[
    str | None, Query(max_length=64, description="Name of a workspace, where the run's id exists in several.")
]
SEEN: dict[int | str, dict[str, Any]] = {304: {"description": "The client has it, by If-None-Match."}}
IfMatch = Annotated[int | None, Depends(version_of)]
"""The version that they have seen."""
InUrl = Annotated[str, Path(alias="workspace", pattern=NAME)]
"""Name of the workspace of the address."""
Workspace = Annotated[str | None, Query(pattern=NAME)]


def after(*types: type) -> Any:
    """The parameter `cursor` of a list whose key has these types."""
    return Query(max_length=1000, pattern=f"^$|{form(*types)}", description="`next` of the page before.")


ByName = Annotated[str | None, after(str)]


def problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """`responses` of an operation, whose errors have these statuses. What any operation may answer is added later."""
    return {status: {"description": HTTPStatus(status).phrase} for status in statuses}
