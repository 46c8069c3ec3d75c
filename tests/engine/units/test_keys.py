"""The index of a pool's keys: every key is found, repeats are reported, and few files are opened."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from curate.core.errors import CorruptError, InputError
from curate.core.hashing import keys_of_words
from curate.core.nouns import tombstones
from curate.core.nouns.manifest import Manifest
from curate.core.nouns.pools import POOL_SCHEMA, Shard, read_shards
from curate.core.store.storage import Storage, open_storage
from curate.engine.record import explain as explaining
from curate.engine.record.affected import affected_datasets
from curate.engine.record.explain import explain, find
from curate.engine.record.runs import RunRecord
from curate.engine.run import run
from curate.engine.units import keys, shuffle
from tests.engine import derived, toys, workspaces

FEW_KEYS = np.stack([np.arange(12, dtype=np.uint64) * np.uint64(2**60 + 12345), np.arange(12, dtype=np.uint64)], 1)
SAMPLES = st.lists(st.lists(st.tuples(st.integers(0, 11), st.booleans()), max_size=6), min_size=1, max_size=8)


class Calls:
    """Runs tasks one by one, as a context would."""

    def __init__(self, storage: Storage) -> None:
        self.storage, self.tasks = storage, self

    def each(self, function: Any, payloads: Any, stage: Any, what: str) -> Any:
        return enumerate(map(function, payloads))

    def must(self, function: Any, payloads: Any, stage: Any, what: str) -> Any:
        return list(map(function, payloads))


class Node:
    name, stage = "pool", None


def pool(storage: Storage, samples: list[list[tuple[int, bool]]]) -> list[Shard]:
    """Shards of (key's number, alive)."""
    names = keys_of_words(FEW_KEYS)
    shards = []
    for number, rows in enumerate(samples):
        lines = [{"key": names[key], "reject": None if alive else "unwanted"} for key, alive in rows]
        table = pa.Table.from_pylist(lines, schema=pa.schema([POOL_SCHEMA.field(n) for n in ("key", "reject")]))
        shards.append(Shard(f"{number:032d}", len(rows), "", 0, f"pools/p/shards/{number}.parquet"))
        storage.publish_table(shards[-1].table, table)
    return shards


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(samples=SAMPLES, least=st.integers(1, 40), stretch=st.integers(1, 8))
@pytest.mark.long
def test_every_key_is_found_and_every_repeat_reported(
    memory: Path, samples: list[list[tuple[int, bool]]], least: int, stretch: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shuffle, "LEAST_ROWS", least)
        patch.setattr(shuffle, "STRETCH_ROWS", stretch)
        storage = Storage(str(memory / f"keys-{abs(hash((str(samples), least, stretch)))}"))
        shards = pool(storage, samples)
        folder, ctx = keys.folder_of("p", shards), Calls(storage)
        index = keys.build_index(ctx, Node, folder, shards, with_repeats=True)  # type: ignore[arg-type]
        manifest = Manifest("pool", "", 1, "", extra={"keys": index})
        names = keys_of_words(FEW_KEYS)
        for number, name in enumerate(names):
            places = [(s, r) for s, rows in enumerate(samples) for r, (key, _) in enumerate(rows) if key == number]
            assert keys.look_up(storage, manifest, name) == places
            near = [n for n, other in enumerate(names) if other.startswith(name[:4])]
            alike = sorted((s, r) for s, rows in enumerate(samples) for r, (key, _) in enumerate(rows) if key in near)
            assert sorted(keys.look_up(storage, manifest, name[:4]) or []) == alike
        seen: set[int] = set()
        wanted: dict[int, list[int]] = {}
        for place, rows in enumerate(samples):
            for row, (key, alive) in enumerate(rows):
                if alive and key in seen:
                    wanted.setdefault(place, []).append(row)
                seen |= {key} if alive else set()
        told: dict[int, list[int]] = {}
        for (first, stop), pieces in keys.repeats(ctx, folder, shards):  # type: ignore[arg-type]
            found = keys.read_repeats(storage, pieces)
            assert all(first <= place < stop for place in found)
            told |= found
        assert told == wanted
        keys.tidy_index(storage, folder)
        assert sorted(storage.list(folder)) == [f"{number:06d}.parquet" for number in range(index["ranges"])]


def test_each_table_is_read_once_however_many_ranges(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shuffle, "LEAST_ROWS", 16)
    monkeypatch.setattr(shuffle, "STRETCH_ROWS", 32)
    storage = Storage(str(workspace))
    shards = pool(storage, [[(n % 12, True) for n in range(8)] for _ in range(64)])
    opened: Counter[str] = Counter()
    plain = Storage.read_table, Storage.read_range
    monkeypatch.setattr(Storage, "read_table", lambda s, p, **o: opened.update([p]) or plain[0](s, p, **o))
    monkeypatch.setattr(Storage, "read_range", lambda s, p, *a: opened.update([p]) or plain[1](s, p, *a))
    index = keys.build_index(Calls(storage), Node, keys.folder_of("p", shards), shards)  # type: ignore[arg-type]
    assert index["ranges"] == 32
    assert max(opened[shard.table] for shard in shards) == 1
    assert sum(opened.values()) <= (1 + shuffle.RANGES_A_SHARD + 1) * len(shards)


# --- who asks it ------------------------------------------------------------------------------------------------------


def test_explain_opens_the_one_shard_of_a_key(workspace: Path) -> None:
    result = run(toys.chain(toys.Brightness()), str(workspace), run_id="one")
    record, storage = RunRecord.load(open_storage(str(workspace)), "one"), open_storage(str(workspace))
    base = result.outputs["pool"].removeprefix(f"{workspace}/")
    shards = read_shards(storage, base)
    row = storage.read_table(shards[2].table).slice(3, 1).to_pylist()[0]
    for shard in shards:
        if shard != shards[2]:
            Path(workspace, shard.table).unlink()
    said: list[str] = []
    for wanted in (row["key"], row["key"][:12], row["source_id"]):
        pool_stage, shard, place, found = find(record, wanted, said.append)
        assert (pool_stage, shard, place, found) == ("pool", shards[2], 3, row)
    assert said == []


def test_a_name_is_searched_in_all_tables_with_a_notice(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(explaining, "QUICK", 3)
    run(toys.chain(toys.Brightness()), str(workspace), run_id="one")
    record, said = RunRecord.load(open_storage(str(workspace)), "one"), list[str]()
    with pytest.raises(InputError, match="'nobody': no sample of run one has this key"):
        explain(record, "nobody", said.append)
    assert said == ["'nobody' is not a key or source id; searching 4 shards of pool for this name"]


def test_children_of_a_tombstoned_parent_are_found_in_its_tables(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the tables derived from the parent's shard are opened."""
    result = run(derived.pipeline(), str(workspace))
    storage = open_storage(str(workspace))
    base = result.outputs["tiles"].removeprefix(f"{workspace}/")
    tables = {shard.table: shard.parent_shard().id for shard in read_shards(storage, base)}
    assert len(set(tables.values())) > 1
    packed = open_storage(result.outputs["dataset"]).read_table("index.parquet").column("key").to_pylist()
    child = find(RunRecord.load(storage, result.run_id), packed[0])
    tombstones.add(storage, [child[3]["parent"]], "asked for")
    opened: list[str] = []
    plain = Storage.read_table
    monkeypatch.setattr(Storage, "read_table", lambda s, p, **o: opened.append(p) or plain(s, p, **o))
    [(dataset, count)] = affected_datasets(storage, tombstones.load(storage)).items()
    assert result.outputs["dataset"].endswith(dataset) and count >= 1
    home = child[1].parent_shard().id
    assert {tables[path] for path in opened if path in tables} == {home}


def test_an_existing_pool_is_found_by_one_file_of_records(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pipeline = toys.chain(toys.Brightness(), rows=40)
    run(pipeline, str(workspace))
    read: list[str] = []
    plain = Storage.read
    monkeypatch.setattr(Storage, "read", lambda s, p: read.append(p) or plain(s, p))
    assert all(run(pipeline, str(workspace)).reused.values())
    assert not [path for path in read if "/portions/" in path]
    before = workspaces.times(workspace)
    run(toys.chain(toys.Brightness(), rows=50), str(workspace))
    assert not [path for path in read if "/portions/" in path]
    assert {name: workspaces.times(workspace)[name] for name in before} == before


def test_a_record_that_was_removed_is_not_believed(workspace: Path) -> None:
    pipeline = toys.chain(toys.Brightness(), rows=40)
    run(pipeline, str(workspace))
    held = workspaces.files(workspace)
    [whole] = workspace.glob("pools/toys/portions/all/*.parquet")
    record = sorted(workspace.glob("pools/toys/portions/*.json"))[1]
    record.unlink()
    result = run(pipeline, str(workspace))
    assert record.exists() and whole.exists() and result.ledger["pool"].after == 40
    assert workspaces.files(workspace) == held


@pytest.mark.parametrize(
    ("files", "what"),
    [
        ("portions/all/*.parquet", "list of imported portions"),
        ("portions/*.json", "record of a portion"),
        ("repeats/*.parquet", "list of repeated keys"),
    ],
)
def test_a_corrupt_record_of_an_import_is_a_one_line_error(workspace: Path, files: str, what: str) -> None:
    pipeline = toys.chain(toys.Brightness(), rows=40, repeat=30)
    run(pipeline, str(workspace))
    held = workspaces.files(workspace)
    if files == "portions/*.json":  # read where no file has all of them
        next(workspace.glob("pools/toys/portions/all/*")).unlink()
    for path in workspace.glob(f"pools/toys/{files}"):
        path.write_bytes(path.read_bytes()[:40])
    told = rf"pools/toys/.*: this {what} is corrupt or missing \(.+\); remove it and rerun the recipe"
    with pytest.raises(CorruptError, match=told):
        run(pipeline, str(workspace))
    for path in workspace.glob(f"pools/toys/{files}"):
        path.unlink()
    run(pipeline, str(workspace))
    assert workspaces.files(workspace) == held


def test_a_corrupt_index_is_a_one_line_error_and_its_remedy_works(workspace: Path) -> None:
    pipeline = toys.chain(toys.Brightness(), rows=40)
    run(pipeline, str(workspace), run_id="one")
    [index] = workspace.glob("pools/toys/keys/*")
    (index / "000000.parquet").write_bytes(b"no table")
    told = r"this index of keys is corrupt or missing \(.+\); remove the folders pools/toys/keys/\w+ and pools/toys/v"
    record = RunRecord.load(open_storage(str(workspace)), "one")
    with pytest.raises(CorruptError, match=told):
        explain(record, "000007")
    shutil.rmtree(index)
    shutil.rmtree(workspace / "pools/toys/versions")
    run(pipeline, str(workspace), run_id="two")
    assert explain(RunRecord.load(open_storage(str(workspace)), "two"), "000007")[0][2]["source_id"] == "000007"
