"""Every page over examples: well-formed, escaped, small, usable without JavaScript."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi.testclient import TestClient

from curate.service.auth.roles import Principal, Role
from curate.service.problems import ForbiddenProblem, NotFoundProblem, UnavailableProblem
from curate.service.runs.shapes import Checked, FunnelLine, LaneShape, Mistake, StageShape
from curate.service.shapes import Page
from curate.service.states import State
from tests.service.pages import examples
from tests.service.pages.markup import Markup
from tests.service.pages.site import Site

PATHS = (
    "/login", "/runs", "/runs/r-1", "/new?template=quickstart", "/new?run=r-1", "/datasets",
    "/datasets/openclipart/quickstart/9f2c", "/workspaces", "/workspaces/openclipart",
    "/workspaces/openclipart?storage=count", "/targets", "/people", "/people/ada", "/people/grace", "/audit",
)  # fmt: skip
FRAGMENTS = (
    "/runs/fragment", "/runs/r-1/fragment/progress", "/runs/r-1/fragment/funnel", "/runs/r-1/fragment/log",
)  # fmt: skip
MOST_BYTES = 300_000
HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=alert(1)>{{ 7*7 }}\x00\x1b[31m"


@pytest.mark.parametrize("path", [*PATHS, *FRAGMENTS, "/nowhere"])
def test_a_page_is_well_formed(client: TestClient, path: str) -> None:
    answer = client.get(path)
    assert answer.status_code == (404 if path == "/nowhere" else 200)
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert "default-src 'self'" in answer.headers["content-security-policy"]
    assert answer.headers["cache-control"] == "no-store"
    problems = Markup(answer.text).problems
    assert [one for one in problems if path not in FRAGMENTS or "leads nowhere" not in one] == []
    assert len(answer.content) < MOST_BYTES


@pytest.mark.parametrize("state", State)
def test_a_run_in_each_state(site: Site, client: TestClient, state: State) -> None:
    site.answers["runs.run"] = examples.run(state)
    text = client.get("/runs/r-1").text
    assert Markup(text).problems == []
    assert ("Stop the run" in text) == (not state.ended)
    assert ("Resume the run" in text) == (state.ended and state is not State.DONE)
    assert ('data-events="/api/v1/runs/' in text) == (not state.ended)


def test_the_page_of_a_lost_run_stays_live_until_it_is_resubmitted(site: Site, client: TestClient) -> None:
    site.answers["runs.run"] = examples.run(State.LOST, stoppable=True, resumable=False)
    text = client.get("/runs/r-1").text
    assert all(f'data-live="/runs/{examples.RUN}/fragment/{name}' in text for name in ("progress", "funnel", "log"))
    assert 'data-events="/api/v1/runs/' in text


def test_empty_lists_say_what_to_do_next(site: Site, client: TestClient) -> None:
    empty: Page[Any] = Page(items=[])
    site.answers |= {
        "runs.runs": empty, "data.datasets": empty, "people.audit": empty, "places.targets": [],
        "places.registrations": [], "upkeep.pins": [], "data.tags": [], "data.history": Page(items=[]),
    }  # fmt: skip
    assert "No runs yet" in client.get("/runs").text
    assert "No run matches" in client.get("/runs?state=failed").text
    assert "No datasets in openclipart yet" in client.get("/datasets").text
    assert "No target yet" in client.get("/targets").text
    assert "Nothing has been written yet" in client.get("/audit").text
    site.answers["places.workspaces"] = []
    for path in ("/runs", "/datasets", "/new"):
        text = client.get(path).text
        assert "Add a workspace" in text and Markup(text).problems == []


def many(name: str, count: int, under_way: int) -> tuple[list[StageShape], list[FunnelLine]]:
    """Stages of a large run, and its funnel, in which every other stage rejects rows."""
    names = [f"{name}_{place:03}" for place in range(count)]
    lanes = [LaneShape(lane="gpu", rows=9_120, rows_per_s=412.5, bytes_per_s=0.0, busy=0.94)] * 2
    found, lines = [], []
    for place, one in enumerate(names):
        inputs, rejected = tuple(names[max(0, place - 2) : place]), {"too_small": 1_000, "too_long": 20}
        running = {"state": "running", "left_seconds": 5.0, "rows": 9_120, "lanes": lanes}
        found.append(examples.stage(one, "caption.generate", inputs, {}, **(running if place < under_way else {})))
        rejected = rejected if place % 2 else {}
        lost = sum(rejected.values())
        lines.append(
            FunnelLine(
                stage=one, op="filter.where", before=9_000, rejected=rejected, unusable={}, error={}, after=9_000 - lost
            )
        )
    return found, lines


def test_long_funnels_show_the_stages_that_lost_rows(site: Site, client: TestClient) -> None:
    _, lines = many("stage", 100, 0)
    site.answers["runs.funnel"] = lines
    text = client.get("/runs/r-1/fragment/funnel").text
    assert text.count("<tr>") == 1 + 51 and "49 stages that lost no row are left out" in text
    site.answers["runs.funnel"] = lines[:60]
    assert client.get("/runs/r-1/fragment/funnel").text.count("<tr>") == 1 + 60


def test_what_others_wrote_is_escaped(site: Site, client: TestClient) -> None:
    stage = examples.stage(HOSTILE, HOSTILE, (), {}, "running", text=HOSTILE, remedy=HOSTILE)
    run = examples.run(
        title=HOSTILE, user=HOSTILE, reason=HOSTILE, alert=HOSTILE, recipe=HOSTILE, set=[HOSTILE], stage_list=[stage],
        options={HOSTILE: HOSTILE}, target=HOSTILE, requested_by=HOSTILE, request="stop", datasets=[HOSTILE],
        reports=[HOSTILE],
    )  # fmt: skip
    lost = {HOSTILE: 1}
    line = FunnelLine(stage=HOSTILE, op=HOSTILE, before=3, rejected=lost, unusable=lost, error=lost, after=0)
    log = examples.log_lines(1)[0].model_copy(update={"message": HOSTILE, "traceback": HOSTILE, "stage": HOSTILE})
    data = examples.dataset(name=HOSTILE, tags=[HOSTILE], base=f"datasets/x/{HOSTILE}", url=HOSTILE, run=HOSTILE)
    user = examples.users()[1].model_copy(update={"name": HOSTILE})
    entry = examples.audit()[0].model_copy(update={"target": HOSTILE, "detail": {HOSTILE: HOSTILE}})
    checked = Checked(ok=False, mistakes=[Mistake(code="recipe", text=HOSTILE, stage=HOSTILE, line=1)], stages=[])
    site.answers |= {
        "runs.run": run, "runs.funnel": [line], "runs.logs": Page(items=[log]), "recipes.check": checked,
        "runs.runs": Page(items=[examples.line(title=HOSTILE, user=HOSTILE, reason=HOSTILE, alert=HOSTILE)]),
        "data.dataset": data, "data.datasets": Page(items=[data]), "people.users": [user],
        "people.audit": Page(items=[entry]),
    }  # fmt: skip
    pages = [client.get(path).text for path in (*PATHS[:3], "/datasets", PATHS[6], "/people", "/audit")]
    fields = {"csrf": "c", "recipe": HOSTILE, "workspace": "openclipart", "do": "check", "title": HOSTILE}
    pages.append(client.post("/new", data=fields).text)
    assert all("Request <code>" not in text for text in pages)  # none is the page of an error
    for text in pages:
        assert "alert(1)</script>" not in text and "<img" not in text and "{{ 49 }}" not in text
        assert not {"\x00", "\x1b"} & set(text)
        assert Markup(text).problems == []


def test_a_run_of_200_stages_and_full_lists_are_small(site: Site, client: TestClient) -> None:
    changes = examples.run().changes * 50
    site.answers |= {
        "runs.logs": Page(items=examples.log_lines(100)), "data.datasets": Page(items=[examples.dataset()] * 50),
        "people.audit": Page(items=examples.audit()[:1] * 50),
        "runs.runs": Page(items=examples.lines()[:1] * 50, next="c" * 100),
    }  # fmt: skip
    for name, under_way in (("caption_stage", 20), ("a_long_name_of_a_caption_stage", 200)):
        stages, site.answers["runs.funnel"] = many(name, 200, under_way)
        site.answers["runs.run"] = examples.run(stage_list=stages, recipe="# a line\n" * 25_000, changes=changes)
        answer = client.get("/runs/r-1")
        assert answer.status_code == 200 and len(answer.content) < MOST_BYTES
        assert Markup(answer.text).problems == []
        assert ('class="box"' in answer.text) == (under_way == 20) and f"{name}_199" in answer.text
    for path in ("/runs", "/datasets", "/audit"):
        answer = client.get(path)
        assert answer.status_code == 200 and len(answer.content) < MOST_BYTES
    assert client.get("/runs/r-1/recipe").text.count("\n") == 25_000


def test_a_viewer_gets_no_buttons(site: Site, client: TestClient) -> None:
    site.who = Principal(user_id=2, user="grace", token_id="2", roles={1: Role.VIEWER})
    site.answers |= {
        "places.workspaces": examples.workspaces()[1:], "places.workspace": examples.workspaces()[1],
        "runs.run": examples.run(workspace="laion-study"),
    }  # fmt: skip
    for path in ("/runs/r-1", PATHS[6], "/workspaces/laion-study", "/targets"):
        actions = [form["action"] for form in Markup(client.get(path).text).forms if form["method"] == "post"]
        assert actions == ["/logout"]
    assert "role operator" in client.get("/new").text


@pytest.mark.parametrize(
    ("problem", "status", "words"),
    [
        (NotFoundProblem("run r-1: not found"), 404, "Not Found"),
        (ForbiddenProblem("workspace x: this needs the role admin"), 403, "Ask an admin for a role"),
        (UnavailableProblem("the database does not answer"), 503, "Wait a moment"),
    ],
)
def test_an_error_is_a_page_in_the_same_look(
    site: Site, client: TestClient, problem: Exception, status: int, words: str
) -> None:
    site.answers["runs.run"] = problem
    answer = client.get("/runs/r-1")
    assert answer.status_code == status and words in answer.text and "Workspaces</a>" in answer.text
    assert Markup(answer.text).problems == []


def test_a_bug_is_a_page_that_tells_nothing(site: Site, client: TestClient) -> None:
    site.answers["runs.run"] = lambda *_, **__: 1 / 0
    answer = client.get("/runs/r-1")
    assert answer.status_code == 500 and "ZeroDivisionError" not in answer.text and "division" not in answer.text
    assert "Request" in answer.text and Markup(answer.text).problems == []


def test_static_files_are_kept_until_they_change(client: TestClient) -> None:
    page = client.get("/runs").text
    for name, kind in (("service.css", "text/css"), ("service.js", "text/javascript")):
        start = page.index(f"/static/{name}")
        answer = client.get(page[start : page.index('"', start)])
        assert answer.headers["content-type"].startswith(kind) and "immutable" in answer.headers["cache-control"]
        assert client.get(f"/static/{name}").headers["cache-control"] == "no-cache"
    assert client.get("/static/icon.svg").headers["content-type"] == "image/svg+xml"
    for path in ("/static/../kit.py", "/static/kit.py", "/static/%2e%2e/kit.py"):
        assert client.get(path).status_code == 404


def test_times_are_utc_and_machine_readable(client: TestClient) -> None:
    assert (
        '<time datetime="2026-11-23T09:12:00Z" data-form="minute">23 Nov 2026, 09:12</time>'
        in client.get("/runs/r-1").text
    )
