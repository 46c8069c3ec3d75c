"""Webhooks of the settings, when a run ends.

What is due is written into the audit log in the transaction that ends the run, and its outcome after the last try. A
new leader repeats what is due and has no outcome: a hook is called at least once, and twice if the leader dies in
between. Receivers tell a repetition by `attempt` and `state`.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import logging
import queue
import socket
import threading
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import httpx2
from sqlalchemy import select
from sqlalchemy.orm import Session

from curate.core.addresses import networks, reason_denied
from curate.core.errors import CurateError
from curate.core.secrets import redact
from curate.service.auth import audit
from curate.service.auth.roles import SERVICE
from curate.service.database.models import AuditEntry
from curate.service.reconcile.observe import Run
from curate.service.settings import Settings, Webhook
from curate.service.states import Step

if TYPE_CHECKING:
    from curate.service.service import Service

DUE, DONE = "hook.due", "hook.done"
REPEAT_SECONDS = 86_400.0
"""A new leader looks so far back for hooks without an outcome."""
THREADS = 4
WAITS = (1.0, 10.0)
"""Seconds before the second and the third try."""
STEP_SECONDS = 10.0
"""For each step of a request."""
SIGNATURE = "X-Curate-Signature"
NOT_A_URL = "a webhook's url is not http://… or https://… with a host"
AGAIN = frozenset({408, 425, 429})

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Ended:
    """What a hook receives."""

    run: str
    attempt: str
    workspace: str
    state: str
    reason: str
    user: str


@dataclass(frozen=True)
class Due:
    hook: str
    """`webhook 1`, `webhook 2`: by its place in the settings."""
    ended: Ended

    @property
    def key(self) -> tuple[str, str, str]:
        return self.ended.attempt, self.ended.state, self.hook


def due(session: Session, settings: Settings, run: Run, step: Step) -> None:
    """Record the hooks of a run that ends in this transaction."""
    for one in dues(settings, run, step):
        audit.record(
            session, SERVICE, DUE, workspace=run.workspace_name, target=one.ended.attempt, hook=one.hook,
            ended=asdict(one.ended),
        )  # fmt: skip


def dues(settings: Settings, run: Run, step: Step) -> Iterator[Due]:
    row = run.row
    ended = Ended(row.id, row.attempt_id, run.workspace_name, step.state.value, step.reason, run.user)
    for name, hook in named(settings).items():
        if step.state in hook.states:
            yield Due(name, ended)


def named(settings: Settings) -> dict[str, Webhook]:
    return {f"webhook {n}": hook for n, hook in enumerate(settings.webhooks, 1)}


class Hooks:
    """Calls hooks in separate threads, so that a slow one delays no run."""

    def __init__(self, service: Service, waits: tuple[float, ...] = WAITS) -> None:
        self._service, self._waits = service, waits
        self._hooks = named(service.settings)
        self._queue: queue.SimpleQueue[Due] = queue.SimpleQueue()
        self._known: set[tuple[str, str, str]] = set()
        self._closing = threading.Event()
        for number in range(THREADS if self._hooks else 0):
            threading.Thread(target=self._work, name=f"curate-hook-{number}", daemon=True).start()

    def ended(self, run: Run, step: Step) -> None:
        """Call the hooks of a run whose end was written."""
        for one in dues(self._service.settings, run, step):
            self._add(one)

    def repeat(self) -> None:
        """Call what an earlier leader left: for a new one. Raises UnavailableProblem."""
        if not self._hooks:
            return
        since = self._service.clock() - REPEAT_SECONDS
        with self._service.database.read() as session:
            chosen = (AuditEntry.time >= since, AuditEntry.action.in_([DUE, DONE]))
            entries = list(session.scalars(select(AuditEntry).where(*chosen).order_by(AuditEntry.id)))
        found = [(entry.action, Due(str(entry.detail["hook"]), Ended(**entry.detail["ended"]))) for entry in entries]
        over = {one.key for action, one in found if action == DONE}
        for action, one in found:
            if action == DUE and one.key not in over and one.hook in self._hooks:
                self._add(one)

    def close(self) -> None:
        self._closing.set()

    def _add(self, one: Due) -> None:
        if one.key not in self._known:
            self._known.add(one.key)
            self._queue.put(one)

    def _work(self) -> None:
        while not self._closing.is_set():
            try:
                one = self._queue.get(timeout=0.5)
            except queue.Empty:
                continue
            try:
                self._record(one, self._call(one))
            except Exception:  # one hook must not end the thread of all others
                log.exception("hook %s of run %s", one.hook, one.ended.attempt)

    def _call(self, one: Due) -> str:
        """Error of the last try; "" if one succeeded."""
        hook, error = self._hooks[one.hook], ""
        for wait in (0.0, *self._waits):
            if self._closing.wait(wait):
                return error or "the service was stopped"
            try:
                post(hook, self._body(one.ended))
                return ""
            except FinalError as problem:
                return str(problem)
            except CurateError as problem:
                error = str(problem)
        return error

    def _body(self, ended: Ended) -> bytes:
        about = asdict(ended) | {"url": f"{self._service.settings.url}/runs/{ended.run}"}
        return json.dumps(about, sort_keys=True).encode()

    def _record(self, one: Due, error: str) -> None:
        if self._closing.is_set() and error:
            return  # no outcome: the next leader repeats it
        about: dict[str, Any] = {"hook": one.hook, "ended": asdict(one.ended)}
        if error:
            log.warning("%s of run %s failed: %s", one.hook, one.ended.attempt, redact(error))
            about["error"] = redact(error)[:300]
        outcome = "failed" if error else "ok"
        with self._service.database.write() as session:
            where = {"workspace": one.ended.workspace, "target": one.ended.attempt}
            audit.record(session, SERVICE, DONE, outcome=outcome, **where, **about)


# --- one call of one --------------------------------------------------------------------------------------------------


class FinalError(CurateError):
    """Trying again would not help."""


def post(hook: Webhook, body: bytes) -> None:
    """Raises CurateError unless the answer is 2xx. Connects to the address that was checked, follows no redirects, and
    reads no answer's body."""
    try:
        url = httpx2.URL(hook.url)
    except httpx2.InvalidURL:  # whose text may have its password
        raise FinalError(NOT_A_URL) from None
    headers = {"Content-Type": "application/json", "User-Agent": "curate", "Host": _authority(hook.url)}
    if hook.secret is not None:
        headers[SIGNATURE] = hmac.new(hook.secret.value().encode(), body, hashlib.sha256).hexdigest()
    address = _address(hook)
    try:
        with (
            httpx2.Client(trust_env=False, follow_redirects=False, timeout=STEP_SECONDS) as client,
            client.stream(
                "POST", url.copy_with(host=address), content=body, headers=headers,
                extensions={"sni_hostname": url.host},
            ) as answer,
        ):  # fmt: skip
            status = answer.status_code
    except httpx2.HTTPError as error:
        raise CurateError(f"{url.host}: does not answer ({type(error).__name__}: {error})") from None
    if 200 <= status < 300:
        return
    kind = CurateError if status >= 500 or status in AGAIN else FinalError
    raise kind(f"{url.host}: answered {status}; expected 2xx, and no redirect")


def _authority(url: str) -> str:
    """For the Host header: without user and password."""
    return urlsplit(url).netloc.rpartition("@")[2]


def _address(hook: Webhook) -> str:
    """An address of the webhook's host that may be connected to."""
    parts = urlsplit(hook.url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise FinalError(NOT_A_URL)
    try:
        allowed = networks(hook.allow_networks)
        found = socket.getaddrinfo(parts.hostname, parts.port or 443, type=socket.SOCK_STREAM)
    except OSError as error:
        raise CurateError(f"{parts.hostname}: not resolved ({error.strerror or error})") from None
    except ValueError as error:
        raise FinalError(f"{parts.hostname}: {error}") from None
    reasons = {str(place[0]): reason_denied(str(place[0]), allowed) for *_, place in found}
    for address, reason in reasons.items():
        if reason is None:
            return address
    why = "; ".join(str(reason) for reason in reasons.values())
    raise FinalError(f"{parts.hostname}: {why}; if it is meant, add its network to allow_networks")
