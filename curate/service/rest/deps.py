"""What endpoints ask for by the type of a parameter."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from functools import cached_property, wraps
from http import HTTPStatus
from inspect import iscoroutinefunction
from typing import Annotated, Any, ClassVar

from fastapi import APIRouter, Depends, Header, Query, Request
from fastapi.routing import APIRoute
from starlette.concurrency import run_in_threadpool
from starlette.routing import Match
from starlette.types import Scope

from curate.service.auth.dependency import principal
from curate.service.auth.roles import Principal
from curate.service.rest.paging import form
from curate.service.service import Service

API = "/api/v1"


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


def _word(path: str) -> str:
    """The first word of a path."""
    return path.removeprefix("/").partition("/")[0]


def _threaded(function: Callable[..., Any]) -> Callable[..., Any]:
    if iscoroutinefunction(function):
        return function

    @wraps(function)
    async def called(**values: Any) -> Any:
        return await run_in_threadpool(function, **values)

    return called


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
IfMatch = Annotated[str | None, Header(max_length=200, description="ETag of the version to change.")]
SEEN: dict[int | str, dict[str, Any]] = {304: {"description": "The client has it, by If-None-Match."}}


def after(*types: type) -> Any:
    """The parameter `cursor` of a list whose key has these types."""
    return Query(max_length=1000, pattern=f"^$|{form(*types)}", description="`next` of the page before.")


ByName = Annotated[str | None, after(str)]


def problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """`responses` of an operation, whose errors have these statuses. What any operation may answer is added later."""
    return {status: {"description": HTTPStatus(status).phrase} for status in statuses}
