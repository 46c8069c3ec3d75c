"""The pages of thresholds and comparisons, of the whole application over a run."""

from __future__ import annotations

import re
from collections.abc import Iterator
from urllib.parse import urlencode

import numpy as np
import pytest
from fastapi.testclient import TestClient

from curate.service.app import create_app
from curate.service.database.models import IndexedRun
from curate.service.pages.data import thresholds as pages
from curate.service.runs.shapes import RecipeOrder
from curate.service.service import Service
from tests.engine import toys
from tests.html.browser import Browser
from tests.service.curated import Curated, curated, toy_workspace
from tests.service.pages.markup import Markup
from tests.service.pages.served import served
from tests.service.pages.test_login import log_in
from tests.service.pages.test_pages import HOSTILE as ANY_HOSTILE
from tests.service.people import People

__all__ = ["curated", "toy_workspace"]
HOSTILE = ANY_HOSTILE.partition("\x00")[0]  # control characters in an address are rejected before
PAGE = "/runs/first/thresholds"
BRIGHT = {"stage": "bright", "column": "brightness"}


@pytest.fixture
def client(service: Service, people: People, curated: Curated, monkeypatch: pytest.MonkeyPatch) -> Iterator[TestClient]:
    """An operator has logged in."""
    monkeypatch.setattr(service.sandbox, "start", lambda: None)
    with TestClient(create_app(service, reconcile=False), follow_redirects=False) as made:
        log_in(made, people.operator)
        yield made


@pytest.fixture
def second(service: Service, people: People, curated: Curated) -> None:
    """A run with another parameter."""
    curated.workspace.submit(toys.pipeline(light__darkest=125), run_id="second-1").wait()
    about = {"title": "", "user": "operator", "target": "local", "state": "done", "submitted": False}
    with service.database.write() as session:
        session.add(
            IndexedRun(workspace_id=people.workspace.id, id="second-1", attempt_id="second-1", started=2e9, **about)
        )


def address(path: str = PAGE, **query: str) -> str:
    return f"{path}?{urlencode(query)}"


def test_pages_are_well_formed(client: TestClient, second: None) -> None:
    paths = {
        PAGE: "Numbers of this stage", address(**BRIGHT, at="125.5"): "Exact: all", address(**BRIGHT, edge="3"): "Lost",
        address(f"{PAGE}/fragment/rows", **BRIGHT): "threshold-rows",
        address(f"{PAGE}/fragment/border", **BRIGHT): "Just kept", "/runs/first/compare": "Compare it with",
        "/runs/first/compare/second-1": "darkest", "/runs/first/compare?with=second-1": "darkest",
        "/runs/first/compare/second-1?stage=light&side=lost": "dark",
        "/runs/first/compare/first": "None.",
    }  # fmt: skip
    for path, words in paths.items():
        answer = client.get(path)
        problems = [one for one in Markup(answer.text).problems if "fragment" not in path or "leads nowhere" not in one]
        assert (answer.status_code, problems) == (200, []), path
        assert words in answer.text, path


def test_the_images_nearest_to_the_threshold_are_shown(client: TestClient, curated: Curated) -> None:
    every = np.sort(curated.workspace.table("first-1", "bright", ["brightness"]).table["brightness"].to_numpy())
    below, above = every[every < 125.5][-pages.BORDER :], every[every > 125.5][: pages.BORDER]
    for column, at in (("brightness", 125.5), ("brightness * -2", -251.0)):
        text = client.get(address(f"{PAGE}/fragment/border", stage="bright", column=column, at=f"{at}")).text
        sides = [re.findall(r'note"><bdi>([^<]*)', side) for side in text.split("<section")[1:3]]
        shown = sorted(sorted(float(value) for value in side) for side in sides)
        assert shown == [below.round().tolist(), above.round().tolist()]


def test_a_new_filter_says_which_stages_are_to_read_it(client: TestClient) -> None:
    text = " ".join(re.sub(r"<[^>]*>", "", client.get(address(**BRIGHT)).text).split())
    assert "It rejects nothing until a stage reads it: in from of light" in text
    assert "write bright_kept in place of bright." in text
    assert "no stage reads page yet" not in text


def test_a_mistake_is_reported_on_the_page(client: TestClient) -> None:
    queries = [
        ({"column": HOSTILE}, "column:"), ({"column": "select 1"}, "a subquery"), ({"at": "nan"}, "is not a number"),
        ({"at": HOSTILE}, "is not a number"), ({"sign": "=="}, "expected one of"),
        ({"stage": HOSTILE}, "has no such stage"),
    ]  # fmt: skip
    for query, words in queries:
        answer = client.get(address(**BRIGHT | query))
        assert answer.status_code == 422 and words in answer.text and Markup(answer.text).problems == [], query
        assert "<script>alert" not in answer.text and "<img src=x" not in answer.text
    for path in (f"/runs/first/compare/first?stage={HOSTILE}", "/runs/first/compare/first?side=both"):
        answer = client.get(path)
        assert answer.status_code == 422 and "<script>alert" not in answer.text


def test_a_viewer_looks_but_plans_nothing(client: TestClient, people: People) -> None:
    assert "Plan a run" not in client.get(address(**BRIGHT)).text  # the toys' record has no recipe
    log_in(client, people.viewer)
    text = client.get(address(**BRIGHT)).text
    assert "you need the role operator" in text and "Images are hidden" in text


def test_an_operator_plans_it_in_the_editor(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    order = RecipeOrder(workspace="main", recipe="stages: {}", set=["light.darkest=3"])
    monkeypatch.setattr(pages.actions, "order", lambda moved: order)
    for path in (address(**BRIGHT), address(f"{PAGE}/fragment/border", **BRIGHT)):
        markup = Markup(client.get(path).text)
        (form,) = [form for form in markup.forms if form["action"] == "/new"]
        fields = {field["name"]: field.get("value") for field in form["fields"]}
        assert (fields["recipe"], fields["set"], fields["do"]) == (order.recipe, "light.darkest=3", "plan")
        assert fields["title"].startswith("brightness >= ")


@pytest.mark.long
@pytest.mark.parametrize("width", [1200, 360])
def test_the_slider_moves_by_keyboard(client: TestClient, people: People, browser: Browser, width: int) -> None:
    with served(client.app) as url, browser.tab(viewport={"width": width, "height": 800}) as tab:
        page = tab.page
        page.goto(f"{url}/login")
        page.get_by_label("Token").fill(people.operator.token)
        page.get_by_role("button", name="Log in").click()
        page.wait_for_url("**/runs")
        page.goto(f"{url}{address(**BRIGHT)}")
        before = page.locator("#threshold-rows [data-at]").get_attribute("data-at")
        border = page.locator("#threshold-border h3").first.inner_text()
        page.locator("#edge").focus()
        for _ in range(5):
            page.keyboard.press("ArrowRight")
        page.locator(f"#threshold-rows [data-at]:not([data-at='{before}'])").wait_for()
        page.locator("#threshold-border h3", has_text=border).first.wait_for(state="detached")
        at = page.locator("#threshold-rows [data-at]").get_attribute("data-at")
        assert page.locator("#edge").get_attribute("aria-valuetext") == at == page.locator("#at").input_value()
        assert f"at={at}" in page.url and tab.evaluate("document.documentElement.scrollWidth") == width
        assert tab.messages == []
