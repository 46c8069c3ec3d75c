"""Prometheus' metrics of one replica: its requests, and what `ServiceCollector` knows about runs."""

from __future__ import annotations

import time
from typing import Any

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from sqlalchemy.engine import ExceptionContext
from sqlalchemy.exc import DataError, IntegrityError
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from curate.service.operate.collector import Loop, ServiceCollector
from curate.service.service import Service

METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
OTHER = "other"
"""Stands for routes and methods that do not exist, so that callers cannot add series."""
BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.2, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
CONTENT_TYPE = CONTENT_TYPE_LATEST
disable_created_metrics()  # type: ignore[no-untyped-call]  # a second series for each counter, which no rule uses


class Metrics:
    """One per application, with its own registry."""

    def __init__(self, service: Service, loop: Loop | None = None) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "curate_http_requests", "Requests.", ["route", "method", "status"], registry=self.registry
        )
        self.seconds = Histogram(
            "curate_http_request_seconds", "Until the answer was sent; for event streams, until it began.",
            ["route", "method"], buckets=BUCKETS, registry=self.registry,
        )  # fmt: skip
        self.streams = Gauge("curate_event_streams", "Event streams that are open.", registry=self.registry)
        self.errors = Counter("curate_database_errors", "Statements that failed.", registry=self.registry)
        service.database.on_error(self._database_error)
        self.registry.register(ServiceCollector(service, loop))
        ProcessCollector(registry=self.registry)

    def _database_error(self, context: ExceptionContext) -> None:
        """Constraints and values are mistakes of a request, not of the database."""
        if not isinstance(context.sqlalchemy_exception, IntegrityError | DataError):
            self.errors.inc()

    def text(self) -> bytes:
        return generate_latest(self.registry)


class MetricsMiddleware:
    """Counts requests by the template of their route. Has to be the outermost middleware."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self.app, self.metrics = app, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        answer = _Answer(self.metrics, send)
        try:
            await self.app(scope, receive, answer.send)
        finally:
            answer.end(scope)


class _Answer:
    """Watches one answer on its way."""

    def __init__(self, metrics: Metrics, send: Send) -> None:
        self.metrics, self._send = metrics, send
        self.began = time.monotonic()
        self.status, self.seconds = 500, -1.0
        self.stream = False

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.stream = any(
                name.lower() == b"content-type" and value.startswith(b"text/event-stream")
                for name, value in message.get("headers", ())
            )
            if self.stream:
                self.seconds = time.monotonic() - self.began
                self.metrics.streams.inc()
        await self._send(message)

    def end(self, scope: Scope) -> None:
        if self.stream:
            self.metrics.streams.dec()
        else:
            self.seconds = time.monotonic() - self.began
        route, method = template(scope), scope["method"] if scope["method"] in METHODS else OTHER
        self.metrics.requests.labels(route, method, str(self.status)).inc()
        self.metrics.seconds.labels(route, method).observe(self.seconds)


def template(scope: Scope) -> str:
    """Template of the route that a request took, with the prefix under which its router was included. A route knows
    only its own part of it."""
    route: Any = scope.get("route")
    own = getattr(route, "path_format", None) or getattr(route, "path", None)
    if own is None:
        return OTHER
    try:
        filled = own.format(**scope.get("path_params", {}))
    except (KeyError, IndexError, ValueError):  # another method of this path, or a mounted application
        return str(own)
    path = scope["path"]
    return path.removesuffix(filled) + own if path.endswith(filled) else str(own)
