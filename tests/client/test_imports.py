"""The client is light: scripts and launchers of trainings import it."""

from __future__ import annotations

import subprocess
import sys


def test_the_client_imports_no_library_of_the_engine() -> None:
    script = (
        "import sys, curate.client\n"
        "print([name for name in sys.modules if name.split('.')[0] in"
        " ('torch', 'ray', 'pyarrow', 'numpy', 'pydantic', 'sqlalchemy', 'fastapi', 'fsspec')])\n"
        "print(sorted(name for name in sys.modules if name.startswith('curate.') and 'client' not in name))"
    )
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert found.splitlines() == ["[]", "['curate.core', 'curate.core.errors', 'curate.core.version']"]
