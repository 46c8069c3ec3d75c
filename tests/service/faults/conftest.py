"""A site per module: its database, its workspace and its images."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.service.faults.heads import Head
from tests.service.faults.sites import Replica, Site


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, far_head: Head) -> Iterator[Site]:
    """On SQLite."""
    folder = tmp_path_factory.mktemp("site")
    made = Site(folder, f"sqlite:///{folder / 'service.db'}", far_head)
    made.set_up()
    yield made
    made.close()


@pytest.fixture(scope="module")
def replica(site: Site) -> Iterator[Replica]:
    """The service, with a target, a workspace and what its recipes use."""
    with site.replica() as made:
        site.register(made.client)
        yield made
