"""The server of faults."""

from __future__ import annotations

import time
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from curate.acquire.download import child, runner
from tests.acquire.server.outcomes import places
from tests.acquire.server.server import FaultServer


@pytest.fixture(scope="module")
def fault_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FaultServer]:
    """HTTP and HTTPS at 127.0.0.1 and at the addresses of all cases. This process and those it starts trust it."""
    addresses = sorted({"127.0.0.1", *places().values()}, key=lambda address: int(address.rpartition(".")[2]))
    folder = tmp_path_factory.mktemp("certificates")
    with FaultServer(addresses=addresses, certificates=folder) as server, pytest.MonkeyPatch.context() as patch:
        assert server.certificates is not None
        patch.setenv("SSL_CERT_FILE", str(server.certificates.authority))
        yield server


@pytest.fixture
def ahead(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """How many seconds the clock of the runner's parent is ahead, so that a test need not wait for a deadline."""
    seconds = [0.0]
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + seconds[0])
    for module in (child, runner):
        monkeypatch.setattr(module, "time", clock)
    return seconds
