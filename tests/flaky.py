"""CI repeats the one test that failed, alone. If it passes then, it is flaky: CI passes and ends with both outputs, and
the next change begins by fixing the test. Neither two failed tests nor one that ended its process are repeated."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path

import pytest

REPEATS = "CURATE_TEST_REPEATS"
"""Names the file for the outputs of a flaky test. Set in CI; without it, nothing is repeated."""

PASSED = re.compile("^=+ 1 passed in ", re.MULTILINE)
"""A repeat that is skipped proves nothing."""


class Repeat:
    """The plugin of the process that shows results."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.failed: dict[str, list[str]] = {}
        """Test -> its outputs."""
        self.uncollected = self.died = False

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.died |= report.when == "???"  # xdist's report of a process that died
            sections = [f"--- {title} ---\n{text}" for title, text in report.sections]
            self.failed.setdefault(report.nodeid, []).append("\n".join([report.longreprtext, *sections]))

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self.uncollected |= report.failed

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> Generator[None, None, None]:
        yield
        if session.exitstatus != pytest.ExitCode.TESTS_FAILED or len(self.failed) != 1:
            return
        if self.uncollected or self.died or session.shouldfail or session.shouldstop:
            return
        [(test, outputs)] = self.failed.items()
        session.config.get_terminal_writer().line(f"repeating {test} alone")
        command = [sys.executable, "-m", "pytest", "-n0", "-m", "", test]
        variables = {name: value for name, value in os.environ.items() if name != REPEATS}
        again = subprocess.run(command, cwd=session.config.rootpath, env=variables, capture_output=True, text=True)
        sys.stdout.write(again.stdout + again.stderr)
        if again.returncode == 0 and PASSED.search(again.stdout):
            parts = [f"FLAKY {test}: it failed among others, then passed alone.", "=== it failed:", *outputs]
            parts += ["=== it passed:", again.stdout + again.stderr]
            self.file.write_text("\n".join(parts).rstrip() + f"\nFLAKY {test}\n")
            session.exitstatus = pytest.ExitCode.OK


def register(config: pytest.Config) -> None:
    """In CI, in the process that shows results."""
    if (file := os.environ.get(REPEATS)) and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Repeat(Path(file)))
