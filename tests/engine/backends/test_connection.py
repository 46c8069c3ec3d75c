"""Addresses at which no Ray cluster answers."""

from __future__ import annotations

import re
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from curate.core.errors import RESUMES, CurateError, UnreachableError
from curate.engine.backends import connection
from curate.engine.backends.connection import Head, checked, to_raylet


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


def test_ray_client_is_for_detached_runs(machine: Machine) -> None:
    with pytest.raises(CurateError, match=r"--address ray://127.0.0.1:\d+: Ray Client cannot run this; on a node"):
        checked(f"ray://127.0.0.1:{machine.port}")


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


# --- a head that is lost during a run ---------------------------------------------------------------------------------


class Machine:
    """What a driver sees of a head and of the Ray beside itself; both may end."""

    def __init__(self, folder: Path) -> None:
        self.raylet, self.socket = socket.socket(socket.AF_UNIX), f"{folder}/raylet"
        self.raylet.bind(self.socket)
        self.raylet.listen()
        self.identity: str | Exception = "first"
        self.port = 0
        self.start()

    def start(self) -> None:
        self.gcs = socket.create_server(("127.0.0.1", self.port))
        self.port = self.gcs.getsockname()[1]
        threading.Thread(target=self._serve, args=(self.gcs,), daemon=True).start()

    def _serve(self, gcs: socket.socket) -> None:
        try:
            while True:
                with gcs.accept()[0] as there:
                    there.recv(100)
                    there.sendall(bytes([0, 0, 0, 4, 0, 0, 0, 0, 0]))
        except OSError:  # closed
            pass

    def kill(self) -> None:
        self.gcs.shutdown(socket.SHUT_RDWR)
        self.gcs.close()

    def known(self) -> str:
        if isinstance(self.identity, Exception):
            raise self.identity
        return self.identity

    def head(self) -> Head:
        return Head(f"127.0.0.1:{self.port}", to_raylet(self.socket), self.known)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    monkeypatch.setattr(connection, "CHECK_SECONDS", -1.0)
    made = Machine(tmp_path)
    yield made
    made.raylet.close()
    made.gcs.close()


def test_a_head_that_comes_back_is_waited_for(machine: Machine) -> None:
    head = machine.head()
    assert head.trouble() == ""
    machine.kill()
    gone = f"the Ray head at 127.0.0.1:{machine.port} does not answer (Connection refused); waiting for it"
    assert head.trouble() == head.trouble() == gone
    machine.start()
    machine.identity = RuntimeError()
    assert "does not answer (RuntimeError()); waiting for it" in head.trouble()
    machine.identity = "first"
    assert head.trouble() == ""
    head.raylet.close()


def test_a_head_that_stays_away_is_lost(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "HEAD_SECONDS", 0.0)
    head = machine.head()
    assert head.trouble() == ""
    machine.kill()
    lost = f"lost the Ray cluster at 127.0.0.1:{machine.port} (Connection refused); finished units are kept, "
    lost += f"those in progress are lost; start the cluster, and {RESUMES}"
    with pytest.raises(UnreachableError, match=f"^{re.escape(lost)}$"):
        head.trouble()
    head.raylet.close()


def test_a_head_without_its_memory_and_a_machine_without_ray_are_lost_at_once(machine: Machine) -> None:
    head = machine.head()
    assert head.trouble() == ""
    machine.identity = "second"
    for _ in range(2):
        with pytest.raises(UnreachableError, match=r"lost .* \(its head was restarted without its state\); finished"):
            head.trouble()
    head.raylet.close()
    head = machine.head()
    machine.raylet.close()
    for one in (head, machine.head()):  # also if it dies before the driver has looked at it
        with pytest.raises(UnreachableError, match=r"lost the Ray cluster at .* \(Ray has died on this machine\)"):
            one.trouble()
        one.raylet.close()
