"""The pages for operators and users name everything that exists, and nothing else."""

from __future__ import annotations

import re
from typing import get_args

import pytest
import yaml
from pydantic import BaseModel

from curate.core import errors
from curate.service import problems
from curate.service.auth.roles import Role
from curate.service.operate.metrics import Metrics
from curate.service.places.registrations import Kind
from curate.service.rest import errors as rest_errors
from curate.service.service import Service
from curate.service.settings import Limits, Settings, Webhook
from curate.service.states import State
from tests.conftest import ROOT
from tests.service.operate.test_alerts import Loop

HOW_TO = ROOT / "docs" / "how-to"
SETUP = (HOW_TO / "service.md").read_text()
OPERATE = (HOW_TO / "operate-the-service.md").read_text()


def rows(text: str, head: str) -> dict[str, list[str]]:
    """First cell -> the other cells of the table whose first column has this head; several names share a row."""
    table = text.partition(f"\n| {head} |")[2].partition("\n\n")[0].splitlines()[2:]
    found = {}
    for line in table:
        first, *rest = (cell.strip() for cell in line.strip("|").split(" | "))
        names = re.findall(r"`([^`]+)`", first)
        values = rest[0].split(", ") if len(names) > 1 else [rest[0]]
        for name, value in zip(names, values if len(values) == len(names) else [rest[0]] * len(names), strict=True):
            found[name] = [value, *rest[1:]]
    return found


def tables(text: str, head: str) -> dict[str, list[str]]:
    parts = text.split(f"\n| {head} |")[1:]
    return {name: cells for part in parts for name, cells in rows(f"\n| {head} |{part}", head).items()}


def test_every_setting_is_explained() -> None:
    named = tables(SETUP, "setting")
    assert named.keys() == Settings.model_fields.keys() | Limits.model_fields.keys()
    for model in (Webhook,):
        for field in model.model_fields:
            assert f"`{field}`" in SETUP, (model.__name__, field)


@pytest.mark.parametrize("model", [Settings, Limits])
def test_defaults_are_those_of_the_code(model: type[BaseModel]) -> None:
    named = tables(SETUP, "setting")
    for name, field in model.model_fields.items():
        said = named[name][0].strip("`").replace(",", "")
        if isinstance(field.default, int | float):
            number = float(said.removesuffix(" GiB")) * (1 << 30 if said.endswith("GiB") else 1)
            assert number == field.default, name
        elif isinstance(field.default, str):
            assert said == field.default, name
        else:
            assert said in ("none", "see below"), name


def test_every_role_and_kind_of_registration_is_explained() -> None:
    assert rows(SETUP, "kind").keys() == set(get_args(Kind))
    assert rows(SETUP, "role").keys() >= {role.value for role in Role}


def test_every_state_is_explained() -> None:
    assert list(rows(OPERATE, "state")) == [state.value for state in State]


def test_every_code_of_a_problem_is_explained_with_its_status() -> None:
    classes = [*_below(problems.Problem), *_below(errors.CurateError)]
    known = {cls.code: rest_errors.status_of(cls.__new__(cls), "POST") for cls in classes}
    for internal in ("error", "problem", "reject", "undecodable", "stage", "ledger", "stopped"):
        known.pop(internal, None)
    named = {code: int(cells[0]) for code, cells in rows(OPERATE, "code").items()}
    assert {code: named.get(code) for code in known} == known
    assert named.keys() - known.keys() <= {*rest_errors.HTTP_CODES.values(), rest_errors.BUG, "timeout"}


def _below(cls: type[errors.CurateError]) -> list[type[errors.CurateError]]:
    return [
        cls,
        *(found for sub in cls.__subclasses__() if sub.__module__.startswith("curate.") for found in _below(sub)),
    ]


def test_every_metric_is_explained(service: Service) -> None:
    metrics = Metrics(service, Loop())  # type: ignore[arg-type]
    names = re.findall(r"^# TYPE (curate_\w+) (\w+)$", metrics.text().decode(), re.MULTILINE)
    exported = {name for name, _ in names if not name.endswith("_created")}
    assert rows(OPERATE, "metric").keys() == exported


def test_every_alert_has_a_remedy() -> None:
    groups = yaml.safe_load((ROOT / "infra" / "alerts.yml").read_text())["groups"]
    assert list(rows(OPERATE, "alert")) == [rule["alert"] for group in groups for rule in group["rules"]]
