from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from curate.service.auth.roles import Principal
from curate.service.database.models import Registration
from curate.service.policy.sandbox import Sandbox
from curate.service.problems import (
    ForbiddenProblem,
    InvalidProblem,
    NotFoundProblem,
    PolicyProblem,
    TooLargeProblem,
)
from curate.service.runs import recipes
from curate.service.runs.shapes import RecipeOrder
from curate.service.service import Service
from curate.service.settings import Settings
from tests.service.people import People

RECIPE = """
stages:
  pool:
    op: acquire.folder
    path: photos
    namespace: a
  inspect:
    op: image.inspect
    from: pool
"""


@pytest.fixture
def served(service: Service, sandbox: Sandbox, people: People, tmp_path: Path) -> Iterator[Service]:
    """With the root `photos` in all workspaces, and a folder of templates."""
    photos = tmp_path / "photos"
    photos.mkdir()
    (photos / "a.png").write_bytes(b"not read")
    with service.database.write() as session:
        session.add(Registration(workspace_id=None, kind="root", name="photos", value=str(photos), created=0.0))
    own, service.sandbox = service.sandbox, sandbox
    service.settings = Settings(recipes=(str(tmp_path / "recipes"), str(tmp_path / "more")))
    yield service
    service.sandbox = own


def _order(recipe: str = RECIPE, *sets: str, workspace: str = "main") -> RecipeOrder:
    return RecipeOrder(workspace=workspace, recipe=recipe, set=list(sets))


def test_check(served: Service, people: People) -> None:
    found = recipes.check_recipe(served, people.operator.principal, _order())
    assert (found.ok, found.mistakes) == (True, [])
    assert [(one.stage, one.op, one.contract, one.inputs) for one in found.stages] == [
        ("pool", "acquire.folder", "Source", []),
        ("inspect", "image.inspect", "Map", ["pool"]),
    ]
    found = recipes.check_recipe(served, people.operator.principal, _order(RECIPE, "pool.path=/etc"))
    assert (found.ok, found.stages) == (False, [])
    assert [(one.code, one.stage, one.line) for one in found.mistakes] == [("policy", "pool", 5)]


def test_plan(served: Service, people: People) -> None:
    found = recipes.plan_recipe(served, people.operator.principal, _order())
    assert found.ok
    assert [(line.stage, line.needed) for line in found.plan] == [("pool", 1), ("inspect", 1)]
    assert recipes.plan_recipe(served, people.operator.principal, _order("x")).plan == []


def test_admitted(served: Service, people: People, tmp_path: Path) -> None:
    recipe = RECIPE + "  embed: {op: image.embed, from: pool, encoder: 'timm:resnet18?random=1', device: cuda}\n"
    found = recipes.admitted(served, people.operator.principal, _order(recipe))
    assert f"path: {tmp_path}/photos\n" in found.resolved
    assert found.needs == {"gpus": 1.0, "stage": "embed"}
    assert len(found.stages) == 3


@pytest.mark.parametrize(
    ("recipe", "problem", "said"),
    [
        (RECIPE.replace("photos", "/etc"), PolicyProblem, "recipe: line 5: pool.path: '/etc'"),
        (RECIPE.replace("image.inspect", "image.inspekt"), InvalidProblem, "did you mean 'image.inspect'?"),
        ("x" * 300_000, TooLargeProblem, "300,000 characters"),
        ("stages: {}", InvalidProblem, "at least one"),
        ("a: &x 1", PolicyProblem, "anchors"),
    ],
)
def test_what_is_not_admitted(
    served: Service, people: People, recipe: str, problem: type[Exception], said: str
) -> None:
    with pytest.raises(problem) as raised:
        recipes.admitted(served, people.operator.principal, _order(recipe))
    assert said in str(raised.value)


def test_many_mistakes_are_counted(served: Service, people: People) -> None:
    stages = "".join(f"  p{i}: {{op: acquire.folder, namespace: a, path: /etc}}\n" for i in range(5))
    with pytest.raises(PolicyProblem, match="and 2 more"):
        recipes.admitted(served, people.operator.principal, _order(f"stages:\n{stages}"))


@pytest.mark.parametrize("action", [recipes.check_recipe, recipes.plan_recipe, recipes.admitted])
def test_only_those_who_may_submit(served: Service, people: People, action: object) -> None:
    def asked(who: Principal, workspace: str = "main") -> None:
        action(served, who, _order(workspace=workspace))  # type: ignore[operator]

    with pytest.raises(ForbiddenProblem):
        asked(people.viewer.principal)
    with pytest.raises(NotFoundProblem):
        asked(people.stranger.principal)
    with pytest.raises(NotFoundProblem):
        asked(people.admin.principal, "other")


def test_templates_are_the_recipes_of_the_folders(served: Service, people: People, tmp_path: Path) -> None:
    assert recipes.list_recipes(served, people.viewer.principal) == []
    for name in ("recipes", "more"):
        (tmp_path / name).mkdir()
    (tmp_path / "recipes" / "b.yaml").write_text("description: second\n" + RECIPE)
    (tmp_path / "more" / "a.yaml").write_text(RECIPE)
    (tmp_path / "more" / "b.yaml").write_text("description: hidden by the first folder's\n" + RECIPE)
    (tmp_path / "more" / "endpoints.yaml").write_text("llava: {model: m}\n")
    (tmp_path / "more" / "broken.yaml").write_text("stages: [\n")
    (tmp_path / "more" / "large.yaml").write_text(RECIPE + "#" * 300_000)
    found = recipes.list_recipes(served, people.viewer.principal)
    assert [(one.name, one.description) for one in found] == [("a", ""), ("b", "second")]
    assert found[0].text == RECIPE


def test_ops_say_what_their_parameters_lead_to(served: Service, people: People) -> None:
    found = {op.name: op for op in recipes.list_ops(served, people.viewer.principal)}
    folder = {one.name: one for one in found["acquire.folder"].parameters}
    assert (folder["path"].leads_to, folder["namespace"].leads_to) == ("path", "")
    assert found["image.embed"].summary
    assert (found["image.embed"].contract, found["cluster.assign"].parameters[-1].kind) == ("Map", "input")
