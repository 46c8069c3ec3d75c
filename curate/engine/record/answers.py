"""`curate answers`: stored answers of costly stages as files, to take to another workspace.

    <folder>/manifest.json                       stages, and each file's digest, rows and bytes
    <folder>/<op>/<stage>/000000.parquet         _input, _status, _reason and the stage's columns

Only final answers (done or unusable) are exported, each once. Imported ones are tables of facts under the fingerprint
`imported`, one per file and named by its digest, and lines in the stage's index: every shard finds them by input.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from curate.core.errors import AlreadyExistsError, CorruptError, InputError, StorageError
from curate.core.hashing import digest_bytes
from curate.core.nouns import facts
from curate.core.nouns.manifest import Manifest
from curate.core.store.storage import Storage
from curate.engine.passes.answers import index
from curate.engine.passes.answers.index import IMPORTED
from curate.engine.passes.answers.lines import FOLDER as INDEX
from curate.engine.passes.answers.log import FOLDER as LOG
from curate.engine.passes.answers.log import SHARD
from curate.engine.passes.answers.search import searched

CONTENT, VERSION = "curate answers", 1
MANIFEST = "manifest.json"
FILE_ROWS, FILE_BYTES = 10_000, 16 << 20
"""Most rows of a file, and about how many bytes in memory. Files are small because a hit reads a whole one."""
THREADS = 8
KEPT = (facts.INPUT, facts.STATUS_COLUMN, facts.REASON)
"""Columns of a file beside the stage's own."""
_OP, _STAGE = re.compile(r"[a-z][a-z0-9_]*\.[a-z][a-z0-9_]*"), re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True)
class Part:
    """A file of answers."""

    file: str
    digest: str
    rows: int
    bytes: int


@dataclass(frozen=True)
class StoredAnswers:
    """Answers of one stage, exported or imported."""

    op: str
    stage: str
    """Digest of the stage's op, version, parameters and artifacts."""
    version: int
    parameters: dict[str, Any]
    identity: dict[str, Any]
    parts: tuple[Part, ...]
    skipped: int = 0
    """An import's rows in files that the workspace has already."""

    @property
    def rows(self) -> int:
        return sum(part.rows for part in self.parts)

    @property
    def bytes(self) -> int:
        return sum(part.bytes for part in self.parts)


# --- export -----------------------------------------------------------------------------------------------------------


def export(storage: Storage, target: Storage, op: str | None = None) -> list[StoredAnswers]:
    """Write the answers of costly stages, or of those of one op. Raises InputError if there are none, or if `target`
    has an export already."""
    if target.exists(MANIFEST):
        raise InputError(f"{target.url}: has a {MANIFEST} already; choose an empty folder")
    found: list[StoredAnswers] = []
    stages = costly_stages(storage, f"facts/{op}" if op else "facts", f"{op}/" if op else "")
    for folder, files in stages.items():
        made = _export_stage(storage, target, f"facts/{folder}", files)
        found += [made] if made.parts else []
    if not found:
        known = sorted({folder.split("/")[0] for folder in costly_stages(storage, "facts", "")} if op else ())
        text = f"no answers of {op}; ops with answers: {', '.join(known) or 'none'}" if op else "no stored answers"
        raise InputError(f"{storage.url}: {text}")
    try:
        target.create_json(MANIFEST, {"content": CONTENT, "version": VERSION, "stages": [asdict(one) for one in found]})
    except AlreadyExistsError:
        raise InputError(
            f"{target.url}: another export wrote its {MANIFEST} meanwhile; choose another folder"
        ) from None
    return found


def costly_stages(storage: Storage, below: str, prefix: str) -> dict[str, list[str]]:
    """<op>/<stage> -> files, for stages with an index of answers. `prefix`: of `below` among the folders of facts."""
    found: dict[str, list[str]] = {}
    for file in storage.list(below):
        op, stage, rest = f"{prefix}{file}".split("/", 2)
        found.setdefault(f"{op}/{stage}", []).append(rest)
    return {folder: files for folder, files in found.items() if any(file.startswith(f"{INDEX}/") for file in files)}


def _export_stage(storage: Storage, target: Storage, stage: str, files: list[str]) -> StoredAnswers:
    by_fingerprint: dict[str, list[str]] = {}
    for file in files:
        fingerprint, _, rest = file.partition("/")
        by_fingerprint.setdefault(fingerprint, []).append(rest)
    listed = searched(by_fingerprint.pop(INDEX))
    segments = [f"{stage}/{LOG}/{name}" for name in by_fingerprint.pop(LOG, [])]
    tables = [
        (f"{stage}/{fingerprint}", shard, number)
        for fingerprint, names in sorted(by_fingerprint.items())
        for shard, number in sorted(facts.latest(names).items())
    ]
    choose = _Choose(storage, stage, listed, tables)
    found = _in_order(choose.of_table, tables), _in_order(choose.of_segment, segments)
    op, digest = stage.split("/")[1:]
    folder = f"{op}/{digest}"
    parts = tuple(
        _write(target, f"{folder}/{number:06d}.parquet", table)
        for number, table in enumerate(_regrouped(table for several in found for table in several))
    )
    about = _describe(storage, stage, files)
    return StoredAnswers(op, digest, about.version, about.parameters, about.identity, parts)


def _describe(storage: Storage, stage: str, files: Iterable[str]) -> Manifest:
    """Some manifest of the stage's facts; an empty one if no run has committed any."""
    for file in files:
        if "/versions/" in file and file.endswith(f"/{MANIFEST}"):
            found = Manifest.load(storage, f"{stage}/{file.removesuffix(f'/{MANIFEST}')}")
            if found is not None:
                return found
    return Manifest("facts", stage.split("/")[1], 0, "")


class _Choose:
    """Chooses the rows of tables to export: several tables may have copies of an answer, and one exports it: the first
    of those that the index names and that exist."""

    def __init__(
        self, storage: Storage, stage: str, files: tuple[str, ...], tables: list[tuple[str, str, int]]
    ) -> None:
        self.storage = storage
        self._index = index.Answers(storage, stage, {}, files)
        self._exist = {(path, shard) for path, shard, _ in tables}

    def of_table(self, place: tuple[str, str, int]) -> pa.Table:
        path, shard, _ = place
        table = facts.read(self.storage, *place)
        table = table.filter(pa.array(facts.rank(table) == 2))
        own = self._owners(table)
        mine = [own.get(given, (path, shard)) == (path, shard) for given in table.column(facts.INPUT).to_pylist()]
        return _without_places(table.filter(pa.array(mine, pa.bool_())))

    def of_segment(self, path: str) -> pa.Table | None:
        """Answers of a segment of a log that are in no table yet."""
        try:
            table = self.storage.read_table(path)
        except FileNotFoundError:  # its unit has ended meanwhile
            return None
        table = table.filter(pc.greater_equal(table.column(facts.STATUS_COLUMN), facts.DONE))
        own = self._owners(table)
        left = [given not in own for given in table.column(facts.INPUT).to_pylist()]
        return _without_places(table.filter(pa.array(left, pa.bool_())).drop_columns([SHARD]))

    def _owners(self, table: pa.Table) -> dict[bytes, tuple[str, str]]:
        """Input -> (folder, shard) of the table that exports it."""
        found: dict[bytes, tuple[str, str]] = {}
        for given, place in self._index.places(table.column(facts.INPUT).unique().to_pylist()):
            there = place.path, place.shard
            if there in self._exist:
                found[given] = min(there, found.get(given, there))
        return found


def _without_places(table: pa.Table) -> pa.Table:
    """The answers of a table, each input once, without what belongs to its shard."""
    first = np.unique(np.array(table.column(facts.INPUT).to_pylist(), object), return_index=True)[1]
    own = [name for name in table.column_names if name not in (*KEPT, facts.ROW, facts.MARKED)]
    return table.take(pa.array(np.sort(first), pa.int64())).select([*KEPT, *own])


def _in_order(read: Any, places: Iterable[Any]) -> Iterator[pa.Table]:
    """Results for places, in order, read ahead by a few threads."""
    left = iter(places)
    with ThreadPoolExecutor(THREADS) as pool:
        while ahead := list(islice(left, 2 * THREADS)):
            yield from (table for table in pool.map(read, ahead) if table is not None and table.num_rows)


def _regrouped(tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """The same rows in tables of the size of a file."""
    held: list[pa.Table] = []
    for table in tables:
        for start in range(0, table.num_rows, FILE_ROWS):
            part = table.slice(start, FILE_ROWS).replace_schema_metadata(None)
            full = sum(one.num_rows for one in held) + part.num_rows > FILE_ROWS
            if held and (full or sum(one.nbytes for one in held) > FILE_BYTES):
                yield pa.concat_tables(held, promote_options="default")
                held = []
            held.append(part)
    if held:
        yield pa.concat_tables(held, promote_options="default")


def _write(target: Storage, path: str, table: pa.Table) -> Part:
    with target.publish(path) as aside:
        pq.write_table(table, aside, **facts.options(table.schema))
        with open(aside, "rb") as file:
            name = digest_bytes(iter(partial(file.read, 1 << 20), b""))
        size = aside.stat().st_size
    return Part(path, name, table.num_rows, size)


# --- import -----------------------------------------------------------------------------------------------------------


def import_(storage: Storage, source: Storage) -> list[StoredAnswers]:
    """Make exported answers stored answers of a workspace. Repeating it has no effect. Raises InputError if `source`
    has no export, CorruptError if a file is damaged."""
    found = []
    for stage in _read_manifest(source):
        path = f"facts/{stage.op}/{stage.stage}/{IMPORTED}"
        there = facts.latest(storage.list(path))
        missing = [part for part in stage.parts if part.digest not in there]
        with ThreadPoolExecutor(THREADS) as pool:
            list(pool.map(lambda part, path=path: _import_part(storage, source, path, part), missing))
        skipped = stage.rows - sum(part.rows for part in missing)
        found.append(StoredAnswers(**vars(stage) | {"parts": tuple(missing), "skipped": skipped}))
    return found


def _read_manifest(source: Storage) -> list[StoredAnswers]:
    expected = "expected a folder that `curate answers export` wrote"
    try:
        manifest = source.read_json(MANIFEST)
    except FileNotFoundError:
        raise InputError(f"{source.url}: no {MANIFEST}; {expected}") from None
    except ValueError as error:
        raise CorruptError(f"{source.url_of(MANIFEST)}: not JSON ({error}); export the answers again") from None
    if not isinstance(manifest, dict) or manifest.get("content") != CONTENT:
        raise InputError(f"{source.url_of(MANIFEST)}: describes something else; {expected}")
    if manifest.get("version") != VERSION:
        raise InputError(
            f"{source.url_of(MANIFEST)}: version {manifest.get('version')!r} of the format, this one reads {VERSION}; "
            "export the answers with the version of curate that imports them"
        )
    try:
        stages = [
            StoredAnswers(**stage | {"parts": tuple(Part(**part) for part in stage["parts"])})
            for stage in manifest["stages"]
        ]
        for stage in stages:
            names = [stage.op, stage.stage, *(part.digest for part in stage.parts)]
            for name, pattern in zip(names, (_OP, *[_STAGE] * (len(names) - 1)), strict=True):
                if not pattern.fullmatch(name):
                    raise ValueError(f"{name!r} is not a name")
    except (KeyError, TypeError, ValueError) as error:
        text = f"{type(error).__name__}: {error}"
        raise CorruptError(f"{source.url_of(MANIFEST)}: damaged ({text}); export the answers again") from None
    return stages


def _import_part(storage: Storage, source: Storage, path: str, part: Part) -> None:
    """Publish a file as a table, after the lines of the index that lead to it."""
    answers = _read_part(source, part)
    status, rows = answers.column(facts.STATUS_COLUMN).to_numpy(), np.arange(answers.num_rows)
    inputs = np.array([*answers.column(facts.INPUT).to_pylist(), None], object)[:-1]
    columns = answers.drop_columns(list(KEPT))
    reasons = answers.column(facts.REASON).to_pylist()
    table = facts.build(rows, status, reasons, np.zeros(len(rows), dtype=bool), columns, inputs)
    index.add(storage, path.rpartition("/")[0], [(given, path, part.digest, 1) for given in inputs])
    facts.publish(storage, path, part.digest, 0, None, table, facts.Notes())


def _read_part(source: Storage, part: Part) -> pa.Table:
    """A file of answers. Raises CorruptError if it is not as the manifest says."""
    where, remedy = source.url_of(part.file), "copy the folder again, or export the answers again"
    try:
        data = source.read(part.file)
    except FileNotFoundError:
        raise CorruptError(f"{where}: missing; {remedy}") from None
    except StorageError:
        raise
    except OSError as error:  # the name leads to a folder, or out of the store
        raise CorruptError(f"{where}: cannot be read ({error}); {remedy}") from None
    found = digest_bytes([data])
    if found != part.digest:
        raise CorruptError(f"{where}: damaged: its digest is {found}, expected {part.digest}; {remedy}")
    table = pq.read_table(io.BytesIO(data), partitioning=None).combine_chunks()
    missing = [name for name in KEPT if name not in table.column_names]
    if missing or table.schema.field(facts.INPUT).type != pa.binary(16) or table.num_rows != part.rows:
        raise CorruptError(f"{where}: not a file of answers (missing: {', '.join(missing) or 'rows'}); {remedy}")
    if not set(table.column(facts.STATUS_COLUMN).unique().to_pylist()) <= {facts.DONE, facts.UNUSABLE}:
        raise CorruptError(f"{where}: has rows without an answer; {remedy}")
    return table
