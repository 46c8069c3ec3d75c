"""A test that fails once is repeated and named; two are not, nor is one that fails again."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.flaky import REPEATS
from tests.scopes import ROOT

CONFTEST = "from tests.flaky import register\n\ndef pytest_configure(config):\n    register(config)\n"
ONCE = """
from pathlib import Path

def test_{name}():
    print("what {name} printed")
    mark = Path(__file__).with_suffix(".{name}")
    if not mark.exists():
        mark.touch()
        assert 1 == 2, "{name} failed"
"""
PASSES = "def test_passes():\n    pass\n"
NEVER = "def test_never():\n    assert 1 == 2\n"


def run(folder: Path, tests: str, *arguments: str) -> tuple[int, str, str]:
    """Exit status, output, and what was written about a flaky test."""
    (folder / "conftest.py").write_text(CONFTEST)
    (folder / "pytest.ini").write_text("[pytest]\n")
    (folder / "test_some.py").write_text(tests)
    said = folder / "flaky.txt"
    command = [sys.executable, "-m", "pytest", *arguments]
    few = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": "-p xdist"}  # the others take seconds to import
    variables = os.environ | few | {REPEATS: str(said), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True)
    return done.returncode, done.stdout, said.read_text() if said.exists() else ""


def test_one_flaky_test_passes_and_is_named(tmp_path: Path) -> None:
    code, _, said = run(tmp_path, PASSES + ONCE.format(name="once"), "-n1")
    assert code == 0
    assert said.startswith("FLAKY test_some.py::test_once") and said.endswith("FLAKY test_some.py::test_once\n")
    assert "once failed" in said and "what once printed" in said and "1 passed" in said


def test_two_flaky_tests_fail(tmp_path: Path) -> None:
    code, out, said = run(tmp_path, ONCE.format(name="once") + ONCE.format(name="twice"), "-n0")
    assert (code, said) == (1, "") and "repeating" not in out


def test_a_test_that_fails_again_fails(tmp_path: Path) -> None:
    code, out, said = run(tmp_path, PASSES + NEVER, "-n0")
    assert (code, said) == (1, "") and "repeating test_some.py::test_never alone" in out


def test_a_repeat_that_is_skipped_fails(tmp_path: Path) -> None:
    skipped = ONCE.format(name="once").replace("touch()", "touch()\n    else:\n        import pytest; pytest.skip()", 1)
    skipped = skipped.replace("        assert 1 == 2", "    assert 1 == 2")
    code, out, said = run(tmp_path, PASSES + skipped, "-n0")
    assert (code, said) == (1, "") and "1 skipped" in out


def test_a_file_that_cannot_be_collected_fails(tmp_path: Path) -> None:
    (tmp_path / "test_broken.py").write_text("import nothing_of_this_name\n")
    code, out, said = run(tmp_path, PASSES + ONCE.format(name="once"), "-n1")
    assert (code, said) == (1, "") and "repeating" not in out


def test_nothing_is_repeated_if_all_pass(tmp_path: Path) -> None:
    code, out, said = run(tmp_path, PASSES, "-n0")
    assert (code, said) == (0, "") and "repeating" not in out


def test_a_test_that_ends_its_process_is_not_repeated(tmp_path: Path) -> None:
    dies = ONCE.format(name="once").replace("assert 1 == 2,", "import os; os._exit(9) or")
    code, out, said = run(tmp_path, PASSES + dies, "-n1")
    assert (code, said) == (1, "") and "repeating" not in out
