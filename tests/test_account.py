"""What the account of processor time counts, and what it says."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.account import FAIL, LIMITS, LONG, QUICK, TOO_EXPENSIVE, WARN, Clock, above
from tests.scopes import ROOT

BUSY = "import time; end = time.process_time() + 1\nwhile time.process_time() < end: pass"


@pytest.fixture
def clock() -> Iterator[Clock]:
    made = Clock("test")
    yield made
    made.close()


def test_a_child_that_ended_counts(clock: Clock) -> None:
    subprocess.run([sys.executable, "-c", BUSY], check=True)
    assert clock() >= 1


def test_a_process_that_detached_counts_where_groups_can_be_written(clock: Clock, tmp_path: Path) -> None:
    if clock.group is None:
        pytest.skip("no cpuacct to write")
    done = tmp_path / "done"
    code = f"{BUSY}\nopen({str(done)!r}, 'w')"
    subprocess.run(["sh", "-c", 'setsid "$@" & ', "sh", sys.executable, "-c", code], check=True)
    while not done.exists():
        time.sleep(0.05)
    assert clock() >= 1


def test_a_file_above_its_share_is_named() -> None:
    spent = Counter({(QUICK, "tests/a.py"): LIMITS[QUICK] * 0.06, (LONG, "tests/b.py"): LIMITS[LONG] * 0.09})
    assert [line.split(":")[0] for line in above(spent, WARN)] == ["tests/b.py", "tests/a.py"]
    assert [line.split(":")[0] for line in above(spent, FAIL)] == ["tests/b.py"]
    assert f"9% of the suite's {LIMITS[LONG]}" in above(spent, FAIL)[0]


CONFTEST = """
import tests.account

tests.account.LIMITS["quick"] = 10

def pytest_configure(config):
    config.pluginmanager.register(tests.account.Account(config))
"""


@pytest.mark.parametrize(
    ("ci", "words", "text", "code"),
    [
        pytest.param("1", ["-n1"], BUSY, TOO_EXPENSIVE, id="in CI"),
        pytest.param("", ["-n0"], BUSY, 0, id="elsewhere"),
        pytest.param("1", ["-n0"], f"{BUSY}\nassert 0", 1, id="a failure is a failure"),
        pytest.param("1", ["-n0"], "pass", 0, id="little"),
    ],
)
def test_a_file_that_takes_too_much_fails_ci(tmp_path: Path, ci: str, words: list[str], text: str, code: int) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "test_some.py").write_text(
        "def test_some():\n" + "".join(f"    {line}\n" for line in text.splitlines())
    )
    few = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": "-p xdist"}
    variables = os.environ | few | {"CI": ci, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *words], cwd=tmp_path, env=variables, capture_output=True, text=True
    )
    assert done.returncode == code, done.stdout + done.stderr
    assert ("test_some.py:" in done.stdout.partition("processor time")[2]) == (text != "pass")
