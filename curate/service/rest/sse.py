"""Server-sent events, by sse-starlette: FastAPI's own response logs an exception for each client that goes away."""

from __future__ import annotations

from contextlib import ExitStack

from sse_starlette import EventSourceResponse, ServerSentEvent
from starlette.types import Receive, Scope, Send

from curate.service.actions.run_logs import Streamed

PING_SECONDS = 15
SEND_SECONDS = 60.0
"""A client that takes no bytes for so long is dropped."""
JSON = "application/json"
STREAM = "text/event-stream"


class RunStream(EventSourceResponse):
    """The stream of a run. It counts against the streams of its user from here on. Raises TooManyProblem."""

    def __init__(self, run: Streamed, last_event_id: str | None) -> None:
        with ExitStack() as counted:
            counted.enter_context(run.service.watch.counted(run.who.user_id))
            chunks = run.stream(last_event_id)
            super().__init__(chunks, ping=PING_SECONDS, sep="\n", send_timeout=SEND_SECONDS, ping_message_factory=_ping)
            self._counted = counted.pop_all()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._counted:
            await super().__call__(scope, receive, send)


def _ping() -> ServerSentEvent:
    return ServerSentEvent(comment="ping", sep="\n")


def wants_page(accept: str) -> bool:
    """Whether a client asks for JSON instead of a stream."""
    return JSON in accept and STREAM not in accept
