"""A third of the points, chosen by a seed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import draw
from tests.scopes import ROOT


@pytest.fixture
def seeded(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    draw.seed.cache_clear()
    yield monkeypatch
    draw.seed.cache_clear()


def under(seeded: pytest.MonkeyPatch, seed: str, points: list[str]) -> list[str]:
    seeded.setenv("CURATE_TEST_POINTS", seed)
    draw.seed.cache_clear()
    return draw.drawn(points)


@given(st.lists(st.text()))
def test_a_third_in_order(points: list[str]) -> None:
    kept = draw.drawn(points)
    rest = iter(points)
    assert all(point in rest for point in kept)  # a subsequence
    assert len(kept) == (len(points) if draw.seed() == "all" else -(-len(points) // draw.SHARE))


def test_seeds_visit_every_point_in_time(seeded: pytest.MonkeyPatch) -> None:
    points = [f"publish:{number}" for number in range(60)]
    draws = [under(seeded, f"commit-{number}", points) for number in range(30)]
    assert draws[0] == under(seeded, "commit-0", points) != draws[1]
    assert set().union(*draws) == set(points)
    assert under(seeded, "all", points) == points


def test_the_commit_is_the_seed(seeded: pytest.MonkeyPatch) -> None:
    seeded.delenv("CURATE_TEST_POINTS", raising=False)
    draw.seed.cache_clear()
    assert draw.seed() == "no commit" or int(draw.seed(), 16) >= 0


def test_each_place_draws_for_itself(seeded: pytest.MonkeyPatch) -> None:
    pairs = {tuple(under(seeded, "some", ["a", "b"]) + draw.drawn(["a", "b"], str(number))) for number in range(20)}
    assert len(pairs) == 2


def test_marked_tests_are_drawn_in_ci_and_named_ones_are_run(tmp_path: Path) -> None:
    (tmp_path / "test_some.py").write_text(
        "import pytest\n\npytestmark = pytest.mark.drawn\n"
        "@pytest.mark.parametrize('n', range(9))\ndef test_one(n): pass\n"
        "@pytest.mark.parametrize('n', range(2))\ndef test_two(n): pass\n"
        "def test_a(): pass\ndef test_b(): pass\ndef test_c(): pass\n"
    )
    (tmp_path / "conftest.py").write_text("from tests.conftest import pytest_collection_modifyitems\n")

    def collected(*words: str, ci: str = "1") -> Counter[str]:
        command = [sys.executable, "-m", "pytest", "-q", "--collect-only", "-p", "no:cacheprovider", *words]
        said = subprocess.run(
            [*command, f"--rootdir={tmp_path}", "-c", str(ROOT / "pyproject.toml")],
            cwd=tmp_path, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": str(ROOT), "CI": ci},
        )  # fmt: skip
        assert said.returncode == 0, said.stdout + said.stderr
        return Counter(re.findall(r"::(test_\w{3}|test_)", said.stdout))

    whole = {"test_one": 9, "test_two": 2, "test_": 3}
    assert collected("test_some.py", ci="") == whole
    assert collected("test_some.py") == (whole if draw.seed() == "all" else {"test_one": 3, "test_two": 1, "test_": 1})
    assert collected("test_some.py::test_one[5]", "test_some.py::test_one[6]") == {"test_one": 2}
