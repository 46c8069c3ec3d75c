"""Workspaces, targets and registrations, as admins change them and others see them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from curate.service.reconcile.targets import Health
from tests.service.rest.site import Site

FOUND, ADDRESS = {"healthy": False, "checked": 1.0, "error": "silent"}, "http://ray:8265"


def test_a_workspace_comes_and_goes(site: Site, tmp_path: Path) -> None:
    admin, url = site.people.admin, str(tmp_path / "new")
    made = site.ask("POST", "workspaces", admin, json={"name": "new", "url": url, "target": "local"})
    assert (made.status_code, made.json()["url"], made.json()["role"]) == (201, url, "admin")
    assert (tmp_path / "new" / "format.json").exists(), "a wrong URL shows at once"
    assert "new" not in {one["name"] for one in site.ask("GET", "workspaces").json()["items"]}
    assert {"main", "new"} <= {one["name"] for one in site.ask("GET", "workspaces", admin).json()["items"]}
    for order in ({"name": "new", "url": str(tmp_path / "other")}, {"name": "other", "url": f"{url}/"}):
        answer = site.ask("POST", "workspaces", admin, json=order)
        assert (answer.status_code, answer.json()["code"]) == (409, "conflict")
    changed = site.ask("PATCH", "workspaces/new", admin, json={"target": "none"})
    assert (changed.status_code, changed.json()["code"]) == (404, "not_found")
    assert site.ask("DELETE", "workspaces/new", admin).status_code == 204
    assert site.ask("GET", "workspaces/new", admin).status_code == 404
    assert (tmp_path / "new" / "format.json").exists(), "its files stay"


@pytest.mark.parametrize(
    "url", ["relative/path", "s3://key:secret@bucket/x", "http://host/x", "ftp://host/x", "/a\nb", " /a", "memory://x"]
)
def test_a_url_that_is_not_a_workspace_is_rejected(site: Site, url: str) -> None:
    answer = site.ask("POST", "workspaces", site.people.admin, json={"name": "wrong", "url": url})
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid")
    assert answer.json()["detail"].startswith("url: ") and "secret@" not in answer.json()["detail"]


def test_a_folder_that_is_not_reached_is_rejected(site: Site, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    order = {"name": "wrong", "url": str(tmp_path / "file" / "inside")}
    answer = site.ask("POST", "workspaces", site.people.admin, json=order)
    assert (answer.status_code, answer.json()["code"]) == (503, "storage")


def test_a_workspace_with_runs_under_way_stays(site: Site) -> None:
    run = site.submit()
    answer = site.ask("DELETE", "workspaces/main", site.people.admin)
    assert (answer.status_code, answer.json()["code"]) == (409, "conflict") and "stop them first" in answer.text
    site.change(run, state="done")


def test_a_target_comes_and_goes(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    admin, order = site.people.admin, {"name": "big", "address": ADDRESS, "token": "env:RAY_TOKEN"}
    made = site.ask("POST", "targets", admin, json=order)
    assert made.status_code == 201 and made.json() == made.json() | order | {"active": 0, "health": None}
    assert site.ask("POST", "targets", admin, json=order).status_code == 409
    seen: dict[str, Any] = next(one for one in site.ask("GET", "targets").json()["items"] if one["name"] == "big")
    assert (seen["address"], seen["token"]) == ("", ""), "only admins see where a cluster is"
    run = site.submit(target="big")
    site.change(run, state="running")
    assert site.ask("GET", "targets/big").json()["active"] == 1
    assert site.ask("PATCH", "targets/big", admin, json={"address": "http://other:1"}).status_code == 409
    assert site.ask("PATCH", "targets/big", admin, json={"max_runs": 7}).json()["max_runs"] == 7
    site.change(run, state="done")
    assert "runs were submitted to it" in site.ask("DELETE", "targets/big", admin).json()["detail"]
    assert "workspace main uses it" in site.ask("DELETE", "targets/local", admin).json()["detail"]
    site.ask("POST", "targets", admin, json=order | {"name": "small"})
    assert site.ask("DELETE", "targets/small", admin).status_code == 204
    assert site.ask("GET", "targets/small").status_code == 404

    health = Health.model_validate(FOUND)
    monkeypatch.setattr(site.service.targets, "check", lambda row: health)
    monkeypatch.setattr(site.service.targets, "health", lambda name: health)
    assert site.ask("POST", "targets/big/check", admin).json()["health"]["error"] == "silent"
    assert "silent" not in site.ask("POST", "targets/big/check").text, "an error may name where a cluster is"
    assert site.ask("POST", "targets/big/check", site.people.viewer).status_code == 403


@pytest.mark.parametrize(
    "order", [{"address": "ray://h:1"}, {"address": "http://u:p@h"}, {"token": "s3cret"}, {"max_runs": 0}]
)
def test_a_wrong_target_is_rejected(site: Site, order: dict[str, Any]) -> None:
    given = {"name": "wrong", "address": ADDRESS} | order
    answer = site.ask("POST", "targets", site.people.admin, json=given)
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid") and "s3cret" not in answer.text


def test_registrations_are_of_all_or_of_one_workspace(site: Site) -> None:
    admin = site.people.admin
    everywhere = {"kind": "root", "name": "images", "value": "/data/images"}
    here = everywhere | {"workspace": "main", "value": "/data/other"}
    for order in (everywhere, here):
        assert site.ask("POST", "registrations", admin, json=order).status_code == 201
        assert site.ask("POST", "registrations", admin, json=order).status_code == 409
    found = site.ask("GET", "registrations", admin).json()["items"]
    assert {(one["workspace"], one["value"]) for one in found} == {(None, "/data/images"), ("main", "/data/other")}
    seen = site.ask("GET", "registrations?workspace=main").json()["items"]
    assert {(one["workspace"], one["name"], one["value"]) for one in seen} == {
        (None, "images", ""),
        ("main", "images", ""),
    }
    assert site.ask("GET", "registrations", site.people.stranger).json()["items"] == []
    assert site.ask("DELETE", "registrations/root/images?workspace=main", admin).status_code == 204
    assert site.ask("DELETE", "registrations/root/images?workspace=main", admin).status_code == 404
    assert site.ask("DELETE", "registrations/root/images", admin).status_code == 204
    wrong = site.ask("POST", "registrations", admin, json={"kind": "root", "name": "x", "value": "relative"})
    assert (wrong.status_code, wrong.json()["code"]) == (422, "invalid")
