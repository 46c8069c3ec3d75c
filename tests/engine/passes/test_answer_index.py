"""The index of answers: what it finds, what a look-up reads, what merges leave, and how it is rebuilt."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from curate.core.errors import CorruptError, StorageError
from curate.core.store import faults
from curate.core.store.storage import Storage, open_storage
from curate.engine.passes.answers import index
from curate.engine.passes.answers import merge as merging
from curate.engine.passes.answers.lookup import Answers
from curate.engine.run import run
from curate.engine.state import Options
from tests.draw import drawn
from tests.engine import toys, workspaces

FOLDER = "facts/op/stage"
INDEX = f"{FOLDER}/{index.FOLDER}"
Line = tuple[bytes, str]


def lines(seed: int, count: int, alike: bool = True) -> list[Line]:
    """Digests, which end in a zero; with `alike`, half of them begin alike."""
    drawn = np.random.default_rng(seed).bytes(16 * count)
    made = []
    for n in range(count):
        first = b"\xff" * 8 if alike and n % 2 else drawn[16 * n : 16 * n + 8]
        made.append((first + drawn[16 * n + 8 : 16 * n + 15] + b"\0", f"f/s{n % 7}/{n % 3 + 1:06d}.parquet"))
    return made


@pytest.fixture(autouse=True)
def other_process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nothing is open or cached from another test."""
    monkeypatch.setenv("CURATE_CACHE", str(tmp_path / "cache"))
    index.forget()


@pytest.fixture(params=["local", "remote"])
def storage(workspace: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Storage:
    """A folder, as itself and as an object store."""
    found = open_storage(str(workspace))
    if request.param == "remote":
        monkeypatch.setattr(found, "local", False)
        monkeypatch.setattr(found, "_put", lambda aside, final, exclusive: _put(aside, final, exclusive))
    return found


def _put(aside: Path, final: str, exclusive: bool) -> None:
    Path(final).parent.mkdir(parents=True, exist_ok=True)
    with open(final, "xb" if exclusive else "wb") as file:
        file.write(aside.read_bytes())


def listed(storage: Storage) -> dict[str, int]:
    return index.files_of(storage.list(INDEX))


def found(storage: Storage, files: index.Files, wanted: list[Line]) -> list[Line]:
    return sorted(index.search(storage, FOLDER, files, [line[0] for line in wanted]))


def here(function: Callable[[Any], bool], tasks: Sequence[Any]) -> bool:
    done = [function(task) for task in tasks]
    return all(done)


def add(storage: Storage, written: Sequence[Line], each: int = 10) -> None:
    """A file for every few lines, as units add them."""
    for start in range(0, len(written), each):
        index.add(storage, FOLDER, written[start : start + each])


def test_files_of_units_are_searched(storage: Storage) -> None:
    written = lines(1, 500)
    add(storage, written, 100)
    wanted = [*written[::3], *lines(2, 100)]
    assert found(storage, listed(storage), wanted) == sorted(written[::3])
    assert found(storage, listed(storage), lines(2, 100)) == [] == found(storage, {}, written)


def test_what_a_process_adds_it_finds_without_a_listing(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index, "RECENT_LINES", 25)
    written = lines(1, 40)
    add(storage, written)
    seen = index.search_recent(storage, FOLDER, [line[0] for line in written])
    assert sorted(seen) == sorted(written[20:])


def test_inputs_with_several_tables(storage: Storage) -> None:
    """Each line once, also after a merge of files that have it twice."""
    written = [(given, f"f/s/{number:06d}.parquet") for given, _ in lines(1, 20) for number in (1, 2, 3)]
    for start in range(4):
        index.add(storage, FOLDER, written[start:])
    assert set(found(storage, listed(storage), written)) == set(written)
    merging.merge(storage, FOLDER, here)
    assert len(listed(storage)) == 1 and found(storage, listed(storage), written[::3]) == sorted(written)


@pytest.mark.parametrize("range_lines", [16, 100, merging.RANGE_LINES])
@pytest.mark.parametrize("alike", [False, True])
def test_a_merged_file_finds_what_it_has(
    storage: Storage, monkeypatch: pytest.MonkeyPatch, range_lines: int, alike: bool
) -> None:
    """Merged at once or by ranges; half of the lines may be in the last one."""
    monkeypatch.setattr(merging, "RANGE_LINES", range_lines)
    written = lines(1, 400, alike)
    add(storage, written)
    before = listed(storage)
    assert found(storage, before, written) == sorted(written)
    merging.merge(storage, FOLDER, here)
    [merged] = after = listed(storage)
    assert len(before) == 40 and merged not in before
    wanted = [*written[::3], *lines(2, 100, alike)]
    assert found(storage, after, wanted) == sorted(written[::3])
    assert found(storage, after, lines(2, 100, alike)) == []
    add(storage, lines(3, 60, alike), 30)
    assert found(storage, listed(storage), [*written, *lines(3, 60, alike)]) == sorted([*written, *lines(3, 60, alike)])


def test_files_of_similar_size_are_merged(monkeypatch: pytest.MonkeyPatch) -> None:
    assert merging.groups(dict.fromkeys("abc", 10)) == [] == merging.groups({})
    assert merging.groups({"small": 1} | dict.fromkeys("abcd", 10)) == [tuple("abcd")]
    assert merging.groups({"a": 10, "b": 20, "c": 60, "d": 180, "huge": 1000}) == [tuple("abcd")]
    monkeypatch.setattr(merging, "MOST_FILES", 5)
    assert merging.groups(dict.fromkeys("abcdefghijkl", 10)) == [tuple("abcde"), tuple("fghij")]


def test_a_large_file_is_seldom_rewritten(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each line is written a few times, and there are few files, however many units there were."""
    wrote, merged = [0], merging._merged

    def counted(*args: Any) -> Any:
        for batch in merged(*args):
            wrote[0] += len(batch)
            yield batch

    monkeypatch.setattr(merging, "_merged", counted)
    add(storage, lines(99, 2, alike=False), 2)  # one small file among them keeps no others from being merged
    most = 0
    for seed in range(14):
        add(storage, lines(seed, 3200, alike=False), 200)
        merging.merge(storage, FOLDER, here)
        most = max(most, len(listed(storage)))
    assert most <= 8 and wrote[0] <= 6 * 14 * 3200
    written = lines(3, 3200, alike=False)
    assert found(storage, listed(storage), written) == sorted(written)


def test_files_are_read_from_an_object_store_once(
    workspace: Path, monkeypatch: pytest.MonkeyPatch, storage: Storage
) -> None:
    """They are copied to the machine; copies of a file that is gone are removed, and truncated ones replaced."""
    written = lines(1, 1000, alike=False)
    add(storage, written, 500)
    opened: list[str] = []
    read = Storage.read_range

    def counted(self: Storage, relative: str, start: int, stop: int | None) -> bytes:
        opened.append(relative)
        return read(self, relative, start, stop)

    monkeypatch.setattr(Storage, "read_range", counted)
    for _ in range(2):
        assert found(storage, listed(storage), written[::5]) == sorted(written[::5])
        index.forget()
    assert len(opened) == (0 if storage.local else 2)
    copies = index._copies(storage, INDEX)
    assert copies.exists() == (not storage.local)
    for copy in copies.glob("*.arrow"):
        copy.write_bytes(b"")
    assert found(storage, listed(storage), written[::5]) == sorted(written[::5])
    assert found(storage, {}, written) == []
    assert len(list(copies.glob("*.arrow"))) == (0 if storage.local else 2), "copies that were made just now"
    monkeypatch.setattr(index, "UNUSED_SECONDS", -1.0)
    found(storage, {}, written)
    assert not list(copies.glob("*.arrow"))


def test_without_a_cache_files_are_kept_in_memory(
    storage: Storage, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("not a folder")
    monkeypatch.setenv("CURATE_CACHE", str(tmp_path / "file"))
    written = lines(1, 400)
    add(storage, written)
    merging.merge(storage, FOLDER, here)
    assert found(storage, listed(storage), written) == sorted(written)


def test_a_corrupt_file_is_named(storage: Storage) -> None:
    add(storage, lines(1, 400))
    merging.merge(storage, FOLDER, here)
    [file] = listed(storage)
    path = Path(storage.path(f"{INDEX}/{file}"))
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(CorruptError, match="this file of the index of answers is corrupt") as raised:
        found(storage, listed(storage), lines(1, 10))
    assert file in str(raised.value) and "\n" not in str(raised.value)


# --- kills ------------------------------------------------------------------------------------------------------------


class Killed(BaseException):
    pass


def points(monkeypatch: pytest.MonkeyPatch, kill: int = -1) -> list[str]:
    """Names of the points that are passed; the process "dies" at number `kill`, also between removals."""
    passed: list[str] = []

    def point(name: str) -> None:
        passed.append(name)
        if len(passed) - 1 == kill:
            raise Killed

    def removing(method: Callable[..., None]) -> Callable[..., None]:
        def removed(self: Storage, relative: str) -> None:
            point(f"remove:{relative}")
            method(self, relative)

        return removed

    monkeypatch.setattr(faults, "point", point)
    for name in ("remove", "remove_file"):
        monkeypatch.setattr(Storage, name, removing(getattr(Storage, name)))
    return passed


def small_index(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> list[Line]:
    """Sixteen units to merge: four at a time, and these four again."""
    monkeypatch.setattr(merging, "RANGE_LINES", 16)
    monkeypatch.setattr(merging, "MOST_FILES", 4)
    written = lines(5, 80, alike=False)
    merging.merge(storage, FOLDER, here)  # the first run says that it is complete
    add(storage, written, 5)
    return written


def merged(storage: Storage, monkeypatch: pytest.MonkeyPatch, kill: int) -> list[str]:
    """Merge until a kill; returns the points that were passed."""
    with monkeypatch.context() as patch:
        passed = points(patch, kill)
        with contextlib.suppress(Killed):
            merging.merge(storage, FOLDER, here)
    return passed


@pytest.fixture
def local(workspace: Path) -> Storage:
    return open_storage(str(workspace))


def test_a_kill_at_any_point_of_a_merge_loses_nothing(
    local: Storage, memory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Readers find all lines right after it; the next merge drops duplicates."""
    written = small_index(local, monkeypatch)
    whole = merged(local, monkeypatch, -1)
    kinds = ("publish:*.arrow:written", "publish:*.arrow:published", "remove:*.arrow")
    assert all(any(fnmatch(name, kind) for name in whole) for kind in kinds) and len(listed(local)) == 1
    for kill in drawn(range(len(whole))):
        other = open_storage(str(memory / f"killed-{kill}"))
        small_index(other, monkeypatch)
        assert merged(other, monkeypatch, kill) == whole[: kill + 1]
        assert set(found(other, listed(other), written)) == set(written), whole[kill]
        merging.merge(other, FOLDER, here)
        assert set(found(other, listed(other), written)) == set(written), whole[kill]
        assert len(listed(other)) <= 4, whole[kill]


def test_a_task_that_fails_ends_the_merge(local: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    written = small_index(local, monkeypatch)
    merging.merge(local, FOLDER, lambda function, tasks: False)
    assert found(local, listed(local), written) == sorted(written) and len(listed(local)) == 16


def test_a_merge_whose_files_another_run_removed_gives_up(local: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its lease was taken for dead. The other run's files have all lines."""
    written = small_index(local, monkeypatch)

    def robbed(function: Callable[[Any], bool], tasks: Sequence[Any]) -> bool:
        assert all(function(task) for task in tasks)  # the other run's merge
        return here(function, tasks)

    merging.merge(local, FOLDER, robbed)
    assert len(listed(local)) == 4 and found(local, listed(local), written) == sorted(written)


# --- rebuilding it from the tables ------------------------------------------------------------------------------------


def costly(workspace: Path, namespace: str, rows: int = 100) -> tuple[int, int]:
    """Rows (copied, computed) of a run, as in another process."""
    index.forget()
    result = run(toys.chain(toys.Costly(), namespace=namespace, rows=rows, shard_rows=5), str(workspace))
    return result.counts["stage_1"].copied, result.counts["stage_1"].computed


@pytest.mark.parametrize("left", ["earlier", "nothing"])
def test_an_index_is_rebuilt_from_the_tables(workspace: Path, monkeypatch: pytest.MonkeyPatch, left: str) -> None:
    """If it has been removed, or is of an earlier version: files of units, and layers."""
    monkeypatch.setattr(merging, "TABLES", 7)
    assert costly(workspace, "one") == (0, 100)
    before = workspaces.index_lines(workspace)
    [folder] = workspace.glob(f"facts/*/*/{index.FOLDER}")
    for path in folder.iterdir():
        path.unlink()
    if left == "earlier":
        (folder / "layer").mkdir()
        for name in ("unit.parquet", "layer/manifest.json", "layer/0000.lines"):
            (folder / name).write_text("not Arrow")
    assert costly(workspace, "two") == (100, 0)
    assert workspaces.index_lines(workspace).keys() == before.keys()
    assert {path.suffix for path in folder.iterdir()} == {".arrow", ".json"}


def test_an_index_without_answers_is_rebuilt_once(workspace: Path, storage: Storage) -> None:
    """Its tables have errors only."""
    table = pa.table({"_row": pa.array([0], pa.int32()), "_status": pa.array([2], pa.int8()), "_marked": [False]})
    storage.publish_table(
        f"{FOLDER}/f/s/000001.parquet", table.append_column("_input", pa.array([b"x" * 16], pa.binary(16)))
    )
    assert merging.is_due(storage.list(INDEX))
    merging.merge(storage, FOLDER, here)
    assert not merging.is_due(storage.list(INDEX))
    assert found(storage, listed(storage), lines(1, 3)) == []


def many_tables(storage: Storage) -> list[Line]:
    """More tables than one task reads, without an index; returns the lines of a whole index."""
    for row in range(10):
        workspaces.publish_answers(storage, f"{FOLDER}/f", f"s{row}", [row])
    storage.remove(INDEX)
    index.forget()
    return [(workspaces.an_input(row), f"f/s{row}/000001.parquet") for row in range(10)]


def test_a_rebuild_that_is_interrupted_is_repeated(local: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merging, "TABLES", 4)
    whole = many_tables(local)

    def killed(function: Callable[[Any], bool], tasks: Sequence[Any]) -> bool:
        for task in tasks[:1]:
            function(task)
            raise Killed
        return True

    with pytest.raises(Killed):
        merging.merge(local, FOLDER, killed)
    assert len(found(local, listed(local), whole)) == 4 and merging.is_due(local.list(INDEX))
    merging.merge(local, FOLDER, here)
    assert found(local, listed(local), whole) == sorted(whole) and not merging.is_due(local.list(INDEX))


def test_files_that_others_add_do_not_make_an_index_complete(local: Storage) -> None:
    """A log that is put into tables before the index is listed, or another run's unit during a rebuild."""
    whole = many_tables(local)
    index.add(local, FOLDER, lines(1, 5))
    assert merging.is_due(local.list(INDEX))
    merging.merge(local, FOLDER, here)
    assert set(found(local, listed(local), [*whole, *lines(1, 5)])) == {*whole, *lines(1, 5)}


def test_a_rebuild_that_fails_ends_the_run(local: Storage) -> None:
    """It would compute again what the tables have."""
    many_tables(local)
    with pytest.raises(StorageError, match="could not be rebuilt"):
        merging.merge(local, FOLDER, lambda function, tasks: False)
    assert merging.is_due(local.list(INDEX))


def test_corrupt_files_are_replaced_by_a_rebuild(local: Storage) -> None:
    """Whatever is corrupt in them; the error says what to remove."""
    whole = many_tables(local)
    merging.merge(local, FOLDER, here)
    [file] = listed(local)
    path = Path(local.path(f"{INDEX}/{file}"))
    good, errors = path.read_bytes(), list[str]()
    for place in range(0, len(good), 61):
        path.write_bytes(good[:place] + bytes(byte ^ 0xFF for byte in good[place : place + 4]) + good[place + 4 :])
        index.forget()
        try:
            found(local, listed(local), whole)
        except CorruptError as error:
            errors.append(str(error))
            local.remove_file(f"{INDEX}/{index.COMPLETE}")
            merging.merge(local, FOLDER, here)
            index.forget()
            assert found(local, listed(local), whole) == sorted(whole)
            assert not merging.is_due(local.list(INDEX)) and path.read_bytes() == good
    assert len(errors) > 10 and all(f"remove {INDEX}/{index.COMPLETE}" in error for error in errors)


# --- looking up -------------------------------------------------------------------------------------------------------


def test_an_answer_of_a_later_table_is_found(local: Storage) -> None:
    """A killed run has put half of a shard's answers into table 1, and the next run the rest into table 2."""
    first, rest = range(50), range(50, 100)
    base = workspaces.publish_answers(local, f"{FOLDER}/f", "s", first)
    workspaces.publish_answers(local, f"{FOLDER}/f", "s", rest, base)
    index.forget()
    answers = Answers(local, FOLDER, {}, listed(local))
    found = [answers.find({workspaces.an_input(row): "other" for row in rows}) for rows in (first, rest, first)]
    assert [len(of_rows) for of_rows in found] == [50, 50, 50]


# --- in runs ----------------------------------------------------------------------------------------------------------


def test_the_first_run_of_a_stage_reads_no_index(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A unit adds one file, however many shards it has. Once there are many, they are merged at the end."""
    asked: Counter[str] = Counter()

    def count(name: str) -> None:
        made = getattr(Storage, name)

        def counted(self: Storage, relative: str, *args: Any, **more: Any) -> Any:
            asked[name] += f"/{index.FOLDER}/" in relative
            return made(self, relative, *args, **more)

        monkeypatch.setattr(Storage, name, counted)

    for name in ("read_range", "publish"):
        count(name)
    monkeypatch.setattr(merging, "LEAST_FILES", 10)
    options = Options(task_rows=20)
    run(toys.chain(toys.Costly(), rows=100, shard_rows=5), str(workspace), options=options)
    files = list(workspace.glob(f"facts/*/*/{index.FOLDER}/*"))
    assert len(files) == asked["publish"] < 10 and not asked["read_range"]
    index.forget()
    result = run(toys.chain(toys.Costly(), namespace="other", rows=120, shard_rows=5), str(workspace), options=options)
    assert (result.counts["stage_1"].copied, result.counts["stage_1"].computed) == (100, 20)


def test_a_run_merges_what_a_killed_one_left(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before its units begin: these read few files, and find all answers."""
    options = Options(task_rows=5)
    with monkeypatch.context() as patch:
        patch.setattr(merging, "LEAST_FILES", 10**6)
        run(toys.chain(toys.Costly(), rows=100, shard_rows=5), str(workspace), options=options)
    assert len(list(workspace.glob(f"facts/*/*/{index.FOLDER}/*.arrow"))) == 20
    index.forget()
    searches: list[int] = []
    search = index.search

    def noted(storage: Storage, folder: str, files: index.Files, inputs: Any) -> Any:
        searches.append(len(files))
        return search(storage, folder, files, inputs)

    monkeypatch.setattr(index, "search", noted)
    result = run(toys.chain(toys.Costly(), namespace="other", rows=100, shard_rows=5), str(workspace), options=options)
    assert (result.counts["stage_1"].copied, result.counts["stage_1"].computed) == (100, 0)
    assert searches and set(searches) == {1}
