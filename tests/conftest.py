"""What every test stands on: few threads, no network, real data where it is, one Ray for the whole session."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

# Read by the libraries when they are imported, so they are set here and not in a fixture.
os.environ.update(
    dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "POLARS_MAX_THREADS"), "2"),
    HF_HUB_OFFLINE="1",
    RAY_AUTH_MODE="disabled",
    RAY_USAGE_STATS_ENABLED="0",
)

from hypothesis import settings

ROOT = Path(__file__).parent.parent
settings.register_profile("shared cores", deadline=None)
settings.load_profile("shared cores")


@pytest.fixture(scope="session")
def data() -> Path:
    """Folder of real samples (LAION texts, ImageNet and CIFAR pictures): CURATE_TEST_DATA, or shared/data beside us."""
    place = Path(os.environ.get("CURATE_TEST_DATA", ROOT.parent / "shared/data"))
    if not place.is_dir():
        pytest.skip(f"no real data in {place}; set CURATE_TEST_DATA")
    return place


@pytest.fixture(scope="session")
def ray_session() -> Iterator[Any]:
    """A local Ray of 4 CPUs; it takes 6 to 9 s to start, so most tests use the local engine instead."""
    import ray

    ray.init(
        num_cpus=4,
        include_dashboard=False,
        object_store_memory=256 * 2**20,
        log_to_driver=False,
        logging_level="ERROR",
        _system_config={"num_workers_soft_limit": 8, "idle_worker_killing_time_threshold_ms": 600_000},
    )
    yield ray
    ray.shutdown()
