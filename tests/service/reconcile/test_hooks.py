"""Webhooks when a run ends."""

from __future__ import annotations

import hashlib
import hmac
import http.server
import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from curate.core.errors import CurateError
from curate.core.secrets import Secret
from curate.service.database.models import AuditEntry
from curate.service.reconcile import hooks
from curate.service.reconcile.hooks import Hooks
from curate.service.settings import Webhook
from curate.service.states import State
from tests.service.reconcile.worlds import World

LOOPBACK = ("127.0.0.0/8",)


class Receiver(http.server.ThreadingHTTPServer):
    """Answers with `statuses` in turn, then 200."""

    def __init__(self) -> None:
        self.received: list[tuple[dict[str, str], bytes]] = []
        self.statuses: list[int] = []
        self.location = ""

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(handler) -> None:
                body = handler.rfile.read(int(handler.headers["Content-Length"]))
                self.received.append((dict(handler.headers), body))
                handler.send_response(self.statuses.pop(0) if self.statuses else 200)
                if self.location:
                    handler.send_header("Location", self.location)
                handler.send_header("Content-Length", "0")
                handler.end_headers()

            def log_message(handler, *_: Any) -> None:
                pass

        super().__init__(("127.0.0.1", 0), Handler)

    @property
    def url(self) -> str:
        return f"http://localhost:{self.server_port}/hook"


@pytest.fixture(scope="module")
def server() -> Iterator[Receiver]:
    with Receiver() as made:
        thread = threading.Thread(target=made.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        yield made
        made.shutdown()


@pytest.fixture
def receiver(server: Receiver) -> Receiver:
    server.received, server.statuses, server.location = [], [], ""
    return server


def configure(world: World, **about: Any) -> None:
    world.reconciler.hooks.close()
    world.service.settings = world.service.settings.model_copy(update=about)
    world.reconciler = world.replica()
    world.reconciler.hooks = world.reconciler._stepper.hooks = Hooks(world.service, waits=(0.0, 0.0))
    world.reconciler.once()
    world.clock.now += 15


def ended(world: World) -> None:
    driver = world.running()
    driver.end("failed", "embed: out of memory")
    world.until(State.FAILED)


def outcome(world: World, count: int = 1) -> list[AuditEntry]:
    until = time.monotonic() + 60
    while len(found := world.audit(hooks.DONE)) < count and time.monotonic() < until:
        threading.Event().wait(0.02)
    assert len(found) == count
    return found


def test_a_webhook_receives_the_state_in_a_signed_body(world: World, receiver: Receiver, tmp_path: Path) -> None:
    (tmp_path / "key").write_text("k3y")
    secret = Secret(f"file:{tmp_path / 'key'}")
    configure(world, webhooks=(Webhook(url=receiver.url, secret=secret, allow_networks=LOOPBACK),))

    ended(world)

    (entry,) = outcome(world)
    ((headers, body),) = receiver.received
    assert json.loads(body) == {
        "run": "run", "attempt": "run-1", "workspace": "main", "state": "failed", "reason": "embed: out of memory",
        "user": "operator", "url": "http://testserver/runs/run",
    }  # fmt: skip
    assert headers[hooks.SIGNATURE] == hmac.new(b"k3y", body, hashlib.sha256).hexdigest()
    assert headers["Host"] == f"localhost:{receiver.server_port}"
    assert (entry.user, entry.outcome, entry.target, entry.detail["hook"]) == ("service", "ok", "run-1", "webhook 1")
    assert len(world.audit(hooks.DUE)) == 1


def test_a_webhook_is_tried_three_times(world: World, receiver: Receiver) -> None:
    receiver.statuses = [500, 503, 200]
    configure(world, webhooks=(Webhook(url=receiver.url, allow_networks=LOOPBACK),))

    ended(world)

    assert outcome(world)[0].outcome == "ok" and len(receiver.received) == 3


def test_a_webhook_that_fails_is_audited_and_harms_nothing(world: World, receiver: Receiver) -> None:
    receiver.statuses = [404]
    configure(world, webhooks=(Webhook(url=receiver.url, allow_networks=LOOPBACK),))

    ended(world)

    (entry,) = outcome(world)
    assert entry.outcome == "failed" and "answered 404" in entry.detail["error"] and len(receiver.received) == 1


def test_only_the_states_that_it_asks_for(world: World, receiver: Receiver) -> None:
    asked = Webhook(url=receiver.url, allow_networks=LOOPBACK, states=("failed",))
    configure(world, webhooks=(asked.model_copy(update={"states": ("done",)}), asked))

    ended(world)

    assert outcome(world)[0].detail["hook"] == "webhook 2"
    assert len(receiver.received) == 1


def test_a_lost_run_that_is_resubmitted_has_not_ended(world: World, receiver: Receiver) -> None:
    configure(world, webhooks=(Webhook(url=receiver.url, allow_networks=LOOPBACK),))
    world.running(retries=1)
    world.head_restarts()
    world.until(State.SUBMITTING)
    world.workspace.driver("run-2").begin()
    world.until(State.RUNNING)
    world.head_restarts()
    world.until(State.LOST)

    (entry,) = outcome(world)

    assert (entry.target, entry.detail["ended"]["state"]) == ("run-2", "lost")
    assert len(world.audit(hooks.DUE)) == 1


def test_a_new_leader_repeats_what_has_no_outcome(world: World, receiver: Receiver) -> None:
    configure(world, webhooks=(Webhook(url=receiver.url, allow_networks=LOOPBACK),))
    world.reconciler.hooks.close()  # the leader dies after it has written the end of the run
    ended(world)
    assert world.audit(hooks.DONE) == [] and receiver.received == []

    world.reconciler.leader.resign()
    configure(world)
    outcome(world)
    repeated = Hooks(world.service, waits=())
    repeated.repeat()

    assert len(receiver.received) == 1 and not repeated._known


def test_a_host_that_does_not_answer_is_an_error_in_one_line() -> None:
    with pytest.raises(CurateError, match=r"^localhost: does not answer"):
        hooks.post(Webhook(url="http://localhost:1/", allow_networks=(*LOOPBACK, "::1/128")), b"{}")
