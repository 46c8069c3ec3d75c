from __future__ import annotations

import math
import random
import re
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from curate.service.problems import InvalidProblem
from curate.service.rest.paging import decode, encode, form, paged
from curate.service.shapes import Shape
from tests.service.rest.site import Site

TIMES = st.just(0.0) | st.floats(1.0, 4e9)


@given(
    TIMES, st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])), st.integers(-(10**17), 10**17)
)
def test_a_cursor_is_read_back(time: float, name: str, number: int) -> None:
    assert decode(encode(time, name, number), float, str, int) == (time, name, number)


@given(st.from_regex(form(float, str, int), fullmatch=True), st.from_regex(form(str), fullmatch=True))
def test_every_text_of_the_form_is_a_cursor(three: str, one: str) -> None:
    """So that no request that follows the description of the API is rejected."""
    time, name, number = decode(three.removesuffix("\n"), float, str, int)
    assert math.isfinite(time) and "\0" not in name and abs(number) < 1 << 63
    assert len(decode(one.removesuffix("\n"), str)) == 1


@pytest.mark.parametrize(
    "cursor",
    ["", "x", "%%%", "ü", "\0", "1~YQ", "1~YQ~1~1", "a~YQ~1", "1~YQ~a", "1~YQ~1.5", "1~Y~1", "nan~YQ~1", "1e999~YQ~1",
     f"1~YQ~{1 << 63}", "1~YQ~1\n", encode("a", "b", "c"), "[" * 5000],
)  # fmt: skip
def test_a_cursor_that_is_not_ours_is_rejected(cursor: str) -> None:
    with pytest.raises(InvalidProblem, match="cursor: not one of ours"):
        decode(cursor, float, str, int)


class Named(Shape):
    kind: str
    name: str | None
    time: datetime


ITEMS = st.builds(
    Named, kind=st.sampled_from("ab"), name=st.none() | st.sampled_from("xyz"),
    time=st.datetimes(datetime(2020, 1, 1), datetime(2030, 1, 1), timezones=st.just(UTC)),
)  # fmt: skip


@given(
    st.lists(ITEMS, unique_by=lambda item: (item.time, item.kind, item.name or "")), st.integers(1, 5), st.booleans(),
    st.randoms(use_true_random=False),
)  # fmt: skip
def test_pages_have_every_item_once_while_others_come_and_go(
    items: list[Named], limit: int, newest: bool, chance: random.Random
) -> None:
    stays = items[::2]
    seen: list[Named] = []
    cursor = None
    while True:
        some = [item for item in items if item in stays or chance.random() < 0.5]
        chance.shuffle(some)
        page = paged(some, cursor, limit, newest=newest, time=float, kind=str, name=str)
        assert len(page.items) <= limit
        seen += page.items
        cursor = page.next
        if cursor is None:
            break
    assert all(seen.count(item) <= 1 for item in seen) and all(item in seen for item in stays)
    times = [item.time for item in seen]
    assert times == sorted(times, reverse=newest)


LISTS = (
    "users", "users/operator/tokens", "workspaces", "targets", "registrations", "runs", "audit",
    "workspaces/main/datasets", "workspaces/main/artifacts", "workspaces/main/pins",
    "workspaces/main/datasets/toys/tags",
)  # fmt: skip


@pytest.mark.parametrize("path", LISTS)
def test_lists_have_pages(site: Site, path: str) -> None:
    """In pages of one item they have what one page has, and a cursor of another list is rejected."""
    admin = site.people.admin
    whole = site.ask("GET", f"{path}?limit=200", admin).json()
    assert whole["next"] is None
    items, cursor = [], ""
    while True:
        page = site.ask("GET", f"{path}?limit=1{cursor}", admin).json()
        items += page["items"]
        if page["next"] is None:
            break
        cursor = f"&cursor={page['next']}"
    assert items == whole["items"]
    assert site.ask("GET", f"{path}?cursor=n%2Fpe", admin).json()["code"] == "invalid"
    assert site.ask("GET", f"{path}?limit=0", admin).status_code == 422


def test_every_cursor_of_the_description_is_taken(site: Site) -> None:
    admin, seen = site.people.admin, 0
    for path, operations in site.ask("GET", "/openapi.json", admin).json()["paths"].items():
        for parameter in operations.get("get", {}).get("parameters", []):
            if parameter["name"] == "cursor":
                forms = [one for one in parameter["schema"]["anyOf"] if "pattern" in one]
                known = path.format(workspace="main", user="operator", name="toys", tag="good", run="none")
                cursor = next(text for text in CURSORS if re.fullmatch(forms[0]["pattern"], text))
                assert site.ask("GET", f"{known}?stage=pool&text=a&cursor={cursor}", admin).status_code in (200, 404), (
                    path
                )
                seen += 1
    assert seen == len(LISTS) + 3


CURSORS = ("12", "-1~Zm9v~7", "1.5e-3~Zm9v", "Zg~Zg~Zg", "__8", "0123456789ab:0:0")


def test_no_other_list_can_grow(site: Site) -> None:
    """An answer that is a bare list is bounded by a recipe, or by what is installed."""
    paths = site.ask("GET", "/openapi.json", site.people.admin).json()["paths"]
    bare = {
        path
        for path, operations in paths.items()
        for operation in operations.values()
        if operation["responses"]
        .get("200", {})
        .get("content", {})
        .get("application/json", {})
        .get("schema", {})
        .get("type")
        == "array"
    }
    assert bare == {"/api/v1/recipes", "/api/v1/ops", "/api/v1/runs/{run}/funnel"}
