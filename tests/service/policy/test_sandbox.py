from __future__ import annotations

import os
import select
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from curate.service.policy.rules import Rules
from curate.service.policy.sandbox import AT_ONCE, Outcome, Sandbox
from curate.service.problems import TooManyProblem, UnavailableProblem
from curate.service.settings import Limits

LIMITS = Limits(check_bytes=600 << 20)
SHORT = Limits(check_seconds=2.0)
RULES = Rules("main", "/ws", {"root": {"photos": "/data"}, "op": {"odd": "tests.service.policy.plugin:Odd"}})
HONEST = "stages: {pool: {op: acquire.folder, namespace: a, path: photos}}"


@pytest.fixture(scope="module")
def limited() -> Iterator[Sandbox]:
    """With little memory, and with the stages of `plugin`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(Path(__file__).parents[3]))
        patch.setenv("SERVICE_TOKEN", "cur_secret")
        patch.setenv("AWS_ACCESS_KEY_ID", "for-the-store")
        with closing(Sandbox(LIMITS)) as made:
            made.start()
            made.ops()
            yield made


def _odd(sandbox: Sandbox, act: str) -> Outcome:
    text = (
        f"stages: {{pool: {{op: acquire.folder, namespace: a, path: photos}}, a: {{op: odd, from: pool, act: {act}}}}}"
    )
    return sandbox.check(text, (), RULES)


def _only(outcome: Outcome) -> tuple[str, str]:
    (mistake,) = outcome.mistakes
    return mistake["code"], mistake["text"]


def test_a_check_says_what_the_job_runs(limited: Sandbox) -> None:
    outcome = limited.check("vars: {v: photos/x}\n" + HONEST, ("pool.path=${v}",), RULES)
    assert outcome.mistakes == []
    assert outcome.resolved == "stages:\n  pool:\n    op: acquire.folder\n    namespace: a\n    path: /data/x\n"
    assert outcome.needs == {"gpus": 0}
    assert [stage["stage"] for stage in outcome.stages] == ["pool"]
    assert 0 < outcome.cpu_seconds < 1
    assert 0 < outcome.peak_bytes < 1 << 30


def test_what_takes_too_long_ends_with_all_that_it_started(
    limited: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limited, "_limits", SHORT)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with ExitStack() as stack:
        end = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
        stack.callback(os.close, end)
        code, text = _only(_odd(limited, f"sleep {str(pipe)[1:].replace('/', '!')}"))
        assert (code, text) == ("timeout", "the check takes more than 2 s; make the recipe smaller")
        poll = select.poll()
        poll.register(end, select.POLLHUP)
        ((_, event),) = poll.poll(60_000)
        assert event & select.POLLHUP  # no process holds the other end


def test_memory_is_limited(limited: Sandbox) -> None:
    outcome = _odd(limited, "eat")
    assert outcome.mistakes[0]["code"] == "too_large"
    assert outcome.peak_bytes < LIMITS.check_bytes + (200 << 20)


def test_a_check_writes_no_file(limited: Sandbox, tmp_path: Path) -> None:
    file = tmp_path / "written"
    _, text = _only(_odd(limited, f"write {str(file)[1:].replace('/', '!')}"))
    assert "File too large" in text
    assert file.stat().st_size == 0


@pytest.mark.parametrize(
    ("name", "value"),
    [("SERVICE_TOKEN", "None"), ("AWS_ACCESS_KEY_ID", "for-the-store"), ("PYTEST_CURRENT_TEST", "None")],
)
def test_its_environment_has_no_secret_of_the_service(limited: Sandbox, name: str, value: str) -> None:
    assert f"{name}={value}" in _only(_odd(limited, f"tell {name}"))[1]


def test_what_it_says_is_bounded(limited: Sandbox) -> None:
    code, text = _only(_odd(limited, "talk"))
    assert code == "recipe"
    assert len(text) < 3000


@pytest.mark.parametrize(("act", "code"), [("abort", "too_large"), ("exit", "recipe")])
def test_a_crash_is_a_mistake_of_the_recipe(limited: Sandbox, act: str, code: str) -> None:
    assert _only(_odd(limited, act))[0] == code
    assert limited.check(HONEST, (), RULES).mistakes == []


def test_more_than_at_once_are_rejected_after_the_time_limit(limited: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """Turns let no more come; the list of ops needs none."""
    with ExitStack() as stack, monkeypatch.context() as patch:
        patch.setattr(limited, "_limits", Limits(check_seconds=0.2))
        for _ in range(AT_ONCE):
            stack.enter_context(limited._running)
        with pytest.raises(TooManyProblem) as raised:
            limited.check(HONEST, (), RULES)
        patch.undo()
        patch.setattr(limited, "_ops", None)
        assert limited.ops()
    assert raised.value.retry_after > 0
    assert limited.check(HONEST, (), RULES).mistakes == []


def test_many_at_a_time(limited: Sandbox) -> None:
    outcomes: list[Outcome] = []
    threads = [threading.Thread(target=lambda: outcomes.append(limited.check(HONEST, (), RULES))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [outcome.mistakes for outcome in outcomes] == [[]] * 8


def test_a_long_text_never_reaches_the_process(limited: Sandbox) -> None:
    outcome = limited.check("x" * 5_000_000, (), RULES)
    assert _only(outcome)[0] == "too_large"
    assert outcome.cpu_seconds == 0


def test_it_survives_the_death_of_its_warm_process_and_ends_it_on_close(limited: Sandbox) -> None:
    assert limited._warm.process is not None
    limited._warm.process.kill()
    assert limited.check(HONEST, (), RULES).mistakes == []
    process = limited._warm.process
    limited.close()
    assert process.poll() is not None
    with pytest.raises(UnavailableProblem):
        limited.check(HONEST, (), RULES)
