"""Each form calls its action with what was typed, and says what came of it."""

from __future__ import annotations

from html import escape
from typing import Any

import pytest
from fastapi.testclient import TestClient

from curate.service.datasets.tags import NewTag
from curate.service.datasets.upkeep import GcOrder, NewPin, NewTombstones
from curate.service.people.quotas import NewQuota
from curate.service.people.tokens import MadeToken, NewToken
from curate.service.people.users import ChangedUser, NewGrant, NewUser
from curate.service.places.registrations import NewRegistration
from curate.service.places.targets import ChangedTarget, NewTarget
from curate.service.places.workspaces import ChangedWorkspace, NewWorkspace
from curate.service.problems import ChangedProblem, ConflictProblem, ForbiddenProblem
from curate.service.runs.shapes import ChangedRun, NewLimits
from tests.service.pages import examples
from tests.service.pages.markup import Markup
from tests.service.pages.site import CSRF, Site

HERE = "/workspaces/openclipart"
DATASET = "/datasets/openclipart/quickstart/9f2c4be1a07d55d3"
BASE = "datasets/quickstart/9f2c4be1a07d55d3"
FORMS: list[tuple[str, dict[str, str], tuple[str, tuple[Any, ...]], str]] = [
    ("/runs/r-1/stop", {}, ("runs.stop", ("r-1", None)), "/runs/r-1?said=stop"),
    ("/runs/r-1/kill", {}, ("runs.kill", ("r-1", None)), "/runs/r-1?said=kill"),
    (
        "/runs/r-1/resume?workspace=w",
        {},
        ("runs.resume", ("r-1", "w")),
        "/runs/r-1?workspace=w&said=resume",
    ),
    (
        "/runs/r-1/limit",
        {"max_dollars": "2.5", "max_tokens": ""},
        ("runs.limit", ("r-1", NewLimits(max_dollars=2.5), None)),
        "/runs/r-1?said=saved",
    ),
    (
        "/runs/r-1/priority",
        {"priority": "-3"},
        ("runs.change", ("r-1", ChangedRun(priority=-3), None)),
        "/runs/r-1?said=saved",
    ),
    (
        f"{DATASET}/tags",
        {"tag": "good"},
        ("data.set_tag", ("openclipart", "quickstart", "good", NewTag(base=BASE))),
        f"{DATASET}?said=saved",
    ),
    (
        f"{DATASET}/tags/remove",
        {"tag": "good"},
        ("data.remove_tag", ("openclipart", "quickstart", "good")),
        f"{DATASET}?said=removed",
    ),
    (
        "/workspaces",
        {"name": "new", "url": "s3://b/new", "target": ""},
        ("places.add_workspace", (NewWorkspace(name="new", url="s3://b/new"),)),
        "/workspaces/new?said=added",
    ),
    (
        f"{HERE}/target",
        {"target": "big", "version": "3"},
        ("places.change_workspace", ("openclipart", ChangedWorkspace(target="big"), 3)),
        f"{HERE}?said=saved",
    ),
    (f"{HERE}/remove", {}, ("places.remove_workspace", ("openclipart",)), "/workspaces?said=removed"),
    (
        f"{HERE}/registrations",
        {"kind": "root", "name": "images", "value": "/data"},
        ("places.register", (NewRegistration(workspace="openclipart", kind="root", name="images", value="/data"),)),
        f"{HERE}?said=added",
    ),
    (
        "/workspaces/-/registrations",
        {"kind": "op", "name": "mine", "value": "mine:Op"},
        ("places.register", (NewRegistration(kind="op", name="mine", value="mine:Op"),)),
        "/workspaces?said=added",
    ),
    (
        f"{HERE}/registrations/remove",
        {"kind": "root", "name": "images"},
        ("places.unregister", ("root", "images", "openclipart")),
        f"{HERE}?said=removed",
    ),
    (
        "/workspaces/-/registrations/remove",
        {"kind": "root", "name": "images"},
        ("places.unregister", ("root", "images", None)),
        "/workspaces?said=removed",
    ),
    (
        f"{HERE}/pins",
        {"name": "tree", "run": "r-1-1", "stage": "tree"},
        ("upkeep.add_pin", ("openclipart", "tree", NewPin(run="r-1-1", stage="tree"))),
        f"{HERE}?said=added",
    ),
    (
        f"{HERE}/pins/remove",
        {"name": "tree"},
        ("upkeep.remove_pin", ("openclipart", "tree")),
        f"{HERE}?said=removed",
    ),
    (
        f"{HERE}/tombstones",
        {"entries": " one\r\n\r\ntwo ", "why": "takedown"},
        ("upkeep.add_tombstones", ("openclipart", NewTombstones(entries=["one", "two"], why="takedown"))),
        f"{HERE}?said=added",
    ),
    (
        f"{HERE}/gc",
        {"keep": "5", "drop": "r-1 r-2", "costly": "1", "do": "delete"},
        ("upkeep.gc", ("openclipart", GcOrder(keep=5, drop=["r-1", "r-2"], costly=True, delete=True))),
        f"{HERE}?said=freed",
    ),
    (
        "/targets",
        {"name": "new", "address": "http://ray:8265", "token": "env:RAY", "max_runs": "2"},
        ("places.add_target", (NewTarget(name="new", address="http://ray:8265", token="env:RAY", max_runs=2),)),
        "/targets?said=added",
    ),
    (
        "/targets/big",
        {"address": "http://ray:8265", "token": "", "max_runs": "2", "version": "2"},
        ("places.change_target", ("big", ChangedTarget(address="http://ray:8265", token="", max_runs=2), 2)),
        "/targets?said=saved",
    ),
    ("/targets/big/check", {}, ("places.check_target", ("big",)), "/targets"),
    ("/targets/big/remove", {}, ("places.remove_target", ("big",)), "/targets?said=removed"),
    ("/people", {"name": "joan"}, ("people.add_user", (NewUser(name="joan"),)), "/people/joan?said=added"),
    (
        "/people/-/quota",
        {"running": "2", "queued": "", "gpu_hours": "1.5"},
        ("people.set_default_quota", (NewQuota(running=2, gpu_hours=1.5),)),
        "/people?said=saved",
    ),
    (
        "/people/grace/quota",
        {"queued": "7"},
        ("people.set_quota", ("grace", NewQuota(queued=7))),
        "/people/grace?said=saved",
    ),
    (
        "/people/grace/grants",
        {"role": "operator", "workspace": "*"},
        ("people.set_grant", ("grace", NewGrant(role="operator"))),
        "/people/grace?said=saved",
    ),
    (
        "/people/grace/grants/remove",
        {"workspace": "openclipart"},
        ("people.remove_grant", ("grace", "openclipart")),
        "/people/grace?said=removed",
    ),
    (
        "/people/grace/disabled",
        {"disabled": "yes"},
        ("people.change_user", ("grace", ChangedUser(disabled=True))),
        "/people/grace?said=saved",
    ),
    (
        "/people/ada/tokens/99aa88bb/revoke",
        {},
        ("people.revoke_token", ("99aa88bb",)),
        "/people/ada?said=revoked",
    ),
]


@pytest.mark.parametrize(("path", "fields", "call", "after"), FORMS)
def test_a_form_calls_its_action_and_leads_back(
    site: Site, client: TestClient, path: str, fields: dict[str, str], call: Any, after: str
) -> None:
    answer = client.post(path, data=fields | {"csrf": CSRF})
    assert (answer.status_code, answer.headers["location"]) == (303, after)
    assert call in [(name, args) for name, args, _ in site.calls]


@pytest.mark.parametrize(("path", "fields", "call", "after"), FORMS)
def test_the_page_of_the_form_shows_the_problem(
    site: Site, client: TestClient, path: str, fields: dict[str, str], call: Any, after: str
) -> None:
    site.answers[call[0]] = ConflictProblem("that is not possible; do something else")
    if call[0] == "upkeep.gc":
        fields = fields | {"do": "preview"}
    answer = client.post(path, data=fields | {"csrf": CSRF})
    assert answer.status_code == 409 and "That is not possible; do something else" not in answer.text[:500]
    assert 'role="alert"' in answer.text and "do something else" in answer.text
    assert Markup(answer.text).problems == []


def test_every_form_of_the_pages_is_tried_here(client: TestClient) -> None:
    tried = {path.split("?")[0] for path, *_ in FORMS} | {"/logout", "/login", "/new", "/people/ada/tokens"}
    paths = ("/runs/r-1", DATASET, "/workspaces", HERE, "/targets", "/people", "/people/ada", "/people/grace")
    forms = [form for path in paths for form in Markup(client.get(path).text).forms if form["method"] == "post"]
    known = {"big", "local", "old", "ada", "grace", "99aa88bb", "1a2b3c4d", "77ee66ff", examples.RUN, "r-1"}

    def shape(path: str) -> str:
        return "/".join("*" if one in known else one for one in path.split("?")[0].split("#")[0].split("/"))

    assert {shape(form["action"]) for form in forms} <= {shape(path) for path in tried}


def test_a_new_token_is_shown_once_and_not_by_an_address(site: Site, client: TestClient) -> None:
    text = "cur_12345678_" + "x" * 43
    site.answers["people.make_token"] = MadeToken(**examples.tokens()[0].model_dump(), token=text)
    answer = client.post("/people/ada/tokens", data={"label": "Laptop", "role": "viewer", "days": "never"})
    assert answer.status_code == 201 and text in answer.text and answer.headers["cache-control"] == "no-store"
    assert ("people.make_token", ("ada", NewToken(label="Laptop", role="viewer", days=None)), {}) in site.calls
    assert text not in client.get("/people/ada").text


def test_unknown_tombstones_are_named(site: Site, client: TestClient) -> None:
    unknown = [f"https://nowhere.example/{number}?<b>" for number in range(9)]
    site.answers["upkeep.add_tombstones"] = examples.tombstones().model_copy(update={"unknown": unknown})
    answer = client.post(f"{HERE}/tombstones", data={"entries": "\n".join(unknown), "why": "takedown"})
    named = escape(f"{', '.join(unknown[:3])} and 6 more")
    assert answer.status_code == 200 and f"no pool or dataset here has <bdi>{named}</bdi>." in answer.text


def test_gc_is_previewed_before_it_frees(site: Site, client: TestClient) -> None:
    answer = client.post(f"{HERE}/gc", data={"keep": "5", "costly": "1", "do": "preview"})
    assert answer.status_code == 200 and "73 paths with 96.2 MB would be freed" in answer.text
    fields = next(
        {field.get("name"): field.get("value") for field in form["fields"]}
        for form in Markup(answer.text).forms
        if form["action"].endswith("/gc#gc") and {"name": "do", "value": "delete"}.items() <= form["fields"][-1].items()
    )
    assert fields == {"csrf": CSRF, "keep": "5", "drop": "", "costly": "1", "do": "delete"}
    assert [args for name, args, _ in site.calls if name == "upkeep.gc"] == [
        ("openclipart", GcOrder(keep=5, costly=True, delete=False))
    ]


@pytest.mark.parametrize(
    ("path", "fields", "words"),
    [
        ("/people", {"name": "../x"}, "name: String should match"),
        ("/people/-/quota", {"running": "1.5"}, "running: 1.5 is not an integer"),
        ("/people/-/quota", {"running": "many"}, "running: &#39;many&#39; is not a number"),
        ("/targets", {"name": "x", "address": "ftp://x"}, "address: String should match"),
        (f"{HERE}/gc", {"keep": "-1"}, "keep: Input should be greater"),
        (f"{HERE}/tombstones", {"entries": "", "why": "x"}, "entries: List should have at least 1 item"),
    ],
)
def test_an_invalid_field_is_reported_before_any_action(
    site: Site, client: TestClient, path: str, fields: dict[str, str], words: str
) -> None:
    answer = client.post(path, data=fields)
    assert answer.status_code == 422 and words in answer.text and site.malformed == [("POST", path)]
    reads = {"people.me", "people.users", "people.quotas", "people.tokens", "places.workspaces", "places.targets"}
    others = {name for name, *_ in site.calls} - reads
    assert not {name for name in others if name.startswith(("people", "upkeep.gc", "upkeep.add", "places.add"))}


def test_rights_and_versions_keep_their_status(site: Site, client: TestClient) -> None:
    site.answers["runs.stop"] = ForbiddenProblem("workspace x: this needs the role operator")
    assert client.post("/runs/r-1/stop").status_code == 403
    site.answers["places.change_target"] = ChangedProblem("big: has version 3, not 2")
    answer = client.post("/targets/big", data={"address": "http://x:1", "max_runs": "2", "version": "2"})
    assert answer.status_code == 412 and "It has changed meanwhile" in answer.text
