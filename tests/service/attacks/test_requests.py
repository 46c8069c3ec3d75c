"""Attacks by a request x outcome, over real HTTP: how each is answered, that nothing was written, whether it is in the
audit, and that no secret is in the answer or the log."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

import pytest

from curate.service.auth.roles import Role
from curate.service.database.models import Submission
from curate.service.rest.paging import encode
from tests.service.attacks.place import Place
from tests.service.records import Recorded

RECIPE = "stages:\n  pool: {op: acquire.folder, namespace: a, path: photos}\n"
ORDER: dict[str, Any] = {"workspace": "main", "recipe": RECIPE}
PASSWORD = "hunter2-hunter2"
FORM = {"Content-Type": "application/x-www-form-urlencoded"}


@dataclass(frozen=True)
class Attack:
    """`who`: a user of `People`, `other`, a key of `_tokens`, or "". In `path`, {run} is a run of `main`, {theirs} one
    of `other`."""

    name: str
    who: str
    verb: str
    path: str
    status: int
    code: str = ""
    """Of the problem; "" for other answers, and for pages."""
    body: Any = None
    headers: dict[str, str] = field(default_factory=dict)
    audited: tuple[str, str] | None = None
    """(action, outcome)."""
    absent: tuple[str, ...] = ()
    """Not in the answer."""


def _order(**options: str) -> bytes:
    """With values that JSON libraries do not write."""
    given = ", ".join(f'"{name}": {value}' for name, value in options.items())
    return f'{{"workspace": "main", "recipe": {json.dumps(RECIPE)}, "options": {{{given}}}}}'.encode()


FAILED = ("login", "not_logged_in")
WRONG = ("request", "invalid")
"""A write of the wrong form, which no action has seen."""
ATTACKS = [
    # tokens
    Attack("no token", "", "GET", "runs", 401, "not_logged_in"),
    Attack("a token that was never made", "unknown", "GET", "runs", 401, "not_logged_in", audited=FAILED),
    Attack("an expired token", "expired", "GET", "runs", 401, "not_logged_in", audited=FAILED),
    Attack("a revoked token", "revoked", "GET", "runs", 401, "not_logged_in", audited=FAILED),
    Attack("the digest of a token", "digest", "GET", "runs", 401, "not_logged_in", audited=FAILED),
    Attack("a token in the address", "", "GET", "runs?token={admin}", 401, "not_logged_in"),
    Attack("a token as a password", "", "GET", "runs", 401, "not_logged_in",
           headers={"Authorization": "Basic YTpi"}, audited=FAILED),
    Attack("SQL as a token", "", "GET", "runs", 401, "not_logged_in",
           headers={"Authorization": "Bearer cur_' OR 1=1 --"}, audited=FAILED),
    Attack("SQL as a session", "", "GET", "runs", 401, "not_logged_in",
           headers={"Cookie": "curate_session=' OR 1=1 --"}),
    Attack("no token, and a body to parse", "", "POST", "runs", 401, "not_logged_in", body=b"["),
    Attack("a token that was never made, and a body to parse", "unknown", "POST", "runs", 401, "not_logged_in",
           body=b"[", audited=FAILED),
    Attack("no token, at an address that does not exist", "", "GET", "nothing/here", 401, "not_logged_in"),
    # roles
    Attack("a viewer submits", "viewer", "POST", "runs", 403, "forbidden", ORDER, audited=("run.submit", "forbidden")),
    Attack("a viewer's token of an admin submits", "lesser", "POST", "runs", 403, "forbidden", ORDER,
           audited=("run.submit", "forbidden")),
    Attack("a lesser token makes a greater one", "lesser", "POST", "users/admin/tokens", 403, "forbidden",
           {"role": "admin"}, audited=("token.make", "forbidden")),
    Attack("a lesser token revokes a greater one", "lesser", "DELETE", "tokens/{admin_id}", 403, "forbidden",
           audited=("token.revoke", "forbidden")),
    Attack("an operator makes a token of an admin", "operator", "POST", "users/admin/tokens", 403, "forbidden", {},
           audited=("token.make", "forbidden")),
    Attack("an operator becomes admin", "operator", "PUT", "users/operator/grants", 403, "forbidden",
           {"workspace": "main", "role": "admin"}, audited=("grant.set", "forbidden")),
    Attack("a keeper becomes admin of the service", "keeper", "PUT", "users/keeper/grants", 403, "forbidden",
           {"role": "admin"}, audited=("grant.set", "forbidden")),
    Attack("a keeper takes another workspace", "keeper", "PUT", "users/keeper/grants", 404, "not_found",
           {"workspace": "other", "role": "admin"}, audited=("grant.set", "not_found")),
    Attack("an operator goes first", "operator", "POST", "runs", 403, "forbidden", ORDER | {"priority": 100},
           audited=("run.submit", "forbidden")),
    Attack("an operator registers the disk", "operator", "POST", "registrations", 403, "forbidden",
           {"kind": "root", "name": "disk", "value": "/"}, audited=("registration.add", "forbidden")),
    Attack("a keeper registers code", "keeper", "POST", "registrations", 403, "forbidden",
           {"kind": "op", "name": "x", "value": "os:system", "workspace": "main"},
           audited=("registration.add", "forbidden")),
    Attack("an operator frees storage", "operator", "POST", "workspaces/main/gc", 403, "forbidden", {"delete": True},
           audited=("workspace.gc", "forbidden")),
    Attack("a stranger reads the recipes of others", "stranger", "GET", "recipes", 403, "forbidden"),
    Attack("a stranger reads what recipes can use", "stranger", "GET", "ops", 403, "forbidden"),
    Attack("a stranger opens the editor", "stranger", "GET", "/new", 403),
    Attack("a stranger lists clusters", "stranger", "GET", "targets", 200, absent=("local",)),
    Attack("a viewer asks a cluster", "viewer", "POST", "targets/local/check", 403, "forbidden"),
    Attack("an operator reads all metrics", "operator", "GET", "/metrics", 403, "forbidden"),
    Attack("an operator reads who did what", "operator", "GET", "audit?user=admin", 200, absent=('"admin"',)),
    # other workspaces
    Attack("a run of another workspace", "operator", "GET", "runs/{theirs}", 404, "not_found"),
    Attack("its log", "operator", "GET", "runs/{theirs}/logs?workspace=main", 404, "not_found"),
    Attack("its events", "operator", "GET", "runs/{theirs}/events", 404, "not_found"),
    Attack("its samples", "operator", "GET", "runs/{theirs}/samples/00", 404, "not_found"),
    Attack("its vectors", "operator", "GET", "runs/{theirs}/search?text=a", 404, "not_found"),
    Attack("its end", "operator", "POST", "runs/{theirs}/kill", 404, "not_found", audited=("run.kill", "not_found")),
    Attack("its page", "operator", "POST", "/runs/{theirs}/stop", 404, body={}, audited=("run.stop", "not_found")),
    Attack("its recipe, to begin with", "operator", "GET", "/new?run={theirs}", 404, absent=("acquire.folder",)),
    Attack("a pin of another workspace's run, by its name", "operator", "PUT", "workspaces/main/pins/x", 422, "invalid",
           {"run": "../../other/runs/{theirs}", "stage": "pool"}, audited=WRONG),
    Attack("a run above the workspace, by the page", "operator", "POST", "/workspaces/main/pins", 422,
           body={"name": "x", "run": "../../other/runs/x", "stage": "pool"}, audited=WRONG),
    Attack("the roles of a stranger elsewhere", "keeper", "PUT", "users/other/grants", 200, "",
           {"workspace": "main", "role": "viewer"}, audited=("grant.set", "ok"), absent=('"workspace":"other"',)),
    Attack("and without", "keeper", "DELETE", "users/other/grants?workspace=main", 200,
           audited=("grant.remove", "ok"), absent=('"workspace":"other"',)),
    Attack("a cursor of another list", "operator", "GET", f"runs?cursor={encode(1e99, 'x', 10**17)}", 200,
           absent=("{theirs}",)),
    # where things are
    Attack("where a cluster is", "operator", "POST", "targets/local/check", 200, absent=("127.0.0.1", "http:")),
    Attack("where it is, by the page", "operator", "GET", "/targets", 200, absent=("127.0.0.1:1",)),
    Attack("what a root stands for", "operator", "GET", "registrations", 200, absent=("/photos",)),
    # forged requests
    Attack("a page of another site", "session", "POST", "/new", 403, body={"do": "submit", "csrf": "{csrf}"},
           headers={"Origin": "https://attacker.example"}, audited=("csrf", "forbidden")),
    Attack("a form without its token", "session", "POST", "/new", 403, body={"do": "submit"},
           audited=("csrf", "forbidden")),
    Attack("a form with another token", "session", "POST", "/new", 403, body={"csrf": "x" * 43},
           audited=("csrf", "forbidden")),
    Attack("JSON without its token", "session", "POST", "runs", 403, "forbidden", ORDER, audited=("csrf", "forbidden")),
    Attack("a token for forms in the address", "session", "POST", "/new?csrf={csrf}", 403, body={},
           audited=("csrf", "forbidden")),
    Attack("a login for the victim", "", "POST", "/login", 403, body={"token": "{admin}"},
           headers={"Origin": "https://attacker.example"}, audited=("login", "forbidden")),
    Attack("another host", "operator", "GET", "runs", 400, "bad_request", headers={"Host": "attacker.example"}),
    # paths, SQL, headers
    Attack("a path in a log's stage", "operator", "GET", "runs/{run}/logs?stage=../../../etc/passwd", 200),
    Attack("a path in a log's cursor", "operator", "GET",
           f"runs/{{run}}/logs?after={encode(1, 9e9, 0, '../../../../etc/passwd')}", 200, absent=("root:",)),
    Attack("a path in an event's id", "operator", "GET", "runs/{run}/events?after=../../run.json:1", 422, "invalid",
           headers={"Accept": "application/json"}),
    Attack("a path in a run's id", "operator", "GET", f"runs/{quote('../main/runs', safe='')}", 404, "not_found"),
    Attack("a path of lineage", "operator", "GET", "workspaces/main/lineage?base=../other/datasets/a/b", 404,
           "not_found"),
    Attack("a path as a static file", "operator", "GET", "/static/%2e%2e/kit.py", 404),
    Attack("a path as a pin", "operator", "DELETE", "workspaces/main/pins/..%2f..%2fx", 404, "not_found"),
    Attack("SQL in a query", "operator", "GET", f"runs?query={quote(chr(39) + ' OR 1=1 --')}", 200,
           absent=("{theirs}", "{run}")),
    Attack("all, by a wildcard", "operator", "GET", "runs?query=%25", 200, absent=("{run}",)),
    Attack("SQL in a cursor", "operator", "GET", f"runs?cursor={encode(1.0, 'x', 1)}'--", 422, "invalid"),
    Attack("a line in a header", "operator", "GET", "runs", 200,
           headers={"X-Request-ID": "a\tSet-Cookie: x=1"}, absent=("Set-Cookie",)),
    Attack("a line in an address", "operator", "GET", "runs/x%0d%0aSet-Cookie:%20x=1", 422, "invalid"),
    Attack("a line in a download's name", "operator", "GET", "/runs/x%0d%0aSet-Cookie:%20x=1/recipe", 404),
    Attack("a site to go to after the login", "", "GET", "/login?next=https://attacker.example", 200,
           absent=("attacker.example",)),
    Attack("a site without a scheme", "", "GET", "/login?next=//attacker.example", 200, absent=("attacker.example",)),
    Attack("a site by a backslash", "", "GET", "/login?next=/%5cattacker.example", 200, absent=("attacker.example",)),
    Attack("a script to go to", "", "GET", "/login?next=javascript:alert(1)", 200, absent=("javascript:",)),
    # values
    Attack("no end", "operator", "POST", "runs", 422, "invalid", _order(deadline="Infinity"), audited=WRONG),
    Attack("a time beyond all clocks", "operator", "POST", "runs", 422, "invalid", _order(deadline="1e308"),
           audited=WRONG),
    Attack("endless money", "operator", "POST", "runs", 422, "invalid", _order(max_dollars="Infinity"), audited=WRONG),
    Attack("no number", "operator", "POST", "runs", 422, "invalid", _order(failure_budget="NaN"), audited=WRONG),
    Attack("more than an integer holds", "operator", "POST", "runs", 422, "invalid", _order(max_tokens=str(1 << 63)),
           audited=WRONG),
    Attack("a long page", "operator", "GET", "runs?limit=9223372036854775808", 422, "invalid"),
    Attack("half a character", "operator", "POST", "runs", 422, "invalid",
           b'{"workspace": "main", "recipe": "\\ud800"}', audited=WRONG),
    Attack("deep JSON", "operator", "POST", "runs", 400, "bad_request", b"[" * 100_000,
           audited=("request", "bad_request")),
    Attack("a form without fields", "operator", "POST", "/new", 422, body=b"do=submit", headers=FORM, audited=WRONG),
    Attack("a file for a field", "operator", "POST", "/new", 400, body=b"x",
           headers={"Content-Type": "multipart/form-data; boundary=b"}, audited=("request", "bad_request")),
    Attack("10,000 fields", "operator", "POST", "/new", 400, body=b"&".join(b"f%d=" % n for n in range(10_000)),
           headers=FORM, audited=("request", "bad_request")),
    # secrets
    Attack("a password in an address", "admin", "POST", "workspaces", 422, "invalid",
           {"name": "w", "url": f"s3://user:{PASSWORD}@bucket/x"}, audited=("workspace.add", "invalid")),
    Attack("a secret instead of its name", "admin", "POST", "registrations", 422, "invalid",
           {"kind": "secret", "name": "x", "value": PASSWORD}, audited=("registration.add", "invalid")),
    Attack("a secret of the wrong type", "admin", "POST", "targets", 422, "invalid",
           {"name": "x", "address": "http://ray:1", "token": PASSWORD}, audited=WRONG),
    Attack("a proxy's password", "admin", "POST", "registrations", 422, "invalid",
           {"kind": "proxy", "name": "x", "value": f"http://user:{PASSWORD}@proxy:1"},
           audited=("registration.add", "invalid")),
]  # fmt: skip


@pytest.fixture(scope="module")
def known(target: Place) -> dict[str, str]:
    """What attackers have got hold of."""
    people, now = target.people, target.service.clock()
    runs = {}
    for name, who, place in (("run", people.operator, "main"), ("theirs", target.other, "other")):
        answer = target.ask("POST", "runs", who, json=ORDER | {"workspace": place, "id": f"of-{who.name}"})
        runs[name] = answer.json()["id"]
    Recorded(str(target.folder / "main"), f"{runs['run']}-1")
    with target.service.database.write() as session:
        session.get_one(Submission, runs["run"]).state = "running"
    login = target.client.post("/login", data={"token": people.operator.token})
    cookie = login.cookies["curate_session"]
    target.client.cookies.clear()
    csrf = target.client.get("/new", headers={"Cookie": f"curate_session={cookie}"}).text
    token = people.admin.token
    return runs | {
        "admin": token, "admin_id": people.admin.principal.token_id, "cookie": cookie,
        "csrf": csrf.partition('name="csrf" value="')[2].partition('"')[0],
        "unknown": "cur_00000000_" + "A" * 43, "expired": target.token(people.admin, days=-1.0),
        "revoked": target.token(people.admin, revoked=now), "lesser": target.token(people.admin, role=Role.VIEWER),
        "digest": f"cur_{people.admin.principal.token_id}_{'0' * 43}",
    }  # fmt: skip


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.name)
def test_attack(target: Place, known: dict[str, str], attack: Attack) -> None:
    before, files, last = target.rows(), target.files(), target.audit()[-1].id
    target.log.lines.clear()
    answer = target.client.request(
        attack.verb, _address(_filled(attack.path, known)), **_body(attack.path, attack.body, known),
        headers=_headers(target, attack.who, known) | _typed(attack),
    )  # fmt: skip
    assert answer.status_code == attack.status, answer.text
    kind = answer.headers["content-type"]
    assert answer.json()["code"] == attack.code if attack.code else kind != "application/problem+json", answer.text
    entries = [(one.action, one.outcome) for one in target.audit(last)]
    assert entries == ([attack.audited] if attack.audited else [])
    if attack.audited is None or attack.audited[1] != "ok":
        assert (target.rows(), target.files()) == (before, files)
    for text in attack.absent:
        assert _filled(text, known) not in answer.text + str(answer.headers)
    log = "\n".join(target.log.lines)
    everything = "\n".join(
        [answer.text, str(dict(answer.headers)), log, str([vars(one) for one in target.audit(last)])]
    )
    secrets = [target.people.admin.token, known["revoked"], known["cookie"], PASSWORD, "root:x:"]
    assert not [secret for secret in secrets if secret in everything]
    assert "Traceback" not in log


def _filled(text: str, known: dict[str, str]) -> str:
    for name, value in known.items():
        text = text.replace(f"{{{name}}}", value)
    return text


def _address(path: str) -> str:
    return path if path.startswith("/") else f"/api/v1/{path}"


def _headers(target: Place, who: str, known: dict[str, str]) -> dict[str, str]:
    if who == "session":
        return {"Cookie": f"curate_session={known['cookie']}"}
    token = known[who] if who in known else "" if not who else _person(target, who)
    return {"Authorization": f"Bearer {token}"} if token else {}


def _person(target: Place, who: str) -> str:
    token: str = target.other.token if who == "other" else getattr(target.people, who).token
    return token


def _typed(attack: Attack) -> dict[str, str]:
    json_ = isinstance(attack.body, bytes) and "Content-Type" not in attack.headers
    return attack.headers | ({"Content-Type": "application/json"} if json_ else {})


def _body(path: str, body: Any, known: dict[str, str]) -> dict[str, Any]:
    """Pages take forms."""
    if body is None or isinstance(body, bytes):
        return {"content": body}
    filled = json.loads(_filled(json.dumps(body), known))
    return {"data": filled} if path.startswith("/") else {"json": filled}


def test_the_id_of_another_users_run_leads_to_no_answer_of_theirs(target: Place, known: dict[str, str]) -> None:
    order = ORDER | {"workspace": "main", "id": "of-operator"}
    theirs = target.ask("POST", "runs", target.people.operator, json=order)
    mine = target.ask("POST", "runs", target.people.keeper, json=order)
    unseen = target.ask("POST", "runs", target.people.operator, json=order | {"id": known["theirs"]})
    assert (theirs.status_code, theirs.json()["id"]) == (200, known["run"])
    for answer in (mine, unseen):
        assert (answer.status_code, answer.json()["code"]) == (409, "conflict")
        assert "workspace" not in answer.text and "user" not in answer.text
