"""`curate` and `distill` as an operator calls them: what they say, where, and with which exit code."""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

from curate.cli import main
from tests.conftest import ROOT

PROGRAM = Path(sys.executable).parent / "curate"


@dataclass(frozen=True)
class CommandResult:
    code: int
    out: str
    err: str

    @property
    def words(self) -> str:
        """Standard output without the frames of tables and the breaks of lines."""
        return " ".join(self.out.translate(dict.fromkeys(map(ord, "│┃┏┓┗┛┡┩└┘┬┴┼━─╇┳┻"), " ")).split())

    @property
    def error(self) -> str:
        """The one line of an error that a user caused."""
        lines = self.err.splitlines()
        assert self.code == 1 and len(lines) == 1 and lines[0].startswith("curate: "), self
        return lines[0]


def curate(*words: str | Path) -> CommandResult:
    """Run the command in this process; only CurateError is turned into a message."""
    return _called(main, "curate", *words)


def distill(*words: str | Path) -> CommandResult:
    """Run the command in this process, as `curate` does."""
    from distill.cli import main  # imports torch, which few tests of commands need

    return _called(main, "distill", *words)


def _called(main: Callable[[], None], *words: str | Path) -> CommandResult:
    out, err = io.StringIO(), io.StringIO()
    with (
        mock.patch.object(sys, "argv", [*map(str, words)]),
        mock.patch.object(os, "_exit", sys.exit),  # as `main` ends beside a thread that hangs
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            main()
            code = 0
        except SystemExit as exit:
            code = exit.code if isinstance(exit.code, int) else int(exit.code is not None)
    return CommandResult(code, out.getvalue(), err.getvalue())


def curate_process(*words: str | Path, **environment: str) -> CommandResult:
    """Run the installed program in a separate process."""
    done = subprocess.run(
        [PROGRAM, *map(str, words)], cwd=ROOT, capture_output=True, text=True, env=os.environ | environment
    )
    return CommandResult(done.returncode, done.stdout, done.stderr)
