"""Files out of Debian packages, without installing any: data sets and word lists that Debian carries."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

from curate.core.errors import InputError

_PATIENCE_TEXT = "-o Acquire::http::Timeout=20 -o Acquire::https::Timeout=20 -o Acquire::Retries=1"
_PATIENCE = tuple(_PATIENCE_TEXT.split())
"""With a mirror that does not answer; apt-get's own is minutes."""


def unpacked(packages: Sequence[str], folder: Path, *, what: str, instead: str, say: Callable[[str], None]) -> Path:
    """The root that the packages unpack to, in the empty folder `folder`.

    Raises InputError where Debian's tools, its mirror or the disk are missing; it says `what` is a Debian package and
    what to do `instead`.
    """
    for tool in ("apt-get", "dpkg-deb"):
        if shutil.which(tool) is None:
            raise InputError(f"{tool} is not here, and {what} comes from Debian packages; use Debian, {instead}")
    debs = _fetch(packages, folder, instead, say)
    say("unpacking")
    for deb in debs:
        _run("dpkg-deb", "-x", str(deb), str(folder / "root"), instead=instead)
    return folder / "root"


def _fetch(packages: Sequence[str], folder: Path, instead: str, say: Callable[[str], None]) -> list[Path]:
    """Package lists of our own are fetched when the system's are missing or stale."""
    as_we_are = [*_PATIENCE, *(["-o", "APT::Sandbox::User=root"] if os.geteuid() == 0 else [])]
    lists = folder / "apt"
    (lists / "lists/partial").mkdir(parents=True)
    (lists / "cache/archives/partial").mkdir(parents=True)
    own = ["-o", f"Dir::State::Lists={(lists / 'lists').resolve()}", "-o", f"Dir::Cache={(lists / 'cache').resolve()}"]
    try:
        _run("apt-get", *as_we_are, "download", *packages, cwd=folder, instead=instead)
    except InputError:
        say("not in the system's package lists: fetching lists of our own")
        _run("apt-get", *as_we_are, *own, "update", cwd=folder, instead=instead)
        _run("apt-get", *as_we_are, *own, "download", *packages, cwd=folder, instead=instead)
    return sorted(folder.glob("*.deb"))


def _run(*command: str, instead: str, cwd: Path | None = None) -> None:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True)
    if done.returncode:
        said = (done.stderr.strip() or done.stdout.strip() or f"exit status {done.returncode}").splitlines()[-1]
        raise InputError(f"{command[0]} failed: {said}; check the network and free disk, {instead}")
