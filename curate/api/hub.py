"""Uploads to the Hugging Face Hub, through huggingface_hub."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from curate.core.errors import InputError, StorageError
from curate.core.secrets import Secret

TAKEN = 409


def push(name: str, files: Mapping[str, str], token: Secret | None, *, private: bool, update: bool) -> str:
    """Create a dataset repository and commit files to it (path there -> path here) at once; returns the commit's URL.
    With `update` an existing one is used, and its other files of rows are removed."""
    try:
        from httpx2 import HTTPError
        from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi
        from huggingface_hub.errors import HfHubHTTPError
    except ModuleNotFoundError:
        raise InputError("push: the package huggingface_hub is missing; install curate[hf]") from None
    api = HfApi(token=None if token is None else token.value(), library_name="curate")
    try:
        api.create_repo(name, repo_type="dataset", private=private, exist_ok=update)
        old = api.list_repo_files(name, repo_type="dataset") if update else []
        gone = [path for path in old if path.startswith("data/") and path not in files]
        operations: list[Any] = [CommitOperationAdd(path, place) for path, place in sorted(files.items())]
        operations += [CommitOperationDelete(path) for path in gone]
        made = api.create_commit(name, operations, commit_message="Publish a release", repo_type="dataset")
    except HfHubHTTPError as error:
        if error.response is not None and error.response.status_code == TAKEN:
            raise InputError(f"hf://datasets/{name}: the name is taken; give another, or --update it") from None
        raise StorageError(f"hf://datasets/{name}: the Hub rejects it ({_line(error)}); check the token") from None
    except (OSError, ValueError, HTTPError) as error:
        raise StorageError(f"hf://datasets/{name}: the upload failed ({_line(error)}); run it again") from None
    return str(made.commit_url)


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__
