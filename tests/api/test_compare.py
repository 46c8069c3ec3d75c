"""Two runs beside each other: keys gained and lost are exact, and their rows come page by page."""

from __future__ import annotations

from pathlib import Path

import pytest

from curate.api import Pipeline, Run, Workspace, make_stage
from curate.api.compare import GAINED, LOST, Changed, Comparison
from curate.core.errors import InputError
from curate.engine.run import run
from tests.engine import toys

SHARD_ROWS = 6


def recipe(keep: str, rows: int = 60, namespace: str = "toys") -> Pipeline:
    made = Pipeline().add("pool", toys.Numbers(namespace=namespace, rows=rows, shard_rows=SHARD_ROWS))
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
    }
    for name, made in runs.items():
        run(made, str(folder), run_id=name)
    return Workspace(str(folder))


def keys(of: Run) -> set[str]:
    return set(of.workspace.table(of.id, "lit", ["key"]).table["key"].to_pylist())


@pytest.mark.parametrize(("first", "second"), [("one", "two"), ("two", "one"), ("one", "more"), ("more", "two")])
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


def test_runs_without_a_common_shard_are_one_line(workspace: Workspace, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no shard in common at lit") as caught:
        Comparison(workspace.run("one").record, workspace.run("other").record)
    assert "\n" not in str(caught.value)
    run(Pipeline().add("source", toys.Numbers(namespace="x", rows=6)).check(), workspace.url, run_id="named")
    with pytest.raises(InputError, match="no stage in common"):
        Comparison(workspace.run("one").record, workspace.run("named").record)


def test_a_wrong_side_or_cursor_is_one_line(workspace: Workspace) -> None:
    found = Comparison(workspace.run("one").record, workspace.run("two").record)
    with pytest.raises(InputError, match="expected gained or lost"):
        found.page("both")
    with pytest.raises(InputError, match="cursor"):
        found.page(LOST, found.page(GAINED, limit=1).next)
