"""A Derive: which parents lack their children, the children of one shard's parents, and the version that lists all.

    pools/<namespace>/derived/<fingerprint>/<parents' shard>/000001.parquet     children; its footer is the record
    pools/<namespace>/derived/<fingerprint>/<parents' shard>/000001-<id>.tar    their bytes
    pools/<namespace>/versions/<version>/                                       manifest, shards.parquet, covers.parquet

The record speaks of every parent so far, by this table and those before it, and lists their shards: the highest table
tells all. A table is created if absent. The digest in a tar's name is of what it holds, because the tar is there before
its table, and two runs may be after the same number: who comes second reads the first one's record and adds only what
is lacking there.

A version is named by what decides it: of every shard of the parents, its highest table and who is alive there. Its
content, which later stages depend on, is the children's shards and who is alive in each; a child whose parent is not
alive is absent. So a stricter filter computes nothing, and a looser one the children of the parents it lets in.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from curate.codec.images import decode
from curate.codec.tars import TarWriter, read_spans
from curate.core import facts
from curate.core.contracts import Child, Derive, Sample
from curate.core.errors import AlreadyExistsError, CorruptError, CurateError, InputError, Reject
from curate.core.hashing import canonical, digest, make_child_key
from curate.core.ledger import SET_ASIDE, Entry
from curate.core.nouns import POOL_SCHEMA, Manifest, Shard, lines_of, pool_base, read_lines, read_pool
from curate.core.recipe.pipeline import Node
from curate.core.recipe.secrets import redact
from curate.core.rows import Rows
from curate.core.store.storage import Storage
from curate.engine.backends import How, Outcome, set_up
from curate.engine.context import Built, Context, Pool
from curate.engine.passes.batches import KILLED
from curate.engine.passes.build import ATTEMPTS_AT_HANGING, HUNG, Stretch, killers
from curate.engine.passes.task import ATTEMPTS, locate
from curate.engine.units import keys
from curate.engine.units.common import content_id, dump, probed, stretches
from curate.engine.workers import beat

DONE, UNUSABLE, ERROR = facts.STATUS
RECORD = b"record"
COVERS = "covers.parquet"
"""File of a version: what is known of each shard of the parents, and the number of its highest table."""
INHERITED = ("source_id", "name", "caption", "url")
READ = ("key", *INHERITED, "meta", "root", "offset", "size")
"""Columns of a parent."""
Line = dict[str, Any]


# --- the driver -------------------------------------------------------------------------------------------------------


class DeriveBuild:
    def __init__(self, ctx: Context, node: Node) -> None:
        assert isinstance(node.stage, Derive)
        self.ctx, self.node, self.stage = ctx, node, node.stage
        self.built = ctx.built[node.name] = Built(ctx.fingerprint(node), "")
        self.folder = f"pools/{self.stage.namespace}/derived/{self.built.fingerprint}"
        self.parents = ctx.pool_upstream(node).shards
        self.whole_rows = ctx.whole_pool_rows(ctx.pipeline.nodes[ctx.pipeline.pool_upstream(node.name)])
        self.rows, self.alive = ctx.rows(node), ctx.contents_by_shard(node)
        self.retry = ctx.options.retry.get(node.name)
        self.numbers: dict[str, int] = {}
        """Parents' shard -> its highest table."""
        self.suspects: set[str] = set()
        """Shards that were under way when an earlier run died."""
        self.lines: dict[str, bytes] = {}
        """Parents' shard -> JSON of what is known of it: about 700 bytes."""

    def make(self) -> None:
        self.survey()
        if not self.reuse():
            with self.ctx.lease(self.node, self.folder):
                self.survey()
                if not self.reuse():
                    self.build()

    def survey(self) -> None:
        files = self.ctx.storage.list(self.folder)
        self.numbers = facts.latest(files)
        self.suspects = {file.removeprefix(f"{ATTEMPTS}/") for file in files if file.startswith(f"{ATTEMPTS}/")}

    def version(self) -> str:
        known = [[shard.id, self.numbers.get(shard.id, 0), self.alive[shard.id]] for shard in self.parents]
        return pool_base(self.stage.namespace, digest({"stage": self.built.fingerprint, "parents": known}))

    def reuse(self) -> bool:
        """Whether the version of these very tables and parents is there: then nothing is lacking."""
        base = self.version()
        manifest = None if self.retry is not None else Manifest.load(self.ctx.storage, base)
        if manifest is None:
            return False
        said = read_lines(self.ctx.storage, base, ["id", "said"], COVERS)
        for identity, line in zip(said.column("id"), said.column("said"), strict=True):
            self.lines[identity.as_py()] = line.as_py().encode()
        for line in self._known():
            self._lose(line)
        self._note(base, manifest)
        self.ctx.progress.reused(self.node.name, manifest.rows)
        return True

    def look(self, shard: Shard) -> tuple[int, int]:
        """(alive parents of a shard, those that lack their children), without making any."""
        number, alive = self.numbers.get(shard.id, 0), self.rows.alive(shard)
        record = read_record(self.ctx.storage, self.folder, shard.id, number)
        lacking = len(record.lacking(np.flatnonzero(alive).tolist(), self.retry))
        if not lacking:
            self.lines[shard.id] = dump(told(shard, alive, number, record))
        return int(alive.sum()), lacking

    def build(self) -> None:
        began = time.monotonic()
        with self.ctx.progress.step(self.node.name, sum(shard.rows for shard in self.parents)) as self._bar:
            self._work_off([shard for shard in self.parents if shard.id not in self.suspects])
            for shard in (shard for shard in self.parents if shard.id in self.suspects):
                self._suspicious(shard)
        self._commit(time.monotonic() - began)

    # --- work and failure ---

    def _task(self, *shards: Shard, **changes: Any) -> DeriveTask:
        ctx, numbers = self.ctx, tuple(self.numbers.get(shard.id, 0) for shard in shards)
        values = {"retry": self.retry, "mark": ctx.backend.name == "local"} | changes
        rows, ports = ctx.placed(self.rows, shards), ctx.ports(self.node)
        return DeriveTask(ctx.storage, self.stage, self.node.name, rows, ports, shards, self.folder, numbers, **values)

    def _work_off(self, shards: Sequence[Shard], isolated: bool = False) -> None:
        """Units of several shards; of one that fails, each shard is tried on its own."""
        cut = list(stretches([shard.rows for shard in shards], self.ctx.options.task_rows))
        units = [shards[first:stop] for first, stop in cut] if not isolated else [[shard] for shard in shards]
        failed = []
        tasks = (self._task(*unit) for unit in units)
        for outcome in self.ctx.run(derive_shards, tasks, self.stage, How(isolated=isolated), self.node.name):
            if outcome.error is None:
                for shard, line in zip(units[outcome.index], outcome.value, strict=True):
                    self._accept(shard, line)
            else:
                failed.append((units[outcome.index], outcome))
        for unit, outcome in failed:
            for shard in unit:
                self.numbers |= facts.latest(
                    f"{shard.id}/{name}" for name in self.ctx.storage.list(f"{self.folder}/{shard.id}")
                )
            if len(unit) > 1:
                for shard in unit:
                    self._work_off([shard], isolated=outcome.crashed)
            elif outcome.hung is not None:
                self._unhang(unit[0], outcome)
            elif outcome.crashed:
                self._suspicious(unit[0])
            else:
                self._set_aside(unit[0], str(outcome.error))

    def _accept(self, shard: Shard, line: Line) -> None:
        counts = self.built.counts
        counts.computed += line.pop("computed")
        counts.repeated += line.pop("repeated")
        counts.requests = counts.computed + counts.repeated
        self.lines[shard.id], self.numbers[shard.id] = dump(line), line["number"]
        self._bar.advance(shard.rows, Entry.from_json(line["entry"]).lost.total())
        self._lose(line)

    def _lose(self, line: Line) -> None:
        """Count a shard's parents in error, found now or by a run before."""
        error = Entry.from_json(line["entry"]).error
        if error:
            reason = next(iter(error))
            why = f"{self.node.name}: {line['messages'].get(reason, reason)}"
            lost = self.ctx.lost.get(self.node.name, 0) + error.total()
            self.ctx.lose(self.node.name, lost, why, self.whole_rows)

    def _suspicious(self, shard: Shard) -> None:
        """A shard whose task died with its process: find the parents that do it, and try once more without them."""
        outcome = self._alone(self._task(shard))
        if outcome is not None and outcome.crashed:

            def crashing(stretches: list[Stretch]) -> list[Stretch]:
                probes = [self._task(shard, probe=stretch, mark=False) for stretch in stretches]
                found = self.ctx.run(derive_shards, probes, self.stage, How(isolated=True), self.node.name)
                return [stretches[outcome.index] for outcome in found if outcome.crashed]

            rows = killers(shard.rows, crashing)
            self.ctx.events.emit("poison", shard=shard.id, rows={self.node.name: rows})
            outcome = self._alone(self._task(shard, poison=dict.fromkeys(rows, KILLED)))
        if outcome is not None:
            self._set_aside(shard, str(outcome.error))

    def _unhang(self, shard: Shard, outcome: Outcome) -> None:
        """A shard at a parent of which its task hung: try again without that parent."""
        poison: dict[int, str] = {}
        for _ in range(ATTEMPTS_AT_HANGING):
            rows = outcome.hung.rows if outcome.hung is not None else ()
            self.ctx.events.emit("hung", stage=self.node.name, rows={shard.id: list(rows)}, error=outcome.error)
            self.ctx.progress.say(f"  {outcome.error}; tried again")
            poison |= dict.fromkeys(rows, HUNG)
            again = self._alone(self._task(shard, poison=poison))
            if again is None:
                return
            outcome = again
            if outcome.hung is None:
                break
        self._set_aside(shard, str(outcome.error))

    def _alone(self, task: DeriveTask) -> Outcome | None:
        """Run one task in a process that may die; None when all went well."""
        [outcome] = self.ctx.run(derive_shards, [task], self.stage, How(isolated=True), self.node.name)
        if outcome.error is not None:
            return outcome
        self._accept(task.shards[0], outcome.value[0])
        return None

    def _set_aside(self, shard: Shard, error: str) -> None:
        """A shard that fails for good: its parents without a status are in error; `curate retry` tries them again."""
        self.ctx.events.emit(SET_ASIDE, shard=shard.id, tar=shard.tar, error=error)
        self.ctx.progress.say(f"  shard {shard.id} ({shard.tar}) is set aside: {error}")
        task = self._task(shard, aside=error, mark=False)
        [[line]] = self.ctx.must(derive_shards, [task], self.stage, f"shard {shard.id}")
        self._accept(shard, line)

    # --- committing ---

    def _commit(self, wall: float) -> None:
        """The version, by the tables that are there now."""
        ctx, base = self.ctx, self.version()
        self.built.base = base
        entry, shards = self.entry(), self._shards()
        if not shards:
            raise InputError(f"{self.node.name}: {self.stage.op} made no sample out of {entry.before:,}; {_why(entry)}")
        folder = keys.folder_of(self.stage.namespace, shards)
        index = keys.build_index(ctx, self.node, folder, shards)
        keys.tidy_index(ctx.storage, folder)
        ids = [parent.id for parent in self.parents]
        covers = {
            "id": pa.array(ids, pa.string()),
            "number": pa.array([self.numbers[parent] for parent in ids], pa.int64()),
            "said": pa.array([self.lines[parent].decode() for parent in ids], pa.string()),
        }
        ctx.storage.publish_table(f"{base}/{COVERS}", pa.table(covers))
        manifest = ctx.finish(
            self.node, self.built, "pool", entry, lines_of(shards),
            rows=entry.children or 0, bytes=sum(shard.tar_bytes for shard in shards), seconds=round(wall, 3),
            built_rows=self.built.counts.computed, content=self._content(),
            extra={"derived": self.folder, "keys": index},
        ).manifest  # fmt: skip
        for shard in self.suspects:
            ctx.storage.remove_file(f"{self.folder}/{ATTEMPTS}/{shard}")
        assert manifest is not None
        self._note(base, manifest)

    def entry(self) -> Entry:
        entry = Entry()
        for line in self._known():
            entry += Entry.from_json(line["entry"])
        return entry

    def pool(self) -> Pool:
        alive = {shard: found for line in self._known() for shard, found in line["alive"].items()}
        return Pool(self.stage.namespace, self._content(), self._shards(), self.rows, alive)

    def _known(self) -> Iterator[Line]:
        """What is known of the parents' shards, in order."""
        return (json.loads(self.lines[parent.id]) for parent in self.parents)

    def _shards(self) -> list[Shard]:
        return [
            Shard(**shard | {"parent": dump(parent.to_json()).decode()})
            for parent, line in zip(self.parents, self._known(), strict=True)
            for shard in line["shards"]
        ]

    def _content(self) -> str:
        """Digest of the shards with alive children, and which are."""
        alive = [pair for line in self._known() for pair in line["alive"].items() if pair[1]]
        return digest({"namespace": self.stage.namespace, "alive": alive})

    def _note(self, base: str, manifest: Manifest) -> None:
        """What was made or found, where the rest of the run looks for it."""
        ctx, built, counts = self.ctx, self.built, self.built.counts
        built.base, built.manifest, built.content = base, manifest, manifest.content
        built.reused, counts.rebuilt = not counts.computed, bool(counts.computed)
        ctx.pools[self.node.name] = self.pool()


def _why(entry: Entry) -> str:
    if not entry.before:
        return "loosen the filters before it"
    reasons = ", ".join(f"{reason} {count:,}" for reason, count in entry.lost.most_common(3))
    return f"they are {reasons}; give it others" if reasons else "give it others, or change its parameters"


# --- what is known of parents -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Parent:
    """What became of a parent, how many children it has, and the number of their shard."""

    status: str
    reason: str | None
    children: int
    number: int


@dataclass
class Record:
    """What is known of one shard's parents, by row, and their children's shards, by number."""

    parents: dict[int, Parent] = field(default_factory=dict)
    shards: dict[int, Shard] = field(default_factory=dict)
    messages: dict[str, str] = field(default_factory=dict)
    """Reason -> an example of what was said."""

    def lacking(self, rows: Sequence[int], retry: Sequence[str] | None) -> list[int]:
        """Those without a status; with `retry`, those in error too, for these reasons or (none given) for any."""

        def again(known: Parent) -> bool:
            return retry is not None and known.status == ERROR and (not retry or known.reason in retry)

        return [row for row in rows if row not in self.parents or again(self.parents[row])]

    def and_(self, other: Record) -> Record:
        parents, shards = {**self.parents, **other.parents}, {**self.shards, **other.shards}
        return Record(parents, shards, {**self.messages, **other.messages})

    def dump(self) -> bytes:
        parents = [[row, *asdict(parent).values()] for row, parent in sorted(self.parents.items())]
        shards = [[number, shard.to_json()] for number, shard in sorted(self.shards.items())]
        return dump({"parents": parents, "shards": shards, "messages": self.messages})

    @classmethod
    def load(cls, data: bytes) -> Record:
        value = json.loads(data)
        parents = {row: Parent(*rest) for row, *rest in value["parents"]}
        return cls(parents, {number: Shard(**shard) for number, shard in value["shards"]}, value["messages"])


def read_record(storage: Storage, folder: str, shard: str, number: int) -> Record:
    """What table `number` says of a shard's parents; nothing where there is no table yet."""
    if not number:
        return Record()
    path = facts.table_path(folder, shard, number)
    try:
        with storage.open(path) as file:
            return Record.load(pq.read_schema(file).metadata[RECORD])
    except (OSError, pa.ArrowInvalid, KeyError, TypeError, ValueError) as error:
        text = " ".join(str(error).split())[:200]
        raise CorruptError(
            f"{storage.url_of(path)}: this table of derived samples is corrupt or missing ({text}); remove the folder "
            f"{folder}/{shard} and run the recipe again"
        ) from error


# --- what workers do --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class DeriveTask:
    storage: Storage
    stage: Derive
    name: str
    rows: Rows
    """The parents."""
    ports: Mapping[str, str]
    shards: tuple[Shard, ...]
    folder: str
    numbers: tuple[int, ...]
    """Of each shard's highest table."""
    retry: tuple[str, ...] | None = None
    """Reasons whose parents in error are tried again (none named: all); None: none is."""
    poison: Mapping[int, str] = field(default_factory=dict)
    """Rows that kill the process, or hang, and which of these; like `probe` and `aside`, of a task for one shard."""
    mark: bool = False
    """Leave a mark while the shard is under way, as a pass does."""
    probe: tuple[int, int] | None = None
    """Go over these rows only and publish nothing."""
    aside: str = ""
    """Why the shard was set aside: every parent that is lacking gets an error."""


def derive_shards(task: DeriveTask) -> list[Line]:
    """Make what is lacking. Returns what the driver needs to know of each shard."""
    starts = np.cumsum([0, *(shard.rows for shard in task.shards)]).tolist()
    return [_derive(task, *about) for about in zip(task.shards, task.numbers, starts[:-1], strict=True)]


def _derive(task: DeriveTask, shard: Shard, number: int, start: int) -> Line:
    """`start`: the shard's first row in the unit."""
    storage, attempt = task.storage, f"{task.folder}/{ATTEMPTS}/{shard.id}"
    if task.mark:
        storage.mark(attempt)
    alive = task.rows.alive(shard)
    record = read_record(storage, task.folder, shard.id, number)
    wanted = record.lacking(np.flatnonzero(alive).tolist(), task.retry)
    if task.probe is not None:
        wanted = [row for row in wanted if task.probe[0] <= row < task.probe[1]]
    computed = repeated = 0
    while wanted:
        made = _make(task, shard, number + 1, record, wanted, start)
        if task.probe is not None:
            return {}
        computed += len(wanted)
        try:
            number, record, wanted = number + made.create(task, record), record.and_(made.record), []
        except AlreadyExistsError:  # another run was first: what it covers is done
            number += 1
            record = read_record(storage, task.folder, shard.id, number)
            left = record.lacking(wanted, task.retry)
            repeated, wanted = repeated + len(wanted) - len(left), left
    if task.mark:
        storage.remove_file(attempt)
    return told(shard, alive, number, record) | {"computed": computed, "repeated": repeated}


def told(shard: Shard, alive: NDArray[np.bool_], number: int, record: Record) -> Line:
    """What a record says of the alive parents: the ledger, and which children are alive, by shard."""
    entry = Entry(int(alive.sum()), children=0)
    held: dict[int, list[int]] = {number: [] for number in record.shards}
    for row in np.flatnonzero(alive).tolist():
        parent = record.parents[row]
        entry.after += parent.status == DONE
        if parent.status != DONE:
            (entry.unusable if parent.status == UNUSABLE else entry.error)[str(parent.reason)] += 1
        elif parent.children:
            entry.children = (entry.children or 0) + parent.children
            held[parent.number].append(row)
    return {
        "id": shard.id,
        "number": number,
        "entry": entry.check(shard.id).to_json(),
        "shards": [made.to_json() for made in record.shards.values()],
        "alive": {record.shards[n].id: digest(rows) if rows else "" for n, rows in held.items()},
        "messages": record.messages,
    }


# --- making children --------------------------------------------------------------------------------------------------


@dataclass
class _Made:
    record: Record
    table: pa.Table
    path: str

    def create(self, task: DeriveTask, before: Record) -> int:
        """Create the table: 1; 0 if it would say nothing new, because what was tried again failed as it did before."""
        if all(before.parents.get(row) == parent for row, parent in self.record.parents.items()):
            return 0
        table = self.table.replace_schema_metadata({RECORD: before.and_(self.record).dump()})
        task.storage.create_table(self.path, table)
        return 1


def _make(task: DeriveTask, shard: Shard, number: int, before: Record, rows: list[int], start: int) -> _Made:
    """The children of some parents: their tar published, their table not yet."""
    folder = f"{task.folder}/{shard.id}"
    path = facts.table_path(task.folder, shard.id, number)
    with task.storage.scratch(folder) as aside:
        with open(aside, "w+b") as file:
            children = _Children(task, shard, number, file, start)
            children.add(rows)
            children.tar.close()
        record, table = children.record, pa.Table.from_pylist(children.lines, schema=POOL_SCHEMA)
        if children.lines and task.probe is None:
            name = content_id(table)
            tar = f"{folder}/{number:06d}-{name[:16]}.tar"
            record.shards[number] = Shard(name, table.num_rows, tar, aside.stat().st_size, path)
            task.storage.adopt(aside, tar)
    for row, parent in record.parents.items():  # an error stays the error that it was
        known = before.parents.get(row)
        if known is not None and (known.status, known.reason) == (parent.status, parent.reason):
            record.parents[row] = known
    return _Made(record, table, path)


class _Children:
    """Children on their way into a tar."""

    def __init__(self, task: DeriveTask, shard: Shard, number: int, file: BinaryIO, start: int) -> None:
        self.task, self.shard, self.start = task, shard, start
        self.number, self.file, self.tar = number, file, TarWriter(file)
        self.record = Record()
        self.lines: list[dict[str, Any]] = []

    def add(self, rows: list[int]) -> None:
        if self.task.aside:
            for row in rows:
                self._lost(row, ERROR, SET_ASIDE)
            return
        stage: Derive = set_up(self.task.folder, self.task.stage, dict(self.task.ports), self.task.storage)  # type: ignore[assignment]
        for row, parent, data in self._parents(rows):
            began = time.monotonic()
            beat.current().doing(self.task.name, [self.start + row])
            if row in self.task.poison:
                self._lost(row, ERROR, self.task.poison[row])
            elif data is None:
                self._lost(row, UNUSABLE, "no_data")
            else:
                self._family(stage, row, parent, data)
            beat.current().done(self.task.name, 1, time.monotonic() - began, len(data or b""))

    def _parents(self, rows: list[int]) -> Iterator[tuple[int, dict[str, Any], bytes | None]]:
        task, shard = self.task, self.shard
        table = read_pool(task.storage, shard.table, list(READ)).take(pa.array(rows, pa.int64()))
        parents = table.to_pylist()
        fs, path = locate(task.storage, shard)
        spans = [(parent["offset"], parent["size"]) for parent in parents if parent["offset"] is not None]
        data = read_spans(fs, path, spans, shard.tar_bytes)
        for row, parent in zip(rows, parents, strict=True):
            yield row, parent, None if parent["offset"] is None else next(data)

    def _family(self, stage: Derive, row: int, parent: dict[str, Any], data: bytes) -> None:
        """All children of a parent, or none."""
        start, lines = self.tar.offset, list[dict[str, Any]]()
        try:
            sample = Sample(data, decode, {name: parent[name] for name in ("key", *INHERITED, "meta")})
            for child in stage.children(sample):
                lines.append(self._line(stage, row, parent, child))
            keys = [line["key"] for line in lines]
            if len(set(keys)) < len(keys):
                raise ValueError(f"{stage.op}: a span comes twice; every child needs one of its own")
        except Reject as reject:
            self._take_back(start)
            self._lost(row, UNUSABLE, reject.reason)
        except CurateError:
            raise
        except Exception as error:  # noqa: BLE001 - the sample boundary: one bad sample is one parent's status
            self._take_back(start)
            name = type(error).__name__
            self._lost(row, ERROR, name)
            self.record.messages.setdefault(name, redact(f"{name}: {error}", stage.secrets().values()))
        else:
            self.lines += lines
            self.record.parents[row] = Parent(DONE, None, len(lines), self.number)

    def _line(self, stage: Derive, row: int, parent: dict[str, Any], child: Child) -> dict[str, Any]:
        key = make_child_key(parent["key"], stage.child_kind, child.span)
        part = ",".join(f"{name}={value}" for name, value in sorted(child.span.items()))
        line = {name: parent[name] for name in INHERITED} | {"key": key, "ext": child.ext, "reject": None}
        line |= {name: f"{parent[name]}#{part}" for name in ("source_id", "name")}
        line |= {"parent": parent["key"], "root": parent["root"] or parent["key"], "parent_row": row}
        line |= {"span": canonical(child.span), "meta": json.dumps(child.meta, sort_keys=True, ensure_ascii=False)}
        line |= {"sha256": hashlib.sha256(child.data).hexdigest(), "size": len(child.data), **probed(child.data)}
        return line | {"offset": self.tar.add(f"{key}.{child.ext or 'bin'}", child.data)}

    def _take_back(self, start: int) -> None:
        self.file.seek(start)
        self.file.truncate()
        self.tar.offset = start

    def _lost(self, row: int, status: str, reason: str) -> None:
        self.record.parents[row] = Parent(status, reason, 0, self.number)
