"""The Python environment in which img2dataset runs. It pins packages that this project needs at newer versions.

Each machine builds it once, with uv, from a lock with hashes. Its folder is named by a digest of the lock and of the
Python that it extends, so a new lock means a new folder beside the old one.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import IO

import uv

from curate.acquire.download.child import MAIN
from curate.core.child import environment as variables
from curate.core.errors import PreflightError
from curate.core.store.cache import cache_folder

LOCK = Path(__file__).parents[1] / "runner" / "requirements.lock"
NAME = "img2dataset"
BUILD_SECONDS = 1800
"""Limit of each step. The packages are 170 MB to download and 680 MB on disk."""
_CAUSE = re.compile("(cause|Caused by): ")
REMEDY = (
    "expected a package registry, or a folder of wheels in UV_FIND_LINKS; "
    "to try again: python -m curate.acquire.download.environment"
)


def environment() -> Path:
    """Path of the environment's Python, which is built now if this machine has none. Raises PreflightError."""
    folder = place()
    if not _complete(folder):
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            with (folder.parent / f".{folder.name}.lock").open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                if not _complete(folder):
                    _build(folder, lock)
        except OSError as error:
            raise PreflightError(
                f"the environment of {NAME} cannot be built in {folder.parent}: {error.strerror or error}; "
                "expected a folder that can be written and has 1 GB free; set CURATE_CACHE to one"
            ) from None
    return _python(folder)


def problem() -> str | None:
    """Why the environment cannot be used, in one line; None if it can. Builds it if this machine has none."""
    try:
        environment()
    except PreflightError as error:
        return str(error)
    return None


def place() -> Path:
    """Folder of the environment: in the installation if it was built there, as in the Docker image, or in the cache."""
    python = (sys.version, sys.base_prefix, platform.machine(), platform.libc_ver())
    name = f"{NAME}-{hashlib.sha256(LOCK.read_bytes() + repr(python).encode()).hexdigest()[:16]}"
    installed = Path(sys.prefix) / "envs" / name
    return installed if _complete(installed) else cache_folder("envs") / name


def clean_environment(extra: Mapping[str, str] = {}) -> dict[str, str]:
    """Environment variables of a process in the environment: no PYTHONPATH, no proxy, no credentials."""
    # albumentations asks a registry for its newest version on import
    fixed = {"NO_ALBUMENTATIONS_UPDATE": "1", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    return variables("HOME|LANG|LC_ALL|PATH|SSL_CERT_DIR|SSL_CERT_FILE|TMPDIR|TZ", **fixed, **extra)


def _complete(folder: Path) -> bool:
    """A folder has its name once it is complete. The Python that it extends may have been removed since."""
    return _python(folder).exists()


def _python(folder: Path) -> Path:
    return folder / "bin" / "python"


def _build(folder: Path, lock: IO[str]) -> None:
    """Build aside and rename. The steps inherit the file lock: if this process is killed, it stays locked until they
    end too. The last step imports what runners import. Only this is compiled: it is a small part of the packages."""
    building = folder.with_name(f".{folder.name}.building")
    for old in (building, folder):
        shutil.rmtree(old, ignore_errors=True)
    tool, python = _uv(), str(_python(building))
    options = ["--quiet", "--require-hashes", "--no-build"]
    try:
        _step([tool, "venv", "--quiet", "--no-project", "--python", sys.executable, str(building)], _for_uv(), lock)
        _step([tool, "pip", "sync", *options, "--python", python, str(LOCK)], _for_uv(), lock)
        _step([python, "-I", str(MAIN), "check"], clean_environment(), lock)
        building.rename(folder)
    finally:
        shutil.rmtree(building, ignore_errors=True)


def _uv() -> str:
    try:
        return uv.find_uv_bin()
    except FileNotFoundError as error:
        raise PreflightError(f"the environment of {NAME} needs uv: {error}; install the locked packages") from None


def _for_uv() -> dict[str, str]:
    """uv's own settings stay: registry, wheelhouse, proxy, UV_OFFLINE, cache."""
    ours = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
    return ours | {"UV_PYTHON_DOWNLOADS": "never", "NO_COLOR": "1"}


def _step(command: list[str], variables: dict[str, str], lock: IO[str]) -> None:
    try:
        done = subprocess.run(
            command,
            env=variables,
            pass_fds=(lock.fileno(),),
            capture_output=True,
            text=True,
            timeout=BUILD_SECONDS,
        )
    except subprocess.TimeoutExpired:
        reason = f"no end after {BUILD_SECONDS} s"
    else:
        if done.returncode == 0:
            return
        reason = said(done.stderr) or f"exit status {done.returncode}"
    name = Path(command[0]).name
    raise PreflightError(f"the environment of {NAME} cannot be built: {name}: {reason}; {REMEDY}")


def said(stderr: str) -> str:
    """What uv or Python said on failing, in one line: the error, and its first and its deepest cause."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    if lines and lines[0].startswith("Traceback"):
        return lines[-1]
    errors = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    causes = [_CAUSE.sub("", line) for line in lines if _CAUSE.match(line)]
    return ": ".join(dict.fromkeys([*(errors or lines[-1:])[:1], *causes[:1], *causes[-1:]]))[:400].rstrip(".")


if __name__ == "__main__":
    sys.exit(problem())
