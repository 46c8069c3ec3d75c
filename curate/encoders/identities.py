"""What each kind of encoder is made of, and what it lacks: without loading a model, and without torch for local files.

An identity names the weights by digest. Preprocessing that a library derives from the model's name or folder is named
by its source (and, for transformers, by the digest of its configuration files), since the figures follow from them.
"""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from curate.core.errors import InputError
from curate.encoders.spec import Spec
from curate.encoders.weights import file_digest, folder_digests, hub_problem, hub_weights

_TIMM_FILES = ("model.safetensors", "pytorch_model.bin")
_OPEN_CLIP_FILES = ("open_clip_model.safetensors", "open_clip_pytorch_model.bin")
_HF_CONFIG = "preprocessor_config.json"
DISTILLED = ("distill", "tiny")
"""Kinds that are folders written by `distill export`."""
_CONFIGS = {"timm": "config.json", "open_clip": "open_clip_config.json", "hf": "config.json"}


@dataclass(frozen=True)
class Hub:
    """Where a name's weights lie on the Hugging Face hub."""

    repo: str
    files: Sequence[str]
    revision: str | None = None


def identity(spec: Spec, precision: str) -> dict[str, Any]:
    """Raises InputError for a local checkpoint or folder that is not there, or not of its kind."""
    if spec.path is not None:
        for problem in problems(spec):
            raise InputError(problem)
    weights, preprocessing = _weights(spec)
    return {"encoder": spec.public, "weights": weights, "preprocessing": preprocessing, "precision": precision}


def problems(spec: Spec) -> list[str]:
    if spec.kind == "descriptor":
        return []
    if spec.kind in DISTILLED:
        return _distilled(spec).problems
    if spec.path is not None:
        return _path_problems(spec, Path(spec.path))
    if spec.seed is not None:
        return []
    hub = _hub(spec)
    return hub_problem(spec.public, hub.repo, hub.files, hub.revision)


def text_problems(spec: Spec) -> list[str]:
    """A folder of transformers tells by its configuration; a name on the hub only once it has been fetched."""
    found = spec.kind == "open_clip"
    if spec.kind == "hf":
        configs = [Path(spec.path, _CONFIGS["hf"])] if spec.path else _fetched(spec.name, spec.options.get("revision"))
        found = all(b'"text_config"' in path.read_bytes() for path in configs if path.is_file())
    if spec.kind in DISTILLED:
        found = _distilled(spec).texts
    return [] if found else [no_texts(spec.public)]


def no_texts(public: str) -> str:
    return (
        f"encoder: {public!r} has no text tower; use an image-text model: 'tiny', 'open_clip:…', or a CLIP or SigLIP of"
        " 'hf:…'"
    )


def _fetched(repo: str, revision: str | None) -> list[Path]:
    """Configuration of a model in the local cache of the hub, if it is there."""
    from huggingface_hub import try_to_load_from_cache

    path = try_to_load_from_cache(repo, _CONFIGS["hf"], revision=revision)
    return [Path(path)] if isinstance(path, str) else []


def _weights(spec: Spec) -> tuple[str, Any]:
    if spec.kind == "descriptor":
        from curate.encoders.descriptor import PREPROCESSING, WEIGHTS

        return WEIGHTS, dict(PREPROCESSING)
    if spec.path is not None and Path(spec.path).is_dir():
        weights, configuration = folder_digests(spec.path, weights=spec.seed is None)
        return _random(spec) or weights, {"configuration": configuration}
    source = {spec.kind: spec.name}
    if spec.seed is not None:
        return _random(spec), source
    if spec.path is not None:
        return file_digest(spec.path), source
    hub = _hub(spec)
    if spec.kind == "hf":
        source = {"configuration": hub_weights(hub.repo, [_HF_CONFIG], hub.revision)}
    return hub_weights(hub.repo, hub.files, hub.revision), source


def _distilled(spec: Spec) -> Any:
    """`distill`'s own account of a folder that it exported: reached by name, since curate works without distill."""
    return importlib.import_module("distill.export.model_folder").account(spec)


def _random(spec: Spec) -> str:
    return "" if spec.seed is None else f"random:{spec.seed}"


def _path_problems(spec: Spec, path: Path) -> list[str]:
    """A name goes with a checkpoint file, a folder holds model and weights."""
    where = str(path)
    if not path.exists():
        return [f"encoder: no weights at {where!r}; give an existing checkpoint, or a name on the hub without a path"]
    if path.is_dir() and spec.name:
        return [f"encoder: {where!r} is a folder; write '{spec.kind}:{where}', or name a checkpoint file behind '@'"]
    if path.is_file() and not spec.name:
        return [f"encoder: {where!r} is a file; write '{spec.kind}:NAME@{where}' with the architecture's name"]
    if path.is_file() and spec.kind == "hf":
        return [f"encoder: {where!r} is a file; hf takes a folder written by save_pretrained: 'hf:FOLDER'"]
    if path.is_dir():
        if not (path / _CONFIGS[spec.kind]).is_file():
            return [f"encoder: no {_CONFIGS[spec.kind]} in {where!r}; give the folder of a model of {spec.kind}"]
        folder_digests(where, weights=spec.seed is None)
    return []


def _hub(spec: Spec) -> Hub:
    if spec.kind == "hf":
        return Hub(spec.name, _TIMM_FILES, spec.options.get("revision"))
    return _timm_hub(spec) if spec.kind == "timm" else _open_clip_hub(spec)


def _timm_hub(spec: Spec) -> Hub:
    if spec.name.startswith("hf-hub:"):
        return Hub(spec.name.removeprefix("hf-hub:"), _TIMM_FILES)
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
    return Hub(config.hf_hub_id, (config.hf_hub_filename,) if config.hf_hub_filename else _TIMM_FILES)


def _open_clip_hub(spec: Spec) -> Hub:
    if spec.name.startswith("hf-hub:"):
        return Hub(spec.name.removeprefix("hf-hub:"), _OPEN_CLIP_FILES)
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
    repo, _, file = config["hf_hub"].rpartition("/")
    return Hub(repo, (file,) if file else _OPEN_CLIP_FILES)


def _closest(name: str, known: list[str]) -> str:
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    return f"; did you mean {' or '.join(near)}?" if near else "; see its list of models"
