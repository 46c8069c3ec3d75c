"""Absolute paths of the files and folders in a recipe, so that workers and later commands can read it anywhere."""

from __future__ import annotations

from pathlib import Path

from curate.core.errors import RecipeError
from curate.encoders.spec import KINDS, WORDS
from distill.recipe.load import parse_recipe
from distill.recipe.recipe import Recipe


def with_absolute_paths(recipe: Recipe) -> Recipe:
    """The recipe with paths relative to the working folder made absolute; teachers keep their labels. Paths of
    `data.sources` stay: a run records where it found its data (`distill.training.run_folder.placed`)."""
    values = recipe.model_dump(mode="json")
    for part, name in ((values["run"], "folder"), (values["run"], "teacher_cache")):
        part[name] = absolute(part[name])
    evaluate = values["evaluate"]
    for part in (evaluate, *evaluate["datasets"]):
        for name in ("dataset", "train", "class_names", "prompts"):
            if name in part and not (part[name] or "").startswith(OPEN_CLIP):
                part[name] = absolute(part[name])
    evaluate["text_encoders"] = {name: absolute_encoder(spec) for name, spec in evaluate["text_encoders"].items()}
    if values["init_from"] is not None:
        values["init_from"]["weights"] = absolute_weights(values["init_from"]["weights"])
    for teacher, given in zip(values["teachers"], recipe.teachers, strict=True):
        spec = absolute_encoder(given.encoder)
        if spec != given.encoder:
            teacher |= {"encoder": spec, "called": given.label}
    return parse_recipe(values, recipe.name)


OPEN_CLIP = "open_clip:"
"""Prefix of prompts that open_clip has by name, instead of a path."""


def absolute(place: str | None) -> str | None:
    """A path made absolute; URLs (`s3://…`) and None unchanged."""
    return place if place is None or "://" in place else str(Path(place).expanduser().absolute())


def local_folder(place: str, name: str, hint: str = "") -> Path:
    """The path as an absolute one. RecipeError for a URL. name: the setting; hint: what the disk has to be."""
    if "://" in place:
        raise RecipeError(f"{name}: {place!r} is not a local folder; give one on a disk{hint and f' {hint}'}")
    return Path(place).expanduser().absolute()


def absolute_weights(weights: str) -> str:
    """The value of `init_from.weights` with an absolute path, if it has one."""
    model = weights in WORDS or weights.partition(":")[0] in KINDS
    return absolute_encoder(weights) if model else str(absolute(weights))


def absolute_encoder(spec: str) -> str:
    """The encoder with an absolute path, if its name contains one (see curate.encoders)."""
    kind, colon, rest = spec.partition(":")
    if kind == "distill" and rest:
        path, mark, query = rest.partition("?")
        return f"distill:{absolute(path)}{mark}{query}" if path else spec
    head, at, path = rest.partition("@")
    if head.startswith(("./", "../", "~")):
        folder, mark, query = head.partition("?")
        return f"{kind}:{absolute(folder + at + path)}{mark}{query}"
    return f"{kind}{colon}{head}@{absolute(path)}" if path else spec
