"""Which of many points, pages or faults a test visits: a third of them, drawn by the commit, or all.

A kill is harmless at every point or it is a bug, so that different commits may look at different points. `make
test-nightly` visits all. The mark `drawn` draws among the tests of a file. CURATE_TEST_POINTS is the seed, printed when
the tests start, or `all`.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Sequence
from functools import cache
from hashlib import sha256
from typing import TypeVar

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


def drawn(points: Sequence[T]) -> list[T]:
    """The points to visit, ordered as given; at least one, if there are any."""
    if seed() == "all":
        return list(points)
    order = sorted(range(len(points)), key=lambda i: sha256(f"{seed()} {i} of {len(points)}".encode()).digest())
    return [points[i] for i in sorted(order[: -(-len(points) // SHARE)])]
