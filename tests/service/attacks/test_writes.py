"""Every write is in the audit: when it is made, and when it is rejected. The walk takes the application's routes."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi.routing import iter_route_contexts
from sqlalchemy import event, text

from curate.service.pages import router
from tests.service.attacks.place import Place
from tests.service.rest.test_routes import BODIES, NAMES

READS = {"POST recipes/check", "POST recipes/plan", "POST targets/{target}/check"}
"""Ask for something, and change nothing."""
RECIPE = "stages:\n  pool: {op: acquire.folder, namespace: a, path: photos}\n"
FORMS: dict[str, tuple[dict[str, str], str]] = {
    "/people": ({"name": "eve"}, "user.add"),
    "/people/operator/tokens": ({}, "token.make"),
    "/people/operator/tokens/{token}/revoke": ({}, "token.revoke"),
    "/people/operator/grants": ({"workspace": "main", "role": "admin"}, "grant.set"),
    "/people/operator/grants/remove": ({"workspace": "main"}, "grant.remove"),
    "/people/operator/disabled": ({"disabled": "yes"}, "user.disable"),
    "/people/operator/quota": ({"queued": "1"}, "quota.set"),
    "/people/-/quota": ({"queued": "1"}, "quota.set"),
    "/workspaces": ({"name": "w", "url": "/nowhere"}, "workspace.add"),
    "/workspaces/-/registrations": ({"kind": "root", "name": "r", "value": "/r"}, "registration.add"),
    "/workspaces/-/registrations/remove": ({"kind": "root", "name": "photos"}, "registration.remove"),
    "/workspaces/main/target": ({"target": "local"}, "workspace.change"),
    "/workspaces/main/remove": ({}, "workspace.remove"),
    "/workspaces/main/registrations": ({"kind": "root", "name": "r", "value": "/r"}, "registration.add"),
    "/workspaces/main/registrations/remove": ({"kind": "root", "name": "r"}, "registration.remove"),
    "/workspaces/main/pins": ({"name": "p", "run": "r", "stage": "s"}, "pin.add"),
    "/workspaces/main/pins/remove": ({"name": "p"}, "pin.remove"),
    "/workspaces/main/tombstones": ({"entries": "0" * 32, "why": "x"}, "tombstone.add"),
    "/workspaces/main/gc": ({"do": "delete"}, "workspace.gc"),
    "/targets": ({"name": "t", "address": "http://t:1", "max_runs": "1"}, "target.add"),
    "/targets/local": ({"max_runs": "9"}, "target.change"),
    "/targets/local/remove": ({}, "target.remove"),
    "/datasets/main/toys/ab/tags": ({"tag": "good"}, "tag.set"),
    "/datasets/main/toys/ab/tags/remove": ({"tag": "good"}, "tag.remove"),
    "/new": ({"do": "submit", "workspace": "main", "recipe": RECIPE}, "run.submit"),
    "/runs/{run}/stop": ({}, "run.stop"),
    "/runs/{run}/kill": ({}, "run.kill"),
    "/runs/{run}/resume": ({}, "run.resume"),
    "/runs/{run}/limit": ({"max_tokens": "1"}, "run.limit"),
    "/runs/{run}/priority": ({"priority": "-1"}, "run.change"),
    "/runs/{run}/exclude": ({"key": "0" * 32, "why": "x"}, "tombstone.add"),
}


@pytest.fixture(scope="module")
def run(target: Place) -> str:
    answer = target.ask("POST", "runs", target.people.operator, json={"workspace": "main", "recipe": RECIPE})
    found: str = answer.json()["id"]
    return found


def test_every_form_is_here() -> None:
    given = {"run_id": "{run}", "token_id": "{token}", "workspace": "main", "fingerprint": "ab", "verb": "stop"}
    known = set(FORMS) | {"/login", "/logout", "/targets/local/check"}
    names = {"people": "operator", "workspaces": "main", "targets": "local", "datasets": "toys"}
    for route in iter_route_contexts(router.routes):
        if "POST" in (route.methods or ()):
            assert route.path is not None
            name = names.get(route.path.split("/")[1], "")
            assert route.path.format(**given, name=name) in known, route.path


def entries(target: Place, after: int) -> list[tuple[str, str, str]]:
    return [(one.user, one.action, one.outcome) for one in target.audit(after)]


@pytest.mark.parametrize("name", sorted(BODIES.keys() - READS))
def test_a_rejected_write_is_in_the_audit(target: Place, run: str, name: str) -> None:
    method, path = name.split()
    for who in (target.people.viewer, target.people.stranger):
        last = target.audit()[-1].id
        answer = target.ask(method, path.format(**NAMES, run=run, run_id=run), who, json=BODIES[name])
        assert answer.status_code in (403, 404)
        [(user, _, outcome)] = entries(target, last)
        assert (user, outcome) == (who.name, answer.json()["code"])


@pytest.mark.parametrize("path", FORMS)
def test_a_rejected_form_is_in_the_audit(target: Place, run: str, path: str) -> None:
    fields, action = FORMS[path]
    for who in (target.people.viewer, target.people.stranger):
        before, last = target.rows(), target.audit()[-1].id
        answer = target.ask("POST", path.format(run=run, token="0" * 8), who, data=fields)
        assert answer.status_code in (403, 404)
        [entry] = entries(target, last)
        assert entry in [(who.name, action, "forbidden"), (who.name, action, "not_found")]
        assert target.rows() == before


MADE: list[tuple[str, str, Any, str]] = [
    ("POST", "users", {"name": "eve"}, "user.add"),
    ("PUT", "users/eve/grants", {"workspace": "main", "role": "viewer"}, "grant.set"),
    ("POST", "users/eve/tokens", {}, "token.make"),
    ("DELETE", "tokens/{token}", None, "token.revoke"),
    ("DELETE", "users/eve/grants?workspace=main", None, "grant.remove"),
    ("PATCH", "users/eve", {"disabled": True}, "user.disable"),
    ("PATCH", "users/eve", {"disabled": False}, "user.enable"),
    ("PUT", "users/eve/quota", {"queued": 1}, "quota.set"),
    ("PUT", "quotas", {}, "quota.set"),
    ("POST", "targets", {"name": "t", "address": "http://t:1"}, "target.add"),
    ("PATCH", "targets/t", {"max_runs": 2}, "target.change"),
    ("DELETE", "targets/t", None, "target.remove"),
    ("POST", "workspaces", {"name": "w", "url": "{folder}/w", "target": "local"}, "workspace.add"),
    ("PATCH", "workspaces/w", {"target": "local"}, "workspace.change"),
    ("DELETE", "workspaces/w", None, "workspace.remove"),
    ("POST", "registrations", {"kind": "root", "name": "r", "value": "/r"}, "registration.add"),
    ("DELETE", "registrations/root/r", None, "registration.remove"),
    ("POST", "runs", {"workspace": "main", "recipe": RECIPE}, "run.submit"),
    ("PATCH", "runs/{run}", {"priority": -1}, "run.change"),
    ("POST", "runs/{run}/stop", None, "run.stop"),
    ("POST", "runs/{run}/kill", None, "run.kill"),
    ("POST", "workspaces/main/tombstones", {"entries": ["0" * 32], "why": "x"}, "tombstone.add"),
]


def test_a_write_that_is_made_is_in_the_audit(target: Place, run: str) -> None:
    known = {"{run}": run, "{folder}": str(target.folder)}
    for method, path, body, action in MADE:
        last = target.audit()[-1].id
        for name, value in known.items():
            path = path.replace(name, value)
            body = body and {
                key: str(text).replace(name, value) if key == "url" else text for key, text in body.items()
            }
        answer = target.ask(method, path, target.people.admin, json=body)
        assert answer.status_code < 300, answer.text
        assert entries(target, last) == [("admin", action, "ok")], path
        if action == "token.make":
            known["{token}"] = answer.json()["id"]
            assert answer.json()["token"] not in "\n".join(target.log.lines)


def test_a_full_disk_of_the_database_rejects_writes_and_answers_reads(target: Place, run: str) -> None:
    """Nothing is done that cannot be recorded."""
    engine, operator = target.service.database.engine, target.people.operator
    with engine.connect() as connection:
        pages = connection.execute(text("PRAGMA page_count")).scalar_one()

    def limited(connection: Any, *_: Any) -> None:
        connection.execute(f"PRAGMA max_page_count={pages}")

    def freed(connection: Any, *_: Any) -> None:
        connection.execute("PRAGMA max_page_count=1000000000")

    order = {"workspace": "main", "recipe": f"{RECIPE}# {'x' * 200_000}"}
    event.listen(engine, "checkout", limited)
    try:
        answer = target.ask("POST", "runs", operator, json=order)
        assert (answer.status_code, answer.json()["code"]) == (503, "unavailable")
        assert "INSERT" not in answer.text and int(answer.headers["retry-after"]) > 0
        assert target.ask("GET", f"runs/{run}", operator).status_code == 200
        assert target.ask("GET", "me", headers={"Authorization": "Bearer x"}).status_code == 401
    finally:
        event.remove(engine, "checkout", limited)
        event.listen(engine, "checkout", freed)
    assert target.ask("POST", "runs", operator, json=order).status_code == 202
