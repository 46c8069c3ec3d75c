"""Which curate runs in a process: nodes of a cluster must have the driver's."""

from __future__ import annotations

import hashlib
import platform
from functools import lru_cache
from pathlib import Path
from typing import Any

import curate

ROOT = Path(curate.__file__).parent


@lru_cache
def sources() -> str:
    """Digest of the package's source files, by name and content; takes some 10 ms once."""
    found = hashlib.blake2b(digest_size=8)
    for file in sorted(ROOT.rglob("*.py")):
        found.update(f"{file.relative_to(ROOT)}\0".encode())
        found.update(hashlib.blake2b(file.read_bytes()).digest())
    return found.hexdigest()


def about() -> dict[str, Any]:
    return {"version": curate.__version__, "sources": sources(), "place": str(ROOT), "host": platform.node()}


def other(theirs: dict[str, Any]) -> str:
    """What is wrong with a node that says `theirs` of itself (`about`, or the `error` that kept it from that), in a
    line; "" where nothing is. The same files on the same machine are not compared: somebody may be editing them."""
    node, version = f"node {theirs['ip']}", curate.__version__
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
