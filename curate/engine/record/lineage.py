"""The neighbourhood of an output: its inputs, and the outputs that were computed from it, by the record of one run that
has it. Also the committed artifacts of a workspace."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from curate.core.errors import CurateError, InputError
from curate.core.nouns.manifest import Manifest
from curate.core.nouns.takedowns import origins
from curate.core.recipe import registry
from curate.core.store.storage import Storage
from curate.engine.record.runs import RunRecord
from curate.engine.record.summary import run_names

MOST_RUNS = 1000
"""Records that are searched for one that has an output."""
READERS = 16
NOUNS = {
    "pools": "pool", "facts": "facts", "masks": "mask", "artifacts": "artifact", "selections": "selection",
    "datasets": "dataset",
}  # fmt: skip
REPORT, TAKEDOWN = "report", "takedown"


@dataclass(frozen=True)
class LineageNode:
    """The output of a stage, from the record of one run."""

    id: str
    """Its folder; `FOLDER#STAGE` if several stages share it, as the filters of a pass share a mask."""
    stage: str
    """Or pin:NAME, for an artifact that another run built; or takedown."""
    op: str
    noun: str
    """pool, facts, mask, artifact, selection, dataset or report."""
    rows: int | None
    """Alive after the stage; in a dataset, with repeats."""
    up: tuple[str, ...]
    """Ids of its inputs that are in the neighbourhood."""


@dataclass(frozen=True)
class Lineage:
    run: str
    nodes: tuple[LineageNode, ...]
    """In the order of the recipe."""
    more: bool
    """Whether there is more beyond the neighbourhood."""


@dataclass(frozen=True)
class ArtifactInfo:
    base: str
    stage: str
    op: str
    kind: str
    run: str
    """A run that has it; "" if the records of all such runs are gone."""


def lineage(storage: Storage, output: str, hops: int = 2, runs: Iterable[str] = ()) -> Lineage:
    """The neighbourhood of an output (a folder, or the id of a node), `hops` stages up and down. `runs`: those that
    probably have it; otherwise the newest runs are searched. A version that a takedown made is below the dataset that
    it was made of. Raises InputError if no run has it."""
    base = output.partition("#")[0].rstrip("/")
    made = [base, *origins(storage).get(base, ())]
    run = _run_with(storage, set(made), runs)
    if run is None:
        raise InputError(f"{base}: not the output of a run of {storage.url}; check the folder")
    ids, above = _graph(run)
    if base not in _bases(run):
        ids[TAKEDOWN], above[TAKEDOWN] = base, [name for old in made for name, id_ in ids.items() if id_ == old][:1]
    chosen = {name for name, id_ in ids.items() if output in (id_, id_.partition("#")[0])}
    chosen |= set() if chosen else {name for name, id_ in ids.items() if id_.partition("#")[0] == base}
    near = _walk(chosen, above, hops) | _walk(chosen, _turned(above), hops)
    more = any((up in near) != (name in near) for name, ups in above.items() for up in ups)
    return Lineage(run.run_id, tuple(_nodes(run, ids, above, near)), more)


def _run_with(storage: Storage, bases: set[str], runs: Iterable[str]) -> RunRecord | None:
    hints = list(dict.fromkeys(runs))
    for record in _ended(storage, hints, also_open=True):
        if bases & _bases(record):
            return record
    newest = [name for name in reversed(run_names(storage)) if name not in hints][:MOST_RUNS]
    return next((record for record in _ended(storage, newest) if bases & _bases(record)), None)


def _bases(run: RunRecord) -> set[str]:
    pinned = (run.result or {}).get("pins") or {}
    return {str(output["base"]) for output in (*run.outputs.values(), *pinned.values())}


def _ended(storage: Storage, names: Iterable[str], also_open: bool = False) -> Iterator[RunRecord]:
    """Records in order, read some at a time. Without `also_open` only those with a result, which need no events."""

    def load(name: str) -> RunRecord | None:
        try:
            result = storage.read_json(f"runs/{name}/result.json")
        except FileNotFoundError:
            if not also_open:
                return None
            result = None
        try:
            return RunRecord(storage, storage.read_json(f"runs/{name}/run.json"), result)
        except FileNotFoundError:  # gc has removed it meanwhile, or it has not started
            return None

    names = list(names)
    with ThreadPoolExecutor(READERS) as pool:
        for first in range(0, len(names), READERS):
            found = pool.map(load, names[first : first + READERS])
            yield from (record for record in found if record is not None)


# --- the graph of a run -----------------------------------------------------------------------------------------------


def _graph(run: RunRecord) -> tuple[dict[str, str], dict[str, list[str]]]:
    """(stage or pin -> id of its output, stage -> stages and pins above it), of what has an output."""
    pinned = (run.result or {}).get("pins") or {}
    bases = {name: str(found["base"]) for name, found in (*pinned.items(), *run.outputs.items())}
    several = [base for base in set(bases.values()) if list(bases.values()).count(base) > 1]
    ids = {name: f"{base}#{name}" if base in several else base for name, base in bases.items()}
    above = {
        name: [up for up in dict.fromkeys((*stage["from"], *stage["ports"].values())) if up in ids]
        for name, stage in run.record["stages"].items()
        if name in ids
    }
    return ids, above


def _turned(above: dict[str, list[str]]) -> dict[str, list[str]]:
    below: dict[str, list[str]] = {}
    for name, ups in above.items():
        for up in ups:
            below.setdefault(up, []).append(name)
    return below


def _walk(start: set[str], edges: dict[str, list[str]], hops: int) -> set[str]:
    seen, border = set(start), set(start)
    for _ in range(hops):
        border = {to for name in border for to in edges.get(name, ())} - seen
        seen |= border
    return seen


def _nodes(run: RunRecord, ids: dict[str, str], above: dict[str, list[str]], near: set[str]) -> Iterator[LineageNode]:
    stages, ledger, reports = run.record["stages"], run.ledger(), run.reports()
    order = sorted(ids, key=lambda name: (name == TAKEDOWN, name in stages))  # after pins, as in the recipe
    for name in (name for name in order if name in near):
        noun = REPORT if name in reports else NOUNS.get(ids[name].partition("/")[0], "artifact")
        op = stages[name]["op"] if name in stages else name if name == TAKEDOWN else ids[name].split("/")[1]
        rows: Any = None
        if name in ledger:
            entry = ledger[name]
            rows = entry.copies if noun == "dataset" and entry.copies is not None else entry.after
        elif name == TAKEDOWN:
            rows = made.rows if (made := Manifest.load(run.storage, ids[name])) else None
        yield LineageNode(ids[name], name, op, noun, rows, tuple(ids[up] for up in above.get(name, ()) if up in near))


# --- artifacts --------------------------------------------------------------------------------------------------------


def artifacts(storage: Storage) -> list[ArtifactInfo]:
    """Committed artifacts without pages, by folder. Reads the records of runs from the newest on, until each artifact
    has one."""
    files = storage.list("artifacts")
    missing = {f"artifacts/{file.removesuffix('/manifest.json')}" for file in files if file.endswith("/manifest.json")}
    found = []
    for run in _ended(storage, reversed(run_names(storage))):
        if not missing:
            break
        kinds, reports, ops = run.kinds(), run.reports(), run.ops()
        for stage, output in run.outputs.items():
            base = str(output["base"])
            if base in missing:
                missing.discard(base)
                if stage not in reports:
                    found.append(ArtifactInfo(base, stage, ops[stage], kinds.get(stage, ""), run.run_id))
    for base in missing:
        manifest = Manifest.load(storage, base)
        if manifest is not None and (kind := _kind(manifest.op)):
            found.append(ArtifactInfo(base, "", manifest.op, kind, ""))
    return sorted(found, key=lambda one: one.base)


def _kind(op: str) -> str:
    """Kind of artifact that an op builds; "" for a page, or if its package is not installed."""
    try:
        return str(getattr(registry.resolve(op), "kind", "") or "")
    except CurateError:
        return ""
