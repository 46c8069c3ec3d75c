"""For machines that operate the service: /metrics, /healthz, /readyz."""

from __future__ import annotations

from typing import Any

from fastapi import Request, Response
from fastapi.responses import PlainTextResponse

from curate.service.auth.roles import Role
from curate.service.database.migrate import current, heads
from curate.service.operate.collector import Loop
from curate.service.operate.metrics import CONTENT_TYPE, Metrics
from curate.service.problems import UnavailableProblem
from curate.service.rest.routing import ByWord, Served, Who, problems
from curate.service.service import Service

router = ByWord(tags=["operate"])
PASS_SECONDS = 60.0
"""Longest time without a pass of any replica."""
TEXT: dict[int | str, dict[str, Any]] = {200: {"content": {"text/plain": {"schema": {"type": "string"}}}}}


@router.head("/healthz", response_class=PlainTextResponse, include_in_schema=False)
@router.get("/healthz", response_class=PlainTextResponse, responses=TEXT)
async def get_health() -> str:
    """Whether the process answers. Open to everybody, and says nothing else."""
    return "ok\n"


@router.get("/readyz", response_class=PlainTextResponse, responses={**TEXT, **problems(503)})
def get_readiness(service: Served, who: Who, request: Request) -> str:
    """Whether the database answers and has the expected tables, and a replica moves runs."""
    check(service, request.app.state.reconciler)
    return "ready\n"


@router.get("/metrics", response_class=PlainTextResponse, responses={**TEXT, **problems(403)})
def get_metrics(who: Who, request: Request) -> Response:
    """For Prometheus. Needs the role viewer in the whole service."""
    who.check_service(Role.VIEWER)
    metrics: Metrics = request.app.state.metrics
    return Response(metrics.text(), media_type=CONTENT_TYPE)


def check(service: Service, loop: Loop | None) -> None:
    """Raises UnavailableProblem with what is missing, in one line."""
    found = current(service.database)
    if found != heads()[-1]:
        raise UnavailableProblem(
            f"not ready: the database has the tables of {found}, expected {heads()[-1]}; run `curate service migrate`"
        )
    if loop is None:
        return
    age = loop.pass_age()
    if age is None or age > PASS_SECONDS:
        since = "since this replica started" if age is None else f"for {age:.0f} s"
        raise UnavailableProblem(f"not ready: no replica has moved runs {since}; read the logs of the replicas")
