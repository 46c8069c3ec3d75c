from __future__ import annotations

import asyncio

import pytest

from curate.service.problems import InvalidProblem
from curate.service.rest.routing import version_of
from tests.service.rest.site import Site


def test_what_the_client_has_is_not_sent_again(site: Site) -> None:
    first = site.ask("GET", "workspaces/main")
    tag = first.headers["etag"]
    assert tag.startswith('W/"1-')
    for given in (tag, f'"other", {tag}', "*", tag.removeprefix("W/")):
        again = site.ask("GET", "workspaces/main", headers={"If-None-Match": given})
        assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", tag)
    assert site.ask("GET", "workspaces/main", headers={"If-None-Match": '"other"'}).json() == first.json()


def test_a_change_applies_to_the_version_that_was_seen(site: Site) -> None:
    admin = site.people.admin
    site.ask("POST", "targets", admin, json={"name": "tagged", "address": "http://ray:8265"})
    tag = site.ask("GET", "targets/tagged", admin).headers["etag"]
    changed = site.ask("PATCH", "targets/tagged", admin, json={"max_runs": 2}, headers={"If-Match": tag})
    assert (changed.status_code, changed.json()["max_runs"], changed.json()["version"]) == (200, 2, 2)
    stale = site.ask("PATCH", "targets/tagged", admin, json={"max_runs": 3}, headers={"If-Match": tag})
    assert (stale.status_code, stale.json()["code"]) == (412, "changed")
    assert site.ask("PATCH", "targets/tagged", admin, json={"max_runs": 3}).json()["version"] == 3
    wrong = site.ask("PATCH", "targets/tagged", admin, json={"max_runs": 4}, headers={"If-Match": "x"})
    assert (wrong.status_code, wrong.json()["code"]) == (422, "invalid")


def test_versions_of_if_match() -> None:
    assert [asyncio.run(version_of(text)) for text in (None, "*", 'W/"3-ab"', '"3"')] == [None, None, 3, 3]
    for text in ("3", '"a"', '"3", "4"', 'W/"' + "9" * 30 + '"', ""):
        with pytest.raises(InvalidProblem, match="If-Match"):
            asyncio.run(version_of(text))
