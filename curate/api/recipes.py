"""A run's recipe with a change, as values of `--set`: another value of a parameter, or a filter more."""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any

import yaml

from curate.core.errors import InputError
from curate.engine.record.runs import RunRecord


def set_parameter(stage: str, name: str, value: Any) -> list[str]:
    return [_set(f"{stage}.{name}", value)]


def set_stage(run: RunRecord, name: str, stage: dict[str, Any], readers: Collection[str] | None = None) -> list[str]:
    """Add a stage to a run's recipe. `readers` (all by default) read it instead of the stages that it reads."""
    inputs = [stage["from"]] if isinstance(stage["from"], str) else stage["from"]
    found = [_set(name, stage)]
    for other, about in run.record["stages"].items():
        read = about["from"]
        places = [at for at, one in enumerate(read) if one in inputs]
        if places and (readers is None or other in readers):
            left = [name if at == places[0] else one for at, one in enumerate(read) if at not in places[1:]]
            found.append(_set(f"{other}.from", left if len(left) > 1 else name))
    return found


def free_name(run: RunRecord, name: str) -> str:
    """A name for another stage: this one, or with a number if the run has a stage of this name."""
    taken = run.record["stages"]
    return next(one for one in (name, *(f"{name}_{at}" for at in range(2, len(taken) + 3))) if one not in taken)


def recipe_of(run: RunRecord) -> str:
    """YAML of the recipe that the run's record has, with all values filled in. Raises InputError if it has none."""
    if not (run.record.get("recipe") or {}).get("stages"):
        raise InputError(f"run {run.run_id}: its record has no recipe; change its file")
    return as_yaml(run.record["recipe"])


class _Dumper(yaml.SafeDumper):
    """Lists within lines."""


_Dumper.add_representer(list, lambda self, value: self.represent_sequence("tag:yaml.org,2002:seq", value, True))


def as_yaml(recipe: dict[str, Any], width: int = 120) -> str:
    return yaml.dump(recipe, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=width)


def _set(name: str, value: Any) -> str:
    return f"{name}={json.dumps(value, ensure_ascii=False)}"
