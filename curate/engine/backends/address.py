"""Whether a Ray cluster answers at an address: found out in seconds, where Ray itself tries for minutes."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from curate.core.errors import CurateError

CONNECT_SECONDS = 3.0
ANSWER_SECONDS = 5.0
GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
"""How a client of gRPC begins (RFC 9113, 3.4): the preface, and a frame of empty settings."""
SETTINGS = 4
"""Type of the frame that a server of gRPC answers with, its fourth byte."""


def checked(address: str) -> str:
    """The address to connect to; `auto` is that of this machine's cluster. Raises CurateError where none answers."""
    given, place = f"--address {address}", address
    if address in ("auto", "local"):
        place = os.environ.get("RAY_ADDRESS", "") or _here()
        if not place or place == "auto":
            raise CurateError(f"{given}: no Ray cluster runs on this machine; start one with `ray start --head`")
        given += f" ({place})"
    host, _, port = place.removeprefix("ray://").rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise CurateError(f"{given}: expected HOST:PORT of a Ray cluster (its port is 6379 by default), or auto")
    problem = _problem(host.strip("[]"), int(port))
    if problem:
        raise CurateError(f"{given}: no Ray cluster answers there ({problem}); check it with `ray status`")
    return place


def _here() -> str:
    """Where Ray has written down the address of the cluster that was started here last."""
    file = Path(os.environ.get("RAY_TMPDIR", "/tmp")) / "ray" / "ray_current_cluster"
    return file.read_text().strip() if file.is_file() else ""


def _problem(host: str, port: int) -> str:
    try:
        with socket.create_connection((host, port), timeout=CONNECT_SECONDS) as there:
            if os.environ.get("RAY_USE_TLS", "0") == "1":
                return ""
            there.settimeout(ANSWER_SECONDS)
            there.sendall(GREETING)
            answer = there.recv(9)
    except TimeoutError:
        return "it does not answer"
    except OSError as error:
        return error.strerror or str(error)
    return "" if len(answer) >= 4 and answer[3] == SETTINGS else "something else listens there"
