"""The description of the API, and requests made from it: no 500, and nothing that it does not describe."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from schemathesis.specs.openapi.schemas import OpenApiSchema

from curate.service.places import workspaces
from curate.service.policy.sandbox import Outcome
from tests.service.rest.site import Site

NAMES = {"workspace": "main", "target": "local", "user": "operator", "run": "", "name": "main"}
"""Values of path parameters that exist."""
CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]


@pytest.fixture(scope="module")
def document(site: Site) -> dict[str, Any]:
    found: dict[str, Any] = site.ask("GET", "/openapi.json").json()
    return found


def operations(document: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield method, path, operation


def test_operations_are_described(document: dict[str, Any]) -> None:
    known = [operation["operationId"] for _, _, operation in operations(document)]
    assert len(set(known)) == len(known) > 50
    tags = {tag["name"] for tag in document["tags"]}
    for _, path, operation in operations(document):
        assert set(operation["tags"]) <= tags and operation["summary"], path
        assert operation["responses"]["401"]["content"] == {
            "application/problem+json": {"schema": {"$ref": "#/components/schemas/ProblemShape"}}
        }
        assert not [status for status, answer in operation["responses"].items() if "description" not in answer]
    assert document["security"] == [{"token": []}]
    assert "HTTPValidationError" not in document["components"]["schemas"]


def test_streams_are_described(document: dict[str, Any]) -> None:
    events = document["paths"]["/api/v1/runs/{run}/events"]["get"]
    assert set(events["responses"]["200"]["content"]) == {"application/json", "text/event-stream"}
    reference = events["responses"]["200"]["content"]["application/json"]["schema"]["$ref"]
    assert reference.rpartition("/")[2] in document["components"]["schemas"]


@pytest.fixture(scope="module")
def schema(document: dict[str, Any]) -> OpenApiSchema:
    return schemathesis.openapi.from_dict(document)


@pytest.fixture(scope="module")
def harmless(site: Site) -> Iterator[None]:
    """Nothing is made on this machine, and recipes are checked in no other process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(workspaces, "open_workspace", lambda url: None)
        for name in ("check", "plan"):
            patch.setattr(
                site.service.sandbox, name, lambda *_: Outcome(mistakes=[], stages=[], plan=[], resolved="", needs={})
            )
        patch.setattr(site.service.sandbox, "ops", list)
        yield


@pytest.mark.usefixtures("harmless")
def test_no_request_from_the_description_finds_a_bug(site: Site, address: str, schema: OpenApiSchema) -> None:
    _try_all(site, address, schema, examples=2)


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.usefixtures("harmless")
def test_many_requests_from_the_description_find_no_bug(site: Site, address: str, schema: OpenApiSchema) -> None:
    _try_all(site, address, schema, examples=8)


def _try_all(site: Site, address: str, schema: OpenApiSchema, examples: int) -> None:
    run, tried = site.submit(), 0
    with requests.Session() as session:
        for found in schema.get_all_operations():
            operation = found.ok()
            modes = st.sampled_from(list(GenerationMode))
            cases = modes.flatmap(lambda mode, op=operation: op.as_strategy(generation_mode=mode))

            @settings(
                max_examples=examples, deadline=None, database=None, derandomize=True,
                phases=(Phase.explicit, Phase.generate), suppress_health_check=list(HealthCheck),
            )  # fmt: skip
            @given(case=cases, real=st.booleans())
            def attempt(case: schemathesis.Case, real: bool) -> None:
                if real and case.method != "DELETE":
                    known = NAMES | {"run": run}
                    values = {name: known.get(name, value) for name, value in case.path_parameters.items()}
                    case.path_parameters = values
                headers = site.people.admin.headers | {"Accept": "application/json"}
                case.call_and_validate(address, session, headers, CHECKS, timeout=60)

            attempt()
            tried += 1
    assert tried > 50
