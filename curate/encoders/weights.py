"""Digests of weights: which bytes a model is made of, learned without loading them.

Files count by SHA-256. The Hugging Face cache names its blobs by the ETag of the hub, which is the SHA-256 for large
files, so that a file has the same digest on the hub (one HEAD request), in the cache and copied to a folder.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from curate.core.errors import InputError
from curate.core.hashing import digest

_TIMEOUT_SECONDS = 5
_WEIGHT_SUFFIXES = ((".safetensors",), (".bin", ".pt", ".pth", ".npz"))
_CONFIG_SUFFIXES = (".json", ".txt", ".model", ".tiktoken")


def file_digest(path: str) -> str:
    """SHA-256 of a file; read once per process and state of the file. Raises InputError when it is missing."""
    if not Path(path).is_file():
        raise InputError(f"encoder: no weights file {path!r}; give an existing checkpoint behind '@', or a hub name")
    real = Path(path).resolve()
    if real.parent.name == "blobs" and len(real.name) in (40, 64):
        return real.name
    state = real.stat()
    return _sha256(str(real), state.st_size, state.st_mtime_ns)


@lru_cache(maxsize=64)
def _sha256(path: str, size: int, mtime_ns: int) -> str:
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def folder_digests(path: str, *, weights: bool = True) -> tuple[str, str]:
    """(weights, configuration) of a model folder: one digest over its weight files, one over its small text files.

    Where there are safetensors, older formats beside them are not read by any library, and do not count. With
    `weights=False` the folder need not hold any.
    """
    if not Path(path).is_dir():
        raise InputError(f"encoder: no folder {path!r}; give one that holds a model's configuration and weights")
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


def hub_digest(repo: str, names: Sequence[str], revision: str | None = None) -> str | None:
    """Digest of the first of the files `names` that the repository has: from the local cache, or by asking the hub.

    None when it is neither cached nor to be asked for (no network, no such repository or file).
    """
    from huggingface_hub import get_hf_file_metadata, hf_hub_url, try_to_load_from_cache
    from huggingface_hub.errors import EntryNotFoundError, HFValidationError, HTTPError

    try:
        cached: list[Any] = [try_to_load_from_cache(repo, name, revision=revision) for name in names]
        for path in cached:
            if isinstance(path, str):
                return file_digest(path)
        for name in names:
            try:
                url = hf_hub_url(repo, name, revision=revision)
                return get_hf_file_metadata(url, timeout=_TIMEOUT_SECONDS).etag
            except EntryNotFoundError:
                continue
    except (OSError, HTTPError, HFValidationError):
        return None
    return None


def hub_weights(repo: str, names: Sequence[str], revision: str | None = None) -> str:
    """`hub_digest`, or the repository's name and revision where the hub cannot be asked."""
    return hub_digest(repo, names, revision) or f"hub:{repo}@{revision or 'main'}"


def hub_problem(spec: str, repo: str, names: Sequence[str], revision: str | None = None) -> list[str]:
    if hub_digest(repo, names, revision):
        return []
    return [
        f"encoder: weights of {spec!r} are not in the local Hugging Face cache and {repo!r} cannot be reached on the"
        f" hub; check the name, fetch them where there is a network ('hf download {repo}'), or give a local checkpoint"
    ]
