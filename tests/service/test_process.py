"""Whether a process of the service has ended."""

from __future__ import annotations

import socket
import subprocess
import sys

from curate.service.process import has_ended, name

NAME = "from curate.service.process import name; print(name(), flush=True); input()"


def test_a_process_has_ended_only_where_that_can_be_seen() -> None:
    other = subprocess.Popen([sys.executable, "-c", NAME], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert other.stdout is not None
    given = other.stdout.readline().strip()
    assert not has_ended(given) and not has_ended(name())
    other.communicate("\n")
    assert has_ended(given)
    assert not has_ended(given.replace(socket.gethostname(), "elsewhere", 1))


def test_a_container_that_starts_again_has_the_same_host_and_number() -> None:
    assert has_ended(name()[:-8] + "00000000")
