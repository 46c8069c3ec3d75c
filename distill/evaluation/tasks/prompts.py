"""Prompts and class names of zero-shot classification, from text files."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path

from curate.core.errors import InputError
from distill.recipe.paths import OPEN_CLIP

TEMPLATES = Path(__file__).with_name("prompts.txt")


def read_templates(path: Path | str = TEMPLATES) -> list[str]:
    """One template per line, with one `{}`; blank lines and lines that begin with # are ignored. `open_clip:NAME` is a
    list of open_clip."""
    if str(path).startswith(OPEN_CLIP):
        return _of_open_clip(str(path).removeprefix(OPEN_CLIP))
    lines = _lines(path, "evaluate.prompts")
    bad = next((line for line in lines if line.count("{}") != 1), None)
    if bad is not None or not lines:
        what = f"{bad!r} does not have exactly one {{}}" if bad else "no templates"
        raise InputError(f"evaluate.prompts: {path}: {what}; write one sentence per line, such as: a photo of a {{}}.")
    return lines


def _of_open_clip(name: str) -> list[str]:
    """A list of open_clip, read from its file of lists, because the package itself imports torch."""
    found = find_spec("open_clip")
    assert found is not None and found.origin is not None
    spec = spec_from_file_location(
        "open_clip_zero_shot_metadata", Path(found.origin).with_name("zero_shot_metadata.py")
    )
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    lists = {key: value for key, value in vars(module).items() if key.endswith("_TEMPLATES")}
    if name not in lists:
        raise InputError(f"evaluate.prompts: open_clip has no templates {name!r}; choose from {', '.join(lists)}")
    return [template("{}") for template in lists[name]]


def read_names(path: Path | str) -> dict[str, list[str]]:
    """Names by label, from lines `label<TAB>name, another name`. Raises InputError for any other line."""
    names: dict[str, list[str]] = {}
    for line in _lines(path, "evaluate.class_names"):
        label, tab, rest = line.partition("\t")
        if not tab or not rest.strip():
            raise InputError(
                f"evaluate.class_names: {path}: {line!r} is not 'label<TAB>name, another name'; put a tab between them"
            )
        names[label.strip()] = [name.strip() for name in rest.split(",") if name.strip()]
    return names


def names_of(labels: Sequence[str], given: Mapping[str, Sequence[str]] | None = None) -> list[list[str]]:
    """Names of each label: those given, or else its words (`bell_pepper` -> bell pepper, `animals/birds` -> animals
    birds, `tench, Tinca tinca` -> two names)."""
    given = given or {}
    return [list(given.get(label) or _words(label)) for label in labels]


def _words(label: str) -> list[str]:
    names = [" ".join(re.sub(r"[_/\\-]+", " ", part).split()) for part in label.split(",")]
    return [name for name in names if name] or [label]


def _lines(path: Path | str, what: str) -> list[str]:
    try:
        text = Path(path).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{what}: cannot read {path} ({type(error).__name__}); give a text file in UTF-8") from error
    return [line.rstrip() for line in text.splitlines() if line.strip() and not line.startswith("#")]
