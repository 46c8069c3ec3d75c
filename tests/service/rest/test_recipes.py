from __future__ import annotations

from collections.abc import Iterator

import pytest

from curate.service.policy.sandbox import Sandbox
from tests.service.rest.site import Site

RECIPE = "stages: {pool: {op: acquire.folder, namespace: a, path: PATH}}"


@pytest.fixture
def checked(site: Site, sandbox: Sandbox) -> Iterator[Site]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(site.service, "sandbox", sandbox)
        yield site


def _body(path: str) -> dict[str, object]:
    return {"workspace": "main", "recipe": RECIPE.replace("PATH", path), "set": []}


def test_mistakes_are_an_answer_and_not_a_problem(checked: Site) -> None:
    for verb in ("check", "plan"):
        answer = checked.client.post(
            f"/api/v1/recipes/{verb}", json=_body("/etc"), headers=checked.people.operator.headers
        )
        assert answer.status_code == 200
        found = answer.json()
        assert (found["ok"], found["mistakes"][0]["code"], found["mistakes"][0]["line"]) == (False, "policy", 1)


def test_viewers_may_not_check(checked: Site) -> None:
    answer = checked.client.post("/api/v1/recipes/check", json=_body("/etc"), headers=checked.people.viewer.headers)
    assert (answer.status_code, answer.json()["code"]) == (403, "forbidden")


def test_templates_and_ops(checked: Site) -> None:
    headers = checked.people.viewer.headers
    assert checked.client.get("/api/v1/recipes", headers=headers).json() == []
    names = [op["name"] for op in checked.client.get("/api/v1/ops", headers=headers).json()]
    assert "acquire.folder" in names
