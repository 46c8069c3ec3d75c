from __future__ import annotations

import json
import os
import resource
import select
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from curate.core.child import Ended, Limits, Warm, how_ended
from curate.core.errors import PreflightError

HERE = "tests.core.bad_children"
LIMITS = Limits(60.0, 512 << 20)
SHORT = Limits(0.5, 512 << 20)
REACHES = Limits(60.0, 512 << 20, 1 << 20)


@dataclass
class Bytes:
    data: bytes
    read: int = 0

    @property
    def size(self) -> int:
        return len(self.data)

    def read_at(self, offset: int, size: int, /) -> bytes:
        self.read += size
        return self.data[offset : offset + size]


@pytest.fixture(scope="module", autouse=True)
def _variables() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
        patch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
        yield


@pytest.fixture(scope="module")
def alone() -> Iterator[Warm]:
    with closing(Warm(HERE)) as made:
        yield made


@pytest.fixture(scope="module")
def warm() -> Iterator[Warm]:
    """Its children have files and the network."""
    with closing(Warm(HERE, alone=False)) as made:
        yield made


@pytest.fixture
def pipe(tmp_path: Path) -> Iterator[Path]:
    """At the end, no process holds its other end."""
    path = tmp_path / "pipe"
    os.mkfifo(path)
    end = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        yield path
        poll = select.poll()
        poll.register(end, select.POLLHUP)
        assert poll.poll(60_000)
    finally:
        os.close(end)


def _call(warm: Warm, function: str, payload: bytes = b"", limits: Limits = LIMITS) -> Ended:
    return warm.call(f"{HERE}:{function}", payload, limits)


def test_a_call_gives_bytes_and_what_it_used(alone: Warm) -> None:
    ended = _call(alone, "upper", b"x" * 3_000_000)
    assert (ended.answer, ended.how, ended.detail) == (b"X" * 3_000_000, "", "")
    assert 0 < ended.cpu_seconds < 5
    assert 0 < ended.peak_bytes < 1 << 30


def test_a_child_reads_its_input_through_its_parent(alone: Warm) -> None:
    source = Bytes(bytes(range(256)) * 100_000)
    asked = {"20000000 700": source.data[20_000_000:20_000_700], "25599999 9": b"\xff", "9 0": b"", "30000000 5": b""}
    for order, expected in asked.items():
        assert alone.call(f"{HERE}:part", order.encode(), LIMITS, source).answer == expected
    assert source.read == 701
    assert alone.call(f"{HERE}:part", b"0 25600000", LIMITS, source).answer is None  # more than an answer may have


def _stream(warm: Warm, function: str, payload: bytes = b"") -> tuple[list[bytes], Ended]:
    parts, found = warm.stream(f"{HERE}:{function}", payload, LIMITS), list[bytes]()
    while True:
        try:
            found.append(next(parts))
        except StopIteration as end:
            return found, end.value


def test_parts_arrive_one_by_one(alone: Warm) -> None:
    found, ended = _stream(alone, "parts", b"3 0 9000000")
    assert (list(map(len, found)), ended.answer, ended.parts) == ([3, 0, 9_000_000], b"", 3)
    found, ended = _stream(alone, "parts", b"3 -1 5")
    assert (list(map(len, found)), ended.answer, ended.how) == ([3], None, "signal")
    assert [len(part) for part in _stream(alone, "parts", b"17000000")[0]] == []  # more than a part may have
    assert _stream(alone, "upper", b"a")[1].answer == b"A"


def test_a_child_whose_caller_has_heard_enough_ends(alone: Warm) -> None:
    parts = alone.stream(f"{HERE}:forever", b"", LIMITS)
    assert len(next(parts)) == 1000
    assert alone.process
    process = psutil.Process(alone.process.pid)
    children = process.children(recursive=True)
    assert children
    parts.close()
    assert psutil.wait_procs(children, timeout=60)[1] == []
    assert not process.children(recursive=True)
    assert _call(alone, "upper", b"a").answer == b"A"


def test_a_call_that_is_lost_after_a_part_is_not_tried_again(warm: Warm) -> None:
    found, ended = _stream(warm, "part_and_death")
    assert (found, ended.answer, ended.how) == ([b"a"], None, "lost")


def test_what_the_reader_raises_reaches_the_caller(alone: Warm) -> None:
    class Broken(Bytes):
        def read_at(self, offset: int, size: int, /) -> bytes:
            raise ConnectionResetError("the store")

    with pytest.raises(ConnectionResetError, match="the store"):
        alone.call(f"{HERE}:part", b"0 10", LIMITS, Broken(b"0123456789"))
    assert _call(alone, "upper", b"a").answer == b"A"


@pytest.mark.parametrize(
    ("function", "how", "detail"),
    [
        ("eat", "memory", "needs more than 536,870,912 bytes of memory"),
        ("crash", "signal", "was killed by SIGSEGV"),
        ("leaves", "status", "ended with status 9"),
        ("raises", "status", "ended with status 1"),
    ],
)
def test_a_death_has_a_reason(alone: Warm, function: str, how: str, detail: str) -> None:
    ended = _call(alone, function)
    assert (ended.answer, ended.how, ended.detail) == (None, how, detail)
    assert _call(alone, "upper", b"a").answer == b"A"


@pytest.mark.parametrize("kind", ["other", "long", "more", "short", "far", "wide", "closed"])
def test_an_answer_without_sense_is_a_reason_at_once(alone: Warm, kind: str) -> None:
    """The child would stay: at its deadline, the reason would be that it took too long."""
    ended = _call(alone, "nonsense", kind.encode())
    assert (ended.answer, ended.how) == (None, "answer")


def test_a_child_that_asks_without_end_has_a_deadline(alone: Warm) -> None:
    ended = alone.call(f"{HERE}:endless", b"", SHORT, Bytes(b"x"))
    assert (ended.answer, ended.how, ended.detail) == (None, "timeout", "took more than 0.5 s")


@pytest.mark.parametrize("function", ["leave", "leave_and_sleep"])
def test_what_a_child_leaves_behind_ends_with_it(warm: Warm, pipe: Path, function: str) -> None:
    ended = _call(warm, function, os.fsencode(pipe), Limits(1.0, 512 << 20))
    assert (ended.answer, ended.how) in [(b"left", ""), (None, "timeout")]


def test_children_end_when_their_warm_process_is_closed() -> None:
    warm = Warm(HERE)
    assert _call(warm, "upper", b"a").answer == b"A"
    process = warm.process
    assert process
    warm.close()
    assert process.poll() is not None
    with pytest.raises(PreflightError, match="closed"):
        _call(warm, "upper")


def test_it_writes_no_file(warm: Warm, tmp_path: Path) -> None:
    assert _call(warm, "write", os.fsencode(tmp_path / "x")).how == "status"
    assert (tmp_path / "x").stat().st_size == 0


def test_a_child_has_no_secret_and_no_descriptor_of_its_parent(alone: Warm) -> None:
    with open(__file__, "rb") as held:
        os.set_inheritable(held.fileno(), True)
        answer = _call(alone, "told").answer
    assert answer
    found = json.loads(answer)
    assert "AWS_SECRET_ACCESS_KEY" not in found["variables"]
    assert found["dumpable"] == 0  # no process of this user reads its memory or variables
    assert found["open"] in ([0, 1, 2, 3], [0, 1, 2, 3, 4])  # 4: the rules of Landlock


@pytest.fixture
def reachable(tmp_path: Path) -> Iterator[dict[str, Any]]:
    """A file, a port, a process and a socket of this machine."""
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket(socket.AF_UNIX) as local:
        local.bind(str(tmp_path / "s"))
        local.listen()
        port = server.getsockname()[1]
        yield {"file": __file__, "port": port, "pid": os.getpid(), "socket": str(tmp_path / "s")}


def test_a_child_reaches_nothing_but_its_input(alone: Warm, reachable: dict[str, Any]) -> None:
    answer = _call(alone, "reaches", json.dumps(reachable).encode(), REACHES).answer
    assert answer
    found = json.loads(answer)
    if set(found["isolated"]) != {"network", "files"}:
        pytest.skip(f"this kernel isolates from {found['isolated'] or 'nothing'} without root")
    assert found["reached"] == []


def test_one_that_asks_for_it_has_files_and_the_network(warm: Warm, reachable: dict[str, Any]) -> None:
    answer = _call(warm, "reaches", json.dumps(reachable).encode(), Limits(60.0, 512 << 20, 0, 256)).answer
    assert answer
    assert json.loads(answer) == {"reached": ["file", "network", "process", "socket"], "isolated": []}


def test_the_caller_does_not_wait_for_a_child_that_killed_its_parent(warm: Warm) -> None:
    """The child stays until the caller has gone, or its time has passed."""
    began = time.monotonic()
    assert _call(warm, "outlive", b"", Limits(200.0, 512 << 20)).how == "lost"
    assert time.monotonic() - began < 100


def test_more_descriptors_than_select_takes(alone: Warm) -> None:
    if resource.getrlimit(resource.RLIMIT_NOFILE)[0] < 1400:
        pytest.skip("this user may not open as many files")
    with ExitStack() as stack:
        for _ in range(1100):
            stack.callback(os.close, os.open(os.devnull, os.O_RDONLY))
        assert _call(alone, "upper", b"a").answer == b"A"


def test_a_parent_that_ignores_its_children(monkeypatch: pytest.MonkeyPatch) -> None:
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        with closing(Warm(HERE)) as warm:
            assert _call(warm, "upper", b"a").answer == b"A"
            assert _call(warm, "crash").how == "signal"
    finally:
        signal.signal(signal.SIGCHLD, before)


def test_a_call_whose_warm_process_is_killed_is_tried_again() -> None:
    with closing(Warm(HERE)) as warm:
        assert _call(warm, "upper", b"a").answer == b"A"
        assert warm.process
        process = psutil.Process(warm.process.pid)

        class Killing(Bytes):
            def read_at(self, offset: int, size: int, /) -> bytes:
                if not self.read:
                    family = [process, *process.children(recursive=True)]
                    process.kill()
                    assert psutil.wait_procs(family, timeout=60)[1] == []
                return super().read_at(offset, size)

        source = Killing(b"0123456789")
        assert warm.call(f"{HERE}:part", b"0 10", LIMITS, source).answer == b"0123456789"
        assert source.read == 20
        assert _call(warm, "upper", b"a").answer == b"A"


def test_a_child_that_kills_its_parent_twice_is_lost(warm: Warm) -> None:
    assert _call(warm, "kill_parent").how == "lost"
    assert _call(warm, "upper", b"a").answer == b"A"


def test_a_module_that_cannot_be_imported_is_one_line() -> None:
    with closing(Warm("curate.missing")) as warm, pytest.raises(PreflightError, match=r"imports curate\.missing"):
        warm.call("curate.missing:f", b"", LIMITS)


@pytest.mark.parametrize(
    ("code", "message"), [(-9, "was killed by SIGKILL"), (-40, "was killed by signal 40"), (3, "ended with status 3")]
)
def test_messages_of_ends(code: int, message: str) -> None:
    assert how_ended(code) == message
