"""Files that share a server are run by one process."""

from __future__ import annotations

import pytest

from tests.scopes import ROOT, SERVERS, requested, scope_of


@pytest.mark.parametrize(
    "file",
    [
        "tests/core/store/test_storage.py",  # by a parameter of a fixture in its folder's conftest.py
        "tests/codec/test_tars.py",  # by its own fixture
        "tests/e2e/test_s3.py",
        "tests/engine/test_object_store.py",
    ],
)
def test_files_that_use_the_object_store_share_it(file: str) -> None:
    assert scope_of(file) == scope_of("tests/engine/units/test_group.py") != file


def test_servers_that_one_file_needs_together_share_a_scope() -> None:
    assert scope_of("tests/engine/units/test_group.py") == scope_of("tests/engine/test_faults.py")


def test_a_file_without_a_server_has_a_separate_scope() -> None:
    assert scope_of("tests/core/test_hashing.py") == "tests/core/test_hashing.py"


def test_servers_are_fixtures() -> None:
    known = {
        name
        for folder in ("", "engine", "report")
        for file in (ROOT / "tests" / folder).glob("*.py")
        for name in requested(file)
    }
    assert set(SERVERS) <= known
