"""Users, roles, tokens, quotas and the audit over HTTP, as an admin and users would use them."""

from __future__ import annotations

import pytest
from starlette.testclient import TestClient

from curate.service.app import create_app
from curate.service.service import Service
from tests.service.people import People


@pytest.fixture
def client(service: Service) -> TestClient:
    return TestClient(create_app(service, reconcile=False), base_url="http://testserver/api/v1/")


def test_an_admin_lets_a_user_in_and_out_again(client: TestClient, people: People) -> None:
    admin = people.admin.headers
    assert client.post("users", json={"name": "anna"}, headers=admin).json()["grants"] == []
    given = client.put("users/anna/grants", json={"role": "operator", "workspace": "main"}, headers=admin)
    assert given.json()["grants"] == [{"workspace": "main", "role": "operator", "see_pixels": True}]
    made = client.post("users/anna/tokens", json={"label": "laptop", "days": 7}, headers=admin)
    assert (made.status_code, made.json()["user"], made.json()["label"]) == (201, "anna", "laptop")
    anna = {"Authorization": f"Bearer {made.json()['token']}"}
    me = client.get("me", headers=anna).json()
    assert (me["user"], me["token"], me["expires"]) == ("anna", made.json()["id"], made.json()["expires"])
    assert me["grants"] == [{"workspace": "main", "role": "operator", "see_pixels": True}]

    [listed] = client.get("users/anna/tokens", headers=anna).json()["items"]
    assert listed["used"] is not None and "token" not in listed
    second = client.post("users/anna/tokens", json={"days": None}, headers=anna).json()
    assert second["expires"] == made.json()["expires"], "no later than the token that made it"
    assert client.delete(f"tokens/{second['id']}", headers=anna).json()["revoked"] is not None
    assert client.get("me", headers={"Authorization": f"Bearer {second['token']}"}).status_code == 401

    assert client.delete("users/anna/grants?workspace=main", headers=admin).json()["grants"] == []
    assert client.get("me", headers=anna).json()["grants"] == []
    assert client.patch("users/anna", json={"disabled": True}, headers=admin).json()["disabled"] is not None
    assert client.get("me", headers=anna).status_code == 401


def test_quotas_and_audit(client: TestClient, people: People) -> None:
    admin, viewer = people.admin.headers, people.viewer.headers
    limits = {"running": 2, "queued": None, "gpu_hours": 8.5}
    assert client.put("quotas", json=limits, headers=admin).json() == limits
    assert client.put("users/viewer/quota", json={"running": 1}, headers=admin).json()["running"] == 1
    assert client.get("quotas", headers=viewer).json()["viewer"] == {"running": 1, "queued": None, "gpu_hours": None}
    assert client.put("quotas", json=limits, headers=viewer).status_code == 403
    page = client.get("audit?limit=2", headers=admin).json()
    assert [(one["user"], one["action"], one["outcome"]) for one in page["items"]] == [
        ("viewer", "quota.set", "forbidden"), ("admin", "quota.set", "ok")
    ]  # fmt: skip
    rest = client.get("audit", params={"cursor": page["next"]}, headers=admin).json()
    assert [one["target"] for one in rest["items"]] == [""] and rest["next"] is None


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "code"),
    [
        ("POST", "users", {"name": "viewer"}, 409, "conflict"),
        ("POST", "users", {"name": "a\r\nSet-Cookie: x=y"}, 422, "invalid"),
        ("POST", "users", {"name": "anna", "role": "admin"}, 422, "invalid"),
        ("POST", "users", {}, 422, "invalid"),
        ("PUT", "users/nobody/grants", {"role": "viewer"}, 404, "not_found"),
        ("PUT", "users/viewer/grants", {"role": "viewer", "workspace": "nowhere"}, 404, "not_found"),
        ("PUT", "users/viewer/grants", {"role": "owner"}, 422, "invalid"),
        ("DELETE", "users/viewer/grants", None, 404, "not_found"),
        ("PATCH", "users/admin", {"disabled": True}, 409, "conflict"),
        ("POST", "users/viewer/tokens", {"days": 0}, 422, "invalid"),
        ("POST", "users/viewer/tokens", {"days": 1e308}, 422, "invalid"),
        ("DELETE", "tokens/00000000", None, 404, "not_found"),
        ("DELETE", "tokens/..%2f..%2fetc", None, 404, "not_found"),
        ("DELETE", "tokens/'%20OR%201=1", None, 422, "invalid"),
        ("PUT", "quotas", {"running": -1}, 422, "invalid"),
        ("PUT", "quotas", {"running": 2**70}, 422, "invalid"),
        ("GET", "audit?cursor=x", None, 422, "invalid"),
        ("GET", "audit?limit=0", None, 422, "invalid"),
        ("GET", f"audit?user={'x' * 65}", None, 422, "invalid"),
    ],
)
def test_wrong_requests_are_problems(
    client: TestClient, people: People, method: str, path: str, body: object, status: int, code: str
) -> None:
    answer = client.request(method, path, json=body, headers=people.admin.headers)
    assert (answer.status_code, answer.json()["code"]) == (status, code)
    assert "\n" not in answer.json()["detail"] and answer.headers["content-type"] == "application/problem+json"
    assert "set-cookie" not in answer.headers
