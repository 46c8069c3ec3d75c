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
from curate.service.auth import audit
from curate.service.auth.dependency import principal
from curate.service.auth.limiting import Limiter
from curate.service.auth.roles import Principal, Role
from curate.service.datasets import datasets, tags, upkeep
from curate.service.pages import datasets as dataset_pages
from curate.service.pages import new, router
from curate.service.pages import people as people_pages
from curate.service.pages import places as place_pages
from curate.service.pages import runs as run_pages
from curate.service.pages.data import contents
from curate.service.people import quotas, tokens, users
from curate.service.places import registrations, targets, workspaces
from curate.service.problems import NotFoundProblem
from curate.service.rest.errors import handle
from curate.service.rest.frame import Frame
from curate.service.runs import control, recipes, submit, views
from curate.service.runs.shapes import Checked, Planned
from curate.service.runs.views import RunPage
from curate.service.settings import Settings
from curate.service.shapes import Page
from curate.service.states import State
from tests.service.pages import examples

ADA = Principal(
    user_id=1, user="ada", token_id="1a2b3c4d", everywhere=Role.ADMIN, token_role=Role.ADMIN, request_id="q"
)
CSRF = "csrf-of-ada"
ACTIONS = {
    "runs.runs": views.list_runs, "runs.run": views.get_run, "runs.run_page": views.run_page,
    "runs.submit": submit.submit, "runs.resume": submit.resume_run, "runs.stop": control.stop_run,
    "runs.kill": control.kill_run, "runs.limit": control.limit_run, "runs.change": control.change_run,
    "recipes.templates": recipes.list_recipes, "recipes.check": recipes.check_recipe,
    "recipes.plan": recipes.plan_recipe, "data.newest": datasets.newest, "data.datasets": datasets.list_datasets,
    "data.dataset": datasets.get_dataset, "data.lineage": datasets.get_lineage, "data.tags": tags.tags,
    "data.contents": datasets.get_contents, "data.of_run": contents.looked,
    "data.history": tags.get_tag_history, "data.set_tag": tags.set_tag, "data.remove_tag": tags.remove_tag,
    "upkeep.storage": upkeep.get_storage, "upkeep.gc": upkeep.collect_garbage, "upkeep.pins": upkeep.pins,
    "upkeep.tombstones": upkeep.get_tombstones, "upkeep.add_pin": upkeep.add_pin,
    "upkeep.remove_pin": upkeep.remove_pin, "upkeep.add_tombstones": upkeep.add_tombstones,
    "places.workspaces": workspaces.workspaces, "places.workspace": workspaces.get_workspace,
    "places.add_workspace": workspaces.add_workspace, "places.change_workspace": workspaces.change_workspace,
    "places.remove_workspace": workspaces.remove_workspace, "places.targets": targets.targets,
    "places.add_target": targets.add_target, "places.change_target": targets.change_target,
    "places.remove_target": targets.remove_target, "places.check_target": targets.check_target,
    "places.registrations": registrations.registrations, "places.register": registrations.register,
    "places.unregister": registrations.unregister, "people.me": users.get_me, "people.users": users.users,
    "people.add_user": users.add_user, "people.change_user": users.change_user, "people.set_grant": users.set_grant,
    "people.remove_grant": users.remove_grant, "people.tokens": tokens.tokens, "people.make_token": tokens.make_token,
    "people.revoke_token": tokens.revoke_token, "people.quotas": quotas.list_quotas,
    "people.set_quota": quotas.set_quota, "people.set_default_quota": quotas.set_default_quota,
    "people.audit": quotas.list_audit,
}  # fmt: skip
"""What the pages call."""
CALLERS = (
    new, contents, dataset_pages, people_pages, place_pages, run_pages, control, datasets, quotas, registrations, tags,
    targets, tokens, upkeep, users, views, workspaces,
)  # fmt: skip


class Site:
    """`answers` maps an action (`runs.run`) to a function or a value, which tests may replace. `calls` has what was
    called: (name, arguments after service and person, keywords)."""

    def __init__(self, patch: pytest.MonkeyPatch, settings: Settings | None = None) -> None:
        self.reset()
        for name, function in ACTIONS.items():
            for module in CALLERS:
                for own in [own for own, value in vars(module).items() if value is function]:
                    patch.setattr(module, own, self._action(name))
        patch.setattr(audit, "malformed", lambda service, who, *about: self.malformed.append(about[:2]))
        patch.setattr("curate.service.pages.runs._tabs", lambda visit, run: [])  # of runs with records
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
        "upkeep.add_tombstones": examples.tombstones(),
        "people.me": examples.me(), "people.users": examples.users(), "people.tokens": examples.tokens(),
        "people.quotas": examples.quotas(), "people.audit": Page(items=examples.audit(), next="c2"),
        "data.newest": "openclipart",
        "data.datasets": Page(items=[examples.dataset(), examples.dataset(tags=[])], next=None),
        "data.dataset": examples.dataset(), "data.tags": examples.tags(), "data.history": Page(items=examples.tags()),
        "data.contents": examples.contents(), "data.of_run": NotFoundProblem("run r-1: not found"),
        "data.lineage": examples.lineage(), "runs.runs": Page(items=examples.lines(), next="c2"),
        "runs.run": examples.run(), "runs.funnel": examples.funnel(),
        "runs.logs": Page(items=examples.log_lines(), next=None), "recipes.templates": [
            SimpleNamespace(name="quickstart", description="From a folder of images to a dataset", text=examples.RECIPE)
        ],
        "places.workspace": examples.workspaces()[0],
        "recipes.check": Checked(ok=True, mistakes=[], stages=examples.checked_stages()),
        "recipes.plan": Planned(ok=True, mistakes=[], stages=examples.checked_stages(), plan=examples.plan()),
        "runs.submit": (examples.run(State.QUEUED), True),
    }  # fmt: skip
    writes = (
        "runs.stop runs.kill runs.resume runs.limit runs.change "
        "data.set_tag data.remove_tag upkeep.add_pin upkeep.remove_pin "
        "places.add_workspace places.change_workspace places.remove_workspace places.add_target "
        "places.change_target places.remove_target places.check_target places.register places.unregister "
        "people.add_user people.change_user people.set_grant people.remove_grant people.make_token "
        "people.revoke_token people.set_quota people.set_default_quota"
    )
    return plain | dict.fromkeys(writes.split())
