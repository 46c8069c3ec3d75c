"""Requests made from the description by those who may do less than an admin, and without a token: no 500 either."""

from __future__ import annotations

from dataclasses import replace

import pytest
from schemathesis.specs.openapi.schemas import OpenApiSchema

from tests.service.rest.site import Site
from tests.service.rest.test_openapi import _try_all, document, harmless, schema

__all__ = ["document", "harmless", "schema"]


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.usefixtures("harmless")
@pytest.mark.drawn
@pytest.mark.parametrize("who", ["operator", "anonymous", "viewer", "stranger"])
def test_no_request_of_lesser_roles_finds_a_bug(site: Site, address: str, schema: OpenApiSchema, who: str) -> None:
    person = replace(site.people.viewer, token="") if who == "anonymous" else getattr(site.people, who)
    _try_all(replace(site, people=replace(site.people, admin=person)), address, schema, examples=5)
