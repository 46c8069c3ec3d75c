"""`curate://SERVER/NAME@TAG`: a dataset by a tag of the curation service, which people move to newer datasets.

SERVER is HOST[:PORT], or a name given to `curate login`; `?workspace=NAME` chooses one if several have the tag. It is
https, except on this machine or as `curate+http://`. The token is CURATE_TOKEN or the one that `curate login` stored.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from curate.core.errors import CurateError, InputError
from distill.recipe import Recipe, parse_recipe
from distill.recipe.data import TagRecipe

SCHEMES = {"curate": "", "curate+http": "http://"}
_FORM = "expected curate://SERVER/NAME@TAG, such as curate://curate.example/openclipart@good"


def is_tagged(place: str) -> bool:
    return place.partition("://")[0] in SCHEMES and "://" in place


def tags_of(recipe: Recipe) -> list[str]:
    """URLs of the tags that a recipe names, each once."""
    values = recipe.model_dump(mode="json")
    found = [source["dataset"] for source in _sources(values)]
    found += [holder[name] for holder, name in _evaluated(values)]
    return list(dict.fromkeys(filter(is_tagged, found)))


def resolve(url: str) -> TagRecipe:
    """Ask the service what the tag is now. Raises InputError."""
    from curate.client import Client

    try:
        server, name, workspace = _parsed(url)
        with Client.of(server) as client:
            found = client.resolve(name, workspace)
    except CurateError as error:
        raise InputError(f"data.sources: {url}: {error}") from None
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    return TagRecipe(url=url, dataset=found["url"], fingerprint=found["fingerprint"], resolved=now)


def _parsed(url: str) -> tuple[str, str, str | None]:
    """(server, NAME@TAG, workspace)."""
    parts = urlsplit(url)
    query = dict(parse_qsl(parts.query, keep_blank_values=True))
    name, workspace = unquote(parts.path.strip("/")), query.pop("workspace", None)
    if not parts.netloc or not re.fullmatch(r"[^/@]+@[^/@]+", name) or query or parts.fragment:
        raise InputError(_FORM)
    return SCHEMES[parts.scheme] + parts.netloc, name, workspace


def with_tags(recipe: Recipe, tags: Mapping[str, TagRecipe]) -> Recipe:
    """The recipe with the datasets of its tags."""
    values = recipe.model_dump(mode="json")
    for source in _sources(values):
        tag = tags.get(source["dataset"])
        if tag is not None:
            source |= {"dataset": tag.dataset, "tag": tag.model_dump(mode="json")}
    for holder, name in _evaluated(values):
        if holder[name] in tags:
            holder[name] = tags[holder[name]].dataset
    return parse_recipe(values, recipe.name)


def recorded_tags(recipe: Recipe) -> dict[str, TagRecipe]:
    """The tags of a run, from the recipe in its folder."""
    held = (source.get("tag") for source in _sources(recipe.model_dump(mode="json")))
    return {tag["url"]: TagRecipe.model_validate(tag) for tag in held if tag is not None}


def _sources(values: dict[str, Any]) -> list[dict[str, Any]]:
    """The sources of the recipe and of its stages."""
    own = [stage["data"]["sources"] for stage in values["stages"] if "sources" in stage["data"]]
    return [source for sources in (values["data"]["sources"], *own) for source in sources]


def _evaluated(values: dict[str, Any]) -> Iterator[tuple[dict[str, Any], str]]:
    """(mapping, key) of every dataset to evaluate on."""
    for item in values["evaluate"]["datasets"]:
        yield item, "dataset"
        if item["train"] is not None:
            yield item, "train"
