"""`python -m curate.service.database.migrations "add x"`: write a migration from the changes of the models."""

from __future__ import annotations

import sys
import tempfile

from curate.service.database.database import Database
from curate.service.database.migrate import draft

if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        print(draft(Database(f"sqlite:///{folder}/draft.db"), sys.argv[1]))  # noqa: T201 - a script
