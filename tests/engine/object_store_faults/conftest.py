"""A proxy between a test and the object store."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import fsspec
import pytest
from botocore import retryhandler

from tests.core.store.object_store import forget_connections
from tests.engine.object_store_faults.proxy import Proxy, started


@pytest.fixture
def proxy(object_store: Any, object_store_server: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    """All requests of the test go through it; one that gets no answer is given up after a second. Between attempts
    clients wait a twentieth of the time."""
    wait = retryhandler.delay_exponential
    monkeypatch.setattr(retryhandler, "delay_exponential", lambda *args, **kwargs: wait(*args, **kwargs) / 20)
    with started(object_store_server) as made:
        monkeypatch.setenv("AWS_ENDPOINT_URL", made.url)
        monkeypatch.setitem(fsspec.config.conf, "s3", {"config_kwargs": {"read_timeout": 1}})
        forget_connections()
        yield made
    forget_connections()
