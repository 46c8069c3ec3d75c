"""The hook by which tests kill a process: off by default, by name, and optionally once."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from curate.core.store import faults


def ends(*names: str) -> int:
    """Signal that ends a process when it passes these points; 0 if none."""
    if not (child := os.fork()):
        for name in names:
            faults.point(name)
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    return os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0


def test_off_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LOG", "KILL", "ONCE"):
        monkeypatch.delenv(f"CURATE_FAULT_{name}", raising=False)
    assert ends("publish:a:written") == 0


def test_points_are_logged_in_order(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CURATE_FAULT_LOG", str(tmp_path / "log"))
    assert ends("a", "b", "a") == 0
    assert (tmp_path / "log").read_text() == "a\nb\na\n"


def test_kills_if_a_pattern_matches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CURATE_FAULT_KILL", "publish:*/x.tar:written|other:*")
    assert ends("publish:a/x.tar:published", "publish:a/y.tar:written") == 0
    assert ends("publish:a/x.tar:written") == ends("other:") == signal.SIGKILL


def test_kills_once_by_pattern(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CURATE_FAULT_KILL", "a*|b*")
    monkeypatch.setenv("CURATE_FAULT_ONCE", str(tmp_path))
    assert [ends("a1"), ends("a2"), ends("b1"), ends("b1", "a1")] == [signal.SIGKILL, 0, signal.SIGKILL, 0]
