"""Datasets and their tags, artifacts, lineage and samples, as users see them."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import select

from curate.api import plain
from curate.core.errors import CurateError
from curate.service.auth.roles import Principal
from curate.service.database.models import AuditEntry, IndexedDataset, Tag, WorkspaceRow
from curate.service.datasets import datasets as data
from curate.service.datasets import tags
from curate.service.datasets.tags import NewTag
from curate.service.problems import (
    ConflictProblem,
    ForbiddenProblem,
    InvalidProblem,
    NotFoundProblem,
)
from curate.service.service import Service
from tests.service.curated import Curated, indexed
from tests.service.people import People


def audited(service: Service) -> list[tuple[str, str, str, str]]:
    with service.database.read() as session:
        rows = session.scalars(select(AuditEntry).order_by(AuditEntry.id))
        return [(row.user, row.action, row.target, row.outcome) for row in rows]


# --- lists ------------------------------------------------------------------------------------------------------------


def test_a_dataset_is_listed_with_its_place_and_its_tags(service: Service, people: People, curated: Curated) -> None:
    viewer = people.viewer.principal
    assert data.list_datasets(service, viewer, "main").items[0].tags == []
    tags.set_tag(service, people.operator.principal, "main", "toys", "good", NewTag(base=curated.base))
    (line,) = data.list_datasets(service, viewer, "main").items
    assert (line.name, line.base, line.run, line.tags) == ("toys", curated.base, "first", ["good"])
    assert line.url == f"{curated.workspace.url}/{curated.base}"
    one = data.get_dataset(service, viewer, "main", *curated.base.split("/")[1:])
    assert one == line.model_copy(update={"pins": one.pins}) and len(one.pins) == 1


def test_pages_follow_each_other_newest_first(service: Service, people: People) -> None:
    with service.database.write() as session:
        for number in range(7):  # three of them at the same time
            committed = float(min(number, 4))
            session.add(indexed(people, f"datasets/birds/{number:04x}", committed=committed))
    seen: list[str] = []
    cursor: str | None = None
    while True:
        page = data.list_datasets(service, people.viewer.principal, "main", cursor=cursor, limit=2)
        seen += [line.fingerprint for line in page.items]
        if page.next is None:
            break
        cursor = page.next
    assert seen == [f"{number:04x}" for number in (6, 5, 4, 3, 2, 1, 0)]


def test_a_query_is_a_part_of_the_name_and_nothing_more(service: Service, people: People) -> None:
    with service.database.write() as session:
        for name in ("birds", "100_birds", "cats"):
            session.add(indexed(people, f"datasets/{name}/ab"))
    for query, names in {"BIRD": {"birds", "100_birds"}, "_": {"100_birds"}, "%": set(), "' OR 1=1 --": set()}.items():
        page = data.list_datasets(service, people.viewer.principal, "main", query=query)
        assert {line.name for line in page.items} == names, query


@pytest.mark.parametrize("cursor", ["x", "W10", "WzEsMl0", "null"])
def test_a_cursor_of_others_is_invalid(service: Service, people: People, cursor: str) -> None:
    with pytest.raises(InvalidProblem, match="cursor"):
        data.list_datasets(service, people.viewer.principal, "main", cursor=cursor)


# --- tags -------------------------------------------------------------------------------------------------------------


def test_a_tag_pins_its_dataset_and_its_history_stays(service: Service, people: People, curated: Curated) -> None:
    operator = people.operator.principal
    tags.set_tag(service, operator, "main", "toys", "good", NewTag(base=curated.base))
    assert [pin.base for pin in curated.workspace.pins.values()] == [curated.base]
    tags.set_tag(service, operator, "main", "toys", "good", NewTag(base=curated.base))  # changes nothing
    assert [tag.tag for tag in tags.tags(service, operator, "main", "toys")] == ["good"]
    tags.remove_tag(service, operator, "main", "toys", "good")
    assert tags.tags(service, operator, "main", "toys") == [] and curated.workspace.pins == {}
    history = tags.get_tag_history(service, people.viewer.principal, "main", "toys", "good").items
    assert [(one.base, one.user) for one in history] == [(None, "operator"), (curated.base, "operator")]
    assert audited(service) == [
        ("operator", "tag.set", "toys@good", "ok"),
        ("operator", "tag.set", "toys@good", "ok"),
        ("operator", "tag.remove", "toys@good", "ok"),
    ]
    with pytest.raises(NotFoundProblem, match="toys@good"):
        tags.remove_tag(service, operator, "main", "toys", "good")


def test_a_tagged_dataset_survives_gc(service: Service, people: People, curated: Curated) -> None:
    tags.set_tag(service, people.operator.principal, "main", "toys", "good", NewTag(base=curated.base))
    curated.workspace.gc(drop=["first-1"], delete=True)
    assert [found.base for found in curated.workspace.datasets()] == [curated.base]
    with pytest.raises(ConflictProblem, match="the record of the run that built it is gone"):
        tags.set_tag(service, people.operator.principal, "main", "toys", "better", NewTag(base=curated.base))


def test_a_tag_that_moves_pins_the_next_dataset_before_it_lets_the_last_one_go(
    service: Service, people: People, curated: Curated, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = "datasets/toys/0123"
    with service.database.write() as session:
        session.add(indexed(people, other))
    tags.set_tag(service, people.operator.principal, "main", "toys", "good", NewTag(base=curated.base))
    (before,) = curated.workspace.pins
    added: list[tuple[str, set[str]]] = []
    monkeypatch.setattr(
        tags, "pin_dataset", lambda workspace, name, tag, base, runs: added.append((base, set(workspace.pins)))
    )
    tags.set_tag(service, people.operator.principal, "main", "toys", "good", NewTag(base=other))
    assert added[0] == (other, {before}) and curated.workspace.pins == {}
    assert tags.resolve(service, people.viewer.principal, "toys", "good").base == other


def test_a_tag_that_moved_back_meanwhile_keeps_its_pin(
    service: Service, people: People, curated: Curated, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another request sets the tag while this one removes its pin."""
    operator, order = people.operator.principal, NewTag(base=curated.base)
    tags.set_tag(service, operator, "main", "toys", "good", order)
    follow, calls = tags.follow, list[str | None]()

    def slow(workspace: Any, name: str, tag: str, base: str | None, runs: Any) -> bool:
        calls.append(base)
        if len(calls) == 1:
            assert base is None
            with service.database.write() as session:
                session.query(Tag).update({"newest": False})
                session.add(
                    Tag(workspace_id=people.workspace.id, name=name, tag=tag, base=curated.base, time=1.0, user="x")
                )
        return follow(workspace, name, tag, base, runs)

    monkeypatch.setattr(tags, "follow", slow)
    tags.remove_tag(service, operator, "main", "toys", "good")
    assert calls[1] == curated.base
    assert [pin.base for pin in curated.workspace.pins.values()] == [curated.base]


def test_names_of_pins_differ_where_tags_do() -> None:
    base = "datasets/a/01"
    names = {tags.pin_name(*tag, base) for tag in (("a.b", "c"), ("a", "b.c"), ("a" * 100, "b" * 64))}
    assert len(names) == 3 and all(len(name) <= 100 for name in names)


@pytest.mark.parametrize(
    ("base", "problem"),
    [
        ("datasets/toys/ffff", NotFoundProblem),
        ("datasets/others/ab", InvalidProblem),
    ],
)
def test_a_tag_of_something_else_is_rejected_and_audited(
    service: Service, people: People, curated: Curated, base: str, problem: type[CurateError]
) -> None:
    with service.database.write() as session:
        session.add(indexed(people, "datasets/others/ab"))
    with pytest.raises(problem):
        tags.set_tag(service, people.operator.principal, "main", "toys", "good", NewTag(base=base))
    assert audited(service) == [("operator", "tag.set", "toys@good", problem.code)]
    assert curated.workspace.pins == {}


def test_viewers_cannot_tag_and_strangers_see_nothing(service: Service, people: People, curated: Curated) -> None:
    order = NewTag(base=curated.base)
    with pytest.raises(ForbiddenProblem):
        tags.set_tag(service, people.viewer.principal, "main", "toys", "good", order)
    with pytest.raises(ForbiddenProblem):
        tags.remove_tag(service, people.viewer.principal, "main", "toys", "good")
    stranger = people.stranger.principal
    asked: list[Any] = [
        lambda: tags.set_tag(service, stranger, "main", "toys", "good", order),
        lambda: data.list_datasets(service, stranger, "main"),
        lambda: data.get_dataset(service, stranger, "main", *curated.base.split("/")[1:]),
        lambda: tags.tags(service, stranger, "main", "toys"),
        lambda: tags.get_tag_history(service, stranger, "main", "toys", "good"),
        lambda: data.list_artifacts(service, stranger, "main"),
        lambda: data.get_lineage(service, stranger, "main", curated.base),
    ]
    for ask in asked:
        with pytest.raises(NotFoundProblem):
            ask()
    assert {entry[3] for entry in audited(service)} == {"forbidden", "not_found"}


# --- resolve ----------------------------------------------------------------------------------------------------------


def test_a_tag_resolves_to_what_training_reads(service: Service, people: People, curated: Curated) -> None:
    tags.set_tag(service, people.operator.principal, "main", "toys", "good", NewTag(base=curated.base))
    found = tags.resolve(service, people.viewer.principal, "toys", "good")
    assert (found.workspace, found.base, found.fingerprint) == ("main", curated.base, curated.fingerprint)
    assert found.url == curated.workspace.url_of(curated.base) and found.rows > 0
    assert tags.resolve(service, people.viewer.principal, "toys", "good", "main") == found


def test_a_tag_of_two_workspaces_needs_the_workspace(service: Service, people: People, curated: Curated) -> None:
    tags.set_tag(service, people.operator.principal, "main", "toys", "good", NewTag(base=curated.base))
    with service.database.write() as session:
        other = WorkspaceRow(name="other", url="/elsewhere", target="local", created=1.0)
        session.add(other)
        session.flush()
        row = indexed(people, curated.base)
        session.add(IndexedDataset(**{**_values(row), "workspace_id": other.id}))
        session.add(Tag(workspace_id=other.id, name="toys", tag="good", base=curated.base, time=1.0, user="x"))
    with pytest.raises(ConflictProblem, match=r"main, other.*\?workspace="):
        tags.resolve(service, people.admin.principal, "toys", "good")
    assert tags.resolve(service, people.admin.principal, "toys", "good", "other").url == f"/elsewhere/{curated.base}"
    assert tags.resolve(service, people.viewer.principal, "toys", "good").workspace == "main"  # sees only that


def _values(row: IndexedDataset) -> dict[str, Any]:
    return {column.name: getattr(row, column.name) for column in IndexedDataset.__table__.columns}


def test_an_unknown_tag_does_not_resolve(service: Service, people: People, curated: Curated) -> None:
    people_who_see: list[Principal] = [people.viewer.principal, people.stranger.principal]
    for who in people_who_see:
        with pytest.raises(NotFoundProblem, match="toys@best"):
            tags.resolve(service, who, "toys", "best")


# --- artifacts, lineage, samples --------------------------------------------------------------------------------------


def test_artifacts_are_listed_with_their_pins(service: Service, people: People, curated: Curated) -> None:
    curated.workspace.pin("mine", "first-1", "total")
    viewer = people.viewer.principal
    whole = data.list_artifacts(service, viewer, "main").items
    assert {"total"} <= {one.stage for one in whole}
    assert [one.pins for one in whole if one.stage == "total"] == [["mine"]]
    first = data.list_artifacts(service, viewer, "main", limit=1)
    rest = data.list_artifacts(service, viewer, "main", first.next).items if first.next else []
    assert first.items + rest == whole


def test_the_lineage_of_a_dataset_is_its_neighbourhood(service: Service, people: People, curated: Curated) -> None:
    near = data.get_lineage(service, people.viewer.principal, "main", curated.base, hops=1)
    assert curated.base in {node.id for node in near.nodes} and near.more
    far = data.get_lineage(service, people.viewer.principal, "main", curated.base, hops=50)
    assert {node.id for node in near.nodes} < {node.id for node in far.nodes}
    assert any(node.noun == "pool" for node in far.nodes)
    with pytest.raises(NotFoundProblem, match="not the output of a run"):
        data.get_lineage(service, people.viewer.principal, "main", "datasets/none/0")
    with pytest.raises(InvalidProblem, match="hops"):
        data.get_lineage(service, people.viewer.principal, "main", curated.base, hops=51)


def test_the_workspace_with_the_newest_dataset(service: Service, people: People, curated: Curated) -> None:
    viewer, admin = people.viewer.principal, people.admin.principal
    about: dict[str, Any] = {"name": "x", "fingerprint": "f", "rows": 1, "tars": 1, "bytes": 1, "run_id": "r"}
    with service.database.write() as session:
        other = WorkspaceRow(name="a-first", url="/elsewhere", target="local", created=1.0)
        empty = WorkspaceRow(name="a-empty", url="/nowhere", target="local", created=1.0)
        session.add_all([other, empty])
        session.flush()
        session.add(IndexedDataset(workspace_id=other.id, base="datasets/x/f", committed=9e9, **about))
    assert data.newest(service, viewer) == "main"  # the only one that they see
    assert data.newest(service, admin) == "a-first"
    assert data.newest(service, people.stranger.principal) == ""


def test_facts_of_all_kinds_become_json() -> None:
    facts = {"a": float("nan"), 1: b"\xff", "c": [1.5, None, True, {"d": object}], "e": (2,)}
    found = plain(facts)
    assert found == {"a": "nan", "1": "ff", "c": [1.5, None, True, {"d": str(object)}], "e": [2]}
