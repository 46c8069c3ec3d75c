"""How much processor time each file of tests takes, children included, so that growth is seen when it happens.

Every process of tests counts what it and all processes below it use during a test. Where control groups of version 1
can be written (as root), processes that detach count too; elsewhere only children that were waited for do. A
server counts for the file that runs while it works, and a process that outlives its file for the next one.
"""

from __future__ import annotations

import contextlib
import os
import resource
from collections import Counter
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

QUICK, LONG, OTHER = "quick", "long", "other"
LIMITS = {QUICK: 1140, LONG: 1750}
"""CPU-s of `make test`, and of the long tests that CI runs. Nightly tests and those of other readers have no limit."""
WARN, FAIL = 0.05, 0.08
"""Shares of a suite's limit that one file may take."""
SHOWN = 0.01
"""Files that take more of their suite's limit are shown."""
TOO_EXPENSIVE = 8
"""Exit status if a file takes too much in CI."""
_CGROUPS = Path("/sys/fs/cgroup/cpuacct")

Spent = Counter[tuple[str, str]]
"""(suite, file) -> CPU-s."""


class Clock:
    """CPU-s of this process and of those below it, since it was made."""

    def __init__(self, name: str) -> None:
        self.group: Path | None = None
        with contextlib.suppress(OSError, ValueError):  # not Linux, not root, or groups of version 2
            lines = Path("/proc/self/cgroup").read_text().splitlines()
            [own] = [line.split(":")[2] for line in lines if "cpuacct" in line.split(":")[1].split(",")]
            group = _CGROUPS / own.lstrip("/") / f"{name}-{os.getpid()}"
            group.mkdir()
            try:
                (group / "cgroup.procs").write_text("0")  # this process; its children stay with it
                self.group = group
            except OSError:
                group.rmdir()
        self.began = self._now()

    def __call__(self) -> float:
        return self._now() - self.began

    def _now(self) -> float:
        if self.group is not None:
            return int((self.group / "cpuacct.usage").read_text()) / 1e9
        used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        return sum(one.ru_utime + one.ru_stime for one in used)

    def close(self) -> None:
        """Leave the group and remove it, with those of ended processes below it, unless a process stayed behind."""
        if self.group is not None:
            with contextlib.suppress(OSError):
                (self.group.parent / "cgroup.procs").write_text("0")
                for group in (*self.group.glob("*/"), self.group):
                    group.rmdir()


class Account:
    """The plugin. Processes of xdist send what they counted to the one that shows it."""

    def __init__(self, config: pytest.Config) -> None:
        self.clock = Clock(f"tests-{os.environ.get('PYTEST_XDIST_WORKER', 'main')}")
        self.spent: Spent = Counter()
        self.output = getattr(config, "workeroutput", None)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, Any, Any]:
        suite = suite_of(item)
        began = self.clock()
        try:
            return (yield)
        finally:
            self.spent[suite, item.nodeid.split("::")[0]] += self.clock() - began

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """What a process that died had counted is lost; its death fails the tests."""
        for suite, file, seconds in getattr(node, "workeroutput", {}).get("account", ()):
            self.spent[suite, file] += seconds

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> Generator[None, Any, Any]:
        if self.output is not None:
            self.output["account"] = [(*place, seconds) for place, seconds in self.spent.items()]
        yield  # a failed test may be repeated
        decides = self.output is None and bool(os.environ.get("CI"))
        if decides and session.exitstatus == pytest.ExitCode.OK and above(self.spent, FAIL):
            session.exitstatus = TOO_EXPENSIVE

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        terminalreporter.section("processor time")
        way = "with processes that detached" if self.clock.group else "RUSAGE_CHILDREN, since no cpuacct can be written"
        for suite, limit in LIMITS.items():
            files = {file: seconds for (of, file), seconds in self.spent.items() if of == suite}
            if files:
                tests = sum(files.values())
                line = f"{suite} tests: {tests:.0f} CPU-s in {len(files)} files ({way}); limit {limit}"
                terminalreporter.line(line, yellow=tests > limit)
        if self.clock.group:
            terminalreporter.line(f"all processes, with collection: {self.clock():.0f} CPU-s")
        for (suite, file), seconds in self.spent.most_common():
            if seconds > SHOWN * LIMITS.get(suite, LIMITS[LONG]):
                terminalreporter.line(f"{seconds:7.1f}  {suite:5}  {file}")
        for line in above(self.spent, WARN):
            terminalreporter.line(line, yellow=True)
        if above(self.spent, FAIL):
            terminalreporter.line(f"a file above {FAIL:.0%} fails CI (exit status {TOO_EXPENSIVE})", red=True)

    def pytest_unconfigure(self) -> None:
        self.clock.close()


def suite_of(item: pytest.Item) -> str:
    if item.get_closest_marker("nightly") or item.nodeid.startswith("tests/interop/"):
        return OTHER
    return LONG if item.get_closest_marker("long") else QUICK


def above(spent: Spent, share: float) -> list[str]:
    """A line for each file that takes more than this share of its suite's limit."""
    return [
        f"{file}: {seconds:.0f} CPU-s in {suite} tests, {seconds / LIMITS[suite]:.0%} of the suite's {LIMITS[suite]}; "
        f"expected at most {share:.0%}: move what repeats to `long` or `nightly`, or divide the file"
        for (suite, file), seconds in spent.most_common()
        if suite in LIMITS and seconds > share * LIMITS[suite]
    ]
