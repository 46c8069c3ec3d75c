"""Version and source digest of the package in a process: all nodes of a cluster must have the driver's build."""

from __future__ import annotations

import hashlib
import platform
from functools import lru_cache
from pathlib import Path
from typing import Any

from curate.core.version import __version__

ROOT = Path(__file__).parents[2]


@lru_cache
def sources() -> str:
    """Digest of the package's source files, by name and content; takes some 10 ms once."""
    found = hashlib.blake2b(digest_size=8)
    for file in sorted(ROOT.rglob("*.py")):
        found.update(f"{file.relative_to(ROOT)}\0".encode())
        found.update(hashlib.blake2b(file.read_bytes()).digest())
    return found.hexdigest()


def about() -> dict[str, Any]:
    return {"version": __version__, "sources": sources(), "place": str(ROOT), "host": platform.node()}


def mismatch(theirs: dict[str, Any]) -> str:
    """Why a node whose build is `theirs` (`about`, or an `error`) cannot work for this driver, in one line; "" if it
    can. The same files on the same machine are not compared, because they may be edited during the run."""
    node, version = f"node {theirs['ip']}", __version__
    error = theirs.get("error")
    if error is not None:
        if "No module named 'curate'" in error:
            return f"{node} has no package curate; install the same version ({version}) there, or use one image"
        return f"{node} cannot import curate {version} ({error}); install the same packages there, or use one image"
    mine = about()
    if theirs["version"] != mine["version"]:
        return f"{node} has curate {theirs['version']}, the driver {mine['version']}; use one image"
    if (theirs["host"], theirs["place"]) == (mine["host"], mine["place"]) or theirs["sources"] == mine["sources"]:
        return ""
    return (
        f"{node} has curate {version} like the driver, but from other source files ({theirs['place']}); "
        "install the same build there, or use one image"
    )
