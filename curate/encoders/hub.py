"""Repositories of the Hugging Face hub: the one that a model's name stands for, and the digest of its weights.

The hub's cache names its blobs by the hub's ETag, which is the SHA-256 of large files. A file therefore has the same
digest on the hub (one HEAD request), in the cache, and copied to a folder.
"""

from __future__ import annotations

import difflib
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path

from curate.core.errors import InputError
from curate.encoders.spec import Spec
from curate.encoders.weights import file_digest

_DEADLINE_SECONDS = 5.0
"""For a question to the hub, including the look-up of its name and all of its addresses."""
_SILENT_SECONDS = 60.0
"""A hub that did not answer is not asked again for so long."""
_silent: dict[str, float] = {}
"""Start of its URLs -> until when it is not asked, by the monotonic clock."""
_TIMM_FILES = ("model.safetensors", "pytorch_model.bin")
_OPEN_CLIP_FILES = ("open_clip_model.safetensors", "open_clip_pytorch_model.bin")


@dataclass(frozen=True)
class Repository:
    name: str
    files: Sequence[str]
    """Names that the weights file may have; the first one that exists counts."""
    revision: str | None = None

    def digest(self, files: Sequence[str] = ()) -> str | None:
        """Digest of the first of `files` (the weights by default) that exists: from the cache, or asked of the hub.

        None if it is not cached and the hub cannot be asked (no network, no such repository or file).
        """
        from huggingface_hub import constants, hf_hub_url
        from huggingface_hub.errors import EntryNotFoundError, HfHubHTTPError, HFValidationError, HTTPError

        files = files or self.files
        try:
            for file in files:
                path = cached_file(self.name, file, self.revision)
                if path is not None:
                    return file_digest(str(path))
            for file in files if _silent.get(constants.ENDPOINT, 0.0) <= time.monotonic() else ():
                try:
                    return _asked(hf_hub_url(self.name, file, revision=self.revision))
                except EntryNotFoundError:
                    continue
        except (HfHubHTTPError, HFValidationError):
            return None
        except (OSError, HTTPError):
            _silent[constants.ENDPOINT] = time.monotonic() + _SILENT_SECONDS
        return None

    def digest_or_name(self, files: Sequence[str] = ()) -> str:
        """The digest, or the repository's name and revision if the hub cannot be asked."""
        return self.digest(files) or f"hub:{self.name}@{self.revision or 'main'}"

    def problems(self, spec: str) -> list[str]:
        if self.digest():
            return []
        return [
            f"encoder: weights of {spec!r} are not in the local Hugging Face cache and {self.name!r} cannot be reached"
            f" on the hub; check the name, download them on a machine with a network ('hf download {self.name}'), or"
            f" give a local checkpoint"
        ]


def _asked(url: str) -> str | None:
    """A file's digest. In a thread, because the client's own time limit applies to each address and each read, and
    not to the look-up of the name. Raises TimeoutError and what the client raises."""
    from huggingface_hub import get_hf_file_metadata

    answer: Future[str | None] = Future()

    def ask() -> None:
        try:
            answer.set_result(get_hf_file_metadata(url, timeout=_DEADLINE_SECONDS).etag)
        except BaseException as error:  # noqa: BLE001 - raised where the answer is read
            answer.set_exception(error)

    threading.Thread(target=ask, name="hub", daemon=True).start()
    return answer.result(_DEADLINE_SECONDS)


def cached_file(repository: str, file: str, revision: str | None = None) -> Path | None:
    """A file of a repository in the hub's local cache."""
    from huggingface_hub import try_to_load_from_cache

    path = try_to_load_from_cache(repository, file, revision=revision)
    return Path(path) if isinstance(path, str) else None


def repository_of(spec: Spec) -> Repository:
    """Raises InputError for a model that its library does not know, or has no weights for."""
    if spec.kind == "hf":
        return Repository(spec.name, _TIMM_FILES, spec.options.get("revision"))
    return _of_timm(spec) if spec.kind == "timm" else _of_open_clip(spec)


def _of_timm(spec: Spec) -> Repository:
    if spec.name.startswith("hf-hub:"):
        return Repository(spec.name.removeprefix("hf-hub:"), _TIMM_FILES)
    import timm

    config = timm.get_pretrained_cfg(spec.name) if timm.is_model(spec.name.partition(".")[0]) else None
    if config is None:
        known = timm.list_models() + timm.list_pretrained()
        raise InputError(f"encoder: timm knows no model {spec.name!r}{_closest(spec.name, known)}")
    if not config.hf_hub_id:
        raise InputError(
            f"encoder: timm has no weights on the hub for {spec.name!r}; give a checkpoint ('timm:{spec.name}@PATH')"
            f" or random weights ('timm:{spec.name}?random=0')"
        )
    return Repository(config.hf_hub_id, (config.hf_hub_filename,) if config.hf_hub_filename else _TIMM_FILES)


def _of_open_clip(spec: Spec) -> Repository:
    if spec.name.startswith("hf-hub:"):
        return Repository(spec.name.removeprefix("hf-hub:"), _OPEN_CLIP_FILES)
    import open_clip

    name, _, tag = spec.name.partition("/")
    if open_clip.get_model_config(name) is None:
        raise InputError(f"encoder: open_clip knows no model {name!r}{_closest(name, open_clip.list_models())}")
    config = open_clip.get_pretrained_cfg(name, tag) if tag else {}
    if not config.get("hf_hub"):
        tags = ", ".join(open_clip.list_pretrained_tags_by_model(name)) or "none"
        raise InputError(
            f"encoder: 'open_clip:{name}' has no weights {tag!r}; write 'open_clip:{name}/TAG' with one of: {tags};"
            f" or 'open_clip:{name}@PATH', or '?random=0'"
        )
    repository, _, file = config["hf_hub"].rpartition("/")
    return Repository(repository, (file,) if file else _OPEN_CLIP_FILES)


def _closest(name: str, known: list[str]) -> str:
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    return f"; did you mean {' or '.join(near)}?" if near else "; see its list of models"
