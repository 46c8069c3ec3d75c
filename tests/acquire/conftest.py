"""The server of faults."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

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
