"""The real process: every row gets one answer, whatever ends; and nothing is left behind."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from curate.acquire.download.child import MAIN
from curate.acquire.download.environment import clean_environment
from curate.acquire.download.runner import Answer, Runner
from curate.core.errors import PreflightError, StorageError
from curate.engine.workers.limiter import Limiter
from tests.acquire.runner.portions import settings
from tests.acquire.server.outcomes import header
from tests.acquire.server.server import FaultServer
from tests.codec.make_images import encoded, noise

pytestmark = pytest.mark.usefixtures("runner_python")
IMAGES = {f"{number}.jpg": encoded(noise(seed=number), "jpeg") for number in range(40)}


@pytest.fixture(scope="module")
def server() -> Iterator[FaultServer]:
    with FaultServer(mounted=IMAGES) as server:
        yield server


@pytest.fixture
def slow(server: FaultServer) -> Iterator[FaultServer]:
    """Answers after 0.1 s, so that a portion takes at least half a second."""
    server.delay = 0.1
    yield server
    server.delay = 0.0


def rows(server: FaultServer) -> list[dict[str, Any]]:
    return [{"row": row, "url": server.url(name)} for row, name in enumerate(IMAGES)]


def process(runner: Runner) -> int:
    """Its process id."""
    assert runner._child
    return runner._child.pid


def images(runner: Runner, answers: Iterator[Answer]) -> list[bytes]:
    found = {answer.row: runner.read(answer) for answer in answers}
    return [found[row] for row in sorted(found)]


def gone(pid: int, seconds: float = 60.0) -> bool:
    """Whether a process ends in time; one that its parent did not wait for counts as ended."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except FileNotFoundError:
            return True
        time.sleep(0.02)
    return False


def test_each_row_has_one_answer(server: FaultServer) -> None:
    image = IMAGES["0.jpg"]
    right = {"sha256": hashlib.sha256(image).hexdigest(), "md5": hashlib.md5(image).hexdigest()}
    cases = {
        "done": {"url": server.url("0.jpg"), **right, "tries": 1},
        "changed": {"url": server.url("0.jpg") + "?", "sha256": "0" * 64},
        "http_404": {"url": server.at("/404")},
        "not_image": {"url": server.at("/html.jpg")},
        "redirects": {"url": server.at("/redirect-loop")},
        "opt_out_content_usage": {"url": server.at("/opt-out/content-usage")},
        "scheme": {"url": "file:///etc/passwd"},
        "bad_url": {"url": "http://\ud800/"},
        "private_address": {"url": f"http://10.0.0.1:{server.port}/"},
        "truncated": {"url": server.at("/truncated")},
    }
    asked = [{"row": 7 * row, **case} for row, case in enumerate(cases.values())]
    with Runner(settings(server, retries=1, backoff_seconds=0.01)) as runner:
        answers = []
        for answer in runner.run(asked, 60):
            answers.append(answer)
            assert answer.code != "done" or runner.read(answer) == image
    assert sorted(answer.row for answer in answers) == [row["row"] for row in asked]
    by_row = sorted(answers, key=lambda answer: answer.row)
    assert [answer.code for answer in by_row] == list(cases)
    assert [answer.status for answer in by_row] == ["done", *["unusable"] * 8, "error"]
    done, truncated = by_row[0].fetch, by_row[-1].fetch
    assert done and truncated
    assert (done.host, done.tries, truncated.tries) == ("127.0.0.1", 1, 2)
    assert done.bytes > len(image) and done.seconds > 0


def test_a_parked_host_does_not_hold_up_a_portion(server: FaultServer) -> None:
    urls = [server.at(f"/429-seconds?seconds=600&times=99&id={number}") for number in range(20)]
    with Runner(settings(server, thread_count=1)) as runner:
        answers = list(runner.run([{"row": row, "url": url} for row, url in enumerate(urls)], 60))
    assert {answer.status for answer in answers} == {"error"}
    assert {answer.code for answer in answers} == {"http_429", "parked"}
    assert len(server.log.of("/429-seconds")) == 1


def test_rows_that_are_never_requested_do_not_wait(server: FaultServer, tmp_path: Path) -> None:
    (tmp_path / "denied").write_text("denied.example\n")
    denied = f"http://denied.example:{server.port}"
    urls = [f"{denied}/1", f"{denied}/2", "http://127.0.0.1:1/1", "http://127.0.0.1:1/2"]
    asked = [{"row": row, "url": url} for row, url in enumerate(urls)]
    slow = settings(server, host_rate=0.001, requests_per_second=0.001, deny_hosts=str(tmp_path / "denied"))
    with Runner(slow) as runner:
        found = {answer.row: answer.code for answer in runner.run(asked, 60)}
    assert found == {0: "denied_host", 1: "denied_host", 2: "port", 3: "port"}


def test_a_kill_in_the_middle_changes_nothing(slow: FaultServer) -> None:
    with Runner(settings(slow)) as runner:
        found = {}
        for answer in runner.run(rows(slow), 60):
            found[answer.row] = runner.read(answer)
            if len(found) == 1:
                killed = process(runner)
                os.kill(killed, signal.SIGKILL)
        assert [found[row] for row in range(len(IMAGES))] == list(IMAGES.values())
        assert process(runner) != killed


def test_a_drain_does_not_end_it(slow: FaultServer) -> None:
    """A job's stop sends SIGTERM to all descendants of the driver; this one ends when its parent says so."""
    with Runner(settings(slow)) as runner:
        found = {}
        for answer in runner.run(rows(slow), 60):
            if not found:
                hit = process(runner)
                os.kill(hit, signal.SIGTERM)
            found[answer.row] = runner.read(answer)
        assert [found[row] for row in range(len(IMAGES))] == list(IMAGES.values())
        assert process(runner) == hit


def test_rows_answered_before_the_deadline_are_kept(slow: FaultServer, ahead: list[float]) -> None:
    with Runner(settings(slow)) as runner:
        asked = [*rows(slow)[:8], {"row": 99, "url": slow.at("/slow-first-byte")}]
        given = runner.run(asked, 100.0)
        answers = [next(given) for _ in range(8)]
        pid = process(runner)
        ahead[0] += 1000.0
        codes = {answer.row: answer.code for answer in [*answers, *given]}
        assert codes == {**dict.fromkeys(range(8), "done"), 99: "deadline"}
        assert gone(pid)


PARENT = """
import json, os, sys, time
from curate.acquire.download.runner import Runner
settings, rows, forks = json.loads(sys.argv[1])
runner = Runner(settings)
for answer in runner.run(rows, 60):
    if forks and os.fork() == 0:  # it inherits the pipe to the runner
        os.closerange(1, 3)
        time.sleep(30)
        os._exit(0)
    print(runner._child.pid, flush=True)
    time.sleep(30)
"""


@pytest.mark.parametrize("forks", [False, True])
def test_nothing_is_left_when_the_parent_is_killed(slow: FaultServer, tmp_path: Path, forks: bool) -> None:
    command = [sys.executable, "-c", PARENT, json.dumps([settings(slow), rows(slow), forks])]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, start_new_session=True) as parent:
        assert parent.stdout
        pid = int(parent.stdout.readline())
        assert not gone(pid, 0.0)
        parent.kill()
        parent.wait()
        assert gone(pid)
        if forks:
            os.killpg(parent.pid, signal.SIGKILL)
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk(server: FaultServer) -> None:
    with Runner(settings(server)) as runner:
        list(runner.run(rows(server)[:1], 60))
        resource.prlimit(process(runner), resource.RLIMIT_FSIZE, (1 << 14, 1 << 14))
        with pytest.raises(StorageError, match=r"File too large; expected room for what a portion fetches"):
            list(runner.run(rows(server), 60))
        assert images(runner, runner.run(rows(server), 60)) == list(IMAGES.values())


def test_its_memory_is_limited(server: FaultServer) -> None:
    with Runner(settings(server, max_bytes=1 << 20)) as runner:
        list(runner.run(rows(server)[:1], 60))
        limits = Path(f"/proc/{process(runner)}/limits").read_text()
        variables = Path(f"/proc/{process(runner)}/environ").read_bytes()
    assert str((8 << 30) + 2 * 8 * (1 << 20)) in next(line for line in limits.splitlines() if "address space" in line)
    assert b"OPENCV_IO_MAX_IMAGE_PIXELS=268435456" in variables
    assert b"PYTEST" not in variables


@pytest.mark.parametrize("resize_mode", ["no", "keep_ratio"])
def test_it_imports_only_what_it_uses(server: FaultServer, resize_mode: str) -> None:
    """Packages with machine code are the slow ones. Those of albumentations are there for resizing."""
    with Runner(settings(server, resize_mode=resize_mode)) as runner:
        list(runner.run(rows(server)[:1], 60))
        mapped = Path(f"/proc/{process(runner)}/maps").read_text()
    names = set(re.findall(r"/site-packages/(\w+)/", mapped))
    own = {"PIL", "cv2", "numpy", "pyarrow"}
    assert names == own if resize_mode == "no" else names > own | {"scipy"}
    assert "pandas" not in names


def open_files(pid: int) -> list[str]:
    """What a process has open; files that it closes while they are listed are left out."""
    names = []
    for file in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            names.append(os.readlink(file))
    return names


def test_its_parent_keeps_its_secrets(server: FaultServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "a secret")
    monkeypatch.setenv("https_proxy", "http://a.secret:1")
    with (tmp_path / "secret").open("w") as secret, Runner(settings(server)) as runner:
        os.set_inheritable(secret.fileno(), True)
        list(runner.run(rows(server)[:1], 60))
        variables = Path(f"/proc/{process(runner)}/environ").read_bytes()
        opened = open_files(process(runner))
    assert b"a secret" not in variables and b"a.secret" not in variables
    files = [name for name in opened if name.startswith("/") and not name.startswith(("/dev/", "/proc/"))]
    assert all(name.endswith(" (deleted)") for name in files), files  # the spool and the log


def test_a_detail_cannot_forge_lines(server: FaultServer) -> None:
    url = server.at(header("X-Robots-Tag: noai, \x1b[2J\x85\x9bm"))
    with Runner(settings(server)) as runner:
        (answer,) = runner.run([{"row": 0, "url": url}], 60)
    assert (answer.code, answer.detail) == ("opt_out_x_robots_tag", "x-robots-tag: noai,  [2J  m")


def test_the_limits_of_the_run_hold(slow: FaultServer) -> None:
    slow.log.clear()
    with Limiter("127.0.0.1") as limiter:
        place = {**limiter.address, "room": "download"}
        with Runner(settings(slow, host_connections=2), place) as runner:
            assert images(runner, runner.run(rows(slow)[:8], 60)) == list(IMAGES.values())[:8]
    assert slow.log.most_at_once() == {"127.0.0.1": 2}


def test_a_runner_without_its_limiter_ends(slow: FaultServer) -> None:
    with Limiter("127.0.0.1") as limiter:
        place = {**limiter.address, "room": "download"}
        with Runner(settings(slow, host_connections=1), place) as runner:
            answers = runner.run(rows(slow), 60)
            next(answers)
            limiter.close()
            with pytest.raises(RuntimeError, match=r"^LimiterGoneError: the run's limiter at 127.0.0.1:\d+"):
                list(answers)
    with (
        Runner(settings(slow), place) as runner,
        pytest.raises(PreflightError, match=r"cannot be started: LimiterGone"),
    ):
        list(runner.run(rows(slow), 60))


def test_settings_that_cannot_be_used(server: FaultServer) -> None:
    with (
        Runner(settings(server, user_agent="curaté")) as runner,
        pytest.raises(PreflightError, match=r"cannot be started: ValueError: user_agent: 'curaté'"),
    ):
        list(runner.run(rows(server), 60))


CHECK = """
import importlib.util, sys
spec = importlib.util.spec_from_file_location("runner_main", sys.argv[1])
main = importlib.util.module_from_spec(spec)
spec.loader.exec_module(main)
sys.meta_path.append(main.Ours)
main.only_what_is_used(resizes=False)
from curate.acquire.runner import work
work.check_img2dataset()
for name, value in {"VERSION": "1.46.0", "SIGNATURES": {"print": (print, "row timeout")}}.items():
    before = getattr(work, name)
    setattr(work, name, value)
    try:
        work.check_img2dataset()
    except RuntimeError as error:
        print(error)
    setattr(work, name, before)
"""


def test_another_img2dataset_is_not_used(runner_python: Path) -> None:
    command = [runner_python, "-I", "-c", CHECK, MAIN]
    done = subprocess.run(command, env=clean_environment(), capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [
        "img2dataset 1.47.0; expected 1.46.0",
        "img2dataset's print takes (args sep end file flush); expected (row timeout)",
    ]
