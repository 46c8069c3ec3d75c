"""A site of pages over examples, and a browser's way to it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from fastapi.testclient import TestClient

from tests.service.pages.site import Site


@pytest.fixture(scope="module")
def _site() -> Iterator[Site]:
    with pytest.MonkeyPatch.context() as patch:
        yield Site(patch)


@pytest.fixture
def site(_site: Site) -> Site:
    """As if it were new."""
    _site.reset()
    return _site


@pytest.fixture(scope="module")
def _client(_site: Site) -> Iterator[TestClient]:
    with TestClient(
        _site.app, base_url="http://127.0.0.1:8080", follow_redirects=False, raise_server_exceptions=False
    ) as made:
        yield made


@pytest.fixture
def client(site: Site, _client: TestClient) -> TestClient:
    return _client
