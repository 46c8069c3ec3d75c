"""`bench.engine.scale` on pools of a few shards: the figures have their shape, operations stay within the bound."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.engine import counting, simulated
from bench.engine.scale import AGAIN, exponent, joined, markdown, one_size

FIXED = 60
"""Operations of a step that do not depend on the number of shards: manifests, leases, listings, the run's record."""


@pytest.fixture
def storage_uncounted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Restores `Storage` after the test."""
    for name in (*counting.WAYS, "publish", "__reduce__"):
        monkeypatch.setattr(counting.Storage, name, getattr(counting.Storage, name))
    monkeypatch.setattr(counting.Storage, "counts", False, raising=False)


@pytest.fixture
def memory() -> Iterator[Path]:
    """A folder in memory if there is space, so that the test does not wait for the disk."""
    room = Path("/dev/shm").is_dir() and shutil.disk_usage("/dev/shm").free > 2**28
    with tempfile.TemporaryDirectory(dir="/dev/shm" if room else None) as folder:
        yield Path(folder)


@pytest.mark.long
def test_operations_per_shard_and_step_stay_within_the_bound(storage_uncounted: None, memory: Path) -> None:
    sizes = {}
    for shards in (12, 24):
        (memory / str(shards)).mkdir()
        sizes[shards] = one_size(shards, 40, "local", memory / str(shards))
    found = json.loads(json.dumps(joined(sizes, 40, "local")))
    assert list(found["steps"]) == [*simulated.STEPS, AGAIN]
    for name, step in found["steps"].items():
        assert isinstance(step["exponent"], float)
        assert list(step["sizes"]) == ["12", "24"]
        small, large = step["sizes"].values()
        assert small["seconds"] > 0
        allowed = large["allowed_per_shard"] + simulated.PER_UNIT.get(name, 0)  # a unit may be of one shard here
        assert large["operations"] <= allowed * 24 + FIXED, name
        assert (large["operations"] - small["operations"]) / 12 <= allowed, name
    assert found["steps"]["pool"]["sizes"]["24"]["files_written"] >= 24
    assert found["memory"]["24"]["driver_bytes"] > 1 << 20
    assert "| `dataset` |" in markdown(found)


def test_the_exponent_is_the_slope_of_logarithms() -> None:
    assert exponent({10: 1.0, 100: 10.0, 1000: 100.0}) == 1.0
    assert exponent({10: 1.0, 100: 100.0}) == 2.0
    assert exponent({10: 1.0}) is None
