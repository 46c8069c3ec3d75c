"""The editor: what was typed stays, mistakes have lines, a submission leads to its run."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from fastapi.testclient import TestClient

from curate.service.pages.new import Variable, variables
from curate.service.problems import PolicyProblem
from curate.service.runs.shapes import Checked, Mistake, NewRun, RecipeOrder, RunOptions
from curate.service.states import State
from tests.service.pages import examples
from tests.service.pages.markup import Markup
from tests.service.pages.site import CSRF, Site

TYPED = {
    "csrf": CSRF, "workspace": "openclipart", "recipe": examples.RECIPE, "var.target": "500", "var.encoder": "",
    "set": "inspect.threads=2\n\n size.min_side=64 ", "title": "A try", "target": "big", "priority": "3",
    "max_dollars": "2.5", "sample": "0.1", "retries": "", "retry": "embed\r\n\r\n download : timeout, dns ",
    "retry_status": "error",
}  # fmt: skip


def test_variables_are_read_by_lines_alone() -> None:
    assert variables(examples.RECIPE) == [
        Variable("images", "images", "a registered root"),
        Variable("encoder", "tiny", "included; timm:…, open_clip:… by name"),
        Variable("min_side", "32", "pixels of the shorter side"),
        Variable("target", "3000", ""),
    ]
    assert variables("vars:\n  a: [1, 2]\n    deeper: 1\n  b:\nstages:\n  c: 1\n") == [
        Variable("a", "[1, 2]", ""), Variable("b", "", "")
    ]  # fmt: skip
    assert variables("vars: {a: 1}\nstages:\n  a: 1\n") == [] == variables("") == variables("vars:\n\ta: 1")
    assert len(variables("vars:\n" + "".join(f"  v{place}: 1\n" for place in range(500)))) == 60


def test_a_template_fills_the_editor(client: TestClient) -> None:
    text = client.get("/new?template=quickstart&workspace=openclipart").text
    assert "# From a folder of images" in text and 'placeholder="3000"' in text and 'name="var.encoder"' in text


def test_a_run_can_be_started_again_from_its_recipe(site: Site, client: TestClient) -> None:
    site.answers["runs.run"] = examples.run(State.DONE).model_copy(
        update={
            "priority": -7,
            "options": {"max_dollars": 50.0, "retry": {"download": ["dns", "timeout"], "embed": []}},
        }
    )
    text = client.get("/new?run=r-1").text
    assert 'value="-7"' in text and "download: dns, timeout\nembed" in text
    assert "# From a folder of images" in text and "encoder=tiny" in text and 'value="50.0"' in text


@pytest.mark.parametrize("verb", ["check", "plan"])
def test_checking_keeps_what_was_typed(site: Site, client: TestClient, verb: str) -> None:
    answer = client.post("/new", data=TYPED | {"do": verb})
    assert answer.status_code == 200 and Markup(answer.text).problems == []
    order = RecipeOrder(
        workspace="openclipart", recipe=examples.RECIPE,
        set=["target=500", "inspect.threads=2", "size.min_side=64"],
    )  # fmt: skip
    assert (f"recipes.{verb}", (order,), {}) in site.calls
    for kept in ('value="500"', "inspect.threads=2", 'value="A try"', 'value="2.5"', "# From a folder of images"):
        assert kept in answer.text
    assert "The recipe is correct" in answer.text and ("To compute" in answer.text) == (verb == "plan")


def test_mistakes_have_the_line_that_they_are_in(site: Site, client: TestClient) -> None:
    mistakes = [
        Mistake(code="policy", text="pool.path: /etc is not under a registered root", stage="pool", line=13),
        Mistake(code="recipe", text="no stage packs a dataset", line=9_999),
        Mistake(code="timeout", text="checking took longer than 60 s"),
    ]
    site.answers["recipes.check"] = Checked(ok=False, mistakes=mistakes, stages=[])
    text = client.post("/new", data=TYPED | {"do": "check"}).text
    assert "3 mistakes" in text and "<pre>  13      path: ${images}</pre>" in text and 'data-line="13"' in text


def test_a_submission_leads_to_its_run(site: Site, client: TestClient) -> None:
    answer = client.post("/new", data=TYPED | {"do": "submit"})
    assert (answer.status_code, answer.headers["location"]) == (303, f"/runs/{examples.RUN}")
    order = NewRun(
        workspace="openclipart", recipe=examples.RECIPE, set=["target=500", "inspect.threads=2", "size.min_side=64"],
        title="A try", target="big", priority=3,
        options=RunOptions(max_dollars=2.5, sample=0.1, retry={"embed": [], "download": ["timeout", "dns"]}),
    )  # fmt: skip
    assert ("runs.submit", (order,), {}) in site.calls


def test_a_rejected_submission_keeps_what_was_typed(site: Site, client: TestClient) -> None:
    site.answers["runs.submit"] = PolicyProblem("recipe: line 13: pool.path: /etc is not under a registered root")
    answer = client.post("/new", data=TYPED | {"do": "submit"})
    assert answer.status_code == 422 and "not registered" in answer.text and "line 13" in answer.text
    assert 'value="A try"' in answer.text and "# From a folder of images" in answer.text


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"recipe": "  "}, "recipe: empty"),
        ({"priority": "1.5"}, "priority: 1.5 is not an integer"),
        ({"sample": "7"}, "sample: Input should be less than or equal to 1"),
        ({"workspace": "../x"}, "workspace: String should match"),
        ({"deadline": "soon"}, "deadline: &#39;soon&#39; is not a number"),
        ({"sample": "nan"}, "sample: &#39;nan&#39; is not a number"),
    ],
)
def test_an_invalid_order_is_reported(site: Site, client: TestClient, fields: dict[str, str], words: str) -> None:
    answer = client.post("/new", data=TYPED | fields | {"do": "submit"})
    assert answer.status_code == 422 and words in answer.text
    assert "runs.submit" not in [name for name, *_ in site.calls] and site.malformed == [("POST", "/new")]


def test_windows_line_ends_do_not_reach_the_recipe(site: Site, client: TestClient) -> None:
    client.post("/new", data=TYPED | {"recipe": "a: 1\r\nb: 2\r\n", "do": "check"})
    ((order,),) = [args for name, args, _ in site.calls if name == "recipes.check"]
    assert order.recipe == "a: 1\nb: 2\n"


def test_only_workspaces_where_one_may_submit_are_offered(site: Site, client: TestClient) -> None:
    text = client.get("/new").text
    assert '<option value="openclipart"' in text and "laion-study" not in text


def test_a_template_without_description_is_listed(site: Site, client: TestClient) -> None:
    plain: Any = SimpleNamespace(name="plain", description="", text="stages: {}")
    site.answers["recipes.templates"] = [plain]
    assert '<option value="plain">plain</option>' in client.get("/new").text
