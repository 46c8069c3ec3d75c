"""Runs over videos that are killed, and runs on Ray, give the same clips, keys and dataset."""

from __future__ import annotations

import os
import random
import re
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from curate.engine.run import run
from tests.draw import drawn
from tests.engine import workspaces
from tests.engine.deaths import deaths
from tests.engine.forks import Drivers
from tests.video.pool import pipeline

ARGUMENTS: dict[str, Any] = {
    "names": [["short-0", "text"], ["edited"]],
    "drop": [
        "number", "sum", "mean", "widths", "embed", "tree", "meanings", "meant", "members",
        "unique", "prints", "vectors", "alike", "keepers", "groups", "group", "every_window",
    ],
} | {stage: {"threads": 1} for stage in ("look", "seen", "embedded")}  # fmt: skip
ORDER: dict[str, Any] = {"made": "tests.video.pool:pipeline", "arguments": ARGUMENTS}
OURS = re.compile(
    r"publish:(facts/video.*/(log/.*|0\d*)\.parquet|pools/(clips|windows|frames)/derived/|artifacts/.*(npz|manifest.*):|.*\.tar:)"
)
"""Points of what these stages compute."""


GROUPS = 6


@pytest.fixture(scope="module")
def drivers() -> Iterator[Drivers]:
    with Drivers("tests.video.pool", "curate.duplicates.near.matches", "curate.duplicates.near.sets") as made:
        yield made


@pytest.fixture(scope="module")
def undisturbed(drivers: Drivers, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str], float]:
    """A run in another process: its workspace, the points at which it publishes, and its seconds."""
    folder = tmp_path_factory.mktemp("undisturbed")
    began = time.monotonic()
    said = drivers.run(folder / "w", **ORDER, environment={"CURATE_FAULT_LOG": str(folder / "points")})
    assert said["error"] is None
    points = filter(OURS.match, (folder / "points").read_text().splitlines())
    named = [re.sub("/log/.*:", "/log/*:", point) for point in points]  # their names have a random part
    return folder / "w", list(dict.fromkeys(named)), time.monotonic() - began


@pytest.mark.long
def test_killed_at_every_point(drivers: Drivers, undisturbed: tuple[Path, list[str], float], tmp_path: Path) -> None:
    """Each run continues the one before it, and is killed at the first point at which no other was."""
    clean, points, _ = undisturbed
    assert len(points) > 30
    groups = drawn([points[first::GROUPS] for first in range(GROUPS)])
    for name, some in ((str(number), some) for number, some in enumerate(groups)):
        # apart, because a unit under way at three deaths is set aside
        once = tmp_path / f"once-{name}"
        once.mkdir()
        dying = {"CURATE_FAULT_KILL": "|".join(some), "CURATE_FAULT_ONCE": str(once)}
        while (said := drivers.run(tmp_path / name, **ORDER, environment=dying))["signal"]:
            pass
        assert said["error"] is None
        numbers = {int(path.name) for path in once.iterdir()}
        assert [point for number, point in enumerate(some) if number not in numbers] == []
        workspaces.assert_same(clean, tmp_path / name)
    assert groups


@pytest.mark.long
def test_killed_at_random(drivers: Drivers, undisturbed: tuple[Path, list[str], float], tmp_path: Path) -> None:
    clean, _, seconds = undisturbed
    chance, killed = random.Random(31), 0
    moments = drawn([chance.uniform(0.1, 0.6) for _ in range(5)])
    for moment in moments:
        process = drivers.start(tmp_path / "w", **ORDER)
        time.sleep(moment * seconds)
        with suppress(ProcessLookupError):  # it has ended
            os.kill(process, signal.SIGKILL)
        killed += drivers.end()["signal"] == signal.SIGKILL
    assert killed > len(moments) // 3
    assert drivers.run(tmp_path / "w", **ORDER)["error"] is None
    workspaces.assert_same(clean, tmp_path / "w")


@pytest.mark.long
def test_the_other_engine_and_its_killed_workers_make_the_same(
    undisturbed: tuple[Path, list[str], float], tmp_path: Path, on_ray: Any
) -> None:
    clean, _, _ = undisturbed
    points = (
        "publish:facts/video.look/*.parquet:published",
        "publish:pools/frames/derived/*.tar:published",
    )
    (tmp_path / "deaths").mkdir()
    with deaths(on_ray, drawn(points), tmp_path / "deaths"):
        run(pipeline(**ARGUMENTS), str(tmp_path / "w"), engine=on_ray)
    workspaces.assert_same(clean, tmp_path / "w")
    assert all(run(pipeline(**ARGUMENTS), str(tmp_path / "w")).reused.values())
