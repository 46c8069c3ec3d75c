"""Every route of the application is closed, later ones too: without a token, with a stranger's, and for writes with a
viewer's. The walk takes the routes that the application really has."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.routing import APIRoute, iter_route_contexts
from sqlalchemy import select

from curate.service.auth.dependency import PUBLIC
from curate.service.database.models import AuditEntry, Base, Token
from tests.service.rest.site import RECIPE, Site

OPEN = {"/healthz", "/login", "/static/service.css"}
SAFE = {"GET", "HEAD", "OPTIONS"}
NAMES = {
    "workspace": "main", "target": "local", "user": "operator", "kind": "root", "name": "main", "tag": "good",
    "fingerprint": "ab", "token": "0" * 8, "token_id": "0" * 8, "verb": "stop", "key": "0" * 32,
    "shard": "0" * 32, "row": "0", "other": "none",
}  # fmt: skip
"""Values of path parameters; those of a run are made."""
BODIES: dict[str, Any] = {
    "POST users": {"name": "eve"},
    "PATCH users/{user}": {"disabled": True},
    "PUT users/{user}/grants": {"role": "admin"},
    "DELETE users/{user}/grants": None,
    "POST users/{user}/tokens": {},
    "DELETE tokens/{token}": None,
    "PUT quotas": {},
    "PUT users/{user}/quota": {},
    "POST workspaces": {"name": "mine", "url": "/tmp/mine"},
    "PATCH workspaces/{workspace}": {"target": "local"},
    "DELETE workspaces/{workspace}": None,
    "POST targets": {"name": "mine", "address": "http://mine:8265"},
    "PATCH targets/{target}": {"max_runs": 9},
    "PATCH runs/{run}": {"priority": -1},
    "DELETE targets/{target}": None,
    "POST targets/{target}/check": None,
    "POST registrations": {"kind": "root", "name": "all", "value": "/data"},
    "DELETE registrations/{kind}/{name}": None,
    "POST recipes/check": {"workspace": "main", "recipe": RECIPE},
    "POST recipes/plan": {"workspace": "main", "recipe": RECIPE},
    "POST runs": {"workspace": "main", "recipe": RECIPE},
    "POST runs/{run}/stop": None,
    "POST runs/{run}/kill": None,
    "POST runs/{run}/resume": None,
    "POST runs/{run}/limit": {"max_tokens": 1},
    "PUT workspaces/{workspace}/datasets/{name}/tags/{tag}": {"base": "datasets/main/ab"},
    "DELETE workspaces/{workspace}/datasets/{name}/tags/{tag}": None,
    "POST workspaces/{workspace}/datasets/{name}/{fingerprint}/releases": {"name": "mine"},
    "PUT workspaces/{workspace}/pins/{name}": {"run": "r", "stage": "s"},
    "DELETE workspaces/{workspace}/pins/{name}": None,
    "POST workspaces/{workspace}/tombstones": {"entries": ["0" * 32], "why": "x"},
    "POST workspaces/{workspace}/gc": {"delete": True},
}
"""A valid body of every write of the API, so that nothing but the role is wrong."""


def routes(app: FastAPI) -> Iterator[tuple[str, str]]:
    for route in iter_route_contexts(app.routes):
        assert isinstance(route.original_route, APIRoute), f"{route.path}: its dependencies would be left out"
        for method in sorted(route.methods or ()):
            yield method, route.path


def filled(path: str, run: str) -> str:
    return path.format(**NAMES, run=run, run_id=run)


@pytest.fixture(scope="module")
def run(site: Site) -> str:
    return site.submit()


def state(site: Site) -> dict[str, list[tuple[Any, ...]]]:
    """All that the database has, except for the audit and the last use of tokens."""
    with site.service.database.read() as session:
        return {
            name: [tuple(value for key, value in row.items() if key != Token.used.key) for row in rows]
            for name, table in Base.metadata.tables.items()
            if name != AuditEntry.__tablename__
            for rows in [session.execute(select(table).order_by(*table.primary_key)).mappings().all()]
        }


def test_the_open_routes_are_these(site: Site) -> None:
    assert PUBLIC == OPEN
    assert {path for _, path in routes(site.app)} >= OPEN


def test_every_route_needs_a_token(site: Site, run: str) -> None:
    walked = 0
    for method, path in routes(site.app):
        url = filled(path, run)
        if path in OPEN:
            continue
        for headers in ({}, {"Authorization": "Bearer cur_00000000_" + "A" * 43}):
            answer = site.client.request(method, url, headers=headers, follow_redirects=False)
            if answer.status_code == 303:
                assert answer.headers["location"].startswith("/login") and not path.startswith("/api/"), url
            else:
                assert answer.status_code == 401, f"{method} {url}: {answer.status_code}"
        walked += 1
    assert walked > 100


def test_every_write_of_the_api_needs_a_role(site: Site, run: str) -> None:
    before = state(site)
    writes = {(method, path) for method, path in routes(site.app) if path.startswith("/api/") and method not in SAFE}
    known = {(name.split()[0], f"/api/v1/{name.split()[1]}") for name in BODIES}
    assert writes == known, "every write needs a body here"
    for name, body in BODIES.items():
        method, path = name.split()
        for who, expected in ((site.people.viewer, {403, 404}), (site.people.stranger, {403, 404})):
            answer = site.ask(method, filled(path, run), who, json=body)
            assert answer.status_code in expected, f"{who.name} {name}: {answer.status_code} {answer.text}"
    assert state(site) == before


def test_every_form_needs_a_role(site: Site, run: str) -> None:
    before = state(site)
    forms = [
        (method, path)
        for method, path in routes(site.app)
        if not path.startswith("/api/") and method not in SAFE and path not in ("/login", "/logout")
    ]
    assert len(forms) > 10
    for method, path in forms:
        for who in (site.people.viewer, site.people.stranger):
            answer = site.ask(method, filled(path, run), who, data={}, follow_redirects=False)
            assert 400 <= answer.status_code < 500, f"{who.name} {method} {path}: {answer.status_code}"
    assert state(site) == before


def test_a_stranger_sees_nothing_of_a_workspace(site: Site, run: str) -> None:
    for method, path in routes(site.app):
        if method != "GET" or not {"{workspace}", "{run}", "{run_id}"} & set(path.split("/")):
            continue
        query = {"base": "datasets/main/ab", "url": "http://host/a.jpg", "stage": "pool"} | {
            "text": "a",
            "format": "csv",
        }
        headers = {"Accept": "application/json"}
        answer = site.ask("GET", filled(path, run), site.people.stranger, headers=headers, params=query)
        assert answer.status_code in (403, 404), f"{path}: {answer.status_code}"
        assert site.people.workspace.url not in answer.text
    for path in ("runs", "workspaces", "targets", "registrations"):
        found = site.ask("GET", path, site.people.stranger).json()
        assert (found["items"] if isinstance(found, dict) else found) == [], path
