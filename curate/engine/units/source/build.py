"""A Source: each portion becomes a shard; repeated keys are rejected; the version lists the shards.

    pools/<namespace>/portions/          records of portions (see `records`)
    pools/<namespace>/pending/           shards that are being published, of sources that may read something else later
    pools/<namespace>/repeats/           amended shards (see `repeats`)
    pools/<namespace>/keys/<shards>/     the index of keys
    fetches/<namespace>/                 what it took to get the samples (see `fetches`)

A retry reads the rows in error of some portions again. Those that are no longer in error make another shard: the next
generation of their portion. Nothing is removed: in the index of keys and in the ledger, the later row replaces the
earlier one.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from curate.core.contracts import Portion, Source
from curate.core.errors import InputError
from curate.core.fetches import Fetches
from curate.core.hashing import digest
from curate.core.ledger import SET_ASIDE, Entry, joined_skips
from curate.core.nouns.artifacts import StoredArtifact
from curate.core.nouns.manifest import Manifest
from curate.core.nouns.pools import Shard, in_place, lines_of, place_url, pool_base
from curate.core.recipe.pipeline import Node
from curate.engine.context import Context
from curate.engine.progress import StepProgress
from curate.engine.state import Built, Pool
from curate.engine.units import keys
from curate.engine.units.common import dump
from curate.engine.units.source import records as stored
from curate.engine.units.source.fetches import fetches_path, summed
from curate.engine.units.source.portions import plan_source, record_paths
from curate.engine.units.source.read import UNUSABLE, Imported, ImportTask, import_portion
from curate.engine.units.source.repeats import without_repeats

FETCHES = "fetches"
"""Key in a pool's manifest: the summary of its fetches."""
SHOWN_HOSTS = 500
EVENT_SECONDS = 5.0
"""Between two events with the summary of the fetches."""


def build_source(ctx: Context, node: Node) -> None:
    stage = node.stage
    assert isinstance(stage, Source)
    began = time.monotonic()
    with ctx.lease(node, f"pools/{stage.namespace}"):
        if node.name not in ctx.portions:
            ctx.portions[node.name] = plan_source(node, ctx.storage, with_artifacts(ctx, node), ctx.options)
        work = SourceBuild(ctx, node, stage)
        shards, entry = work.make()
        if entry.before and not entry.after:
            lost = ", ".join(f"{reason} {count:,}" for reason, count in entry.lost.most_common(3))
            ctx.progress.say(f"{node.name}: none of {entry.before:,} rows is alive: {lost}")
        if not sum(shard.rows for shard in shards):
            part = ctx.options.sample < 1.0 or ctx.options.sample_rows is not None
            advice = "take a larger --sample" if part else "check its path and patterns"
            raise InputError(f"{node.name}: {stage.op} found no samples; {advice}")
        folder = keys.folder_of(stage.namespace, shards)
        shards, entry = without_repeats(ctx, node, stage, folder, shards, entry)
        version, fingerprint = version_of(stage, shards)
        ctx.outputs.pools[node.name] = pool = Pool(stage.namespace, fingerprint, shards)
        built = ctx.outputs.built[node.name] = Built(
            digest({"op": stage.op, "pool": "rows"}), pool_base(stage.namespace, version)
        )
        built.manifest = Manifest.load(ctx.storage, built.base)
        built.reused = built.manifest is not None
        if built.manifest is not None:
            built.manifest.ledger["skipped"] = entry.to_json()["skipped"]  # the same pool, perhaps beside other files
            built.content = built.manifest.content or built.fingerprint
            ctx.progress.reused(node.name, pool.rows)
            return
        index = keys.build_index(ctx, node, folder, shards)
        keys.tidy_index(ctx.storage, folder)
        extra = {"keys": index} | ({FETCHES: work.fetches.to_json(SHOWN_HOSTS)} if work.fetches else {})
        ctx.outputs.finish(
            node, built, "pool", entry, lines_of(shards),
            rows=pool.rows, bytes=sum(shard.tar_bytes for shard in shards),
            seconds=round(time.monotonic() - began, 3), built_rows=work.built_rows, extra=extra,
        )  # fmt: skip


def with_artifacts(ctx: Context, node: Node) -> Source:
    """The stage after `setup` with the artifacts at its ports, to plan with."""
    stage = node.stage.model_copy(deep=True)
    stage.setup({port: StoredArtifact(ctx.storage, base) for port, base in ctx.outputs.ports(node).items()})
    assert isinstance(stage, Source)
    return stage


def version_of(stage: Source, shards: Sequence[Shard]) -> tuple[str, str]:
    """Version and fingerprint of the pool of some shards; only the version depends on the places of members outside
    the workspace."""
    fingerprint = digest({"namespace": stage.namespace, "shards": [shard.id for shard in shards]})
    places = [shard.tar for shard in shards if in_place(shard)]
    return digest({"pool": fingerprint, "places": places}) if places else fingerprint, fingerprint


@dataclass
class SourceBuild:
    """Reads the portions that no record names, and the rows in error that are to be retried."""

    ctx: Context
    node: Node
    stage: Source
    built_rows: int = 0
    fetches: Fetches = field(default_factory=Fetches)
    """Summary of all fetches, of earlier runs too."""
    mine: Fetches = field(default_factory=Fetches)
    """Summary of the fetches of this run."""

    def make(self) -> tuple[list[Shard], Entry]:
        """Shards of all portions in order, except for failed ones, and their ledger."""
        ctx, stage = self.ctx, self.stage
        self.portions, self.inside = ctx.portions[self.node.name]
        first = record_paths(stage, self.portions, self.inside)
        self.paths, self.known = stored.read_records(ctx.storage, stage.namespace, first)
        if not stage.repeatable:
            self.fetches = summed(ctx.storage, self.known.recent, self.known.file)
        errors = self._read(first)
        if not (stage.repeatable or ctx.storage.list(f"pools/{stage.namespace}/pending")):
            ctx.storage.remove(f"pools/{stage.namespace}/pending")  # an empty folder
        self.paths = [[path for path in of_portion if path in self.known.found] for of_portion in self.paths]
        flat = [path for of_portion in self.paths for path in of_portion]
        if not (self.known.whole or errors):
            file = stored.all_path(stage.namespace, flat)
            if self.fetches:  # first, because a later run that finds the file of records writes neither
                ctx.storage.publish_bytes(fetches_path(file), dump(self.fetches.to_json()))
            stored.publish_all(ctx.storage, file, self.known.found, flat)
        done = [of_portion for of_portion in self.paths if of_portion]
        entry = sum((self.known.found[of_portion[-1]].ledger for of_portion in done), Entry())
        entry = sum(self._lost(entry.before, len(done), errors), entry)
        entry.skipped = joined_skips(entry.skipped or {}, *(portion.skipped for portion in self.portions))
        shards = [
            _with_place(stage, self.portions[number], self.known.found[path].shard)
            for number, of_portion in enumerate(self.paths)
            for path in of_portion
        ]
        return shards, entry

    def _read(self, first: Sequence[str]) -> dict[int, str]:
        """Read the missing portions and generations; returns the error of each portion that failed."""
        ctx, name, known = self.ctx, self.node.name, self.known
        self.pending = self._left_pending()
        tasks = _Tasks(self._task, list(self._missing()), list(self._retries()))
        if not tasks:
            return {}
        known.whole = False
        ctx.storage.remove_scratch(f"pools/{self.stage.namespace}/shards")
        ctx.events.emit("build", stage=name, base=f"pools/{self.stage.namespace}", path="")
        ctx.events.flush()
        try:
            with ctx.progress.step(name, sum(task.portion.rows or 0 for task in tasks), live=True) as step:
                errors = self._collect(tasks, step)
        finally:
            self._emit()
        ctx.storage.remove_scratch(f"pools/{self.stage.namespace}/shards")
        return errors

    def _left_pending(self) -> frozenset[str]:
        """Names of the portions whose attempt was killed after it announced its files and before it wrote its record.
        If it was killed after the record, its announcement is removed here."""
        if self.stage.repeatable:
            return frozenset()
        storage, folder = self.ctx.storage, f"pools/{self.stage.namespace}/pending"
        names = frozenset(storage.list(folder))
        records = {name: f"{stored.portions_of(self.stage.namespace)}/{name}" for name in names}
        recorded = {name for name, path in records.items() if path in self.known.found}
        for name in recorded:
            path = f"{folder}/{name}"
            stored.clear(storage, path, self.known.found[records[name]], stored.announced(storage, path))
        return names - recorded

    def _collect(self, tasks: Sequence[ImportTask], step: StepProgress) -> dict[int, str]:
        """Run the tasks; returns the error of each portion that failed."""
        ctx, name = self.ctx, self.node.name
        errors: dict[int, str] = {}
        emitted = time.monotonic()
        for outcome in ctx.tasks.run(import_portion, tasks, self.stage.resources(), label=name):
            task = tasks[outcome.index]
            if outcome.error is not None:
                if task.generation:
                    ctx.progress.say(f"  a retry of {name} failed, its rows stay in error: {outcome.error}")
                else:
                    errors[task.number] = outcome.error
                    ctx.progress.say(f"  portion {task.number + 1} of {name} is set aside: {outcome.error}")
                continue
            imported: Imported = outcome.value
            self.fetches.add(imported.fetches)
            self.mine.add(imported.fetches)
            if imported.record is not None:
                self.known.found[task.record] = imported.record
                if task.generation:
                    self.paths[task.number].append(task.record)
                self.built_rows += imported.record.shard.rows
            step.advance(imported.rows, imported.lost)
            if time.monotonic() - emitted > EVENT_SECONDS:
                emitted = time.monotonic()
                self._emit()
        return errors

    def _emit(self) -> None:
        """Emit the summary of this run's fetches. Rates over time are in the events of the scheduler."""
        if self.mine:
            summary = self.mine.to_json(hosts=0) | {"periods": {}}
            self.ctx.events.emit("fetches", stage=self.node.name, summary=summary)

    def _missing(self) -> Iterator[int]:
        """Places of the portions without a record."""
        return (number for number, (path, *_) in enumerate(self.paths) if path not in self.known.found)

    def _retries(self) -> Iterator[int]:
        """Places of the portions with rows that are to be retried."""
        options, name = self.ctx.options, self.node.name
        if name not in options.retry:
            return
        reasons, there = options.retry[name], Counter[str]()
        for number, of_portion in enumerate(self.paths):
            earlier = [self.known.found[path] for path in of_portion if path in self.known.found]
            failed = self._failed(earlier[-1]) if earlier else Counter[str]()
            there += failed
            if any(not reasons or reason in reasons for reason in failed):
                yield number
        if not any(not reasons or reason in reasons for reason in there):
            found = ", ".join(f"{reason} {count:,}" for reason, count in there.most_common(5)) or "none"
            wanted = f" with reason {' or '.join(reasons)}" if reasons else ""
            self.ctx.progress.say(f"{name}: no {options.retry_status} row{wanted} to retry; found: {found}")

    def _failed(self, record: stored.PortionRecord) -> Counter[str]:
        """Reason -> rows of a portion that a retry may choose."""
        entry = record.ledger
        return entry.unusable if self.ctx.options.retry_status == UNUSABLE else entry.error

    def _task(self, number: int, retry: bool) -> ImportTask:
        """The task of a portion: to read it, or to retry some of its rows."""
        ctx, stage = self.ctx, self.stage
        portion, of_portion = self.portions[number], self.paths[number]
        if stage.limited:
            portion = replace(portion, limiter=ctx.limiter(self.node.name))
        generation = len(of_portion) if retry else 0
        path = stored.generation_path(of_portion[0], generation)
        killed = path.rpartition("/")[2] in self.pending
        task = ImportTask(
            ctx.storage, stage, self.node.name, portion, path, self.inside, ctx.outputs.ports(self.node), number, killed
        )
        if not retry:
            return task
        reasons = ctx.options.retry[self.node.name]
        earlier = tuple(self.known.found[path] for path in of_portion if path in self.known.found)
        rows = sum(n for reason, n in self._failed(earlier[-1]).items() if not reasons or reason in reasons)
        portion = replace(portion, rows=rows)
        status = ctx.options.retry_status
        return replace(task, generation=generation, earlier=earlier, reasons=reasons, status=status, portion=portion)

    def _lost(self, rows: int, imported: int, errors: Mapping[int, str]) -> Iterator[Entry]:
        """Ledger entries of failed portions, counted against the failure budget. A portion with unknown rows counts as
        the average of the others."""
        mean = round(rows / imported) if imported else 1
        expected = {number: self.portions[number].rows for number in sorted(errors)}
        gone = {number: max(1, mean if count is None else count) for number, count in expected.items()}
        for number, count in gone.items():
            what = f"portion {number + 1} of {self.node.name}"
            self.ctx.losses.record(what, count, f"{what}: {errors[number]}", rows + sum(gone.values()))
            yield Entry(count, Counter({SET_ASIDE: count}), 0)


class _Tasks(Sequence[ImportTask]):
    """Tasks of missing portions and of retries, made when they are sent: a pool has as many as shards. A task stays the
    same until its outcome is known."""

    def __init__(self, make: Callable[[int, bool], ImportTask], missing: list[int], retries: list[int]) -> None:
        self._make, self._numbers, self._missing = make, missing + retries, len(missing)

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, place: Any) -> Any:
        return self._make(self._numbers[place], place >= self._missing)


def _with_place(stage: Source, portion: Portion, shard: Shard) -> Shard:
    """The shard; a tar or folder outside the workspace gets the source's present location."""
    place = stage.tar(portion)
    return shard if place is None else replace(shard, tar=place_url(place))
