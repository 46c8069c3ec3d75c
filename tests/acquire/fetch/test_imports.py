"""The fetch runs in an environment that has none of our dependencies."""

from __future__ import annotations

import subprocess
import sys

from tests.conftest import ROOT

OWN = ("addresses.py", "limits.py")


def test_only_the_standard_library_is_imported() -> None:
    fetch = [path.relative_to(ROOT) for path in (ROOT / "curate/acquire/fetch").glob("*.py") if path.stem != "__init__"]
    core = [path.relative_to(ROOT) for path in (ROOT / "curate/core").glob("*.py") if path.name in OWN]
    modules = [".".join(path.with_suffix("").parts) for path in fetch + core]
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r}); import {', '.join(modules)}"
    # -S: without the folder of installed packages
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
