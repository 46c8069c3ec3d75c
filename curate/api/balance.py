"""What the selections of a recipe would do to the balance of labels, before they run: `curate plan --labels`.

The clusters come from the last run that assigned them. A labelled row counts for its cluster's quota over its rows, so
that a few hundred labelled rows, drawn at random, are enough.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from curate.core.errors import CurateError, InputError
from curate.core.hashing import digest
from curate.core.nouns.artifacts import StoredArtifact
from curate.core.recipe.pipeline import Node, Pipeline
from curate.engine.record.live import LiveRows
from curate.engine.record.runs import RunRecord
from curate.kernels.interval import LEAST, Figure, expected_entropy
from curate.kernels.labels import read_labels
from curate.kernels.meta import META
from curate.report.survey.rows import label_column, label_values
from curate.report.verdict.compare import ENTROPY
from curate.report.verdict.words import said, show
from curate.select.clusters import SelectClusters

MOST_SHARDS = 256
"""Shards that are read, chosen by hash."""


@dataclass(frozen=True)
class ExpectedBalance:
    """Label entropy of a selection and of a random sample; without a `figure`, `why` says why it is not known."""

    stage: str
    run: str = ""
    labelled: int = 0
    figure: Figure | None = None
    why: str = ""

    def text(self) -> str:
        if self.figure is None:
            return f"{self.stage}: balance against random: unknown; {self.why}"
        seen = f"{self.labelled:,} labelled rows in the clusters of run {self.run}"
        interval = " to ".join(show(ENTROPY, value, "+") for value in (self.figure.low, self.figure.high))
        advice = "; take a random sample instead: select.uniform" if self.figure.verdict == "worse" else ""
        answer = said({ENTROPY: self.figure})
        return f"{self.stage}: {answer} (95 % interval of the difference {interval}; from {seen}){advice}"


def labels_of(text: str) -> dict[str, str] | None:
    """Labels of a file, None for a column. What exists, has a folder or ends as a file of labels does is one."""
    path = Path(text)
    if not text.startswith(META) and (path.suffix or path.exists() or path.name != text):
        return read_labels(path)
    return None


def expected_balance(pipeline: Pipeline, runs: list[RunRecord], labels: str) -> list[ExpectedBalance]:
    """For each selection over a tree, by the last of `runs` that assigned the clusters of this recipe.

    labels: a column, a field `meta.<name>`, or a .csv or .parquet file with the columns key and label. Raises
    InputError for labels that no row has, and CurateError if a selection cannot be made from these clusters.
    """
    known = labels_of(labels)
    found = []
    for node in pipeline.nodes.values():
        stage = node.stage
        if not isinstance(stage, SelectClusters) or stage.by is not None:
            continue
        run = next((run for run in reversed(runs) if _same_clusters(run, pipeline, node)), None)
        if stage.order_columns():
            why = "it looks at what images show, which a few labels cannot say; the report compares all rows"
            found.append(ExpectedBalance(node.name, why=why))
        elif run is None:
            why = f"no run of this recipe's settings has assigned its clusters; `curate run --to {node.inputs[0]}` does"
            found.append(ExpectedBalance(node.name, why=why))
        else:
            found.append(_expect(node, stage, run, labels, known))
    return found


def _same_clusters(run: RunRecord, pipeline: Pipeline, node: Node) -> bool:
    """Whether a run of the whole pool made the clusters by the same stages with the same parameters."""
    ends = (node.inputs[0], node.ports["tree"])
    options = run.record["options"]
    if not set(ends) <= run.outputs.keys() or options.get("sample", 1.0) < 1.0 or options.get("sample_rows"):
        return False
    stages = run.record["stages"]
    for name in {name for end in ends if end in pipeline.nodes for name in pipeline.upto(end).nodes}:
        then, now = stages.get(name), pipeline.nodes[name]
        if then is None or (then["op"], then["from"], then["ports"]) != (now.stage.op, [*now.inputs], dict(now.ports)):
            return False
        if then["parameters"] != json.loads(json.dumps(now.stage.parameters(), default=str)):
            return False
    return True


def _expect(
    node: Node, stage: SelectClusters, run: RunRecord, labels: str, known: dict[str, str] | None
) -> ExpectedBalance:
    rows, column = LiveRows(run, node.inputs[0]), f"cluster_{stage.units_level()}"
    shards = sorted(rows.shards, key=lambda shard: digest(shard.id))[:MOST_SHARDS]
    fields = list(dict.fromkeys(["key", column, *([] if known is not None else [label_column(labels)])]))
    types = [_field(rows, name, labels).type for name in fields]
    if pa.types.is_nested(types[-1]) or pa.types.is_binary(types[-1]) or pa.types.is_fixed_size_binary(types[-1]):
        raise InputError(f"--labels {labels}: the column holds {types[-1]}; give one of texts or numbers")
    counts, units, names = np.zeros(0, np.int64), list[Any](), list[Any]()
    for shard in shards:
        table = rows.table(shard, fields)
        unit = table.column(column).fill_null(-1).to_numpy()
        value = label_values(table, labels) if known is None else pa.array(map(known.get, table["key"].to_pylist()))
        inside = unit >= 0
        more = np.bincount(unit[inside], minlength=len(counts))
        counts = more + np.pad(counts, (0, len(more) - len(counts)))
        labelled = inside & pc.is_valid(value).to_numpy(zero_copy_only=False)
        units.append(unit[labelled])
        names += value.filter(pa.array(labelled)).to_pylist()
    if not names:
        text = f"--labels {labels}: none of the {counts.sum():,} rows of run {run.run_id} has a label in it"
        if known is not None and shards:
            keys = [next(iter(known), "none"), rows.table(shards[0], ["key"])["key"][0].as_py()]
            text += "; its first key is {!r}, a key of the run {!r}".format(*keys)
        raise InputError(text)
    part = sum(shard.rows for shard in shards) / max(1, sum(shard.rows for shard in rows.shards))
    stage = stage.scaled(part)
    stage.setup({"tree": StoredArtifact(run.storage, str(run.outputs[node.ports["tree"]]["base"]))})
    try:
        quotas = stage.plan(counts)
    except CurateError as error:
        raise node.located(error) from None
    label, unit = np.unique(names, return_inverse=True)[1], np.concatenate(units)
    figure = expected_entropy(label, quotas[unit] / counts[unit])
    few = f"{len(label):,} labelled rows are too few, label at least {LEAST}" if len(label) < LEAST else ""
    why = few or f"all {len(label):,} labelled rows have one label"
    return ExpectedBalance(node.name, run.run_id, len(label), figure, why)


def _field(rows: LiveRows, name: str, labels: str) -> pa.Field:
    try:
        return rows.field(name)
    except InputError as error:
        raise InputError(f"--labels {labels}: {error}") from None
