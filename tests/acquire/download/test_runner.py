"""The parent's side, with a stand-in for the process: fake_runner.py."""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from curate.acquire.download import child
from curate.acquire.download import runner as parent
from curate.acquire.download.runner import Answer, Runner, Stopped
from curate.core.contracts.source import Fetch
from curate.core.errors import PreflightError, StorageError

QUIET_SECONDS = 1.0


@pytest.fixture(autouse=True)
def _stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child, "MAIN", Path(__file__).with_name("fake_runner.py"))
    monkeypatch.setattr(parent, "environment", lambda: Path(sys.executable))
    (tmp_path / "spool").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "spool"))


@pytest.fixture
def runner(tmp_path: Path) -> Iterator[Runner]:
    with Runner(settings(tmp_path)) as made:
        yield made
    assert list((tmp_path / "spool").iterdir()) == []


def settings(folder: Path, **more: Any) -> dict[str, Any]:
    return {"folder": str(folder), "max_pixels": 1, "thread_count": 1, "max_bytes": 1, **more}


def rows(*urls: str) -> list[dict[str, Any]]:
    return [{"row": number, "url": url} for number, url in enumerate(urls)]


def codes(answers: Iterator[Answer]) -> dict[int, str]:
    return {answer.row: answer.code for answer in answers}


def ended(pid: int) -> bool:
    """Whether the process is gone, or will not run again."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except FileNotFoundError:
        return True


def test_each_row_has_an_answer_and_its_image(runner: Runner) -> None:
    images = {}
    for answer in runner.run(rows("ok", "fail", "ok"), 60):
        images[answer.row] = runner.read(answer)
        if answer.row == 1:
            assert answer == Answer(1, "unusable", "http_404", "it says so")
        else:
            assert (answer.status, answer.code, answer.ext) == ("done", "done", "jpg")
            assert answer.fetch == Fetch("a.org", 2, 0.5, 7)
    assert images == {0: b"image 0", 1: b"", 2: b"image 2"}


def test_images_can_be_read_in_any_order_until_the_iterator_ends(runner: Runner) -> None:
    answers = runner.run(rows(*["ok"] * 5), 60)
    first = {answer.row: answer for answer in islice(answers, 5)}
    assert [runner.read(first[row]) for row in (4, 0, 2)] == [b"image 4", b"image 0", b"image 2"]


def test_one_process_runs_all_portions(runner: Runner) -> None:
    pids = {answer.meta["pid"] for _ in range(3) for answer in runner.run(rows("ok", "ok"), 60)}
    assert len(pids) == 1
    assert list(runner.run([], 60)) == []


def test_a_portion_ends_with_its_last_row(runner: Runner) -> None:
    answers = runner.run(rows("ok"), 60)
    (first,) = [next(answers)]
    answers.close()  # type: ignore[attr-defined]
    assert next(runner.run(rows("ok"), 60)).meta == first.meta


def test_rows_left_at_the_deadline_are_in_error(runner: Runner, ahead: list[float]) -> None:
    given = runner.run(rows("ok", "fail", "hang", "ok"), 100.0)
    answers = [next(given), next(given)]
    ahead[0] += 1000.0
    answers += given
    assert {a.row: a.code for a in answers} == {0: "done", 1: "http_404", 2: "deadline", 3: "deadline"}
    assert {a.status for a in answers if a.code == "deadline"} == {"error"}
    assert ended(answers[0].meta["pid"])
    assert codes(runner.run(rows("ok"), 60)) == {0: "done"}


def test_answers_given_before_the_deadline_count_even_if_they_are_read_after_it(
    runner: Runner, ahead: list[float], tmp_path: Path
) -> None:
    answers = runner.run(rows("ok", "ok", "ok", "hang"), 100.0)
    next(answers)
    while not (tmp_path / "hangs").exists():
        time.sleep(0.01)
    ahead[0] += 1000.0
    assert codes(answers) == {1: "done", 2: "done", 3: "deadline"}


def test_a_process_that_dies_is_replaced(runner: Runner) -> None:
    answers = list(runner.run(rows("ok", "die-once", "ok"), 60))
    assert {a.row: a.code for a in answers} == {0: "done", 1: "done", 2: "done"}
    first, *others = (a.meta["pid"] for a in answers)
    assert first not in others


def test_rows_that_are_left_after_two_deaths_are_in_error(runner: Runner) -> None:
    answers = list(runner.run(rows("ok", "die", "ok"), 60))
    assert {a.row: a.code for a in answers} == {0: "done", 1: "runner_died", 2: "runner_died"}
    assert answers[-1].status == "error"
    assert answers[-1].detail == "it was killed by SIGKILL: ValueError: of no use"
    assert codes(runner.run(rows("ok"), 60)) == {0: "done"}


def test_only_the_rows_whose_images_kill_the_process_are_lost(runner: Runner) -> None:
    found = codes(runner.run(rows("ok", "decode-die", "decode-die-once", "decode-die", "ok"), 60))
    assert found == {0: "done", 1: "runner_died", 2: "done", 3: "runner_died", 4: "done"}


@pytest.mark.parametrize(
    "forged",
    [
        {"row": 7},
        {"code": "it_says_so"},
        {"status": "error"},
        {"ext": "../../x"},
        {"offset": -8},
        {"size": 1 << 60},
    ],
)
def test_a_process_whose_answers_make_no_sense_is_not_believed(runner: Runner, forged: dict[str, Any]) -> None:
    found = {answer.row: answer for answer in runner.run(rows("ok", f"forge {json.dumps(forged)}"), 60)}
    assert [found[row].code for row in (0, 1)] == ["done", "runner_died"]
    assert "gave an answer that makes no sense" in found[1].detail


def test_a_process_that_dies_between_portions_is_replaced(runner: Runner) -> None:
    (answer,) = runner.run(rows("ok"), 60)
    os.kill(answer.meta["pid"], 9)
    while runner._child and runner._child.alive:  # /proc calls it a zombie while its threads end
        time.sleep(0.01)
    assert codes(runner.run(rows("die-once"), 60)) == {0: "done"}  # one more death is allowed


@pytest.mark.parametrize(
    ("url", "detail"), [("decode-hang", "it decoded one image for 1 s"), ("decode-silent", "it was silent for 1 s")]
)
def test_a_process_that_hangs_is_replaced(tmp_path: Path, url: str, detail: str) -> None:
    with Runner(settings(tmp_path), quiet_seconds=QUIET_SECONDS) as runner:
        (_, lost, last) = sorted(runner.run(rows("ok", url, "ok"), 60), key=lambda answer: answer.row)
    assert (lost.code, lost.detail, last.code) == ("runner_died", detail, "done")


def test_a_slow_consumer_is_not_taken_for_a_hanging_process(tmp_path: Path) -> None:
    with Runner(settings(tmp_path), quiet_seconds=QUIET_SECONDS) as runner:
        answers = runner.run(rows("ok", "ok", "ok"), 60)
        first = next(answers)
        time.sleep(1.1 * QUIET_SECONDS)
        assert [answer.code for answer in (first, *answers)] == ["done"] * 3


def test_stop(runner: Runner) -> None:
    stop: list[int] = []
    answers = runner.run(rows("ok", "hang"), 60, lambda: bool(stop))
    pid = next(answers).meta["pid"]
    stop.append(1)
    with pytest.raises(Stopped):
        next(answers)
    assert ended(pid)


def test_an_iterator_that_is_closed_early_ends_the_process(runner: Runner) -> None:
    answers = runner.run(rows("ok", "hang"), 60)
    pid = next(answers).meta["pid"]
    answers.close()  # type: ignore[attr-defined]
    assert ended(pid)


def test_close_ends_the_process(tmp_path: Path) -> None:
    with Runner(settings(tmp_path)) as runner:
        (answer,) = runner.run(rows("ok"), 60)
    assert ended(answer.meta["pid"])
    runner.close()


def test_a_full_disk(runner: Runner) -> None:
    with pytest.raises(StorageError, match=r"in .*/spool: No space left on device; .* or set TMPDIR") as raised:
        list(runner.run(rows("full"), 60))
    assert isinstance(raised.value.__cause__, OSError) and raised.value.__cause__.errno == 28


def test_a_process_that_cannot_continue(runner: Runner) -> None:
    with pytest.raises(RuntimeError, match=r"^LimiterGoneError: the limiter does not answer$"):
        list(runner.run(rows("ok", "gone"), 60))
    assert codes(runner.run(rows("ok"), 60)) == {0: "done"}


def test_a_process_that_does_not_start(tmp_path: Path) -> None:
    with (
        Runner(settings(tmp_path, start="fail")) as runner,
        pytest.raises(
            PreflightError, match=r"^the runner of img2dataset cannot be started: RuntimeError: img2dataset 1"
        ),
    ):
        list(runner.run(rows("ok"), 60))


def test_a_process_that_ends_at_its_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child, "MAIN", tmp_path / "missing.py")
    with (
        Runner(settings(tmp_path)) as runner,
        pytest.raises(PreflightError, match=r"cannot be started: ended with status 2: .*missing.py"),
    ):
        list(runner.run(rows("ok"), 60))


def test_a_process_that_never_gets_ready(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sleep.py").write_text("import time; time.sleep(100)")
    monkeypatch.setattr(child, "MAIN", tmp_path / "sleep.py")
    monkeypatch.setattr(parent, "START_SECONDS", 0.1)
    with Runner(settings(tmp_path)) as runner, pytest.raises(PreflightError, match=r"did not start within 0.1 s"):
        list(runner.run(rows("ok"), 60))
