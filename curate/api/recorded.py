"""A run's recipe and options, from its record: to run it again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import yaml

from curate.core.errors import InputError
from curate.core.recipe import load
from curate.core.recipe.pipeline import Pipeline
from curate.engine.record.runs import RunRecord
from curate.engine.state import Options


def recorded(record: RunRecord) -> tuple[Pipeline, Options]:
    """Raises InputError for a run whose stages were made by a program, and RecipeError if an op has changed since."""
    source, stages = record.record.get("recipe") or {}, record.record["stages"]
    options = _options(record.record.get("options") or {})
    if not set(stages) <= set(source.get("stages") or ()):
        raise InputError(f"run {record.run_id}: made by a program without a recipe; run that program again to resume")
    text = yaml.safe_dump({"stages": source["stages"]}, sort_keys=False, allow_unicode=True)
    pipeline = load.parse(text, file=f"runs/{record.run_id}/run")
    if options.to is None and set(pipeline.nodes) != set(stages):
        raise InputError(f"run {record.run_id}: made by a program without a recipe; run that program again to resume")
    return pipeline, options


def _options(found: Mapping[str, Any]) -> Options:
    """Those that this version knows."""
    known = {field.name: found[field.name] for field in fields(Options) if field.name in found}
    known["retry"] = {stage: tuple(reasons) for stage, reasons in (known.get("retry") or {}).items()}
    return Options(**known)
