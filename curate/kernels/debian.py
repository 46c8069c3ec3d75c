"""Files of Debian packages, without installing them: data sets and word lists."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

from curate.core.errors import InputError

_TIMEOUTS_TEXT = "-o Acquire::http::Timeout=20 -o Acquire::https::Timeout=20 -o Acquire::Retries=1"
_TIMEOUTS = tuple(_TIMEOUTS_TEXT.split())
"""Timeouts for a mirror that does not answer. The defaults of apt-get are minutes."""


def unpack(packages: Sequence[str], folder: Path, *, what: str, instead: str, say: Callable[[str], None]) -> Path:
    """Download and unpack packages into the empty folder `folder`; returns the root of their files.

    Raises InputError if Debian's tools, its mirror or disk space are missing. The message names `what` comes from
    Debian packages, and what to do `instead`.
    """
    for tool in ("apt-get", "dpkg-deb"):
        if shutil.which(tool) is None:
            raise InputError(f"{tool} is not installed, but {what} comes from Debian packages; use Debian, {instead}")
    debs = _fetch(packages, folder, instead, say)
    say("unpacking")
    for deb in debs:
        _run("dpkg-deb", "-x", str(deb), str(folder / "root"), instead=instead)
    return folder / "root"


def _fetch(packages: Sequence[str], folder: Path, instead: str, say: Callable[[str], None]) -> list[Path]:
    """Download packages, with fresh package lists in `folder` if the system's are missing or stale."""
    options = [*_TIMEOUTS, *(["-o", "APT::Sandbox::User=root"] if os.geteuid() == 0 else [])]
    lists = folder / "apt"
    (lists / "lists/partial").mkdir(parents=True)
    (lists / "cache/archives/partial").mkdir(parents=True)
    own = ["-o", f"Dir::State::Lists={(lists / 'lists').resolve()}", "-o", f"Dir::Cache={(lists / 'cache').resolve()}"]
    try:
        _run("apt-get", *options, "download", *packages, cwd=folder, instead=instead)
    except InputError:
        say("not in the system's package lists: fetching current lists")
        _run("apt-get", *options, *own, "update", cwd=folder, instead=instead)
        _run("apt-get", *options, *own, "download", *packages, cwd=folder, instead=instead)
    return sorted(folder.glob("*.deb"))


def _run(*command: str, instead: str, cwd: Path | None = None) -> None:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True)
    if done.returncode:
        text = (done.stderr.strip() or done.stdout.strip() or f"exit status {done.returncode}").splitlines()[-1]
        raise InputError(f"{command[0]} failed: {text}; check the network and free disk, {instead}")
