"""Runs over HTTP: submit, look, list, request, and what the index and the workspace say about them."""

from __future__ import annotations

import time
from typing import Any

import pytest
from sqlalchemy import select

from curate.api import Workspace
from curate.service.auth.roles import Principal, Role
from curate.service.database.models import AuditEntry, Change, IndexedRun, Submission
from curate.service.places import workspaces
from curate.service.problems import ConflictProblem, UnavailableProblem
from curate.service.runs import control, views
from tests.service.records import done, progress, step
from tests.service.rest.site import RECIPE, Site

LEFT_OUT = {"workspace": "main", "recipe": RECIPE}


def audit(site: Site, action: str) -> list[AuditEntry]:
    with site.service.database.read() as session:
        chosen = select(AuditEntry).where(AuditEntry.action == action).order_by(AuditEntry.id.desc())
        return list(session.scalars(chosen))


def indexed(site: Site, **values: Any) -> str:
    """A run that was started without the service."""
    run = f"foreign-{time.monotonic_ns()}"
    given = {"state": "running", "started": site.service.clock(), "attempt_id": run} | values
    with site.service.database.write() as session:
        session.add(IndexedRun(**{"workspace_id": site.people.workspace.id, "id": run} | given))
    return run


# --- submit -----------------------------------------------------------------------------------------------------------


def test_a_run_is_queued_with_all_that_it_needs(site: Site) -> None:
    order = {
        "title": "Toys",
        "set": ["a=b"],
        "options": {"sample": 0.5},
        "drain_seconds": 5,
        "retries": 3,
        "priority": -1,
    }
    answer = site.ask("POST", "runs", json=LEFT_OUT | order)
    assert answer.status_code == 202
    found = answer.json()
    assert found == site.ask("GET", f"runs/{found['id']}").json()
    expected = {"state": "queued", "position": 1, "attempt": 1, "attempt_id": f"{found['id']}-1", "workspace": "main"}
    expected |= {"target": "local", "user": "operator", "title": "Toys", "set": ["a=b"], "recipe": RECIPE, "retries": 3}
    expected |= {"priority": -1, "drain_seconds": 5, "resumable": False, "stoppable": True, "submitted": True}
    assert {name: found[name] for name in expected} == expected
    assert found["started"] is None and found["created"]
    listed = {one["id"]: one for one in site.ask("GET", "runs").json()["items"]}
    assert listed[found["id"]]["started"] is None and listed[found["id"]]["created"] == found["created"]
    assert found["options"]["sample"] == 0.5 and found["options"]["failure_budget"] == 0.01
    assert [(stage["stage"], stage["state"], stage["inputs"]) for stage in found["stage_list"]] == [
        ("pool", "waiting", []), ("facts", "waiting", ["pool"]),
    ]  # fmt: skip
    assert [(one["before"], one["after"]) for one in found["changes"]] == [("", "queued")]
    assert (audit(site, "run.submit")[0].target, audit(site, "run.submit")[0].outcome) == (found["id"], "ok")
    with site.service.database.read() as session:
        assert session.get_one(Submission, found["id"]).resolved == RECIPE
    site.change(found["id"], state="done")


@pytest.mark.parametrize(
    ("order", "status", "code", "text"),
    [
        ({"workspace": "none"}, 404, "not_found", "workspace none: not found"),
        ({"target": "none"}, 404, "not_found", "target none: not found"),
        ({"priority": 1}, 403, "forbidden", "needs the role admin"),
        ({"options": {"retry": {"nope": []}}}, 422, "invalid", "'nope' is not a stage of the recipe"),
        ({"options": {"workers": 9}}, 422, "invalid", "Extra inputs are not permitted"),
        ({"recipe": ""}, 422, "invalid", "recipe"),
        ({"drain_seconds": 0}, 422, "invalid", "drain_seconds"),
    ],
)
def test_a_wrong_submission_is_rejected(site: Site, order: dict[str, Any], status: int, code: str, text: str) -> None:
    answer = site.ask("POST", "runs", json=LEFT_OUT | order)
    assert (answer.status_code, answer.json()["code"]) == (status, code)
    assert text in answer.json()["detail"]
    if status != 422:
        assert audit(site, "run.submit")[0].outcome == code


def test_submitting_needs_a_role(site: Site) -> None:
    seen = {}
    for who in (site.people.viewer, site.people.stranger, site.people.keeper, site.people.admin):
        answer = site.ask("POST", "runs", who, json=LEFT_OUT | {"priority": 1})
        seen[who.name] = answer.status_code
        if answer.status_code == 202:
            site.change(answer.json()["id"], state="done")
    assert seen == {"viewer": 403, "stranger": 404, "keeper": 202, "admin": 202}


def test_a_quota_bounds_the_queue(site: Site) -> None:
    first = site.submit()
    site.ask("PUT", "users/operator/quota", site.people.admin, json={"queued": 1})
    full = site.ask("POST", "runs", json=LEFT_OUT)
    assert (full.status_code, full.json()["code"], full.headers["retry-after"]) == (429, "too_many", "30")
    assert "your quota is 1" in full.json()["detail"]
    site.change(first, state="stopped")
    second = site.submit()
    assert site.ask("POST", f"runs/{first}/resume").status_code == 429
    site.change(second, state="done")
    site.ask("PUT", "users/operator/quota", site.people.admin, json={})


# --- look -------------------------------------------------------------------------------------------------------------


def test_a_running_run_shows_its_stages_live(site: Site) -> None:
    run = site.submit()
    record = site.begin(run).events(
        {"event": "build", "stage": "facts"}, done("pool"), step("facts", 4), progress("facts", 5)
    )
    site.change(run, state="running", started=site.service.clock() - 10)
    found = site.ask("GET", f"runs/{run}").json()
    assert [(one["stage"], one["contract"], one["state"], one["rows"]) for one in found["stage_list"]] == [
        ("pool", "source", "done", 10), ("facts", "map", "running", 5),
    ]  # fmt: skip
    assert found["stage_list"][1]["lanes"] == [
        {"lane": "cpu", "rows": 5, "rows_per_s": 2.0, "bytes_per_s": 0.0, "busy": 0.5}
    ]
    assert found["stage_list"][1]["inputs"] == ["pool"] and (found["stages"], found["stages_done"]) == (2, 1)
    assert 10 <= found["seconds"] < 600
    [line] = site.ask("GET", f"runs/{run}/funnel").json()
    assert line == {
        "stage": "pool", "op": "toy.pool", "before": 10, "rejected": {"small": 2}, "unusable": {}, "error": {},
        "kept": 0, "after": 8, "children": None, "items": {}, "found": None, "skipped": {},
        "seconds": None,
    }  # fmt: skip
    assert site.ask("GET", f"runs/{run}/ledger").json()["pool"]["after"] == 8

    base = "datasets/toys/f00"
    outputs = {"pool": {"base": "pools/p"}, "facts": {"base": base}}
    record.result(outputs=outputs, ledger={}, reused={"pool": True})
    site.change(run, state="done", ended=site.service.clock())
    ended = site.ask("GET", f"runs/{run}").json()
    assert (ended["state"], ended["resumable"], ended["stoppable"]) == ("done", False, False)
    assert (ended["datasets"], [one["state"] for one in ended["stage_list"]]) == ([base], ["reused", "done"])


def test_a_failed_stage_has_a_remedy(site: Site) -> None:
    run = site.submit()
    site.begin(run).events({"event": "build", "stage": "facts"}, done("pool")).result(
        "facts: worker 3: out of memory", outputs={"pool": {"base": "pools/p"}}
    )
    site.change(run, state="failed", reason="facts: worker 3: out of memory", ended=1.0)
    found = site.ask("GET", f"runs/{run}").json()
    assert [(one["state"], bool(one["remedy"])) for one in found["stage_list"]] == [
        ("done", False),
        ("unfinished", True),
    ]
    assert "batch_size" in found["stage_list"][1]["remedy"] and found["resumable"]


def test_a_run_is_shown_while_its_workspace_does_not_answer(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    run = site.submit()
    site.begin(run)
    site.change(run, state="running", started=1.0)

    def broken(*_: Any) -> Any:
        raise OSError("gone")

    with monkeypatch.context() as patch:
        patch.setattr(Workspace, "has", broken)
        found = site.ask("GET", f"runs/{run}").json()
        assert (found["state"], [one["state"] for one in found["stage_list"]]) == ("running", ["waiting", "waiting"])
        answer = site.ask("GET", f"runs/{run}/funnel")
        assert (answer.status_code, answer.json()["code"]) == (503, "unavailable")
    site.change(run, state="done")


def test_an_ended_run_is_final_once_what_is_known_tells_its_end(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    run = site.submit()
    record = site.begin(run).events({"event": "build", "stage": "facts"}, done("pool"))
    site.change(run, state="running", started=1.0)
    watch, place = site.service.watch, site.people.workspace.id
    who = Principal(user_id=1, user="viewer", token_id="1", roles={place: Role.VIEWER})
    before = views.look(site.service, who, run)
    assert before.known is not None and not before.final
    record.result(outputs={"pool": {"base": "pools/p"}, "facts": {"base": "datasets/toys/f00"}}, ledger={})
    site.change(run, state="done", ended=2.0)
    with monkeypatch.context() as patch:  # another viewer reads it at this moment
        patch.setattr(watch, "known", lambda *_: before.known)
        assert not views.look(site.service, who, run).final
        patch.setattr(watch, "known", _unavailable)
        assert not views.look(site.service, who, run).final
    assert views.look(site.service, who, run).final


def _unavailable(*_: Any) -> Any:
    raise UnavailableProblem("its workspace does not answer")


def test_counts_come_with_the_first_stage(site: Site) -> None:
    run = site.submit()
    for what in ("funnel", "ledger"):
        answer = site.ask("GET", f"runs/{run}/{what}")
        assert (answer.status_code, answer.json()["code"]) == (409, "conflict")
    site.change(run, state="done")


def test_an_id_in_two_workspaces_needs_the_workspace(site: Site, tmp_path: Any) -> None:
    admin, name = site.people.admin, "twin"
    site.ask("POST", "workspaces", admin, json={"name": name, "url": str(tmp_path / "twin"), "target": "local"})
    with site.service.database.read() as session:
        there = workspaces.workspace_row(session, admin.principal, name, Role.VIEWER).id
    run = indexed(site, state="done")
    indexed(site, workspace_id=there, id=run, attempt_id=run)
    answer = site.ask("GET", f"runs/{run}", admin)
    assert (answer.status_code, answer.json()["code"]) == (409, "conflict")
    assert "main, twin" in answer.json()["detail"] and "?workspace=" in answer.json()["detail"]
    assert site.ask("GET", f"runs/{run}?workspace=twin", admin).json()["workspace"] == "twin"
    assert site.ask("GET", f"runs/{run}").json()["workspace"] == "main", "the operator sees one of them only"
    assert site.ask("GET", f"runs/{run}?workspace=twin").status_code == 404


# --- list -------------------------------------------------------------------------------------------------------------


def test_pages_of_runs_are_complete_and_in_order(site: Site) -> None:
    made = [indexed(site, title="paged", started=float(10 + number // 3)) for number in range(10)]
    seen, cursor, sizes = list[str](), "", []
    while True:
        page = site.ask("GET", f"runs?query=paged&limit=4&cursor={cursor}").json()
        seen += [one["id"] for one in page["items"]]
        sizes.append(len(page["items"]))
        cursor = page["next"]
        if cursor is None:
            break
    assert sizes == [4, 4, 2] and sorted(seen) == sorted(made)
    assert seen == sorted(made, key=lambda run: (made.index(run) // 3, run), reverse=True)


def test_filters(site: Site) -> None:
    first = indexed(site, title="50% of_it", user="ann", state="failed")
    second = indexed(site, title="500 of it", user="bob", state="done")

    def ids(query: str) -> set[str]:
        return {one["id"] for one in site.ask("GET", f"runs?limit=200&{query}").json()["items"]} & {first, second}

    assert ids("") == {first, second} == ids("workspace=main")
    assert ids("user=ann") == {first} and ids("state=done") == {second}
    assert ids("query=50%25") == {first} and ids("query=OF_IT") == {first} and ids(f"query={second}") == {second}
    assert ids("query=' OR 1=1 --") == set() and ids("user=' OR 1=1 --") == set()
    assert site.ask("GET", "runs?state=nope").status_code == 422
    assert site.ask("GET", "runs?cursor=nope").json()["code"] == "invalid"
    assert site.ask("GET", "runs?workspace=none").status_code == 404


def test_waiting_runs_have_a_position(site: Site) -> None:
    runs = [site.submit(title="inline") for _ in range(3)]
    found = site.ask("GET", "runs?query=inline").json()["items"]
    assert {one["id"]: one["position"] for one in found} == dict(zip(runs, (1, 2, 3), strict=True))
    site.change(runs[2], priority=1)
    assert [site.ask("GET", f"runs/{run}").json()["position"] for run in runs] == [2, 3, 1]
    for run in runs:
        site.change(run, state="done")
    assert site.ask("GET", f"runs/{runs[0]}").json()["position"] is None


# --- stop, kill, resume -----------------------------------------------------------------------------------------------


def test_stop_then_kill_then_nothing_more(site: Site) -> None:
    run = site.submit()
    site.change(run, state="running")
    stopped = site.ask("POST", f"runs/{run}/stop")
    assert (stopped.status_code, stopped.json()["request"], stopped.json()["requested_by"]) == (202, "stop", "operator")
    version = stopped.json()["version"]
    assert site.ask("POST", f"runs/{run}/stop").json()["version"] == version, "repeating it changes nothing"
    assert site.ask("POST", f"runs/{run}/kill").json()["request"] == "kill"
    assert site.ask("POST", f"runs/{run}/stop").json()["request"] == "kill", "a kill is not taken back"
    site.change(run, state="killed", request="kill")
    over = site.ask("POST", f"runs/{run}/stop")
    assert (over.status_code, over.json()["code"]) == (409, "conflict") and "already killed" in over.json()["detail"]
    assert [entry.outcome for entry in audit(site, "run.stop")[:4]] == ["conflict", "ok", "ok", "ok"]


def test_a_lost_run_that_will_be_resubmitted_can_be_stopped(site: Site) -> None:
    run = site.submit(retries=1)
    site.change(run, state="lost", lost=1)
    found = site.ask("GET", f"runs/{run}").json()
    assert (found["stoppable"], found["resumable"]) == (True, False)
    assert site.ask("POST", f"runs/{run}/resume").status_code == 409
    assert site.ask("POST", f"runs/{run}/stop").json()["request"] == "stop"
    site.change(run, lost=2, request="")
    assert site.ask("POST", f"runs/{run}/stop").status_code == 409


def test_the_priority_of_a_queued_run_can_be_changed(site: Site) -> None:
    run = site.submit()
    tag = site.ask("GET", f"runs/{run}").headers["etag"]
    changed = site.ask("PATCH", f"runs/{run}", json={"priority": -5}, headers={"If-Match": tag})
    assert (changed.status_code, changed.json()["priority"]) == (200, -5)
    stale = site.ask("PATCH", f"runs/{run}", json={"priority": -6}, headers={"If-Match": tag})
    assert (stale.status_code, stale.json()["code"]) == (412, "changed")
    assert site.ask("PATCH", f"runs/{run}", json={"priority": 5}).status_code == 403
    assert site.ask("PATCH", f"runs/{run}", site.people.admin, json={"priority": 5}).json()["priority"] == 5
    assert site.ask("PATCH", f"runs/{run}", json={"priority": 0}).status_code == 403, "an admin set it"
    assert site.ask("PATCH", f"runs/{run}", json={"priority": 1000}).status_code == 422
    site.change(run, state="running")
    late = site.ask("PATCH", f"runs/{run}", site.people.admin, json={"priority": 1})
    assert late.json()["detail"] == f"run {run}: is running; only the priority of a queued run can be changed"


def test_resume_makes_the_next_attempt(site: Site) -> None:
    run = site.submit()
    site.change(run, state="failed", reason="it broke", request="stop", lost=1, ended=5.0, alert="stalled", started=1.0)
    again = site.ask("POST", f"runs/{run}/resume")
    assert again.status_code == 202
    found = again.json()
    expected = {"state": "queued", "attempt": 2, "attempt_id": f"{run}-2", "request": "", "reason": "", "ended": None}
    assert {name: found[name] for name in expected} == expected and found["alert"] == ""
    with site.service.database.read() as session:
        changes = session.scalars(select(Change).where(Change.submission_id == run).order_by(Change.id)).all()
        line = session.get_one(IndexedRun, (site.people.workspace.id, run))
    assert [(one.attempt, one.before, one.after) for one in changes][-1] == (2, "failed", "queued")
    assert (line.state, line.attempt_id, line.ended) == ("queued", f"{run}-2", None)
    twice = site.ask("POST", f"runs/{run}/resume")
    assert (twice.status_code, twice.json()["code"]) == (409, "conflict")
    site.change(run, state="done")
    assert "submit its recipe again" in site.ask("POST", f"runs/{run}/resume").json()["detail"]


def test_a_request_loses_against_a_newer_version(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    run = site.submit()
    with site.service.database.read() as session:
        old = session.get_one(Submission, run)
    site.change(run, state="running")
    with pytest.raises(ConflictProblem, match="has just changed"), site.service.database.write() as session:
        control.change_row(session, old, {"request": "stop"})
    site.change(run, state="done")


def test_runs_that_were_started_without_the_service(site: Site) -> None:
    run = indexed(site)
    assert site.ask("POST", f"runs/{run}/stop", site.people.viewer).status_code == 403
    assert site.ask("POST", f"runs/{run}/stop").status_code == 202
    assert site.ask("POST", f"runs/{run}/kill").status_code == 202
    storage = site.begin("other").storage
    assert storage.read_json(f"runs/{run}/stop.json")["user"] == "operator"
    assert storage.exists(f"runs/{run}/kill.json")
    assert "started without the service" in site.ask("POST", f"runs/{run}/resume").json()["detail"]
    over = indexed(site, state="done")
    assert site.ask("POST", f"runs/{over}/stop").status_code == 409


def test_limits_of_a_running_run(site: Site) -> None:
    run = site.submit()
    waiting = site.ask("POST", f"runs/{run}/limit", json={"requests_per_second": 5})
    assert (waiting.status_code, waiting.json()["code"]) == (409, "conflict")
    site.begin(run)
    site.change(run, state="running")
    assert site.ask("POST", f"runs/{run}/limit", json={}).status_code == 422
    assert site.ask("POST", f"runs/{run}/limit", json={"requests_per_second": 0}).status_code == 422
    site.change(run, state="done")
