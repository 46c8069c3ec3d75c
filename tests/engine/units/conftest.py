"""What tests of units share."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.engine.units.flaky import ROWS, fails
from tests.engine.units.test_collect import write


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A list of 24 rows in files, and a store in which some of them fail."""
    write(tmp_path / "lists", a=[(n, n) for n in range(ROWS)])
    fails(tmp_path, {"3-3": "TIMEOUT", "5-5": "TIMEOUT", "7-7": "RESET", "9-9": "gone"})
    return tmp_path
