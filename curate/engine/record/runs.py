"""Records of runs, as `status`, `explain`, `diff` and `gc` read them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

from curate.core.errors import InputError
from curate.core.hashing import digest
from curate.core.ledger import Entry
from curate.core.nouns.takedowns import standing
from curate.core.spend import RunSpend
from curate.core.store import lease
from curate.core.store.storage import Storage
from curate.engine.record.events import read_events
from curate.engine.workers.allocation import Allocated

STOPPED = ("stopped", "interrupted")
"""Prefixes of the errors of stopped runs."""
MANY = 200
"""Records that a message may read."""


@dataclass
class RunRecord:
    """One run's record at the time of loading. `outputs`: outputs built or found by its end, or by its last event, in
    the order of the recipe."""

    storage: Storage
    record: dict[str, Any]
    result: dict[str, Any] | None

    @classmethod
    def load(cls, storage: Storage, run_id: str) -> Self:
        try:
            record = storage.read_json(f"runs/{run_id}/run.json")
        except FileNotFoundError:
            known = ", ".join(_newest(storage)) or "none"
            raise InputError(f"run {run_id!r}: not in {storage.url}; the latest runs are {known}") from None
        try:
            result = storage.read_json(f"runs/{run_id}/result.json")
        except FileNotFoundError:
            result = None
        return cls(storage, record, result)

    @property
    def run_id(self) -> str:
        return str(self.record["run_id"])

    @property
    def recipe(self) -> str:
        """Digest of its stages, namespaces of pools, names of datasets and part of the pool: runs with the same are of
        one recipe, regardless of other settings."""
        stages = self.record["stages"].items()
        names = {name: [stage["parameters"].get(key) for key in ("namespace", "name")] for name, stage in stages}
        whole = {name: [stage[key] for key in ("op", "from", "ports")] for name, stage in stages}
        options = self.record["options"]
        rows = options.get("sample_rows")
        return digest([names, whole, options.get("sample", 1.0), *([] if rows is None else [rows])])

    @property
    def state(self) -> str:
        """done, failed, stopped (on request), running or killed. Takes seconds if the driver's host has another time;
        see `lease.is_alive`."""
        if self.result is not None:
            return ended_as(self.result)
        return "running" if self._alive else "killed"

    @property
    def error(self) -> str:
        """Why it failed or stopped, in one line."""
        return str((self.result or {}).get("error") or "")

    @property
    def lease(self) -> str:
        return lease.lease_path(f"runs/{self.run_id}")

    @cached_property
    def _alive(self) -> bool:
        return lease.is_alive(self.storage, self.lease)

    @cached_property
    def events(self) -> list[dict[str, Any]]:
        return read_events(self.storage, self.run_id)

    @property
    def outputs(self) -> dict[str, dict[str, Any]]:
        if self.result is not None:
            found = self.result["outputs"]
        else:
            found = {e["stage"]: e for e in self.events if e["event"] == "stage"}
        order = {name: place for place, name in enumerate(self.record["stages"])}
        return dict(sorted(found.items(), key=lambda item: order.get(item[0], len(order))))

    def datasets(self) -> dict[str, str]:
        """Stage -> folder of the dataset that it made, or of the version by which an erasure has replaced it."""
        made = {name: str(output["base"]) for name, output in self.outputs.items()}
        made = {name: base for name, base in made.items() if base.startswith("datasets/")}
        versions = standing(self.storage) if made else {}
        return {name: versions.get(base, base) for name, base in made.items()}

    def builds(self) -> list[dict[str, Any]]:
        """Outputs that it began but did not complete; the same command resumes them."""
        done = self.outputs
        return [event for event in self.events if event["event"] == "build" and event["stage"] not in done]

    @property
    def seconds(self) -> float:
        """Duration until its end or its last event, by the driver's own clock."""
        if self.result is not None:
            return float(self.result["seconds"])
        held = lease.read(self.storage, self.lease) or {}
        started = float(self.record["started"])
        heard = max([held.get("time", started), *(event["time"] for event in self.events[-1:])])
        return max(0.0, float(heard) - started)

    def ledger(self) -> dict[str, Entry]:
        if self.result is not None:
            found = self.result["ledger"]
        else:
            found = {name: output["ledger"] for name, output in self.outputs.items()}
        return {name: Entry.from_json(entry) for name, entry in found.items()}

    def counts(self) -> dict[str, dict[str, Any]]:
        """Stage -> work of the run there, in rows (`curate.engine.state.Counts`)."""
        if self.result is not None:
            return dict(self.result["counts"])
        return {name: output["counts"] for name, output in self.outputs.items()}

    def spend(self) -> RunSpend:
        """What the run has spent at endpoints, by its result or its last event."""
        if self.result is not None:
            return RunSpend.from_json(self.result.get("spend", {}))
        return RunSpend.from_json(self._last("spend").get("stages", {}))

    def allocated(self) -> Allocated:
        """What its workers have occupied, by its result or its last event."""
        if self.result is not None:
            return Allocated.from_json(self.result.get("allocated") or {})
        return Allocated.from_json(self._last("allocated"))

    def lost(self) -> tuple[int, int | None]:
        """(rows lost to failures, most that may be lost); the second is known only while it runs, after the first
        loss."""
        if self.result is not None:
            return int(self.result.get("lost") or 0), None
        found = self._last("lost")
        return int(found.get("rows", 0)), found.get("allowed")

    def _last(self, kind: str) -> dict[str, Any]:
        return next((event for event in reversed(self.events) if event["event"] == kind), {})

    def reused(self) -> dict[str, bool]:
        """Stage -> whether its whole output existed before."""
        if self.result is not None:
            return dict(self.result["reused"])
        return {name: bool(output["reused"]) for name, output in self.outputs.items()}

    def took(self) -> dict[str, float | None]:
        """Stage -> seconds that its output took, if this run built it; none of runs from before they were recorded."""
        if self.result is not None:
            found = self.result.get("took", {})
        else:
            found = {name: output.get("seconds") for name, output in self.outputs.items()}
        reused = self.reused()
        return {name: seconds for name, seconds in found.items() if not reused.get(name)}

    def masks(self) -> list[str]:
        """Manifests of the masks that the run built or found."""
        return list(dict.fromkeys(output["mask"] for output in self.outputs.values() if output.get("mask")))

    def ops(self) -> dict[str, str]:
        return {name: stage["op"] for name, stage in self.record["stages"].items()}

    def kinds(self) -> dict[str, str]:
        """Stage -> kind of its artifact, for stages that build one."""
        return {name: stage["kind"] for name, stage in self.record["stages"].items() if stage.get("kind")}

    def reports(self) -> set[str]:
        """Stages that make a page."""
        return {name for name, stage in self.record["stages"].items() if stage.get("reports")}

    def keeps_null(self, name: str) -> bool:
        """Whether rows without the facts of a stage continue, with nulls."""
        recipe = (self.record.get("recipe") or {}).get("stages") or {}  # of records from before the stage had it
        return bool(self.record["stages"][name].get("keep_null", recipe.get(name, {}).get("keep_null")))

    def pool_of(self, name: str) -> str:
        """The source or Derive that made the rows of a stage."""
        return name if self.record["stages"][name].get("derives") else self.pool_above(name)

    def pool_above(self, name: str) -> str:
        """The source or Derive whose rows reach a stage; for a Derive, that of its parents."""
        inputs = self.record["stages"][name]["from"]
        return self.pool_of(inputs[0]) if inputs else name

    def made_of(self, name: str) -> set[str]:
        """A stage, and those that it is made of: its rows and its artifacts."""
        stages, found, left = self.record["stages"], set[str](), [name]
        while left:
            one = left.pop()
            if one in stages and one not in found:  # a pinned artifact has no stage here
                found.add(one)
                left += [*stages[one]["from"], *stages[one]["ports"].values()]
        return found

    def upstream(self, name: str) -> list[str]:
        """The stages on the path of a stage's rows, itself last."""
        stages = self.record["stages"]
        order: list[str] = []

        def visit(step: str) -> None:
            for up in stages[step]["from"]:
                if up not in order:
                    visit(up)
            order.append(step)

        visit(name)
        return order


def ended_as(result: Mapping[str, Any]) -> str:
    """done, failed or stopped, by a run's result."""
    error = result["error"]
    return "stopped" if error and error.startswith(STOPPED) else "failed" if error else "done"


def list_runs(storage: Storage) -> list[str]:
    """Run ids, oldest first."""
    names = {file.split("/")[0] for file in storage.list("runs") if file.endswith("/run.json")}
    started = {name: storage.read_json(f"runs/{name}/run.json")["started"] for name in names}
    return sorted(names, key=lambda name: (started[name], name))


def _newest(storage: Storage) -> list[str]:
    """The latest runs. If there are many, by name: ids begin with the date, and reading all records takes minutes."""
    names = sorted(name for name, then in storage.entries("runs").items() if then is None)
    return (names if len(names) > MANY else list_runs(storage))[-3:]


def latest(storage: Storage, run_id: str | None) -> RunRecord:
    if run_id is None:
        runs = list_runs(storage)
        if not runs:
            raise InputError(f"{storage.url}: no run yet; start one with `curate run`")
        run_id = runs[-1]
    return RunRecord.load(storage, run_id)
