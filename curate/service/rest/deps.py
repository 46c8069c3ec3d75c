"""What endpoints ask for by the type of a parameter."""

from __future__ import annotations

from http import HTTPStatus
from typing import Annotated, Any

from fastapi import Depends, Query, Request

from curate.service.auth.dependency import principal
from curate.service.auth.roles import Principal
from curate.service.service import Service


def served(request: Request) -> Service:
    found: Service = request.app.state.service
    return found


Served = Annotated[Service, Depends(served)]
Who = Annotated[Principal, Depends(principal)]
Cursor = Annotated[str | None, Query(max_length=1000, description="`next` of the page before.")]
Limit = Annotated[int, Query(ge=1, le=200, description="Most items of a page.")]
InWorkspace = Annotated[
    str | None, Query(max_length=64, description="Name of a workspace, where the run's id exists in several.")
]
SEEN: dict[int | str, dict[str, Any]] = {304: {"description": "The client has it, by If-None-Match."}}


def problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """`responses` of an operation, whose errors have these statuses. What any operation may answer is added later."""
    return {status: {"description": HTTPStatus(status).phrase} for status in statuses}
