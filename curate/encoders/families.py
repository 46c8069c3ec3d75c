"""Families of encoders: `load`, and what is known of an encoder without loading it.

`identity` and `problems` run on the driver; they import torch only to resolve a name on the Hugging Face hub. An
identity names the weights by digest. Preprocessing that a library derives from the model's name or folder is named by
its source (for transformers, by the digest of its configuration files), because the figures follow from it.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from curate.core.errors import CurateError, InputError, RecipeError
from curate.core.plugins import load_class
from curate.encoders import hub
from curate.encoders.base import Encoder, no_texts, resolve_device
from curate.encoders.spec import WHEELS, Spec, parse_spec, reinstall
from curate.encoders.student.model_folder import FolderCheck, check_folder
from curate.encoders.weights import file_digest, folder_digests

PRECISIONS = ("float32", "bfloat16", "float16")
_MODULES = {
    "descriptor": "curate.encoders.descriptor",
    "timm": "curate.encoders.timm_models",
    "open_clip": "curate.encoders.open_clip_models",
    "hf": "curate.encoders.hf_models",
    "distill": "curate.encoders.student.encoder",
    "tiny": "curate.encoders.student.encoder",
    **dict.fromkeys(WHEELS, "curate.encoders.lite"),
}
_STUDENTS = ("distill", "tiny")
"""Kinds that are folders written by `distill export`."""
_CONFIGS = {"timm": "config.json", "open_clip": "open_clip_config.json", "hf": "config.json"}


def load(spec: str, *, device: str = "auto", precision: str = "auto") -> Encoder:
    """device: auto, cpu, cuda, cuda:1 …; precision: auto is bfloat16 (autocast) on a GPU and float32 elsewhere.

    Raises CurateError (one line) for an unknown model, missing weights or a checkpoint that does not fit.
    """
    parsed = parse_spec(spec)
    for problem in _problems(parsed):
        raise InputError(problem)
    device = place(parsed, device)
    known = _identity(parsed, _resolve_precision(parsed, precision, device))
    if parsed.is_class:
        return _class(parsed)(parsed, known, device if device == "cpu" else resolve_device(device))
    encoder: Encoder = importlib.import_module(_MODULES[parsed.kind]).load(parsed, known, device)
    return encoder


def identity(spec: str, *, precision: str = "float32") -> dict[str, Any]:
    """The result of `load(spec, precision=precision).identity()`, without loading a model.

    Raises InputError if a local checkpoint or folder is missing, or not of its kind. Weights that can be neither found
    in the cache nor looked up on the hub are named by model and revision only; `problems` reports them.
    """
    parsed = parse_spec(spec)
    return _identity(parsed, _resolve_precision(parsed, precision, place(parsed, "auto")))


def problems(spec: str) -> list[str]:
    """Reasons why `load` would fail, one line each: missing files, unreachable hub names, unknown models."""
    try:
        return _problems(parse_spec(spec))
    except CurateError as error:
        return [str(error)]


def text_problems(spec: str) -> list[str]:
    """Reasons why texts cannot be embedded, as far as they are known without loading a model.

    A folder of transformers names its text tower or vocabulary in its configuration; a name on the hub only after it
    was downloaded.
    """
    parsed = parse_spec(spec)
    reads_text = parsed.kind == "open_clip" or (parsed.is_class and _class(parsed).context > 0)
    if parsed.kind == "hf":
        name, revision = _CONFIGS["hf"], parsed.options.get("revision")
        path = Path(parsed.path, name) if parsed.path else hub.cached_file(parsed.name, name, revision)
        config = path.read_bytes() if path is not None and path.is_file() else None
        reads_text = config is None or any(
            word in config for word in (b'"text_config"', b'"vocab_size"', b"ForCausalLM")
        )
    if parsed.kind in _STUDENTS:
        reads_text = _checked(parsed).reads_text
    return [] if reads_text else [no_texts(parsed.public)]


def place(spec: Spec, device: str) -> str:
    """The device to use, without torch. `tiny` defaults to the CPU, where decoding takes as long as the model."""
    if spec.kind == "descriptor" or (spec.kind == "tiny" and device == "auto"):
        return "cpu"
    return device


def _resolve_precision(spec: Spec, precision: str, device: str) -> str:
    if precision not in (*PRECISIONS, "auto"):
        raise RecipeError(f"encoder: precision {precision!r} is not one of auto, {', '.join(PRECISIONS)}")
    if spec.kind == "descriptor":
        return "float32"
    if precision == "auto":
        return "bfloat16" if resolve_device(device).startswith("cuda") else "float32"
    return precision


def _identity(spec: Spec, precision: str) -> dict[str, Any]:
    if spec.path is not None:
        for problem in _problems(spec):
            raise InputError(problem)
    weights, preprocessing = _weights(spec)
    return {"encoder": spec.public, "weights": weights, "preprocessing": preprocessing, "precision": precision}


def _weights(spec: Spec) -> tuple[str, Any]:
    """(digest of the weights, source of the preprocessing)."""
    if spec.kind == "descriptor":
        from curate.encoders.descriptor import PREPROCESSING, WEIGHTS

        return WEIGHTS, dict(PREPROCESSING)
    if spec.is_class:
        version = {"version": _class(spec).version}
        if spec.path is None:
            return "none", version
        return folder_digests(spec.path)[0] if Path(spec.path).is_dir() else file_digest(spec.path), version
    random = None if spec.seed is None else f"random:{spec.seed}"
    if spec.path is not None and Path(spec.path).is_dir():
        weights, configuration = folder_digests(spec.path, weights=random is None)
        return random or weights, {"configuration": configuration}
    source = {spec.kind: spec.name or "squash"} if spec.kind in WHEELS else {spec.kind: spec.name}
    if random is not None:
        return random, source
    if spec.path is not None:
        return file_digest(spec.path), source
    repository = hub.repository_of(spec)
    if spec.kind == "hf":
        source = {"configuration": repository.digest_or_name(["preprocessor_config.json", "tokenizer.json"])}
    return repository.digest_or_name(), source


def _problems(spec: Spec) -> list[str]:
    if spec.kind == "descriptor":
        return []
    if spec.kind in _STUDENTS:
        return _checked(spec).problems
    if spec.kind in WHEELS:
        return _wheel_problems(spec)
    if spec.is_class:
        return _class_problems(spec)
    if spec.path is not None:
        return _path_problems(spec, Path(spec.path))
    if spec.seed is not None:
        return []
    return hub.repository_of(spec).problems(spec.public)


def _wheel_problems(spec: Spec) -> list[str]:
    """Whether the file that a locked package holds is there, and is the expected one."""
    path = Path(str(spec.path))
    if not path.is_file():
        return [f"encoder: the weights of {spec.kind!r} are missing from this installation; {reinstall(spec)}"]
    expected, found = WHEELS[spec.kind][2], file_digest(str(path))
    if found != expected:
        return [f"encoder: {path} has SHA-256 {found[:12]}…, not {expected[:12]}…; {reinstall(spec)}"]
    return []


def _class(spec: Spec) -> type[Encoder]:
    """Raises RecipeError if it cannot be imported or is not an Encoder."""
    return load_class(f"{spec.kind}:{spec.name}", Encoder, "encoder")  # type: ignore[type-abstract]


def _class_problems(spec: Spec) -> list[str]:
    try:
        _class(spec)
    except RecipeError as error:
        return [str(error)]
    if spec.path is not None and not Path(spec.path).exists():
        return [f"encoder: no weights at {spec.path!r}; give an existing file or folder"]
    return []


def _checked(spec: Spec) -> FolderCheck:
    """State of a student's folder."""
    assert spec.path is not None
    if spec.kind == "tiny" and not Path(spec.path).is_dir():
        missing = "encoder: the weights of 'tiny' are missing from this installation; reinstall the package"
        return FolderCheck([missing], reads_text=True)
    return check_folder(spec)


def _path_problems(spec: Spec, path: Path) -> list[str]:
    """A checkpoint file needs a model's name; a folder holds both model and weights."""
    where = str(path)
    if not path.exists():
        return [f"encoder: no weights at {where!r}; give an existing checkpoint, or a name on the hub without a path"]
    if path.is_dir() and spec.name:
        return [f"encoder: {where!r} is a folder; write '{spec.kind}:{where}', or give a checkpoint file after '@'"]
    if path.is_file() and not spec.name:
        return [f"encoder: {where!r} is a file; write '{spec.kind}:NAME@{where}' with the architecture's name"]
    if path.is_file() and spec.kind == "hf":
        return [f"encoder: {where!r} is a file; hf takes a folder written by save_pretrained: 'hf:FOLDER'"]
    if path.is_dir():
        if not (path / _CONFIGS[spec.kind]).is_file():
            return [f"encoder: no {_CONFIGS[spec.kind]} in {where!r}; give the folder of a {spec.kind} model"]
        folder_digests(where, weights=spec.seed is None)
    return []
