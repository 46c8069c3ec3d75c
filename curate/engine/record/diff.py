"""`curate diff RUN RUN`: which stages differ, in what parameters, and what that did to the counts and the selection."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow.compute as pc

from curate.core.contracts import Location
from curate.core.errors import CurateError
from curate.core.ledger import Entry
from curate.core.nouns.selections import Lines, read_selected, selection_places
from curate.core.recipe import registry
from curate.engine.record.runs import RunRecord


@dataclass
class StageDiff:
    """Difference at one stage. `same`: the outputs are identical; for facts and filters, values and counts are."""

    stage: str
    same: bool
    only_in: str = ""
    other_rows: bool = False
    """The fingerprints are equal but other rows reached the stage."""
    parameters: dict[str, tuple[Any, Any]] = field(default_factory=dict)
    before: Entry | None = None
    after: Entry | None = None
    keys: tuple[int, int, int] | None = None
    """For selections: keys selected only by the first run, by both, only by the second."""

    @property
    def state(self) -> str:
        """The difference as text."""
        if self.only_in:
            return f"only in {self.only_in}"
        return "same" if self.same else "other rows" if self.other_rows else "differs"


def diff(first: RunRecord, second: RunRecord) -> list[StageDiff]:
    ledgers = first.ledger(), second.ledger()
    names = list(dict.fromkeys([*first.record["stages"], *second.record["stages"]]))
    found = []
    for name in names:
        a, b = first.record["stages"].get(name), second.record["stages"].get(name)
        if a is None or b is None:
            found.append(StageDiff(name, False, first.run_id if b is None else second.run_id))
            continue
        one, two = first.outputs.get(name, {}), second.outputs.get(name, {})
        item = StageDiff(name, False, before=ledgers[0].get(name), after=ledgers[1].get(name))
        _compare(item, one, two)
        pa, pb = (_parameters(run, name) for run in (first, second))
        item.parameters = {k: (pa.get(k), pb.get(k)) for k in {*pa, *pb} if pa.get(k) != pb.get(k)}
        if not item.same and all(o.get("base", "").startswith("selections/") for o in (one, two)):
            item.keys = _keys(first, one["base"], two["base"])
        found.append(item)
    return found


def _parameters(run: RunRecord, name: str) -> dict[str, Any]:
    """Those that decide the result, and those that say where it reads from, which only the recipe has."""
    about = run.record["stages"][name]
    written = ((run.record.get("recipe") or {}).get("stages") or {}).get(name) or {}
    try:
        fields = registry.resolve(about["op"]).model_fields if written else {}
    except CurateError:  # its package is not installed
        fields = {}
    places = {key for key, info in fields.items() if any(isinstance(item, Location) for item in info.metadata)}
    return {"op": about["op"]} | {key: written[key] for key in places & written.keys()} | about["parameters"]


def _compare(item: StageDiff, one: Mapping[str, Any], two: Mapping[str, Any]) -> None:
    """Compare two outputs. The bases of facts and masks also depend on other rows stored there."""
    if not one or not two:
        return
    same = one["fingerprint"] == two["fingerprint"]
    if not all(output["base"].startswith(("facts/", "masks/")) for output in (one, two)):
        item.same = one["base"] == two["base"]
        return
    counts = [entry.to_json() | {"counters": {}} if entry else None for entry in (item.before, item.after)]
    item.same = same and counts[0] == counts[1]
    item.other_rows = same and not item.same


def _keys(run: RunRecord, one: str, two: str) -> tuple[int, int, int]:
    """Shards in both selections are compared one by one, so that memory is bounded by one shard and the rest."""
    left, right = (selection_places(run.storage.url, base) for base in (one, two))
    counts = [0, 0, 0]

    def compare(a: set[str], b: set[str]) -> None:
        for place, found in enumerate((a - b, a & b, b - a)):
            counts[place] += len(found)

    def kept(base: str, shards: Iterable[str]) -> set[str]:
        places = left if base == one else right
        return {key for shard in shards for key in _kept(run, base, places[shard])}

    for shard in left:
        if shard in right:
            compare(_kept(run, one, left[shard]), _kept(run, two, right[shard]))
    compare(kept(one, left.keys() - right.keys()), kept(two, right.keys() - left.keys()))
    return counts[0], counts[1], counts[2]


def _kept(run: RunRecord, base: str, place: Lines) -> set[str]:
    table = read_selected(run.storage, base, place, ["key", "copies"])
    return set(table.filter(pc.greater(table.column("copies"), 0)).column("key").to_pylist())
