"""Addresses at which no Ray cluster answers."""

from __future__ import annotations

import socket
import threading
import time
from pathlib import Path

import pytest

from curate.core.errors import CurateError
from curate.engine.backends.connection import checked


def test_nothing_listens_at_an_address(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    began = time.monotonic()
    for address, words in [
        (f"127.0.0.1:{port}", "no Ray cluster answers there (Connection refused); check it with `ray status`"),
        (f"ray://127.0.0.1:{port}", "no Ray cluster answers there (Connection refused)"),
        ("auto", "no Ray cluster runs on this machine; start one with `ray start --head`"),
        ("somewhere", "expected HOST:PORT of a Ray cluster"),
        ("host:99999", "expected HOST:PORT of a Ray cluster"),
    ]:
        with pytest.raises(CurateError) as raised:
            checked(address)
        assert str(raised.value).startswith(f"--address {address}: ") and words in str(raised.value)
    assert time.monotonic() - began < 100


def test_something_else_listens_at_an_address() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            there, _ = server.accept()
            there.recv(100)
            there.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            there.close()

        threading.Thread(target=serve, daemon=True).start()
        with pytest.raises(CurateError, match="another service listens there"):
            checked(f"127.0.0.1:{server.getsockname()[1]}")
