"""`curate du` and `curate datasets`: contents of a workspace, from listings and records; no data is read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from curate.core.nouns.manifest import Manifest
from curate.core.nouns.takedowns import origins
from curate.core.store.storage import TEMPORARY, UPLOAD, Storage
from curate.engine.record.gc import TOPS, highest, unreachable
from curate.engine.record.pins import pins
from curate.engine.record.runs import RunRecord, list_runs

OTHERS, UNFINISHED = "records", "temporary files"
"""Runs, leases, pins and tombstones; and what writers have not finished."""
StageFolder = tuple[str, str]  # (noun, folder in it that one stage writes to)


@dataclass
class Usage:
    """Files and bytes of one op (or namespace, or dataset) of a noun. `garbage`: bytes that gc would free."""

    noun: str
    name: str
    stages: tuple[str, ...] = ()
    """Stages that used it in some run."""
    files: int = 0
    bytes: int = 0
    garbage: int = 0


@dataclass(frozen=True)
class DatasetInfo:
    """A finished dataset of the workspace."""

    name: str
    fingerprint: str
    base: str
    rows: int
    tars: int
    bytes: int
    runs: tuple[str, ...] = ()
    """Runs that built or found it, or the one of which a takedown made it, oldest first."""
    pins: tuple[str, ...] = ()
    committed: float = 0.0
    """Seconds since the epoch."""
    predecessor: str = ""
    """Folder of the dataset of which a takedown made it; an erasure has removed that."""


def usage(storage: Storage) -> list[Usage]:
    """A line per noun, op and set of stages, by noun and name."""
    garbage, _ = unreachable(storage, now=None)
    stages = _stages(RunRecord.load(storage, name) for name in list_runs(storage))
    lines: dict[tuple[str, str, tuple[str, ...]], Usage] = {}

    def line(path: str) -> Usage:
        noun, folder = _place(path)
        name = "" if noun == "masks" or not folder else folder.split("/")[1]
        if folder.endswith("/partials"):
            name += " (partial states)"
        names = tuple(sorted(stages.get((noun, folder), ())))
        return lines.setdefault((noun, name, names), Usage(noun, name, names))

    left = {path: size for path, (size, _) in storage.unfinished().items()}
    for path, size in (storage.list("") | left).items():
        found = line(path)
        found.files += 1
        found.bytes += size
    for path, size in garbage.items():
        line(path).garbage += size
    return [lines[place] for place in sorted(lines)]


def described(storage: Storage, garbage: Mapping[str, int]) -> list[str]:
    """What gc would remove, a line each: datasets and the students that were trained on them, results of costly stages,
    then the rest by noun and op."""
    stages = _stages(RunRecord.load(storage, name) for name in list_runs(storage))
    costly, students = highest(storage.list("facts")), _students(storage)
    lines: Counter[tuple[int, str]] = Counter()
    for path, size in garbage.items():
        noun, folder = _place(f"{path}/")
        used = ", ".join(sorted(stages.get((noun, folder), ()))) or "no stage of a known run"
        of = "" if noun == "masks" else f" of {folder.split('/')[1]}" if folder else ""
        what = (2, f"{noun}{of} ({used})" if folder else noun)
        if noun == "datasets":
            found = dataset(storage, path)
            trained = "".join(f"; student {name} was trained on it" for name in students.get(path, ()))
            what = (0, f"dataset {path.removeprefix('datasets/')}, {found.rows if found else 0:,} samples{trained}")
        elif path in costly:
            what = (1, f"results of the costly stage {used} ({folder.split('/')[1]}), which are computed again")
        lines[what] += size
    return [f"{size:>15,}  {text}" for (_, text), size in sorted(lines.items())]


def _students(storage: Storage) -> dict[str, list[str]]:
    """Dataset -> students in the workspace's folder `students` that were trained on it."""
    found: dict[str, list[str]] = {}
    places = {name: f"students/{name}/run.json" for name in sorted(storage.entries("students"))}
    for name, place in places.items():
        for url in storage.read_json(place).get("datasets", ()) if storage.exists(place) else ():
            found.setdefault("/".join(url.rstrip("/").split("/")[-3:]), []).append(name)
    return found


def _place(path: str) -> StageFolder:
    """The folder that identifies a stage: facts/<op>/<stage>, artifacts/<op>/<fingerprint>, pools/<namespace>, …"""
    parts = path.split("/")
    if path.rstrip("/").endswith(TEMPORARY) or UPLOAD in path:
        return UNFINISHED, ""
    if parts[0] not in TOPS or len(parts) < 3:
        return OTHERS, ""
    depth = 3 if parts[0] in ("facts", "artifacts", "selections") else 2  # a namespace, a chain, a dataset's name
    return parts[0], "/".join(parts[:depth])


def _stages(runs: Iterable[RunRecord]) -> dict[StageFolder, set[str]]:
    """StageFolder -> names of the stages that used it."""
    found: dict[StageFolder, set[str]] = {}
    for run in runs:
        started = {event["stage"]: event for event in run.builds()}
        for stage, output in (started | run.outputs).items():
            for path in (output.get("path"), output.get("mask"), output["base"]):
                if path:
                    found.setdefault(_place(f"{path}/"), set()).add(stage)
    return found


def datasets(storage: Storage) -> list[DatasetInfo]:
    """Committed datasets, oldest first."""
    runs: dict[str, list[str]] = {}
    for name in list_runs(storage):
        for output in RunRecord.load(storage, name).outputs.values():
            runs.setdefault(output["base"], []).append(name)
    for new, made in origins(storage).items():
        runs.setdefault(new, list(dict.fromkeys(name for old in reversed(made) for name in runs.get(old, ()))))
    pinned: dict[str, list[str]] = {}
    for pin in pins(storage).values():
        pinned.setdefault(pin.base, []).append(pin.name)
    bases = (f"datasets/{file}" for file in storage.list("datasets") if file.endswith("/manifest.json"))
    found = [dataset(storage, file.removesuffix("/manifest.json")) for file in bases]
    known = [
        replace(one, runs=tuple(runs.get(one.base, ())), pins=tuple(pinned.get(one.base, ()))) for one in found if one
    ]
    return sorted(known, key=lambda one: (one.committed, one.base))


def dataset(storage: Storage, base: str) -> DatasetInfo | None:
    """A committed dataset, without its runs and pins; None if there is none in this folder."""
    manifest = Manifest.load(storage, base) if base.startswith("datasets/") else None
    if manifest is None:
        return None
    sizes = (manifest.rows, manifest.extra.get("tars", 0), manifest.bytes)
    committed = float(manifest.extra.get("committed", 0.0))
    before = manifest.extra.get("predecessor")
    above = f"{base.rpartition('/')[0]}/{before}" if before else ""
    return DatasetInfo(base.split("/")[1], manifest.fingerprint, base, *sizes, committed=committed, predecessor=above)
