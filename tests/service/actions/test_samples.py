"""Samples of runs as users see them: slices, one sample, thumbnails, files."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from curate.api import Slice
from curate.api.thresholds.rules import Rule
from curate.core.reader import Reader
from curate.core.store.storage import open_storage
from curate.service import kept
from curate.service.auth.roles import Role
from curate.service.database.models import IndexedRun, WorkspaceRow
from curate.service.people import users
from curate.service.people.users import NewGrant
from curate.service.problems import ConflictProblem, ForbiddenProblem, InvalidProblem, NotFoundProblem
from curate.service.runs.thresholds import move
from curate.service.samples.exports import export, keys_of
from curate.service.samples.looking import looked
from curate.service.samples.samples import get_sample, related
from curate.service.samples.slices import get_rows
from curate.service.samples.thumbnails import Small, get_file, get_thumbnail
from curate.service.service import Service
from tests.service.actions.test_people import principal_of
from tests.service.curated import Curated
from tests.service.people import People


def small(service: Service, who: Any, curated: Curated, **given: Any) -> Small:
    sample = get_sample(service, who, "first", curated.key)
    asked = {"shard": sample.shard, "row": sample.row, "side": 160, "film": False, "workspace": None} | given
    return get_thumbnail(service, who, "first", asked.pop("shard"), asked.pop("row"), **asked)


def test_rows_are_those_of_the_ledger_page_by_page(service: Service, people: People, curated: Curated) -> None:
    viewer, cursor, keys = people.viewer.principal, None, list[str]()
    while True:
        page = get_rows(service, viewer, "first", "pool", columns="width, height", cursor=cursor, limit=2)
        keys += [row.key for row in page.rows]
        assert len(page.rows) <= 2 and page.searched <= page.shards
        assert all(row.columns.keys() == {"width", "height"} for row in page.rows)
        if not (cursor := page.next):
            break
    assert len(keys) == len(set(keys)) == curated.workspace.run("first-1").ledger()["pool"].after
    assert curated.key in keys


def test_rows_of_an_unknown_stage_column_or_expression(service: Service, people: People, curated: Curated) -> None:
    for given in ({"stage": "none"}, {"columns": "none"}, {"where": "none >"}, {"where": "width"}, {"cursor": "x"}):
        with pytest.raises(InvalidProblem):
            get_rows(service, people.viewer.principal, "first", **{"stage": "pool"} | given)
    with pytest.raises(NotFoundProblem):
        get_rows(service, people.stranger.principal, "first", "pool")


def test_every_question_with_a_pattern_is_bounded(
    service: Service, people: People, curated: Curated, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows, exports, the keys of an order, thresholds: whatever reads an expression of a user."""
    viewer, where = people.viewer.principal, "regexp_like(key, 'a(.{0,20}){0,20}')"
    assert get_rows(service, viewer, "first", "pool", where=where.replace("0,20", "0,1"))
    monkeypatch.setattr(kept, "EXPRESSION_SECONDS", 1e-4)
    seen = looked(service, viewer, "first", None)
    rule = Rule("bright", f"if({where}, brightness, 0.0)")
    for ask in (
        lambda: get_rows(service, viewer, "first", "pool", where=where),
        lambda: export(service, viewer, "first", "pool", "csv", where=where),
        lambda: keys_of(service, seen, "pool", "", where, ""),
        lambda: move(service, seen.one, rule),
    ):
        with pytest.raises(InvalidProblem, match=r"a pattern of the expression takes more than 0\.0001 s"):
            ask()


def test_a_thumbnail_is_made_once(
    service: Service, people: People, curated: Curated, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = small(service, people.operator.principal, curated)
    assert max(Image.open(io.BytesIO(first.data)).size) <= 160 and first.tag
    monkeypatch.setattr("curate.api.pixels.SampleFile.thumbnail", lambda *_: pytest.fail("a second time"))
    assert small(service, people.operator.principal, curated) == first


def test_a_thumbnail_of_a_tombstoned_sample_is_removed(service: Service, people: People, curated: Curated) -> None:
    first = small(service, people.operator.principal, curated)
    assert service.thumbnails.get(first.tag)
    curated.workspace.add_tombstones([curated.key], why="asked by its owner")
    service.kept.drop(("tombstones", curated.workspace.root))
    small(service, people.operator.principal, curated)
    assert service.thumbnails.get(first.tag) is None


def test_thumbnails_are_those_of_one_workspace(curated: Curated) -> None:
    """A digest in a list proves nothing: others may have the bytes."""
    run = curated.workspace.run("first-1")
    row = run.slice(Slice("pool"), limit=1).table.to_pylist()[0]
    file = run.file(row["shard"], row["row"])
    assert replace(file, storage=open_storage("elsewhere")).digest != file.digest


def test_a_sample_without_pixels_says_why(service: Service, people: People, curated: Curated) -> None:
    """Its tar is gone, or holds something else."""
    who, root = people.operator.principal, curated.workspace.root
    run = curated.workspace.run("first-1")
    sample = get_sample(service, who, "first", curated.key)
    path = f"{root}/{run.file(sample.shard, sample.row).shard.tar}"
    with open(path, "r+b") as file:
        size = file.seek(0, 2)
        file.seek(0)
        file.write(b"x" * size)
    broken = small(service, who, curated)
    assert (broken.data, broken.reason) == (b"", "not an image")
    with open(path, "wb"):
        pass
    assert small(service, who, curated).reason == "gone"
    with pytest.raises(NotFoundProblem, match="gone"):
        get_file(service, who, "first", curated.key, None)


def test_a_shard_whose_table_is_gone(service: Service, people: People, curated: Curated) -> None:
    """Its samples cannot be read; those of other shards can."""
    who, run = people.operator.principal, curated.workspace.run("first-1")
    sample = get_sample(service, who, "first", curated.key)
    Path(curated.workspace.root, run.file(sample.shard, sample.row).shard.table).unlink()
    page = run.slice(Slice("pool"), limit=1000)
    [why] = page.lost
    assert "missing" in why and page.searched == page.shards > 1
    assert len(page.table) and sample.shard not in page.table["shard"].to_pylist()
    service.kept.drop(("sample", people.workspace.id, "first-1", curated.key))
    with pytest.raises(NotFoundProblem, match="restore it"):
        get_sample(service, who, "first", curated.key)


def test_a_thumbnail_of_nothing(service: Service, people: People, curated: Curated) -> None:
    who = people.operator.principal
    for given in ({"shard": "none"}, {"row": 10**6}, {"row": -1}):
        with pytest.raises(NotFoundProblem, match="no such sample"):
            small(service, who, curated, **given)
    with pytest.raises(InvalidProblem, match="160, 320, 960"):
        small(service, who, curated, side=161)


def test_viewers_see_pixels_by_a_grant(service: Service, people: People, curated: Curated) -> None:
    viewer = people.viewer.principal
    for read in (
        lambda: small(service, viewer, curated),
        lambda: get_file(service, viewer, "first", curated.key, None),
    ):
        with pytest.raises(ForbiddenProblem, match="see_pixels"):
            read()
    order = NewGrant(workspace="main", role=Role.VIEWER, see_pixels=True)
    [grant] = users.set_grant(service, people.keeper.principal, "viewer", order).grants
    assert grant.see_pixels
    seeing = principal_of(service, people.viewer.token)
    assert small(service, seeing, curated).data
    assert [one.see_pixels for one in users.get_me(service, seeing).grants] == [True]
    order = NewGrant(workspace="main", role=Role.VIEWER)
    users.set_grant(service, people.keeper.principal, "viewer", order)
    with pytest.raises(ForbiddenProblem):
        small(service, principal_of(service, people.viewer.token), curated)


def test_a_file_is_the_bytes_of_the_sample(service: Service, people: People, curated: Curated) -> None:
    name, data = get_file(service, people.operator.principal, "first", curated.key, None)
    assert name.startswith(curated.key) and isinstance(data, Reader)
    assert Image.open(io.BytesIO(data.bytes())).size


def test_samples_beside_one(service: Service, people: People, curated: Curated) -> None:
    viewer = people.viewer.principal
    beside = related(service, viewer, get_sample(service, viewer, "first", curated.key), None)
    assert len(beside.parent.table) == len(beside.keepers.table) == 0
    rows = curated.workspace.run("first-1").rows_of([curated.key, "0" * 32]).table
    assert rows["key"].to_pylist() == [curated.key]


def test_a_sample_is_explained_by_its_key(service: Service, people: People, curated: Curated) -> None:
    shape = get_sample(service, people.viewer.principal, "first", curated.key)
    assert (shape.key, shape.run) == (curated.key, "first") and "pool" in {told.stage for told in shape.stages}
    assert shape.model_dump_json()
    with pytest.raises(NotFoundProblem, match="no sample"):
        get_sample(service, people.viewer.principal, "first", "https://example.org/none.jpg")
    with pytest.raises(NotFoundProblem, match="run second"):
        get_sample(service, people.viewer.principal, "second", curated.key)


def test_a_run_that_has_not_begun_knows_no_sample(service: Service, people: People, curated: Curated) -> None:
    with service.database.write() as session:
        session.get_one(IndexedRun, (people.workspace.id, "first")).state = "queued"
    with pytest.raises(ConflictProblem, match="is queued, not started"):
        get_sample(service, people.viewer.principal, "first", curated.key)


def test_the_same_run_in_two_workspaces_needs_the_workspace(service: Service, people: People, curated: Curated) -> None:
    with service.database.write() as session:
        other = WorkspaceRow(name="other", url="/elsewhere", target="local", created=1.0)
        session.add(other)
        session.flush()
        session.add(IndexedRun(workspace_id=other.id, id="first", attempt_id="first", state="done", started=1.0))
    with pytest.raises(ConflictProblem, match=r"\?workspace="):
        get_sample(service, people.admin.principal, "first", curated.key)
    assert get_sample(service, people.admin.principal, "first", curated.key, workspace="main").run == "first"
