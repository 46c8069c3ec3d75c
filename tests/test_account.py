"""What the account of processor time counts, and what it says."""

from __future__ import annotations

import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.account import FAIL, LIMITS, LONG, QUICK, WARN, Clock, above

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
