"""Two runs beside each other: keys gained and lost are exact, and their rows come page by page."""

from __future__ import annotations

from itertools import pairwise
from typing import ClassVar

import pytest

from curate.api import Pipeline, Run, Workspace, compare, make_stage
from curate.api.compare import GAINED, LOST, Changed, Comparison
from curate.core.contracts import Portion
from curate.core.errors import InputError
from curate.engine.run import run
from tests.engine import toys

SHARD_ROWS = 6


class Later(toys.Numbers):
    """Its shards begin at `first`, as when files were added or removed before others."""

    op: ClassVar[str] = "toy.later_numbers"
    first: int = 0

    def plan(self) -> list[Portion]:
        bounds = [*range(self.first, self.rows, self.shard_rows), self.rows]
        return [Portion({"start": start, "stop": stop}, stop - start) for start, stop in pairwise(bounds)]


def recipe(keep: str, rows: int = 60, namespace: str = "toys", first: int = 0) -> Pipeline:
    made = Pipeline().add("pool", Later(namespace=namespace, rows=rows, shard_rows=SHARD_ROWS, first=first))
    made.add("bright", toys.Brightness(), "pool")
    return made.add("lit", make_stage("filter.where", keep=keep, reason="dark"), "bright").check()


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    folder = tmp_path_factory.mktemp("compare") / "workspace"
    runs = {
        "one": recipe("brightness > 118"),
        "two": recipe("brightness < 124"),
        "more": recipe("brightness > 118", rows=72),
        "other": recipe("brightness > 118", namespace="others"),
        "shifted": recipe("brightness > 118", first=2, rows=65),
    }
    for name, made in runs.items():
        run(made, str(folder), run_id=name)
    return Workspace(str(folder))


def keys(of: Run) -> set[str]:
    return set(of.workspace.table(of.id, "lit", ["key"]).table["key"].to_pylist())


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("one", "two"), ("two", "one"), ("one", "more"), ("more", "two"), ("one", "other"), ("two", "shifted"),
        ("shifted", "more"),
    ],
)  # fmt: skip
def test_keys_gained_and_lost(workspace: Workspace, first: str, second: str) -> None:
    runs = [workspace.run(name) for name in (first, second)]
    before, after = map(keys, runs)
    found = Comparison(*(one.record for one in runs))
    assert found.stages == ["lit", "bright", "pool"]
    assert found.counts() == Changed(len(before & after), len(after - before), len(before - after))
    for side, wanted in ((GAINED, after - before), (LOST, before - after)):
        seen, cursor, searched = list[str](), "", list[int]()
        while cursor or not searched:
            page = found.page(side, cursor, limit=4, seconds=0.0)
            assert len(page.table) <= 4 and page.shards >= page.searched
            seen += page.table["key"].to_pylist()
            searched.append(page.searched)
            cursor = page.next
        assert sorted(seen) == sorted(wanted) and searched == sorted(searched)


def test_a_changed_row_says_why_the_other_run_lacks_it(workspace: Workspace) -> None:
    found = Comparison(workspace.run("one").record, workspace.run("two").record)
    assert set(found.page(LOST).table["reason"].to_pylist()) == {"dark"}


def test_a_row_in_another_shard_says_why_too(workspace: Workspace) -> None:
    found = Comparison(workspace.run("shifted").record, workspace.run("two").record)
    before, after = keys(workspace.run("shifted")), keys(workspace.run("two"))
    pool = set(workspace.table("two", "pool", ["key"]).table["key"].to_pylist())
    lost = {row["key"]: row["reason"] for row in found.page(LOST).table.to_pylist()}
    assert lost == {key: "dark" if key in pool else None for key in before - after}
    assert set(lost.values()) == {"dark", None}


def test_what_cannot_be_compared_is_one_line(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    run(Pipeline().add("source", toys.Numbers(namespace="x", rows=6)).check(), workspace.url, run_id="named")
    with pytest.raises(InputError, match="no stage in common"):
        Comparison(workspace.run("one").record, workspace.run("named").record)
    monkeypatch.setattr(compare, "MOST_MOVED", 59)
    with pytest.raises(InputError, match="each run alone has shards with 60 rows or more; at most 59") as caught:
        Comparison(workspace.run("one").record, workspace.run("other").record).counts()
    assert "\n" not in str(caught.value)


def test_a_wrong_side_or_cursor_is_one_line(workspace: Workspace) -> None:
    found = Comparison(workspace.run("one").record, workspace.run("two").record)
    with pytest.raises(InputError, match="expected gained or lost"):
        found.page("both")
    with pytest.raises(InputError, match="cursor"):
        found.page(LOST, found.page(GAINED, limit=1).next)
