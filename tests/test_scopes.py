"""Files that share a slow server are run by one process."""

from __future__ import annotations

import pytest

from tests.scopes import QUICK, ROOT, SLOW, requested, scope_of, servers


@pytest.mark.parametrize(
    "file",
    [
        "tests/engine/test_faults.py",
        "tests/engine/units/test_group.py",  # also needs an object store
        "tests/caption/test_run.py",  # also needs an endpoint
        "tests/encoders/student/test_stage.py",
    ],
)
def test_files_that_use_ray_share_it(file: str) -> None:
    assert scope_of(file) == SLOW["ray_session"]


@pytest.mark.parametrize(
    "file",
    [
        "tests/core/test_hashing.py",
        "tests/codec/test_tars.py",  # needs an object store, by its own fixture
        "tests/core/store/test_storage.py",  # the same, by a parameter of a fixture in its folder's conftest.py
        "tests/report/test_browser.py",
    ],
)
def test_a_file_without_a_slow_server_has_a_separate_scope(file: str) -> None:
    assert scope_of(file) == file


def test_no_file_needs_two_slow_servers() -> None:
    """So each is started by one process."""
    needed = {file: servers(file) & SLOW.keys() for file in (ROOT / "tests").rglob("test_*.py")}
    assert [file for file, names in needed.items() if len(names) > 1] == []
    assert set().union(*needed.values()) == SLOW.keys()


def test_servers_are_fixtures() -> None:
    known = {
        name
        for folder in ("", "engine", "report")
        for file in (ROOT / "tests" / folder).glob("*.py")
        for name in requested(file)
    }
    assert SLOW.keys() | QUICK <= known
