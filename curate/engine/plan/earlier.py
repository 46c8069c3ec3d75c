"""What the earlier runs of a workspace tell a plan: rates of ops, and the stages of the last run of its recipe."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from curate.core.ledger import Entry
from curate.core.nouns.manifest import Manifest
from curate.core.recipe.pipeline import Node
from curate.core.spend import COUNTS, RunSpend, Spend, total
from curate.engine.context import Context
from curate.engine.record.runs import RunRecord, list_runs

RUNS = 20
"""Latest runs whose rates are used."""


@dataclass
class Earlier:
    """What earlier runs tell a plan."""

    seconds: dict[str, float] = field(default_factory=dict)
    bytes: dict[str, float] = field(default_factory=dict)
    """Per computed row of each op, from the run that computed most: of few rows, the start takes most of the time."""
    spend: dict[str, tuple[int, Spend]] = field(default_factory=dict)
    """Stage -> (rows handed to it, what they would cost now) in the latest run that completed it and asked."""
    stages: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Each stage in the latest run that had it after the same stages, over the same pool."""
    entries: dict[str, Entry] = field(default_factory=dict)
    """Its rows in the latest of these runs that completed it."""


def earlier_runs(ctx: Context) -> Earlier:
    rates, most = Earlier(), Counter[str]()
    for run_id in reversed(list_runs(ctx.storage)[-RUNS:]):
        run = RunRecord.load(ctx.storage, run_id)
        stages, ledger, result = run.record["stages"], run.ledger(), run.result or {}
        spent, counts = RunSpend.from_json(result.get("spend", {})).stages, result.get("counts", {})
        for name, node in ctx.pipeline.nodes.items():
            if all(_same(up, stages) for up in [*ctx.pipeline.along(name), node]):
                rates.stages.setdefault(name, stages[name])
                if name in ledger and ledger[name].before:
                    rates.entries.setdefault(name, ledger[name])
            asked = counts.get(name, {}).get("requests", 0)
            if asked and name in spent and name in stages and stages[name]["op"] == node.stage.op:
                rates.spend.setdefault(name, (asked, _priced_now(node, spent[name])))
        for event in run.events:
            if event["event"] != "stage" or event["reused"]:
                continue
            before = Entry.from_json(event["ledger"]).before
            if (event["counts"]["computed"] or before) <= most[event["op"]]:
                continue
            manifest = Manifest.load(ctx.storage, event["base"])
            if manifest is None:
                continue
            whole = before if event["counts"]["rebuilt"] else manifest.built_rows
            if (rows := event["counts"]["computed"] or whole) > most[event["op"]]:
                most[event["op"]] = rows
                rates.seconds[event["op"]] = event["seconds"] / rows
                rates.bytes[event["op"]] = manifest.bytes / max(1, manifest.rows)
    return rates


def _priced_now(node: Node, spent: Mapping[str, Spend]) -> Spend:
    """What the same tokens cost at the prices of today; without a price for an endpoint that has none now."""
    endpoints = node.stage.asks()
    found = []
    for name, spend in spent.items():
        price = endpoints[name].price if name in endpoints else None
        found.append(Spend.priced(price, **{count: getattr(spend, count) for count in COUNTS}))
    return total(found)


def _same(node: Node, stages: Mapping[str, Any]) -> bool:
    """Whether a run had this stage, with whatever parameters; a pool's namespace must be the same."""
    then = stages.get(node.name)
    if then is None or then["op"] != node.stage.op:
        return False
    same: bool = then["parameters"].get("namespace") == node.stage.parameters().get("namespace")
    return same
