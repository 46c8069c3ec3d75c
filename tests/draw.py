"""Which of many points, pages or faults a test visits: a third of them, drawn by the commit, or all.

A kill is harmless at every point or it is a bug, so that different commits may look at different points. `make
test-nightly` visits all. In CI the mark `drawn` draws too: among the cases of each test that has some, and among the
tests of a file that have none. CURATE_TEST_POINTS is the seed, printed when the tests start, or `all`.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from hashlib import sha256
from typing import TypeVar

import pytest

from tests.scopes import ROOT

SHARE = 3
"""One point of three."""
T = TypeVar("T")


@cache
def seed() -> str:
    """CURATE_TEST_POINTS, or else the commit."""
    if given := os.environ.get("CURATE_TEST_POINTS"):
        return given
    with contextlib.suppress(OSError):  # no git
        said = subprocess.run(["git", "rev-parse", "--short=12", "HEAD"], cwd=ROOT, capture_output=True, text=True)
        return said.stdout.strip() or "no commit"
    return "no commit"


def drawn(points: Sequence[T], of: str = "") -> list[T]:
    """The points to visit, ordered as given; at least one, if there are any. Each `of` draws for itself, by default
    each line that calls."""
    if seed() == "all":
        return list(points)
    caller = sys._getframe(1)
    of = of or f"{caller.f_globals['__name__']}:{caller.f_lineno}"
    order = sorted(range(len(points)), key=lambda i: sha256(f"{seed()} {of} {i} of {len(points)}".encode()).digest())
    return [points[i] for i in sorted(order[: -(-len(points) // SHARE)])]


def in_ci() -> bool:
    return bool(os.environ.get("CI"))


def left_out(config: pytest.Config, items: Sequence[pytest.Item]) -> set[pytest.Item]:
    """Tests with the mark `drawn` that were not drawn; none outside of CI, and none if tests are named."""
    if not in_ci() or any("::" in word for word in config.args):
        return set()
    alike: dict[str, list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("drawn"):
            of = item.nodeid.partition("[" if hasattr(item, "callspec") else "::")[0]
            alike.setdefault(of, []).append(item)
    return {item for of, tests in alike.items() for item in set(tests).difference(drawn(tests, of))}
