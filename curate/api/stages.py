"""Single stages: made by op, tried on one row, and the hashtag map that a stage built."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from pydantic import ValidationError

from curate.core.contracts import Batch, Map
from curate.core.errors import InputError, RecipeError
from curate.core.nouns.artifacts import StoredArtifact
from curate.core.recipe.registry import resolve
from curate.engine.backends import local
from curate.engine.record.runs import RunRecord

HASHTAG_MAP = "hashtag_map"


def abandoned() -> int:
    """Number of abandoned tasks whose threads still hang in this process; only ending the process ends them."""
    return local.abandoned()


def make_stage(op: str, **parameters: Any) -> Any:
    """A stage by its op. Raises RecipeError for an invalid parameter."""
    try:
        return resolve(op)(**parameters)
    except ValidationError as error:
        first = error.errors()[0]
        name = f"{first['loc'][0]}: " if first["loc"] else ""  # a rule about several begins with the one at fault
        raise RecipeError(f"--{name}{first['msg'].removeprefix('Value error, ')}") from None


def try_row(stage: Map, column: str, value: str, output: str) -> tuple[Any, Batch]:
    """(value that a Map writes into `output` for a row with one text column, batch with reasons and counters)."""
    batch = Batch(pa.table({"key": ["0" * 32], column: pa.array([value], pa.string())}))
    return stage.process(batch)[output][0].as_py(), batch


def hashtag_map(record: RunRecord, stage: str | None = None) -> list[str]:
    """The hashtag map built by a stage of a run, as tab-separated lines. Raises InputError if it built none."""
    made = [name for name, kind in record.kinds().items() if kind == HASHTAG_MAP and name in record.outputs]
    if stage is not None and stage not in made:
        known = ", ".join(made) or "none"
        raise InputError(f"--stage {stage}: built no hashtag map in run {record.run_id}; stages that did: {known}")
    if not made:
        raise InputError(f"run {record.run_id}: no hashtag map; name a run whose recipe has `text.hashtag_map`")
    if stage is None and len(made) > 1:
        raise InputError(f"run {record.run_id}: several hashtag maps ({', '.join(made)}); choose one with --stage")
    artifact = StoredArtifact(record.storage, str(record.outputs[stage or made[0]]["base"]))
    return list(resolve("text.hashtag_map").lines(artifact))  # type: ignore[attr-defined]
