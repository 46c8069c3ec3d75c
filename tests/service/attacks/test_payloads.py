"""Markup in all that files, metadata, recipes and records may say, through every page: it is shown as text, and nothing
of it runs or loads. Pages are those of the routers, so that a new one is among them."""

from __future__ import annotations

import html
import json
import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote, urlencode

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fastapi.routing import iter_route_contexts
from fastapi.testclient import TestClient
from PIL import Image
from sqlalchemy import select

from curate.api import Options, Pipeline, Slice, Workspace, make_stage
from curate.service.app import create_app
from curate.service.auth.roles import Role
from curate.service.database.models import IndexedDataset, IndexedRun, Registration, Submission, Tag, TargetRow
from curate.service.pages import router
from curate.service.service import Service
from curate.service.settings import Limits, Settings
from curate.service.view import set_up
from tests.html.browser import Browser
from tests.service.pages.markup import Markup
from tests.service.pages.served import served

pytestmark = pytest.mark.long
URL = "http://127.0.0.1:8090"
PAYLOADS = (
    "<script>alert('pwn')</script>", "<img src=/pwn onerror=alert('pwn')>", "'\"><svg onload=alert('pwn')>",
    "javascript:alert('pwn')//", "{{7007*7007}}${7007*7007}<%=7007*7007%>", "--></script><script>alert('pwn')</script>",
    "</textarea></title></select><iframe src=//pwn.example></iframe>", "=HYPERLINK(\"http://pwn.example\",\"x\")",
    "\u202egpj.<b onmouseover=alert('pwn')>b</b>", "\x07\x1b[31m<details open ontoggle=alert('pwn')>",
    "&lt;img src=x onerror=alert('pwn')&gt;", "x' autofocus onfocus='alert(`pwn`)",
    "x\" autofocus onfocus=\"alert(`pwn`)",
    "]]><math><mi xlink:href=\"data:x,<script>alert('pwn')</script>\">", "data:text/html,<script>alert('pwn')</script>",
    "\u2028<base href=//pwn.example>", "@SUM(1+1)*cmd|' /C calc'!A0",
)  # fmt: skip
ALL = "".join(PAYLOADS[:6])
RUN_ID = "<svg onload=alert('pwn')>'\""
PARAMETERS = """
    stage rejected where columns cursor limit blur q run like level cluster sort more drawn colour alive within
    side before reason at column sign edge with said state user workspace text tag name template point film
""".split()  # noqa: SIM905
FORBIDDEN = {"iframe", "base", "math", "object", "embed"}


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    """Two runs over images whose folders, captions, URLs and metadata are payloads; afterwards, so are the names of
    clusters and a reject reason."""
    folder = tmp_path_factory.mktemp("payloads")
    images = folder / "images"
    for number, payload in enumerate(PAYLOADS):
        place = images / payload.replace("/", "\u2215") / f"{payload[:40].replace('/', '.')}{number}.png"
        place.parent.mkdir(parents=True)
        Image.new("RGB", (8 if number < 2 else 40,) * 2, (14 * number, 0, 0)).save(place)
        about = {"caption": payload, "url": f"javascript:alert('pwn')//{payload}", payload: payload, "kind": payload}
        place.with_suffix(".json").write_text(json.dumps(about))
    made = Workspace(str(folder / "ws <b>"))
    for run_id, target in (("one-1", 8), ("two", 6)):
        recipe = Pipeline().add("pool", make_stage("acquire.folder", namespace="n", path=str(images), shard_rows=6))
        recipe.add("inspect", make_stage("image.inspect"), "pool")
        recipe.add("size", make_stage("image.filter", min_side=16), "inspect")
        recipe.add("embed", make_stage("image.embed", encoder="tiny"), "size")
        recipe.add("index", make_stage("search.fit"), "embed")
        recipe.add("tree", make_stage("cluster.fit", levels=[4, 2], rounds=0), "embed")
        recipe.add("clusters", make_stage("cluster.assign", levels=2), "embed", tree="tree")
        recipe.add("names", make_stage("cluster.profile"), "clusters", tree="tree")
        recipe.add("axes", make_stage("project.fit"), "embed")
        recipe.add("map", make_stage("project.place"), "clusters", projection="axes")
        recipe.add("sample", make_stage("select.hierarchical", target=target), "map", tree="tree")
        recipe.add("packed", make_stage("pack.webdataset", name="bikes", carry={"label": "meta.folder"}), "sample")
        made.submit(recipe.check(), run_id=run_id, options=Options(cpus=1)).wait()
    root = Path(made.root)
    for table in root.glob("artifacts/cluster.profile/*/clusters.parquet"):
        found = pq.read_table(table)
        names = pa.array([PAYLOADS[row % len(PAYLOADS)] for row in range(len(found))], found.schema.field("name").type)
        pq.write_table(found.set_column(found.schema.get_field_index("name"), found.schema.field("name"), names), table)
    for path in [*root.glob("runs/*/*.json"), *root.glob("runs/*/events/*")]:
        path.write_text(path.read_text().replace('"too_small"', json.dumps(PAYLOADS[1])))
    return made


@pytest.fixture(scope="module")
def service(workspace: Workspace, migrated_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """For one admin, without an account; titles, tags, recipes, datasets and places are payloads, too."""
    path = tmp_path_factory.mktemp("state") / "view.db"
    shutil.copy(migrated_file, path)
    with closing(
        Service.of(Settings(database=f"sqlite:///{path}", url=URL, limits=Limits(requests_per_minute=10**6)))
    ) as made:
        who = set_up(made, workspace)
        made.alone = replace(who, alone=False, everywhere=Role.ADMIN, token_role=Role.ADMIN)
        made.sandbox.start = lambda: None  # type: ignore[method-assign]
        (place,) = who.roles
        with made.database.write() as session:
            target = TargetRow(name=ALL[:60], address=ALL, created=1e9)
            session.add(target)
            session.flush()
            runs = {"started": 1e9, "ended": 2e9, "title": ALL[:200], "user": ALL[:60], "target": ALL[:60]}
            session.add(
                IndexedRun(workspace_id=place, id=RUN_ID, attempt_id="one-1", state="failed", reason=ALL, **runs)
            )
            session.add(
                IndexedRun(workspace_id=place, id="one", attempt_id="one-1", state="done", submitted=True, **runs)
            )
            times = {"created": 1e9, "since": 1e9, "queued": 1e9}
            owner = {"workspace_id": place, "target_id": target.id, "user_id": who.user_id, "state": "done"}
            texts = {"title": ALL[:200], "recipe": f"# {ALL}\n", "resolved": ALL, "sets": [ALL], "reason": ALL}
            session.add(Submission(id="one", **owner, **texts, **times))
            base = session.scalars(select(IndexedDataset.base)).first()
            for tag in (ALL[:60], "good"):
                session.add(Tag(workspace_id=place, name="bikes", tag=tag, base=base, time=1e9, user=ALL[:60]))
            about = {"base": f"datasets/{PAYLOADS[1].replace('/', '-')}/ab", "name": PAYLOADS[1], "fingerprint": "ab"}
            sizes = {"rows": 1, "tars": 1, "bytes": 1, "committed": 1e9}
            session.add(IndexedDataset(workspace_id=place, run_id=RUN_ID, **about, **sizes))
            session.add(Registration(kind="root", name=ALL[:60], value=ALL, created=0.0))
        workspace.add_tombstones(["ab" * 16, f"http://pwn.example/{ALL}"], why=ALL)
        yield made


@pytest.fixture(scope="module")
def client(service: Service) -> Iterator[TestClient]:
    with TestClient(create_app(service, reconcile=False), base_url=URL, follow_redirects=False) as made:
        yield made


@pytest.fixture(scope="module")
def pages(workspace: Workspace, service: Service) -> list[str]:
    """A path of every page. A new parameter of a path needs a value here."""
    rows = workspace.run("one-1").slice(Slice("pool"), limit=100).table
    (dataset, *_) = workspace.datasets()
    assert service.alone is not None
    place = re.sub("[^A-Za-z0-9_-]+", "-", "ws <b>").strip("-")
    names = {"workspaces": place, "people": service.alone.user, "datasets": "bikes"}
    given = {"run_id": "one", "other": "two", "workspace": place, "fingerprint": dataset.base.rpartition("/")[2]}
    found = []
    for route in iter_route_contexts(router.routes):
        if "GET" in (route.methods or ()) and "/reports/" not in str(route.path):  # in a sandbox: see test_looking
            assert route.path is not None
            kind = route.path.split("/")[1]
            fragments = (
                ("progress", "funnel", "log")
                if kind == "runs" and "thresholds" not in route.path
                else ("rows", "border")
            )
            for row in (0, 5) if "{key}" in route.path or "{row}" in route.path else (0,):
                about = {"key": rows["key"][row], "shard": rows["shard"][row], "row": rows["row"][row]}
                every = fragments if route.path.endswith("/fragment/{name}") else (names.get(kind, ""),)
                found += [route.path.format(**given, **about, name=quote(name)) for name in every]
    needs = re.compile("/tiles|/thresholds/fragment/")
    return [f"{page}?stage=map&column=width" if needs.search(page) else page for page in dict.fromkeys(found)]


def check(client: TestClient, address: str, statuses: Sequence[int] = (200, 303, 400, 404, 409, 422)) -> str:
    """What a page says, and that no element is a payload's."""
    answer = client.get(address)
    assert answer.status_code in statuses, (address, answer.status_code)
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["content-security-policy"].startswith("default-src 'self'")
    if not answer.headers.get("content-type", "").startswith("text/html"):
        return ""
    found = Markup(answer.text)
    problems = [
        one for one in found.problems if not one.startswith(("#i-", "#s-"))
    ]  # fragments have no icons and no funnel
    assert problems == [], address
    assert not FORBIDDEN & {tag for tag, _ in found.elements}, address
    assert all(not about.get("src", "/x").startswith(("/pwn", "//")) for _, about in found.elements), address
    assert "49098049" not in answer.text, address
    return html.unescape(answer.text)


def with_query(page: str, query: dict[str, str]) -> str:
    return f"{page}{'&' if '?' in page else '?'}{urlencode(query)}"


def test_every_page_shows_payloads_as_texts(client: TestClient, pages: list[str]) -> None:
    said = "".join(check(client, page, (200, 303)) for page in pages)
    for column in ("caption", "url", "meta.kind", "source_id", "meta.folder"):
        said += check(client, f"/runs/one/samples?stage=pool&columns={column}&limit=100")
    said += check(client, "/runs/one/captions?stage=pool")
    for run in ("", "/samples", "/clusters", "/map", "/thresholds", "/compare/two", "/captions", "/rejects", "/recipe"):
        said += check(client, f"/runs/{quote(RUN_ID, safe='')}{run}")
    texts = [payload.lstrip("\x07\x1b") for payload in PAYLOADS]  # control characters are left out
    missing = [text for text in texts if text not in said and text.replace("/", "\u2215") not in said]
    assert missing == [] and RUN_ID in said


@pytest.mark.parametrize("payload", [ALL, *PAYLOADS[6:]])
def test_addresses_are_texts(client: TestClient, pages: list[str], payload: str) -> None:
    """In each parameter of a query, all at once, and in each part of a path."""
    for page in pages:
        check(client, with_query(page, dict.fromkeys(PARAMETERS, payload)))
    for page in [page for page in pages if payload == ALL and re.fullmatch("/find|/runs/one/[a-z]+", page)]:
        for name in PARAMETERS:
            check(client, with_query(page, {name: payload}))
        parts = page.partition("?")[0].split("/")
        for place in range(2, len(parts)):
            check(client, "/".join([*parts[:place], quote(payload, safe=""), *parts[place + 1 :]]))


def test_no_page_shows_pixels_to_a_viewer_without_the_grant(
    client: TestClient, service: Service, pages: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    who = service.alone
    assert who is not None
    shown = {page for page in pages if "/thumbnails/" in client.get(page).text}
    assert {page.partition("?")[0].rpartition("/")[2] for page in shown} >= {"samples", "clusters", "captions"}
    monkeypatch.setattr(service, "alone", replace(who, everywhere=None, roles=dict.fromkeys(who.roles, Role.VIEWER)))
    for page in [page for page in pages if not page.startswith("/static/")]:
        answer = client.get(page, headers={"If-None-Match": "*"})
        assert "/thumbnails/" not in answer.text, page
        if re.search("/(thumbnails|files)/", page):
            assert answer.status_code == 403, page


@pytest.mark.parametrize("script", [True, pytest.param(False, marks=pytest.mark.nightly)], ids=["script", "plain"])
def test_nothing_runs_or_loads_in_a_browser(browser: Browser, service: Service, pages: list[str], script: bool) -> None:
    with served(create_app(service, reconcile=False)) as url, browser.tab(java_script_enabled=script) as tab:
        elsewhere, dialogs = list[str](), list[str]()
        tab.page.on("request", lambda asked: elsewhere.append(asked.url))
        tab.page.on("dialog", lambda dialog: (dialogs.append(dialog.message), dialog.dismiss()))
        for page in pages:
            if re.search("/(files|static|recipe|fragment|thumbnails|tiles)|/map/image|favicon", page):
                continue
            for query in ({}, dict.fromkeys(PARAMETERS, ALL)):
                tab.page.goto(url + with_query(page, query), wait_until="load")
                if script:
                    tab.page.wait_for_timeout(50)
                assert tab.page.locator("iframe, base, math, [onload], [onerror], [onfocus]").count() == 0, page
                assert [one for one in tab.messages if not re.search("Failed to load|GL Driver", one)] == [], page
        assert dialogs == []
        assert [one for one in elsewhere if not one.startswith(f"{url}/") or "/pwn" in one.partition("?")[0]] == []
