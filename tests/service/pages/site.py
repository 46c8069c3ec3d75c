"""The pages over actions that answer with examples: no database, no workspace, no login."""

from __future__ import annotations

import asyncio
import queue
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi import FastAPI, Request
from sse_starlette import EventSourceResponse

from curate.core.errors import CurateError
from curate.service.actions import data, people, places, recipes, runs, upkeep
from curate.service.actions.run_page import RunPage
from curate.service.auth import audit
from curate.service.auth.dependency import principal
from curate.service.auth.limiting import Limiter
from curate.service.auth.roles import Principal, Role
from curate.service.pages import new, router
from curate.service.rest.errors import handle
from curate.service.rest.frame import Frame
from curate.service.settings import Settings
from curate.service.shapes.common import Page
from curate.service.shapes.runs import Checked, Planned
from curate.service.states import State
from tests.service.pages import examples

ADA = Principal(
    user_id=1, user="ada", token_id="1a2b3c4d", everywhere=Role.ADMIN, token_role=Role.ADMIN, request_id="q"
)
CSRF = "csrf-of-ada"


class Site:
    """`answers` maps an action (`runs.run`) to a function or a value, which tests may replace. `calls` has what was
    called: (name, arguments after service and person, keywords)."""

    def __init__(self, patch: pytest.MonkeyPatch, settings: Settings | None = None) -> None:
        self.reset()
        modules = {"runs": runs, "data": data, "people": people, "places": places, "recipes": recipes, "upkeep": upkeep}
        for name in self.answers:
            module, _, function = name.partition(".")
            patch.setattr(modules[module], function, self._action(name), raising=False)
        held = SimpleNamespace(reference="", mark="", finish=lambda status, run: None)
        patch.setattr(new, "reserve", lambda *_: held)
        patch.setattr(audit, "malformed", lambda service, who, *about: self.malformed.append(about[:2]))
        self.app = FastAPI()
        given = settings or Settings()
        self.app.state.service = SimpleNamespace(
            settings=given, clock=examples.NOW.timestamp, limiter=Limiter(given.limits)
        )
        self.app.include_router(router)
        self.app.dependency_overrides[principal] = self._principal
        self.app.add_api_route("/api/v1/runs/{run}/events", self._events)
        handle(self.app)
        self.app.add_middleware(Frame, settings=self.app.state.service.settings)

    def reset(self) -> None:
        self.calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []
        self.malformed: list[tuple[str, str]] = []
        """Method and path of what the audit gets as a form that is wrong."""
        self.who = ADA
        self.answers = _answers() | {"runs.run_page": self._run_page}
        self.stream: queue.Queue[str] = queue.Queue()
        self.final = True
        """Whether the pages of ended runs are."""

    async def _events(self) -> EventSourceResponse:
        """What tests put into `stream`, as events of that name."""
        source = self.stream

        async def found() -> AsyncIterator[dict[str, str]]:
            while True:
                try:
                    yield {"event": source.get_nowait(), "data": "{}"}
                except queue.Empty:
                    await asyncio.sleep(0.02)

        return EventSourceResponse(found())

    def _principal(self, request: Request) -> Principal:
        request.state.csrf = CSRF
        return self.who

    def _run_page(self, *_: Any, **__: Any) -> RunPage:
        run, funnel, log = (self._action(f"runs.{name}")(None, self.who) for name in ("run", "funnel", "logs"))
        return RunPage(run, funnel, log, self.who.role(1), self.final and State(run.state).ended and not run.stoppable)

    def _action(self, name: str) -> Any:
        def action(service: Any, who: Principal, *args: Any, **keywords: Any) -> Any:
            self.calls.append((name, args, keywords))
            answer = self.answers[name]
            if isinstance(answer, CurateError):
                raise answer
            return answer(*args, **keywords) if callable(answer) else answer

        return action


def _answers() -> dict[str, Any]:
    plain = {
        "places.workspaces": examples.workspaces(), "places.targets": examples.targets(),
        "places.registrations": examples.registrations(), "upkeep.storage": examples.storage(),
        "upkeep.gc": examples.freed(), "upkeep.pins": examples.pins(), "upkeep.tombstones": examples.tombstones(),
        "people.me": examples.me(), "people.users": examples.users(), "people.tokens": examples.tokens(),
        "people.quotas": examples.quotas(), "people.audit": Page(items=examples.audit(), next="c2"),
        "data.newest": "openclipart",
        "data.datasets": Page(items=[examples.dataset(), examples.dataset(tags=[])], next=None),
        "data.dataset": examples.dataset(), "data.tags": examples.tags(), "data.history": Page(items=examples.tags()),
        "data.lineage": examples.lineage(), "runs.runs": Page(items=examples.lines(), next="c2"),
        "runs.run": examples.run(), "runs.funnel": examples.funnel(),
        "runs.logs": Page(items=examples.log_lines(), next=None), "recipes.templates": [
            SimpleNamespace(name="quickstart", description="From a folder of images to a dataset", text=examples.RECIPE)
        ],
        "places.workspace": examples.workspaces()[0],
        "recipes.check": Checked(ok=True, mistakes=[], stages=examples.checked_stages()),
        "recipes.plan": Planned(ok=True, mistakes=[], stages=examples.checked_stages(), plan=examples.plan()),
        "runs.submit": examples.run(State.QUEUED),
    }  # fmt: skip
    writes = (
        "runs.stop runs.kill runs.resume runs.limit runs.change "
        "data.set_tag data.remove_tag upkeep.add_pin upkeep.remove_pin "
        "upkeep.add_tombstones places.add_workspace places.change_workspace places.remove_workspace places.add_target "
        "places.change_target places.remove_target places.check_target places.register places.unregister "
        "people.add_user people.set_disabled people.set_grant people.remove_grant people.make_token "
        "people.revoke_token people.set_quota"
    )
    return plain | dict.fromkeys(writes.split())
