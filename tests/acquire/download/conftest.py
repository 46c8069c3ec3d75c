"""One server for all downloads of a file, and processes that download from it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.acquire.download.site import Site


@pytest.fixture(scope="module")
def site_server() -> Iterator[Site]:
    with Site() as server:
        yield server


@pytest.fixture
def site(site_server: Site) -> Iterator[Site]:
    """The server, with an empty log; nothing is held back, and LATE is missing."""
    site_server.log.clear()
    site_server.late = False
    yield site_server
    site_server.open()
