"""Lists of external rows, in portions: nothing is lost, groups stay whole, and a grown list keeps its portions."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from curate.core.errors import InputError
from curate.core.nouns.artifacts import StoredArtifact
from curate.core.nouns.manifest import Manifest
from curate.core.recipe.pipeline import Pipeline
from curate.core.store.storage import open_storage
from curate.engine.record import claims, gc
from curate.engine.run import Result, run
from curate.engine.units.collect import build as collect
from curate.engine.units.collect import tasks as collect_tasks
from tests.engine import workspaces
from tests.engine.toys.lists import Listed

Row = tuple[int | None, int]


def write(folder: Path, **files: list[Row]) -> None:
    folder.mkdir(exist_ok=True)
    for name, rows in files.items():
        (folder / f"{name}.json").write_text(json.dumps(rows))


def build(workspace: Path, folder: Path, engine: Any = "local", **parameters: Any) -> Result:
    return run(Pipeline().add("list", Listed(folder=str(folder), **parameters)), str(workspace), engine=engine)


def portions(workspace: Path, result: Result) -> dict[str, list[str]]:
    """Digest of each portion -> names of its rows."""
    base = result.outputs["list"].split(f"{workspace}/")[1]
    stored = StoredArtifact(open_storage(str(workspace)), base)
    return {line["digest"]: stored.portion(line)["name"].to_pylist() for line in stored["portions"].to_pylist()}


def names(found: dict[str, list[str]]) -> list[str]:
    return sorted(name for rows in found.values() for name in rows)


def test_every_row_is_in_one_portion_and_copies_are_counted(workspace: Path, tmp_path: Path) -> None:
    rows: list[Row] = [(group % 7, group) for group in range(30)]
    write(tmp_path / "lists", a=[*rows, (None, 1), (3, 3)], b=[(3, 3), (99, 1)])
    result = build(workspace, tmp_path / "lists")
    found = portions(workspace, result)
    assert names(found) == sorted([*(f"{group}-{row}" for group, row in rows), "99-1"])
    entry = result.ledger["list"]
    assert (entry.before, entry.after) == (34, 31)
    assert entry.rejected == Counter({"duplicate_row": 2, "no_group": 1})
    groups = [{name.partition("-")[0] for name in rows} for rows in found.values()]
    assert not any(a & b for a, b in itertools.combinations(groups, 2)), "a group is in two portions"


def test_the_same_bytes_for_any_buckets_of_work(workspace: Path, tmp_path: Path, on_ray: Any) -> None:
    write(tmp_path / "lists", a=[(n, n) for n in range(40)], b=[(n, n) for n in range(20, 60)])
    build(workspace, tmp_path / "lists")
    other = workspace.parent / "ray"
    build(other, tmp_path / "lists", engine=on_ray)
    assert workspaces.files(workspace) == workspaces.files(other)


@pytest.mark.parametrize("bucket_bytes", [1 << 20, 40])
def test_a_grown_list_adds_portions_only(
    workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bucket_bytes: int
) -> None:
    monkeypatch.setattr(collect, "BUCKET_BYTES", bucket_bytes)
    lists = tmp_path / "lists"
    write(lists, a=[(n, n) for n in range(40)])
    before = portions(workspace, build(workspace, lists))
    write(lists, a=[(n, n) for n in range(42)], b=[(5, 5), (5, 1000), (100, 1)])
    result = build(workspace, lists)
    after = portions(workspace, result)
    assert before.items() <= after.items()
    added = {digest: rows for digest, rows in after.items() if digest not in before}
    assert names(added) == ["100-1", "40-40", "41-41", "5-1000"]
    assert len(added) == 1, "few new rows of many buckets share a portion"
    assert result.ledger["list"].rejected == Counter({"duplicate_row": 1})
    write(lists, c=[(200, 1)])
    third = portions(workspace, build(workspace, lists))
    assert after.items() <= third.items() and names(third)[-1] == "9-9"


def test_rows_that_vanish_divide_only_their_portions_again(workspace: Path, tmp_path: Path) -> None:
    lists = tmp_path / "lists"
    write(lists, a=[(n, n) for n in range(40)])
    before = portions(workspace, build(workspace, lists))
    write(lists, a=[(n, n) for n in range(40) if n != 7])
    after = portions(workspace, build(workspace, lists))
    gone = [digest for digest, rows in before.items() if "7-7" in rows]
    assert len(gone) == 1 and before.keys() - after.keys() == set(gone)
    assert names(after) == sorted(f"{n}-{n}" for n in range(40) if n != 7)


def test_another_list_does_not_disturb_a_list(workspace: Path, tmp_path: Path) -> None:
    write(tmp_path / "one", one=[(n, n) for n in range(20)])
    write(tmp_path / "two", two=[(n, n) for n in range(100, 120)])
    before = portions(workspace, build(workspace, tmp_path / "one"))
    build(workspace, tmp_path / "two")
    write(tmp_path / "one", more=[(50, 50)])
    after = portions(workspace, build(workspace, tmp_path / "one"))
    assert before.items() <= after.items() and len(names(after)) == 21


def test_the_same_list_elsewhere_is_the_same_portions(workspace: Path, tmp_path: Path) -> None:
    write(tmp_path / "one", a=[(n, n) for n in range(20)])
    before = portions(workspace, build(workspace, tmp_path / "one"))
    write(tmp_path / "two", b=[(n, n) for n in range(20)])
    assert portions(workspace, build(workspace, tmp_path / "two")) == before


def test_a_list_without_a_usable_row(workspace: Path, tmp_path: Path) -> None:
    write(tmp_path / "lists", a=[(None, 1), (None, 2)])
    with pytest.raises(InputError, match=r"pipeline: list: toys.list: none of 2 rows can be used \(2 no_group\)"):
        build(workspace, tmp_path / "lists")


@given(st.lists(st.integers(0, 30), min_size=1, max_size=200), st.integers(1, 20))
def test_cuts(groups: list[int], most: int) -> None:
    group = np.sort(np.array(groups, np.uint64))
    edges = collect_tasks.cuts(group, most)
    assert edges[0] == 0 and edges[-1] == len(group) and edges == sorted(set(edges))
    for edge in edges[1:-1]:
        assert group[edge - 1] != group[edge]
    largest = max(Counter(groups).values())
    assert all(stop - start <= most + largest for start, stop in itertools.pairwise(edges))


@pytest.mark.long
def test_a_list_that_has_grown_a_lot_is_divided_into_more_buckets(
    workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker holds the rows of a bucket in memory."""
    monkeypatch.setattr(collect, "BUCKET_BYTES", 1000)
    lists = tmp_path / "lists"
    write(lists, a=[(n, n) for n in range(90)])
    first = build(workspace, lists)
    before = portions(workspace, first)
    write(lists, b=[(n, n) for n in range(80, 900)])
    second = build(workspace, lists)
    after = portions(workspace, second)
    assert before.items() <= after.items() and names(after) == sorted(f"{n}-{n}" for n in range(900))
    write(lists, c=[(n, n) for n in range(2000, 2010)], a=[(n, n) for n in range(90) if n != 7])
    third = portions(workspace, build(workspace, lists))
    assert len(after.keys() - third.keys()) == 1 and len(names(third)) == 909
    assert [buckets(workspace, result) for result in (first, second)] == [1, 11]


def buckets(workspace: Path, result: Result) -> int:
    manifest = Manifest.load(open_storage(str(workspace)), result.outputs["list"].split(f"{workspace}/")[1])
    assert manifest is not None
    return int(manifest.extra["buckets"])


def test_a_small_list_does_not_read_a_large_one(
    workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collect, "BUCKET_BYTES", 40)
    write(tmp_path / "large", large=[(n, n) for n in range(100)])
    write(tmp_path / "small", small=[(n, n) for n in range(4)])
    build(workspace, tmp_path / "large")
    assert buckets(workspace, build(workspace, tmp_path / "small")) == 1


def test_gc_keeps_the_list_on_which_a_running_run_builds(
    workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once before the run chooses it, once after."""
    lists, original = tmp_path / "lists", collect.find_earlier
    removed: list[int] = []

    def clean() -> None:
        storage = open_storage(str(workspace))
        with claims.exclusive(storage):
            garbage, gone = gc.unreachable(storage, keep=0)
            removed.append(len(garbage))
            gc.collect(storage, garbage, gone)

    def earlier(*args: Any) -> Any:
        found = original(*args)
        clean()
        return found

    write(lists, a=[(n, n) for n in range(20)])
    before = portions(workspace, build(workspace, lists))
    write(lists, b=[(30, 30)])
    with monkeypatch.context() as patch:
        patch.setattr(collect, "find_earlier", earlier)
        after = portions(workspace, build(workspace, lists))
    assert removed == [0] and before.items() <= after.items()
    write(lists, c=[(40, 40)])
    keep = claims.keep

    def late(ctx: Any, folders: Any) -> None:
        if any("toys.list" in folder["base"] for folder in folders) and len(removed) == 1 and ctx.outputs.built:
            clean()
        keep(ctx, folders)

    with monkeypatch.context() as patch:
        patch.setattr(claims, "keep", late)
        last = portions(workspace, build(workspace, lists))
    assert removed[1] > 0 and names(last) == sorted(f"{n}-{n}" for n in (*range(20), 30, 40))
