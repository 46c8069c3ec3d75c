"""kill -9 inside of the fits that matter: of trees, in one piece and by cells, and of semantic duplicates.

Every point at which a checkpoint has appeared or is about to, seeded moments, and steps of Ray's workers: the same
command resumes from the last checkpoint, and its output is byte for byte that of an undisturbed run. Each commit visits
a third of them (tests/draw.py).
"""

from __future__ import annotations

import random
import shutil
import signal
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from curate.core import group as core
from curate.core.recipe.load import load
from curate.core.store.storage import open_storage
from curate.engine.record.events import read_events
from curate.engine.record.runs import list_runs
from curate.engine.run import run
from tests.draw import drawn
from tests.e2e.vectors import stages, write_recipe
from tests.engine import workspaces
from tests.engine.deaths import deaths
from tests.engine.forks import COUNT_ONLY, Drivers

PART_ROWS = 64
POOL = {"rows": 240, "shard_rows": 32}
MOMENTS = 2
FITS = {"in one piece": ("tree", "meanings"), "by cells": ("cells",)}
"""Recipes, each with its fits in order: they are built in turn, so that a kill hits a known one."""

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]


@dataclass(frozen=True)
class Clean:
    """An undisturbed run."""

    fits: tuple[str, ...]
    recipe: Path
    begun: Path
    """A workspace with the pool and its vectors alone, and no run."""
    done: Path
    points: list[str]
    """Fault points, from the first fit's first on."""
    calls: int

    def checkpoints(self, how: str) -> list[str]:
        return [
            point
            for point in self.points
            if Path(point).parts[-3:-1] == ("work", "checkpoints") and point.endswith(how)
        ]


@pytest.fixture(scope="module")
def drivers() -> Iterator[Drivers]:
    with Drivers("faiss", "scipy.sparse", "curate.cluster.tree.levels") as made:
        yield made


@pytest.fixture(scope="module", params=drawn(list(FITS)))
def clean(request: pytest.FixtureRequest, memory: Path, drivers: Drivers) -> Clean:
    fits = FITS[request.param]
    made = stages(
        POOL,
        tree={"levels": [8, 2], "rounds": 1, "iterations": 2},
        cells={"op": "cluster.fit", "from": "embed", "levels": [8, 4], "cells": [3, 2], "rounds": 0, "threads": 1},
        clusters=None,
        meanings={"level": 1, "eps": 0.05, "neighbours": None},
    )
    made = {name: made[name] for name in ("pool", "embed", *fits)}
    folder = memory / f"fits {request.param}"
    folder.mkdir()
    before = write_recipe(folder / "before.yaml", {name: made[name] for name in ("pool", "embed")})
    run(load(before), str(folder / "begun"))
    shutil.rmtree(folder / "begun/runs")
    recipe, log = write_recipe(folder / "recipe.yaml", made), folder / "points.log"
    done, counted = folder / "done", folder / "counted"
    for target in (done, counted):
        shutil.copytree(folder / "begun", target)
    said = go(drivers, recipe, done, environment={"CURATE_FAULT_LOG": str(log)})
    assert said["error"] is None, said
    calls = go(drivers, recipe, counted, call=COUNT_ONLY)["calls"]
    points = log.read_text().splitlines()
    return Clean(fits, recipe, folder / "begun", done, points[points.index("load:pool:0") :], calls)


@pytest.fixture
def begun(clean: Clean, workspace: Path) -> Path:
    shutil.copytree(clean.begun, workspace)
    return workspace


def go(drivers: Drivers, recipe: Path, workspace: Path, **order: Any) -> dict[str, Any]:
    return drivers.run(workspace, recipe=str(recipe), part_rows=PART_ROWS, **order)


def saved(workspace: Path) -> dict[str, list[tuple[str, int]]]:
    """Checkpoints of the last run by stage: resumed and written."""
    storage = open_storage(str(workspace))
    events = read_events(storage, list_runs(storage)[-1])
    found: dict[str, list[tuple[str, int]]] = {}
    for event in events:
        if event["event"] in ("resumed", "checkpoint"):
            found.setdefault(event["stage"], []).append((event["event"], event["number"]))
    return found


def test_each_fit_has_checkpoints(clean: Clean) -> None:
    assert tuple(saved(clean.done)) == clean.fits
    assert min(len(made) for made in saved(clean.done).values()) >= 2
    assert len(clean.checkpoints(":published")) == sum(len(made) for made in saved(clean.done).values())


def test_killed_at_every_checkpoint(clean: Clean, begun: Path, drivers: Drivers) -> None:
    """Each run resumes where the one before was killed, and the last one at the last checkpoint."""
    *points, end = clean.checkpoints(":published")
    for point in (*drawn(points), end):
        assert go(drivers, clean.recipe, begun, environment={"CURATE_FAULT_KILL": point})["signal"] == signal.SIGKILL
    assert go(drivers, clean.recipe, begun)["error"] is None
    last = saved(clean.done)[clean.fits[-1]][-1][1]
    assert saved(begun) == {clean.fits[-1]: [("resumed", last)]}  # nothing is left to do but to publish
    workspaces.assert_same(clean.done, begun)


def test_killed_before_every_other_checkpoint(clean: Clean, begun: Path, drivers: Drivers) -> None:
    """What is written and not published yet is done again."""
    points = drawn(clean.checkpoints(":written")[::2])
    assert points
    for point in points:
        assert go(drivers, clean.recipe, begun, environment={"CURATE_FAULT_KILL": point})["signal"] == signal.SIGKILL
    assert go(drivers, clean.recipe, begun)["error"] is None
    workspaces.assert_same(clean.done, begun)


def test_killed_at_seeded_moments(clean: Clean, begun: Path, drivers: Drivers) -> None:
    moments = drawn(sorted(random.Random(3).sample(range(clean.calls // 4, int(0.9 * clean.calls)), MOMENTS)))
    ends = [go(drivers, clean.recipe, begun, call=number)["signal"] for number in moments]
    assert ends[0] == signal.SIGKILL  # a later run has less to do, and may end before
    assert go(drivers, clean.recipe, begun)["error"] is None
    workspaces.assert_same(clean.done, begun)


# --- Ray --------------------------------------------------------------------------------------------------------------


def test_workers_killed_in_iterations(
    clean: Clean, begun: Path, tmp_path: Path, on_ray: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the middle of a step on each kind of group, of the rows and of regroupings: the fit resumes."""
    monkeypatch.setattr(core, "LEAST_PART_ROWS", PART_ROWS)
    groups: dict[str, list[str]] = {}
    for point, times in Counter(clean.points).items():
        if point.startswith("step:") and times == 1:
            groups.setdefault(point.split(":")[2], []).append(point)
    by_cells = {"leaves-cells", "leaves stored", "centroids_2-cells"}
    assert {"pool", *(by_cells if "cells" in clean.fits else ("level-1", "cells"))} <= set(groups)
    chosen = [points[len(points) // 2] for points in groups.values()]
    with deaths(on_ray, drawn(chosen), tmp_path):
        run(load(clean.recipe), str(begun), engine=on_ray)
    workspaces.assert_same(clean.done, begun)


def test_driver_killed_under_ray(
    clean: Clean, begun: Path, drivers: Drivers, on_ray: Any, on_this_ray: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(core, "LEAST_PART_ROWS", PART_ROWS)
    fit = clean.fits[0]
    first = len(saved(clean.done)[fit])
    point = clean.checkpoints(":published")[first // 2 - 1]
    kill = {"CURATE_FAULT_KILL": point, "RAY_ADDRESS": on_this_ray}
    said = go(drivers, clean.recipe, begun, engine="ray", environment=kill)
    assert said["signal"] == signal.SIGKILL
    run(load(clean.recipe), str(begun), engine=on_ray)
    numbers = range(first // 2 + 1, first + 1)
    assert saved(begun)[fit] == [("resumed", first // 2), *(("checkpoint", number) for number in numbers)]
    workspaces.assert_same(clean.done, begun)


# --- parts of the size they have --------------------------------------------------------------------------------------


def test_the_same_bytes_anywhere(memory: Path, workspace: Path, on_ray: Any) -> None:
    """Two parts: with one thread and two, in this process and with Ray's workers."""
    made = stages(
        {"rows": 33_000, "shard_rows": 5_500},
        tree={"levels": [100, 20], "rounds": 1},
        cells={"op": "cluster.fit", "from": "embed", "levels": [100, 20], "cells": [8, 3], "rounds": 1, "threads": 1},
        clusters=None,
        meanings={"level": 1, "eps": 0.002},
    )
    before = write_recipe(workspace.with_suffix(".yaml"), {name: made[name] for name in ("pool", "embed")})
    run(load(before), str(workspace))
    shutil.rmtree(workspace / "runs")
    done = []
    for threads, engine in ((1, "local"), (2, "local"), (1, on_ray)):
        for name in (name for fits in FITS.values() for name in fits):
            made[name] = {**made[name], "threads": threads}
        recipe = write_recipe(workspace.with_suffix(".yaml"), made)
        done.append(workspace.with_name(f"{threads}-{len(done)}"))
        shutil.copytree(workspace, done[-1])
        run(load(recipe), str(done[-1]), engine=engine)
    for other in done[1:]:
        workspaces.assert_same(done[0], other)
