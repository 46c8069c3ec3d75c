"""Digests of weights: they identify a model's files without loading them. Files count by SHA-256 (see also `hub`)."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from curate.core.errors import InputError
from curate.core.hashing import digest

_WEIGHT_SUFFIXES = ((".safetensors",), (".bin", ".pt", ".pth", ".npz"))
_CONFIG_SUFFIXES = (".json", ".txt", ".model", ".tiktoken")


def file_digest(path: str) -> str:
    """SHA-256 of a file, read once per process until the file changes. Raises InputError if the file is missing."""
    if not Path(path).is_file():
        raise InputError(f"encoder: no weights file {path!r}; give an existing checkpoint after '@', or a hub name")
    real = Path(path).resolve()
    if real.parent.name == "blobs" and len(real.name) in (40, 64):  # of the hub's cache, named by its digest
        return real.name
    state = real.stat()
    return _sha256(str(real), state.st_size, state.st_mtime_ns)


@lru_cache(maxsize=64)
def _sha256(path: str, size: int, mtime_ns: int) -> str:
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def folder_digests(path: str, *, weights: bool = True) -> tuple[str, str]:
    """(weights, configuration) of a model folder: one digest over its weight files, one over its small text files.

    If there are safetensors files, weights in older formats beside them do not count: no library reads them. With
    `weights=False` the folder need not contain weights.
    """
    if not Path(path).is_dir():
        raise InputError(f"encoder: no folder {path!r}; give a folder with a model's configuration and weights")
    files = sorted(item.name for item in Path(path).iterdir() if item.is_file())
    chosen: list[str] = []
    for suffixes in _WEIGHT_SUFFIXES if weights else ():
        chosen = chosen or [name for name in files if name.endswith(suffixes)]
    if weights and not chosen:
        raise InputError(f"encoder: no *.safetensors or *.bin in {path!r}; save the model's weights there")
    configs = [name for name in files if name.endswith(_CONFIG_SUFFIXES)]
    return _joined(path, chosen), _joined(path, configs)


def _joined(path: str, names: Sequence[str]) -> str:
    return digest([[name, file_digest(str(Path(path, name)))] for name in names])
