"""Files and folders that a recipe names, as absolute paths: it is read again by workers and from other folders."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from curate.core.errors import RecipeError
from distill.recipe.load import parse_recipe
from distill.recipe.whole import Recipe


def anchored(recipe: Recipe) -> Recipe:
    """With relative places from the working folder on; a teacher keeps its label. Places of `data.sources` stay: a run
    writes down where its data were found (`distill.training.run_folder.placed`)."""
    values = recipe.model_dump(mode="json")
    for part, name in ((values["run"], "folder"), (values["run"], "teacher_cache")):
        part[name] = absolute(part[name])
    judged = values["evaluate"]
    for part in (judged, *judged["datasets"]):
        for name in ("dataset", "train", "class_names", "prompts"):
            if name in part:
                part[name] = absolute(part[name])
    judged["text_encoders"] = {name: encoder(spec) for name, spec in judged["text_encoders"].items()}
    for teacher, own in zip(values["teachers"], recipe.teachers, strict=True):
        _anchor(teacher, own.label)
    return parse_recipe(values, recipe.name)


def _anchor(teacher: dict[str, Any], label: str) -> None:
    found = encoder(teacher["encoder"])
    if found != teacher["encoder"]:
        teacher |= {"encoder": found, "called": label}


def absolute(place: str | None) -> str | None:
    """A path; other places (`s3://…`) and None as they are."""
    return place if place is None or "://" in place else str(Path(place).expanduser().absolute())


def local_folder(place: str, name: str, hint: str = "") -> Path:
    """RecipeError for one that is none. name: of the setting; hint: what more to say of the disk."""
    if "://" in place:
        raise RecipeError(f"{name}: {place!r} is no local folder; name one on a disk{hint and f' {hint}'}")
    return Path(place).expanduser().absolute()


def encoder(spec: str) -> str:
    """The same encoder by an absolute path, where it has one (see curate.encoders.spec)."""
    kind, colon, rest = spec.partition(":")
    if kind == "distill" and rest:
        path, mark, query = rest.partition("?")
        return f"distill:{absolute(path)}{mark}{query}" if path else spec
    head, at, path = rest.partition("@")
    if head.startswith(("./", "../", "~")):
        folder, mark, query = head.partition("?")
        return f"{kind}:{absolute(folder + at + path)}{mark}{query}"
    return f"{kind}{colon}{head}@{absolute(path)}" if path else spec
