"""What a workspace holds, so that two ways to the same result can be compared byte for byte."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

PASSING = ("runs/", "leases/")
"""What tells one run from another, and nothing of what it makes."""


def files(workspace: str | Path, below: str = "") -> dict[str, str]:
    """Digest of every file but manifests (they hold times), the runs' own records and half-written files."""
    root = Path(workspace)
    found = {}
    for path in sorted(root.rglob("*")):
        name = str(path.relative_to(root))
        kept = name.startswith(below) and not name.startswith(PASSING)
        if path.is_file() and kept and path.name != "manifest.json" and path.suffix != ".tmp":
            found[name] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found


def times(workspace: str | Path) -> dict[str, int]:
    """Modification time (nanoseconds) of every file, manifests too."""
    root = Path(workspace)
    names = {str(path.relative_to(root)): path.stat().st_mtime_ns for path in root.rglob("*") if path.is_file()}
    return {name: time for name, time in names.items() if not name.startswith(PASSING)}


def manifests(workspace: str | Path) -> dict[str, dict[str, Any]]:
    """Every committed manifest by its folder, without times."""
    root = Path(workspace)
    timed = ("seconds", "built_rows", "extra")
    found = {}
    for path in sorted(root.rglob("manifest.json")):
        value = json.loads(path.read_text())
        found[str(path.parent.relative_to(root))] = {name: v for name, v in value.items() if name not in timed}
    return found


def assert_same(one: str | Path, two: str | Path) -> None:
    """Two workspaces hold the same files and say the same of them."""
    a, b = files(one), files(two)
    assert sorted(a) == sorted(b)
    assert [name for name in a if a[name] != b[name]] == []
    assert manifests(one) == manifests(two)
