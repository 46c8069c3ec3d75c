"""The client of the run's limiter; its server is tested in tests/engine/workers/test_limiter.py."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading

import pytest

from curate.core.shares import LimiterConnection, LimiterGoneError
from tests.conftest import ROOT


@pytest.mark.parametrize("module", ["curate.core.shares", "curate.acquire.fetch.hosts"])
def test_only_the_standard_library_is_needed(module: str) -> None:
    """-S: no installed packages. The runner's environment has others than ours."""
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r}); import {module}"
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_missing_limiter_gives_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(LimiterGoneError, match=rf"^the run's limiter at 127.0.0.1:{port} does not answer \(.*\); .*$"):
        LimiterConnection({"host": "127.0.0.1", "port": port, "key": "00" * 32}, {})


def test_another_server_is_not_taken_for_a_limiter() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def talk() -> None:
            connected, _ = server.accept()
            with connected:
                connected.sendall(b"220 mail.example.org ESMTP\r\n" * 100)

        thread = threading.Thread(target=talk)
        thread.start()
        limiter = {"host": "127.0.0.1", "port": server.getsockname()[1], "key": "00" * 32}
        with pytest.raises(LimiterGoneError, match="does not answer"):
            LimiterConnection(limiter, {})
        thread.join()
