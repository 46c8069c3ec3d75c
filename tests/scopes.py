"""Which test files share a server, so that one process runs them all and each slow server is started once per test run.

A file asks for a server through the fixtures of its tests, and through what fixtures of conftest.py files ask for.
"""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
SLOW = {
    "ray_session": "Ray",
    "ray_head": "a Ray head with its job server",
    "far_head": "a Ray head in a separate network",
    "real_server": "transformers serve",
}
"""Session fixtures, each of which starts a server in 5 s or more, and what they start. No file needs two of them."""
QUICK = {"object_store_server", "endpoint", "postgres", "browser"}
"""Session fixtures of servers that start in a second or two: each process starts those it needs."""


HEAVY = (
    "tests/acquire/download",
    "tests/acquire/runner",
    "tests/api",
    "tests/caption/test_mix_run.py",
    "tests/distill/commands",
    "tests/distill/evaluation",
    "tests/distill/training",
    "tests/e2e",
    "tests/engine",
    "tests/release/test_fetch.py",
)
"""Folders whose tests run whole pipelines, trainings, img2dataset or command lines."""


def is_heavy(file: str) -> bool:
    """Whether `make test-fast` leaves out the tests of `file` (a path in the checkout)."""
    return file.startswith(HEAVY) or bool(servers(ROOT / file))


def scope_of(file: str) -> str:
    """What the scheduler keeps together with the tests of `file` (a path in the checkout): a slow server, or itself."""
    slow = [name for server, name in SLOW.items() if server in servers(ROOT / file)]
    return slow[0] if slow else file


@cache
def servers(file: Path) -> frozenset[str]:
    """Names of SLOW and QUICK that the tests of a file ask for."""
    known: dict[str, set[str]] = {}
    for folder in reversed(file.relative_to(ROOT).parents):
        known |= requested(ROOT / folder / "conftest.py")
    known |= requested(file)
    found: set[str] = set()
    waiting = set().union(*(names for test, names in requested(file).items() if test.startswith("test_")))
    while waiting:
        found |= waiting
        waiting = set().union(*(known.get(name, set()) for name in waiting)) - found
    return frozenset(found & (SLOW.keys() | QUICK))


@cache
def requested(file: Path) -> dict[str, set[str]]:
    """Function -> names of its parameters and of what it takes by `getfixturevalue` and `usefixtures`."""
    if not file.exists():
        return {}
    source = file.read_text()
    functions = [node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)]
    by_name = "getfixturevalue" in source or "usefixtures" in source  # few files, and a walk takes 10 ms
    return {
        node.name: {one.arg for one in node.args.args} | (_by_name(node) if by_name else set()) for node in functions
    }


def _by_name(node: ast.FunctionDef) -> set[str]:
    calls = [call for call in ast.walk(node) if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute)]
    return {
        name.value
        for call in calls
        if call.func.attr in ("getfixturevalue", "usefixtures")  # type: ignore[attr-defined]
        for name in call.args
        if isinstance(name, ast.Constant)
    }
