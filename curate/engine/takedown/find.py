"""Where samples are: by the indexes of pools, datasets, selections and releases, and by asking training runs."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from curate.codec.members import member_columns, read_members
from curate.codec.readers import FileReader
from curate.core.contracts import OF_VIDEOS, Source
from curate.core.errors import CurateError, InputError, Reject, some
from curate.core.nouns import facts
from curate.core.nouns.manifest import Manifest, read_index, reading
from curate.core.nouns.pools import EDGES, EXTRACTED, Shard, in_folder, in_place, is_virtual, read_pool, read_shards
from curate.core.nouns.selections import read_selected, selection_places
from curate.core.nouns.takedowns import FOLDER
from curate.core.nouns.tombstones import COLUMNS, FIELDS, Tombstones, kind_of
from curate.core.recipe import registry
from curate.core.store.storage import Storage, open_storage
from curate.engine.record.affected import keys_of, pools_of, with_keys
from curate.engine.record.runs import RunRecord, list_runs
from curate.engine.takedown.bytes import Mark, mark_of
from curate.engine.units.common import fetched
from curate.engine.units.keys import places_of

_MEMBERS = "facts/duplicates.members/"
_AT_ONCE = 500
"""Keys of one question to a training run."""
_ROW = ["key", "source_id", "sha256", "url", "offset", "size", "parent", "root"]
"""Columns of a pool that a plan has of each row."""
_LOST = ("erased", "changed", "vanished", "unreadable")
"""Reasons of bytes that are gone: they were readable once."""
_SET = "duplicate_set"
Found = Sequence[dict[str, Any]]


def entries_of(storage: Storage, given: Sequence[str]) -> dict[str, str]:
    """Keys, URLs and digests -> as given: a path of an image becomes the digest of its bytes, a source id its key."""
    named = [_digest(entry) if not kind_of(entry) and Path(entry).is_file() else entry for entry in given]
    for entry in map(str.strip, named):
        if not entry or entry.startswith("#"):
            raise InputError(f"takedown: {entry!r} names no sample; give a key, URL, sha256, source id or image")
    return dict(zip(with_keys(storage, named), given, strict=True))


def _digest(path: str) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def unknown_of(storage: Storage, given: Sequence[str]) -> list[str]:
    """Those of some entries of a list of tombstones that no pool or dataset has."""
    entries = {entry: own for entry, own in zip(with_keys(storage, given), given, strict=True) if kind_of(entry)}
    return list(_named(storage, entries)[2].values())


def _named(storage: Storage, entries: Mapping[str, str]) -> tuple[set[str], Found, dict[str, str]]:
    """(keys of the samples that entries name and of their children, their rows in pools, the entries that no pool,
    dataset or earlier takedown has). An erased row has no URL: its takedown does."""
    rows = [row for found in _earlier(storage) for pool in found["pools"] for row in pool["rows"]]
    urls = {row["key"]: row["url"] for row in rows if row["url"] in entries}
    by_kind = {kind: tuple(entry for entry in entries if kind_of(entry) == kind) for kind in FIELDS}
    keys = keys_of(storage, Tombstones(by_kind | {"key": (*by_kind["key"], *urls)}))
    pools = _pool_rows(storage, keys)
    known = {row[name] for pool in pools for row in pool["rows"] for name in COLUMNS}.union(urls.values())
    if unknown := entries.keys() - known:
        known.update(line["key"] for found in _in_datasets(storage, unknown) for line in found["rows"])
    return keys, pools, {entry: given for entry, given in entries.items() if entry not in known}


def find(
    storage: Storage, entries: Mapping[str, str], releases: Sequence[str], runs: Sequence[str], known: bool = False
) -> dict[str, Any]:
    """JSON of where the samples are that these entries (as of `entries_of`) name, their children and the samples of the
    same bytes.

    Raises InputError if there are none, unless `known`, or if a run cannot be asked.
    """
    keys, pools, unknown = _named(storage, entries)
    same = {row["sha256"] for pool in pools for row in pool["rows"] if row["sha256"] and _is_whole(row["sha256"])}
    if same - entries.keys():
        keys = keys_of(storage, Tombstones({"key": tuple(keys), "sha256": tuple(same)}))
        pools = _pool_rows(storage, keys)
    datasets = list(_in_datasets(storage, keys))
    if not (pools or datasets or known):
        raise InputError(
            f"takedown: no pool or dataset of {storage.url} has {some(list(entries.values()))}; "
            "give a key, URL, sha256 or image"
        )
    marks, marked, had = dict[str, Mark](), dict[str, list[str]](), dict[str, bool]()
    here = (_marks_of_pools(storage, pools, had), _marks_of_datasets(storage, datasets))
    for key, mark in chain(*here, _known_marks(storage, keys, same)):
        if int(mark.word, 16) and mark.sha256 not in marked.setdefault(key, []):  # zeros: erased
            marked[key].append(mark.sha256)
            marks[mark.sha256] = mark
    shards = {Shard(**pool["shard"]).id: [row["row"] for row in pool["rows"]] for pool in pools}
    tables = list(_in_facts(storage, shards))
    near = [*_near_in_datasets(storage, datasets), *_near_in_pools(storage, tables)]
    return {
        "entries": sorted(entries), "unknown": list(unknown.values()), "keys": sorted(keys - unknown.keys()),
        "sha256": sorted(same), "pools": pools,
        "facts": tables, "selections": list(_in_selections(storage, shards)),
        "datasets": datasets, "releases": [_in_release(place, keys) for place in releases],
        "runs": [_in_run(run, sorted(keys)) for run in runs if keys],
        "near": list({line["key"]: line for line in reversed(near) if line["key"] not in keys}.values()),
        "marks": [asdict(mark) for mark in marks.values()], "marked": marked,
        "unstored": _unstored(storage, pools, marked, had),
    }  # fmt: skip


def _is_whole(sha256: str) -> bool:
    return not sha256.startswith((EDGES, EXTRACTED))


def _pool_rows(storage: Storage, keys: Collection[str]) -> list[dict[str, Any]]:
    """The rows of each shard of any pool that have one of the keys, by the index of keys."""
    found: dict[str, dict[str, Any]] = {}
    for base, manifest in pools_of(storage).items():
        shards = read_shards(storage, base)
        known = places_of(storage, manifest, sorted(keys))
        if known is None:
            homes = dict.fromkeys(range(len(shards)))
        else:
            homes = {place: None for hits in known.values() for place, _ in hits}
        for place in homes:
            shard = shards[place]
            if shard.table in found:
                found[shard.table]["pools"].append(base)
                continue
            table = read_pool(storage, shard.table)
            mine = pc.is_in(table.column("key"), value_set=pa.array(sorted(keys), pa.string()))
            rows = pc.indices_nonzero(mine)
            if len(rows):
                lines = table.take(rows).select(_ROW).to_pylist()
                index = "key index" if known is not None else "table"
                found[shard.table] = {
                    "pools": [base], "index": index, "shard": shard.to_json(),
                    "rows": [{"row": row, **line} for row, line in zip(rows.to_pylist(), lines, strict=True)],
                }  # fmt: skip
    return list(found.values())


def _known_marks(storage: Storage, keys: Collection[str], sha256: set[str]) -> Iterator[tuple[str, Mark]]:
    """Marks that earlier takedowns of these samples have: the bytes may be gone since."""
    for found in _earlier(storage):
        marks = {mark["sha256"]: Mark(**mark) for mark in found["marks"]}
        for key, digests in marked_in(found).items():
            if key in keys or not sha256.isdisjoint(digests):
                yield from ((key, marks[digest]) for digest in digests)


def _earlier(storage: Storage) -> Iterator[dict[str, Any]]:
    """What earlier takedowns found."""
    for file in sorted(storage.list(FOLDER)):
        if file.endswith("/plan.json"):
            yield storage.read_json(f"{FOLDER}/{file}")["found"]


def marked_in(found: dict[str, Any]) -> dict[str, list[str]]:
    """Key -> digests of its marks. A plan of before does not tell the marks of its keys apart."""
    return found.get("marked") or {key: [mark["sha256"] for mark in found["marks"]] for key in found["keys"]}


def _marks_of_pools(storage: Storage, pools: Found, had: dict[str, bool]) -> Iterator[tuple[str, Mark]]:
    """Marks of what can be read. `had` gets the samples that have or had bytes -> whether these were stored, not
    extracted from a parent's."""
    for pool in pools:
        shard = Shard(**pool["shard"])
        table = read_pool(storage, shard.table, list(dict.fromkeys(("key", *member_columns([shard])))))
        rows = table.take(pa.array([row["row"] for row in pool["rows"]]))
        lines = rows.filter(pc.is_valid(rows.column("offset"))).to_pydict()
        own = not is_virtual(shard)
        for key, data in zip(lines["key"], read_members(storage, shard, lines), strict=True):
            if (own or data.reason in _LOST) if isinstance(data, Reject) else data.size:
                had[key] = own or had.get(key, False)
            if not isinstance(data, Reject) and data.size:
                yield key, mark_of(data)


def _unstored(storage: Storage, pools: Found, marked: Collection[str], had: dict[str, bool]) -> dict[str, str | None]:
    """Samples without a mark or stored bytes -> the sample that they were made of, by whose mark they are verified;
    None for what was never stored."""
    rows = {row["key"]: row for pool in pools for row in pool["rows"]}
    before = {key for found in _earlier(storage) for key in found.get("unstored", ())}
    found = dict[str, str | None]()
    for key in sorted(key for key in rows.keys() - set(marked) if not had.get(key)):
        by = next((above for above in (rows[key]["parent"], rows[key]["root"]) if above in marked), None)
        if by or key not in had or key in before:
            found[key] = by
    return found


def _in_datasets(storage: Storage, keys: Collection[str]) -> Iterator[dict[str, Any]]:
    wanted = pa.array(sorted(keys), pa.string())
    for file in sorted(storage.list("datasets")):
        if not file.endswith("/manifest.json"):
            continue
        base = f"datasets/{file.removesuffix('/manifest.json')}"
        manifest = Manifest.load(storage, base)
        lines = _lines(storage, f"{base}/index.parquet", wanted)
        if manifest is not None and lines:
            yield {
                "dataset": base, "index": "index.parquet", "rows": lines, "of": manifest.rows,
                "predecessor": manifest.extra.get("predecessor"),
            }  # fmt: skip


def _lines(storage: Storage, path: str, wanted: pa.Array) -> list[dict[str, Any]]:
    """Lines of a dataset's index with these keys: of all row groups only the keys are read."""
    remedy = f"remove the folder {path.rpartition('/')[0]} and rerun the recipe"
    with reading(storage, path, "index of a dataset", remedy):
        with storage.open(path) as file:
            footer = pq.read_metadata(file)
        columns = [name for name in (*_PLACES, _SET) if name in footer.schema.to_arrow_schema().names]

        def lines(group: int) -> list[dict[str, Any]]:
            with storage.open(path) as file, pq.ParquetFile(file, metadata=footer) as parquet:
                mine = pc.is_in(parquet.read_row_group(group, ["key"], use_threads=False).column(0), value_set=wanted)
                if not pc.any(mine).as_py():
                    return []
                return list(parquet.read_row_group(group, columns, use_threads=False).filter(mine).to_pylist())

        return [line for found in fetched(lines, range(footer.num_row_groups)) for line in found]


_PLACES = ("key", "shard", "row", "name", "offset", "size", *OF_VIDEOS.names)


def tars_of(storage: Storage, base: str) -> list[str]:
    """Names of a dataset's tars, in order."""
    return sorted(json.loads(storage.read(f"{base}/sizes.json")))


def _marks_of_datasets(storage: Storage, datasets: Sequence[dict[str, Any]]) -> Iterator[tuple[str, Mark]]:
    for found in datasets:
        tars = tars_of(storage, found["dataset"])
        for line in found["rows"]:
            path = f"{found['dataset']}/{tars[line['shard']]}"
            spans = [(line["offset"], line["size"]), (line.get("clip_offset"), line.get("clip_size"))]
            if line.get("frame_offsets"):  # of a clip, the frame in its middle
                middle = len(line["frame_offsets"]) // 2
                spans[0] = line["offset"] + line["frame_offsets"][middle], line["frame_sizes"][middle]
            for offset, size in spans:
                if offset is not None and size:
                    yield line["key"], mark_of(storage.read_range(path, offset, offset + size))


def _in_facts(storage: Storage, shards: dict[str, list[int]]) -> Iterator[dict[str, Any]]:
    """Tables of facts and segments of their logs with these rows of pool shards."""
    for file in sorted(storage.list("facts")):
        parts, path = file.split("/"), f"facts/{file}"
        if not file.endswith(".parquet") or "versions" in parts or "index" in parts[2:3]:
            continue
        if parts[-2] in shards:
            rows = storage.read_table(path, columns=[facts.ROW]).column(facts.ROW).to_pylist()
            mine = sorted(set(rows).intersection(shards[parts[-2]]))
            if mine:
                yield {"table": path, "rows": mine}
        elif parts[2] == "log":
            table = storage.read_table(path, columns=["_shard", facts.ROW]).to_pydict()
            pairs = list(zip(table["_shard"], table[facts.ROW], strict=True))
            if any(row in shards.get(shard, ()) for shard, row in pairs):
                yield {"table": path, "rows": [n for n, (s, row) in enumerate(pairs) if row in shards.get(s, ())]}


def _in_selections(storage: Storage, shards: dict[str, list[int]]) -> Iterator[dict[str, Any]]:
    for file in sorted(storage.list("selections")):
        if file.endswith("/manifest.json"):
            base = f"selections/{file.removesuffix('/manifest.json')}"
            places, copies = selection_places(storage.url, base), 0
            for shard, rows in shards.items():
                lines = read_selected(storage, base, places.get(shard), ["row", "copies"])
                mine = lines.filter(pc.is_in(lines.column("row"), value_set=pa.array(rows, lines.column("row").type)))
                copies += pc.sum(mine.column("copies")).as_py() or 0
            if copies:
                yield {"selection": base, "copies": copies}


def _in_release(place: str, keys: Collection[str]) -> dict[str, Any]:
    """Rows of a release: a folder of Parquet files with a column `key`."""
    storage, wanted, files = open_storage(place), pa.array(sorted(keys), pa.string()), dict[str, int]()
    names = [name for name in sorted(storage.list("")) if name.endswith(".parquet")]
    if not names:
        raise InputError(f"--releases {place}: no .parquet files; give the folder of a release")
    for name in names:
        with storage.open(name) as file:
            parquet = pq.ParquetFile(file)
            if "key" in parquet.schema_arrow.names:
                parts = (batch.column(0) for batch in parquet.iter_batches(columns=["key"]))
                count = sum(pc.sum(pc.is_in(part, value_set=wanted)).as_py() or 0 for part in parts)
                files |= {name: count} if count else {}
    return {"release": storage.url, "index": "key", "files": files}


def _in_run(run: str, keys: Sequence[str]) -> dict[str, Any]:
    """The steps of a training run that saw keys, as `distill where` says."""
    steps: dict[str, Any] = {}
    about: dict[str, Any] = {}
    for start in range(0, len(keys), _AT_ONCE):
        some = keys[start : start + _AT_ONCE]
        command = [sys.executable, "-m", "distill.cli", "where", run, *some, "--json"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            why = (done.stderr.strip().splitlines() or ["it gave no reason"])[-1]
            raise InputError(f"--runs {run}: `distill where` failed ({why}); fix it, or leave the run out")
        about = json.loads(done.stdout)
        steps |= {key: seen for key, seen in about["keys"].items() if seen}
    return {"run": run, "index": "distill where", "fingerprint": about["fingerprint"], "steps": about["steps"],
            "seen": steps}  # fmt: skip


def _near_in_datasets(storage: Storage, datasets: Sequence[dict[str, Any]]) -> Iterator[dict[str, str]]:
    """The members of the duplicate sets of samples, by the column that datasets carry."""
    for line in datasets:
        sets = sorted({row[_SET] for row in line["rows"] if row.get(_SET)})
        if sets:
            among = pc.is_in(pc.field(_SET), value_set=pa.array(sets))
            for row in read_index(storage, line["dataset"], ["key", _SET], filters=among).to_pylist():
                yield {**row, "dataset": line["dataset"]}


def _near_in_pools(storage: Storage, tables: Sequence[dict[str, Any]]) -> Iterator[dict[str, str]]:
    """The same by facts: also members that a recipe drops as copies of these samples."""
    sets: dict[tuple[str, str], set[str]] = {}
    for line in tables:
        if line["table"].startswith(_MEMBERS) and "/log/" not in line["table"]:
            table = storage.read_table(line["table"])
            name = next(name for name in table.column_names if name.endswith("_set"))
            mine = table.filter(pc.is_in(table.column(facts.ROW), value_set=pa.array(line["rows"], pa.int32())))
            folder = line["table"].rsplit("/", 2)[0]
            sets.setdefault((folder, name), set()).update(mine.column(name).drop_null().to_pylist())
    pools = (
        {shard.id: shard.table for base in pools_of(storage) for shard in read_shards(storage, base)} if sets else {}
    )
    for (folder, name), wanted in sets.items():
        newest = {file.split("/")[0]: f"{folder}/{file}" for file in sorted(storage.list(folder))}
        among = pa.array(sorted(wanted), pa.string())

        def members(shard: str, newest: dict[str, str] = newest, name: str = name, among: pa.Array = among) -> pa.Table:
            table = storage.read_table(newest[shard], [facts.ROW, name])
            return table.filter(pc.is_in(table.column(name), value_set=among))

        shards = sorted(newest.keys() & pools.keys())
        for shard, mine in zip(shards, fetched(members, shards), strict=True):
            if len(mine):
                keys = read_pool(storage, pools[shard], ["key"]).column("key").take(mine.column(facts.ROW))
                for key, keeper in zip(keys.to_pylist(), mine.column(name).to_pylist(), strict=True):
                    yield {"key": key, _SET: keeper, "facts": folder}


def source_files(storage: Storage, found: dict[str, Any]) -> list[str]:
    """Files outside the workspace, which are the user's, that may still have the samples."""
    sources, left = _sources(storage) if found["pools"] else {}, set[str]()
    for pool in found["pools"]:
        shard = Shard(**pool["shard"])
        if in_folder(shard):
            left |= {f"{shard.tar}{row['source_id']}" for row in pool["rows"]}
        elif in_place(shard):
            left |= {f"{shard.tar} (bytes {row['offset']} on)" for row in pool["rows"]}
        else:
            known = [source for base in pool["pools"] for source in sources.get(base, ())]
            files = ((source.origin(row["source_id"]), row["sha256"]) for source in known for row in pool["rows"])
            left |= {file for file, sha256 in files if file and _may_have(file, sha256)}
    return sorted(left)


def _sources(storage: Storage) -> dict[str, list[Source]]:
    """Pool -> the sources that made it, by the recipes of all runs."""
    found: dict[str, list[Source]] = {}
    for run in (RunRecord.load(storage, name) for name in list_runs(storage)):
        for stage, output in run.outputs.items():
            written = ((run.record.get("recipe") or {}).get("stages") or {}).get(stage)
            derived = run.record["stages"][stage].get("derives")
            if not written or derived or not output["base"].startswith("pools/"):
                continue
            try:
                cls: Any = registry.resolve(written["op"])
                source: Source = cls(**{name: value for name, value in written.items() if name in cls.model_fields})
            except CurateError:  # the op has changed since
                continue
            known = found.setdefault(output["base"], [])
            known += [] if source in known else [source]
    return found


def _may_have(file: str, sha256: str | None) -> bool:
    """Whether a file has these bytes, or cannot be read now."""
    folder, _, name = file.rpartition("/")
    try:
        place = open_storage(folder)
        return FileReader(place, name).sha256() == sha256 if place.exists(name) else not place.exists("")
    except (CurateError, Reject, OSError):
        return True
