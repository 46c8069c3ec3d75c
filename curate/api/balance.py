"""What the selections of a recipe would do to the balance of labels, before they run: `curate plan --labels`.

The clusters come from the last run that assigned them. A labelled row counts for its cluster's quota over its rows, so
that a few hundred labelled rows, drawn at random, are enough.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from curate.core.errors import InputError
from curate.core.hashing import digest
from curate.core.nouns.artifacts import StoredArtifact
from curate.core.recipe.pipeline import Node, Pipeline
from curate.engine.record.live import LiveRows
from curate.engine.record.runs import RunRecord
from curate.kernels.interval import Figure, expected_entropy
from curate.kernels.labels import read_labels
from curate.kernels.meta import META
from curate.report.survey.rows import label_column, label_values
from curate.report.verdict.compare import ENTROPY
from curate.report.verdict.words import show
from curate.select.clusters import SelectClusters

MOST_SHARDS = 256
"""Shards that are read, chosen by hash."""


@dataclass(frozen=True)
class ExpectedBalance:
    """A selection's label entropy and that of a random sample; too few labelled rows give no `figure`."""

    stage: str
    run: str
    labelled: int
    figure: Figure | None

    def text(self) -> str:
        seen = f"{self.labelled:,} labelled rows in the clusters of run {self.run}"
        if self.figure is None:
            return f"{self.stage}: balance against random: unknown from {seen}"
        sides = [show(ENTROPY, value) for value in (self.figure.selection, self.figure.random)]
        interval = " to ".join(show(ENTROPY, value, "+") for value in (self.figure.low, self.figure.high))
        advice = "; take a random sample instead: select.uniform" if self.figure.verdict == "worse" else ""
        answer = {"better": "better balanced", "worse": "worse balanced"}.get(self.figure.verdict, "undecided")
        return (
            f"{self.stage}: against a random sample: {answer} (label entropy {sides[0]}, random {sides[1]}; "
            f"95 % interval of the difference {interval}; from {seen}){advice}"
        )


def expected_balance(pipeline: Pipeline, runs: list[RunRecord], labels: str) -> list[ExpectedBalance]:
    """For each selection over a tree whose clusters a run has assigned; the last of `runs` that has is taken.

    labels: a column, a field `meta.<name>`, or a .csv or .parquet file with the columns key and label. Raises
    InputError for labels that no row has, and CurateError if a selection cannot be made from these clusters.
    """
    known = None if labels.startswith(META) or "." not in labels else read_labels(Path(labels))
    found = []
    for node in pipeline.nodes.values():
        if isinstance(node.stage, SelectClusters):
            run = next((run for run in reversed(runs) if _has_clusters(run, node)), None)
            if run is not None:
                found.append(_expect(node, node.stage, run, labels, known))
    return found


def _has_clusters(run: RunRecord, node: Node) -> bool:
    return {node.inputs[0], node.ports["tree"]} <= run.outputs.keys()


def _expect(
    node: Node, stage: SelectClusters, run: RunRecord, labels: str, known: dict[str, str] | None
) -> ExpectedBalance:
    rows, column = LiveRows(run, node.inputs[0]), f"cluster_{stage.units_level()}"
    shards = sorted(rows.shards, key=lambda shard: digest(shard.id))[:MOST_SHARDS]
    fields = ["key", column] if known is not None else ["key", column, label_column(labels)]
    for name in fields:
        rows.field(name)
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
        raise InputError(f"--labels {labels}: none of the {counts.sum():,} rows of run {run.run_id} has a label in it")
    part = sum(shard.rows for shard in shards) / max(1, sum(shard.rows for shard in rows.shards))
    stage = stage.scaled(part)
    stage.setup({"tree": StoredArtifact(run.storage, str(run.outputs[node.ports["tree"]]["base"]))})
    quotas, label, unit = stage.plan(counts), np.unique(names, return_inverse=True)[1], np.concatenate(units)
    figure = expected_entropy(label, quotas[unit] / counts[unit])
    return ExpectedBalance(node.name, run.run_id, len(label), figure)
