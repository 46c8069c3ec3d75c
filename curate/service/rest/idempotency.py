"""`Idempotency-Key` on POST: a client that has lost the answer repeats the request, and gets the first answer again.

A key belongs to a user, and to the method, path and body it came with first. To get the answer again, they need the
roles that the first request needed: they may have lost them, or repeat it with a lesser token. Only successes are kept:
an error had no effect, so that the repeated request may try again. A key is reserved before the action runs. If the
process dies in between, the reservation can be taken over: at once by a process of the same machine, which sees that it
has ended, and elsewhere after `UNDER_WAY_SECONDS`. An action that must not happen twice then finds in
`Reservation.reference` what it had made, since it wrote that in its own transaction (`mark`).
"""

from __future__ import annotations

import hashlib
import logging
import re
from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Request
from sqlalchemy import ColumnElement, delete, or_, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from curate.core.errors import CurateError
from curate.service import process
from curate.service.auth.roles import Principal
from curate.service.database.models import Reply
from curate.service.problems import ConflictProblem, InvalidProblem
from curate.service.reconcile.swap import swapped
from curate.service.rest.deps import Served, Who
from curate.service.service import Service

log = logging.getLogger("curate.service")
UNDER_WAY_SECONDS = 120.0
"""No request takes longer; a reservation this old belongs to a process that died."""
KEY = re.compile(r"[\x21-\x7e]{1,200}")
SECRET = re.compile(r"/tokens$")
"""Answers that hold a secret, which is never stored."""
HEADER = "Idempotency-Key"


class UnderWayProblem(ConflictProblem):
    """The first request with this key has not been answered yet."""

    code = "under_way"
    retry_after = 2.0


class Replayed(Exception):
    """Answers with what was stored."""

    def __init__(self, status: int, body: str) -> None:
        self.status, self.body = status, body


@dataclass
class Reservation:
    """The key of the request that is being answered."""

    service: Service
    who: Principal
    key: str
    created: float
    reference: str = ""
    """What an earlier process with this key had made before it died."""

    def mark(self, session: Session, reference: str) -> None:
        """Note what the action made, in the action's transaction. Raises ConflictProblem if another request took the
        key over meanwhile."""
        if not self._change(session, body=reference):
            raise ConflictProblem(f"{HEADER}: the same request was repeated meanwhile; repeat it again for its answer")

    def finish(self, status: int, body: str) -> None:
        """Keep the answer of a success; after an error, free the key."""
        with self.service.database.write() as session:
            if status < 300:
                self._change(session, status=status, body=body, checked=dict(self.who.checked))
            else:
                session.execute(delete(Reply).where(*self._mine, Reply.body.is_(None)))
                self._change(session, created=self.created - UNDER_WAY_SECONDS)  # marked: the next one finds it

    @property
    def _mine(self) -> tuple[ColumnElement[bool], ...]:
        """Conditions on the row, unless another request took it over."""
        mine = (Reply.user_id == self.who.user_id, Reply.key == self.key)
        return *mine, Reply.created == self.created, Reply.status.is_(None)

    def _change(self, session: Session, **values: object) -> bool:
        return swapped(session, update(Reply).where(*self._mine).values(**values))


async def reservation(request: Request, service: Served, who: Who) -> Reservation | None:
    """Reserves the key of a POST to the API. A dependency of the whole application."""
    key = request.headers.get(HEADER)
    if key is None or request.method != "POST" or not request.url.path.startswith("/api/"):
        return None
    if not KEY.fullmatch(key):
        raise InvalidProblem(f"{HEADER}: expected 1 to 200 visible ASCII characters, such as a UUID")
    if SECRET.search(request.url.path):
        raise InvalidProblem(f"{HEADER}: answers with a token are never stored; leave the header out here")
    body = await request.body()
    words = f"{request.method} {request.url.path}?{request.url.query}\n".encode() + body
    digest = hashlib.sha256(words).hexdigest()
    made = await run_in_threadpool(reserve, service, who, key, digest)
    request.state.reservation = made
    return made


Once = Annotated[Reservation | None, Depends(reservation)]


def reserve(service: Service, who: Principal, key: str, digest: str) -> Reservation:
    """Raises Replayed with the first answer, UnderWayProblem, ForbiddenProblem for a lost role, or ConflictProblem for
    another request."""
    now = service.clock()
    try:
        with service.database.write() as session:
            kept = service.settings.limits.reply_seconds
            session.execute(delete(Reply).where(or_(Reply.created < now - kept, Reply.created > now + kept)))
            found = session.get(Reply, (who.user_id, key))
            if found is None:
                session.add(Reply(user_id=who.user_id, key=key, request=digest, holder=process.name(), created=now))
                session.flush()
                return Reservation(service, who, key, now)
            if found.request != digest:
                raise ConflictProblem(f"{HEADER}: used for another request before; choose a new key")
            if found.status is not None:
                who.check_again(found.checked)
                raise Replayed(found.status, found.body or "")
            if abs(now - found.created) < UNDER_WAY_SECONDS and not process.has_ended(found.holder):
                raise UnderWayProblem(f"{HEADER}: the first request is still under way; repeat it in a moment")
            found.created, found.holder = now, process.name()
            return Reservation(service, who, key, now, found.body or "")
    except ConflictProblem as problem:
        if isinstance(problem.__cause__, IntegrityError):  # another process reserved it at the same moment
            raise UnderWayProblem(f"{HEADER}: the first request is still under way; repeat it in a moment") from None
        raise


def replay(_: Request, error: Exception) -> Response:
    assert isinstance(error, Replayed)
    return Response(error.body, error.status, {"Idempotency-Replayed": "true"}, "application/json")


class Replies:
    """Holds back the answer to a request with a key until it is stored. ASGI, around the application's handlers."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST":
            await self.app(scope, receive, send)
            return
        start: Message | None = None
        body = b""

        async def send_stored(message: Message) -> None:
            nonlocal start, body
            reserved = scope["state"].get("reservation")
            if reserved is None:
                await send(message)
            elif message["type"] == "http.response.start":
                start = message
            elif message["type"] == "http.response.body":
                body += message.get("body", b"")
                if not message.get("more_body"):
                    assert start is not None
                    await run_in_threadpool(_finish, reserved, start["status"], body)
                    await send(start)
                    await send({"type": "http.response.body", "body": body})

        try:
            await self.app(scope, receive, send_stored)
        except BaseException:  # raised again: the key must not stay reserved
            reserved = scope["state"].get("reservation")
            if reserved is not None and start is None:
                await run_in_threadpool(_finish, reserved, 500, b"")
            raise


def _finish(reserved: Reservation, status: int, body: bytes) -> None:
    try:
        reserved.finish(status, body.decode())
    except CurateError as error:  # the action is done; its answer matters more than repeating it
        log.warning("the answer to a request with an Idempotency-Key could not be stored: %s", error)
