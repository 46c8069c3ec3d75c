"""A run's recipe with a change: another value of a parameter, or a filter more."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import yaml

from curate.core.errors import InputError
from curate.engine.record.runs import RunRecord


def with_parameter(run: RunRecord, stage: str, name: str, value: Any) -> dict[str, Any]:
    """The run's recipe with another value of a stage's parameter. Raises InputError if the record has no recipe."""
    recipe, stages = _stages(run, [stage])
    return recipe | {"stages": stages | {stage: stages[stage] | {name: value}}}


def with_stage(
    run: RunRecord, name: str, stage: dict[str, Any], readers: Collection[str] | None = None
) -> dict[str, Any]:
    """The run's recipe with another stage, just before its first reader. `readers` (all by default) read it instead of
    the stages that it reads. Raises InputError if the record has no recipe."""
    inputs = _listed(stage["from"])
    recipe, stages = _stages(run, [*inputs, *(readers or ())])
    made = dict[str, Any]()
    for other, about in stages.items():
        read = _listed(about.get("from"))
        if (readers is None or other in readers) and set(read) & set(inputs):
            made.setdefault(name, stage)
            first = next(at for at, one in enumerate(read) if one in inputs)
            left = [one for one in read if one not in inputs]
            left.insert(sum(one not in inputs for one in read[:first]), name)
            about = about | {"from": left if len(left) > 1 else name}
        made[other] = about
    return recipe | {"stages": made | {name: stage}}


class _Dumper(yaml.SafeDumper):
    """Lists within lines."""


_Dumper.add_representer(list, lambda self, value: self.represent_sequence("tag:yaml.org,2002:seq", value, True))


def as_yaml(recipe: dict[str, Any], width: int = 120) -> str:
    return yaml.dump(recipe, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=width)


def free_name(run: RunRecord, name: str) -> str:
    """A name for another stage: this one, or with a number if the run has a stage of this name."""
    taken = run.record["stages"]
    return next(one for one in (name, *(f"{name}_{at}" for at in range(2, len(taken) + 3))) if one not in taken)


def _stages(run: RunRecord, named: Collection[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    recipe: dict[str, Any] = dict(run.record.get("recipe") or {})
    stages: dict[str, Any] = recipe.get("stages") or {}
    if missing := [name for name in named if name not in stages]:
        raise InputError(f"{missing[0]}: the record of run {run.run_id} has no recipe with this stage; change its file")
    return recipe, stages


def _listed(inputs: str | list[str] | None) -> list[str]:
    return [inputs] if isinstance(inputs, str) else list(inputs or ())
