"""The service as one ASGI application: the API, the pages, and the loop that moves runs.

Everything is closed until `auth.dependency` says otherwise: it is a dependency of the whole application, and nothing is
mounted beside it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio.to_thread
from fastapi import Depends, FastAPI
from fastapi.routing import APIRoute
from starlette.concurrency import run_in_threadpool
from starlette.middleware.body_limit import RequestBodyLimitMiddleware

from curate.service import pages
from curate.service.auth.dependency import principal, turn
from curate.service.datasets import datasets, releases, tags, upkeep
from curate.service.kept import THREADS
from curate.service.operate import routes
from curate.service.operate.metrics import Metrics, MetricsMiddleware
from curate.service.people import quotas, tokens, users
from curate.service.places import registrations, targets, workspaces
from curate.service.reconcile.loop import Reconciler
from curate.service.rest import errors
from curate.service.rest.frame import Closed, Frame
from curate.service.rest.openapi import TAGS, openapi
from curate.service.rest.routing import API
from curate.service.runs import compare, control, logs, recipes, submit, views
from curate.service.samples import exports, find, maps, samples, search, slices
from curate.service.service import Service

PARTS = (
    users, tokens, quotas, workspaces, targets, registrations, recipes, submit, views, control, logs, tags, datasets,
    releases, slices, samples, maps, search, find, exports, upkeep,
    compare,
)  # fmt: skip


def create_app(service: Service, *, reconcile: bool = True) -> FastAPI:
    """`reconcile`: whether this process may move runs; one replica at a time does."""
    reconciler = Reconciler(service) if reconcile else None

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        anyio.to_thread.current_default_thread_limiter().total_tokens = THREADS
        service.sandbox.start()
        if reconciler is not None:
            service.wake = reconciler.wake
            reconciler.start()
        try:
            yield
        finally:
            service.watch.close()
            if reconciler is not None:
                await run_in_threadpool(reconciler.stop)

    app = FastAPI(
        title="curate",
        lifespan=lifespan,
        dependencies=[Depends(principal), Depends(turn, scope="function")],
        openapi_url=None,  # FastAPI's own route would need no token
        openapi_tags=TAGS,
        generate_unique_id_function=_operation_id,
        redirect_slashes=False,
        telemetry={"tracing": False, "metrics": False, "logs": False, "auto_configure": False},
    )
    app.state.service, app.state.reconciler = service, reconciler
    app.state.metrics = Metrics(service, reconciler)
    errors.handle(app)
    for part in PARTS:
        app.include_router(part.router, prefix=API)
    app.include_router(routes.router)
    app.add_api_route("/openapi.json", openapi, include_in_schema=False)
    app.include_router(pages.router, include_in_schema=False)
    app.add_middleware(RequestBodyLimitMiddleware, max_body_size=service.settings.limits.body_bytes)
    if service.alone is None:
        app.add_middleware(Closed)
    app.add_middleware(Frame, settings=service.settings)
    app.add_middleware(MetricsMiddleware, metrics=app.state.metrics)
    return app


def _operation_id(route: APIRoute) -> str:
    return route.name
