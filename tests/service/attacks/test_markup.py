"""Markup in everything that users, recipes and runs may write: every page shows it as text."""

from __future__ import annotations

import json
import time

import pytest

from curate.service.database.models import IndexedRun, Submission
from tests.service.attacks.place import Place
from tests.service.records import Recorded

MARKUP = "<img src=x onerror=alert(1)>'\"{{7*7}}</script>"
RECIPE = f"# {MARKUP}\nstages:\n  pool: {{op: acquire.folder, namespace: a, path: photos}}\n"
PAGES = (
    "/runs", "/runs?q={markup}", "/runs/{run}", "/runs/{run}?stage={markup}", "/new?run={run}",
    "/new?template={markup}",
    "/people", "/people/operator", "/audit", "/audit?user={markup}", "/workspaces", "/workspaces/main", "/targets",
    "/datasets?q={markup}", "/nothing/{markup}", "/runs/{markup}", "/login?next=/{markup}",
)  # fmt: skip


@pytest.fixture(scope="module")
def run(target: Place) -> str:
    """A run with markup in its title, its stages, its error and its log; and a token and an audit with it."""
    people = target.people
    order = {"workspace": "main", "recipe": RECIPE, "title": MARKUP}
    run: str = target.ask("POST", "runs", people.operator, json=order).json()["id"]
    record = Recorded(str(target.folder / "main"), f"{run}-1", (MARKUP, "facts"))
    record.events({"event": "begin", "stage": MARKUP, "time": time.time()})
    line = {"time": time.time() - 60, "level": "error", "stage": MARKUP, "worker": MARKUP, "node": MARKUP,
            "message": MARKUP, "traceback": MARKUP}  # fmt: skip
    record.storage.publish_bytes(f"runs/{run}-1/logs/worker-000001.jsonl", f"{json.dumps(line)}\n".encode())
    with target.service.database.write() as session:
        row = session.get_one(Submission, run)
        line_ = session.get_one(IndexedRun, (row.workspace_id, run))
        row.state = line_.state = "running"
        row.reason = line_.reason = row.alert = line_.alert = MARKUP
    target.ask("POST", "users/operator/tokens", people.operator, json={"label": MARKUP})
    target.ask("POST", "workspaces/main/tombstones", people.operator, json={"entries": ["0" * 32], "why": MARKUP})
    return run


@pytest.mark.parametrize("path", PAGES)
def test_markup_is_text(target: Place, run: str, path: str) -> None:
    answer = target.ask("GET", path.replace("{run}", run).replace("{markup}", "%3Cimg src=x onerror=alert(1)%3E'%22"),
                        target.people.admin)  # fmt: skip
    assert answer.status_code in (200, 404, 405), answer.text
    assert "<img" not in answer.text and "49" + "</script" not in answer.text and MARKUP not in answer.text
    assert answer.headers["content-security-policy"].startswith("default-src 'self'")
    assert "'unsafe" not in answer.headers["content-security-policy"]


def test_the_pages_show_the_markup(target: Place, run: str) -> None:
    """The pages above show it, or the test would say nothing."""
    page = target.ask("GET", f"/runs/{run}", target.people.admin).text
    assert page.count("&lt;img src=x") > 4
    assert "&lt;img src=x" in target.ask("GET", "/audit", target.people.admin).text


def test_a_recipe_is_a_download_and_no_page(target: Place, run: str) -> None:
    answer = target.ask("GET", f"/runs/{run}/recipe", target.people.viewer)
    assert answer.headers["content-type"].startswith("text/plain")
    assert answer.headers["content-disposition"].startswith("attachment")
    assert answer.headers["x-content-type-options"] == "nosniff"
