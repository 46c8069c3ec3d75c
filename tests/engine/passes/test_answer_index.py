"""The index of answers: what it finds in files of units and in layers, what a look-up reads, and what merges leave."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from curate.core.errors import CorruptError
from curate.core.store import faults
from curate.core.store.storage import Storage, open_storage
from curate.engine.passes.answers import index as answers
from curate.engine.passes.answers import layers, merge, search
from curate.engine.passes.answers.lines import FOLDER as INDEX
from curate.engine.run import run
from curate.engine.state import Options
from tests.engine import toys

FOLDER = "facts/op/stage"
Line = tuple[bytes, str, str, int]


def lines(seed: int, count: int, alike: bool = True) -> list[Line]:
    """Digests; with `alike`, half of them begin alike."""
    drawn = np.random.default_rng(seed).bytes(16 * count)
    made = []
    for n in range(count):
        first = b"\xff" * 8 if alike and n % 2 else drawn[16 * n : 16 * n + 8]
        made.append((first + drawn[16 * n + 8 : 16 * n + 16], f"{FOLDER}/f", f"s{n % 7}", n % 3 + 1))
    return made


@pytest.fixture(autouse=True)
def other_process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nothing is open or cached from another test."""
    monkeypatch.setenv("CURATE_CACHE", str(tmp_path / "cache"))
    answers.forget_recent()


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


def listed(storage: Storage) -> tuple[str, ...]:
    return search.searched(storage.list(f"{FOLDER}/{INDEX}"))


def found(storage: Storage, named: Sequence[str], wanted: list[Line]) -> list[Line]:
    made = answers.Answers(storage, FOLDER, {}, named)
    return sorted((given, *place) for given, place in made.places([line[0] for line in wanted]))


def here(function: Callable[[Any], Any], tasks: Sequence[Any]) -> list[Any]:
    return [function(task) for task in tasks]


def add(storage: Storage, written: Sequence[Line], each: int = 10) -> None:
    """A file for every few lines, as units add them."""
    for start in range(0, len(written), each):
        answers.add(storage, FOLDER, written[start : start + each])


@pytest.mark.parametrize("held", [0, 150, search.HELD_LINES])
def test_files_of_units_are_searched(storage: Storage, monkeypatch: pytest.MonkeyPatch, held: int) -> None:
    """In memory, and in the files that there is no room for."""
    monkeypatch.setattr(search, "HELD_LINES", held)
    written = lines(1, 500)
    add(storage, written, 100)
    wanted = [*written[::3], *lines(2, 100)]
    assert found(storage, listed(storage), wanted) == sorted(written[::3])
    assert found(storage, listed(storage), lines(2, 100)) == []
    assert found(storage, (), written) == []


@pytest.mark.parametrize("range_lines", [16, 100, merge.RANGE_LINES])
def test_a_layer_finds_what_it_has(storage: Storage, monkeypatch: pytest.MonkeyPatch, range_lines: int) -> None:
    """With one range or several; half of the lines are in the last one."""
    monkeypatch.setattr(merge, "RANGE_LINES", range_lines)
    written = lines(1, 400)
    add(storage, written)
    before = listed(storage)
    merge.merge(storage, f"{FOLDER}/{INDEX}", here)
    [layer] = listed(storage)
    assert len(before) == 40 and not layer.endswith(".parquet")
    wanted = [*written[::3], *lines(2, 100)]
    assert found(storage, [layer], wanted) == sorted(written[::3])
    assert found(storage, before, written) == sorted(written), "a reader of the old files finds the new ones"
    assert found(storage, [layer], lines(2, 100)) == []
    about = layers.Description.load(storage, f"{FOLDER}/{INDEX}/{layer}")
    assert sum(about.lines) == 400 and len(about.lines) == 2**about.bits >= 400 / range_lines / 2


@pytest.mark.parametrize("alike", [False, True])
def test_layers_are_merged_by_range(storage: Storage, monkeypatch: pytest.MonkeyPatch, alike: bool) -> None:
    """Into more ranges than any of them has; lines in files of units are found with them."""
    monkeypatch.setattr(merge, "RANGE_LINES", 64)
    monkeypatch.setattr(merge, "MOST_FILES", 16)
    written = lines(1, 1500, alike)
    add(storage, written[:1280])
    before = listed(storage)
    merge.merge(storage, f"{FOLDER}/{INDEX}", here)
    [whole] = listed(storage)
    assert layers.Description.load(storage, f"{FOLDER}/{INDEX}/{whole}").bits == 5
    add(storage, written[1280:], 50)
    assert found(storage, before, written[:1280]) == sorted(written[:1280])
    assert found(storage, listed(storage), [*written, *lines(2, 300, alike)]) == sorted(written)


def test_a_large_layer_is_seldom_rewritten(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each line is written a few times, and there are few layers, however many units there were."""
    wrote, write = [0], merge.write_range

    def counted(*args: Any) -> None:
        wrote[0] += len(args[-1])
        write(*args)

    monkeypatch.setattr(merge, "write_range", counted)
    add(storage, lines(99, 2, alike=False), 2)  # one small file among them keeps no others from being merged
    monkeypatch.setattr(merge, "MOST_FILES", 16)
    most = 0
    for seed in range(14):
        add(storage, lines(seed, 64, alike=False), 4)
        merge.merge(storage, f"{FOLDER}/{INDEX}", here)
        most = max(most, len(listed(storage)))
    assert most <= 8 and wrote[0] <= 6 * 14 * 64
    assert found(storage, listed(storage), lines(3, 64, alike=False)) == sorted(lines(3, 64, alike=False))


def test_an_index_of_large_files_is_merged(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    """As an earlier version left it: few files, of any size."""
    monkeypatch.setattr(merge, "DUE_BYTES", 10_000)
    monkeypatch.setattr(merge, "MOST_BYTES", 12_000)
    written = lines(1, 900)
    add(storage, written, 300)
    assert len(merge._groups({"a": 10_000, "b": 10_000, "c": 1_000, "d": 20_000})) == 3
    merge.merge(storage, f"{FOLDER}/{INDEX}", here)
    assert not [name for name in listed(storage) if name.endswith(".parquet")]
    assert found(storage, listed(storage), written) == sorted(written)


def test_heads_are_read_from_an_object_store_once(
    workspace: Path, monkeypatch: pytest.MonkeyPatch, storage: Storage
) -> None:
    """They are copied to the machine; copies of a layer that is gone are removed."""
    monkeypatch.setattr(merge, "RANGE_LINES", 64)
    written = lines(1, 1000, alike=False)
    add(storage, written)
    merge.merge(storage, f"{FOLDER}/{INDEX}", here)
    [layer] = listed(storage)
    ranges = layers.Description.load(storage, f"{FOLDER}/{INDEX}/{layer}").bits
    asked: list[str] = []
    read = Storage.read_range

    def counted(self: Storage, relative: str, start: int, stop: int | None) -> bytes:
        asked.append(relative)
        return read(self, relative, start, stop)

    monkeypatch.setattr(Storage, "read_range", counted)
    for _ in range(2):
        assert found(storage, [layer], written[::5]) == sorted(written[::5])
        search.close()
    assert len(asked) == (0 if storage.local else 2**ranges)
    copies = layers.cache_of(storage, f"{FOLDER}/{INDEX}")
    assert copies.exists() == (not storage.local)
    layers.forget(storage, f"{FOLDER}/{INDEX}", [])
    assert copies.exists() == (not storage.local), "a copy that was made just now"
    monkeypatch.setattr(layers, "UNUSED_SECONDS", -1.0)
    layers.forget(storage, f"{FOLDER}/{INDEX}", [])
    assert not list(copies.glob("*"))


def test_without_a_cache_heads_are_kept_in_memory(
    storage: Storage, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("not a folder")
    monkeypatch.setenv("CURATE_CACHE", str(tmp_path / "file"))
    written = lines(1, 400)
    add(storage, written)
    merge.merge(storage, f"{FOLDER}/{INDEX}", here)
    assert found(storage, listed(storage), written) == sorted(written)


def test_a_corrupt_layer_is_named(storage: Storage) -> None:
    add(storage, lines(1, 400))
    merge.merge(storage, f"{FOLDER}/{INDEX}", here)
    [layer] = listed(storage)
    path = Path(storage.path(f"{FOLDER}/{INDEX}/{layer}/{layers.MANIFEST}"))
    path.write_text("{}")
    with pytest.raises(CorruptError, match="this part of the index of answers is corrupt") as raised:
        found(storage, [layer], lines(1, 10))
    assert layer in str(raised.value) and "\n" not in str(raised.value)


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
    """Four units to merge: into a layer each, and these into one."""
    monkeypatch.setattr(merge, "RANGE_LINES", 16)
    monkeypatch.setattr(merge, "LEAST_FILES", 4)
    monkeypatch.setattr(merge, "MOST_FILES", 1)
    written = lines(5, 40)
    add(storage, written)
    return written


def merged(storage: Storage, monkeypatch: pytest.MonkeyPatch, kill: int) -> list[str]:
    """Merge until a kill; returns the points that were passed."""
    with monkeypatch.context() as patch:
        passed = points(patch, kill)
        with contextlib.suppress(Killed):
            merge.merge(storage, f"{FOLDER}/{INDEX}", here)
    return passed


@pytest.fixture
def local(workspace: Path) -> Storage:
    return open_storage(str(workspace))


def test_a_kill_at_any_point_of_a_merge_loses_nothing(
    local: Storage, memory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Readers find all lines right after it; the next merge finishes it, and leaves no other file."""
    written = small_index(local, monkeypatch)
    first = listed(local)
    whole = merged(local, monkeypatch, -1)
    kinds = ("publish:*.lines:written", "publish:*/tables.parquet:published", "publish:*/manifest.json:*", "remove:*")
    assert all(any(fnmatch(name, kind) for name in whole) for kind in kinds)
    for kill in range(len(whole)):
        other = open_storage(str(memory / f"killed-{kill}"))
        small_index(other, monkeypatch)
        assert merged(other, monkeypatch, kill) == whole[: kill + 1]
        assert set(found(other, listed(other), written)) == set(written), whole[kill]
        assert set(found(other, first, written)) == set(written), whole[kill]
        merge.merge(other, f"{FOLDER}/{INDEX}", here)
        left = other.list(f"{FOLDER}/{INDEX}")
        assert found(other, listed(other), written) == sorted(written), whole[kill]
        assert {name.partition("/")[0] for name in left} == set(listed(other)), whole[kill]


def test_a_task_that_fails_ends_the_merge(local: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    written = small_index(local, monkeypatch)
    merge.merge(local, f"{FOLDER}/{INDEX}", lambda function, tasks: [None for _ in tasks])
    assert found(local, listed(local), written) == sorted(written) and len(listed(local)) == 4
    merge.merge(local, f"{FOLDER}/{INDEX}", lambda f, tasks: here(f, tasks) if f is merge.merge_units else [None])
    assert found(local, listed(local), written) == sorted(written) and len(listed(local)) == 4


def test_a_merge_whose_files_another_run_removed_is_not_committed(
    local: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its lease was taken for dead."""
    written = small_index(local, monkeypatch)

    def robbed(function: Callable[[Any], Any], tasks: Sequence[Any]) -> list[Any]:
        made = here(function, tasks)
        if function is merge.merge_range:
            local.remove_file(layers.range_path(tasks[0].folder, 1))
        return made

    merge.merge(local, f"{FOLDER}/{INDEX}", robbed)
    assert len(listed(local)) == 4 and found(local, listed(local), written) == sorted(written)


# --- in runs ----------------------------------------------------------------------------------------------------------


def test_the_first_run_of_a_stage_reads_no_index(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A unit adds one file, however many shards it has. Once there are many, they are merged at the end."""
    asked: Counter[str] = Counter()

    def count(name: str) -> None:
        made = getattr(Storage, name)

        def counted(self: Storage, relative: str, *args: Any, **more: Any) -> Any:
            asked[name] += f"/{INDEX}/" in relative
            return made(self, relative, *args, **more)

        monkeypatch.setattr(Storage, name, counted)

    for name in ("read_table", "open", "publish_table"):
        count(name)
    options = Options(task_rows=20)
    run(toys.chain(toys.Costly(), rows=100, shard_rows=5), str(workspace), options=options)
    files = list(workspace.glob(f"facts/*/*/{INDEX}/*"))
    assert len(files) == 1 or len(files) == asked["publish_table"] < merge.LEAST_FILES
    assert asked["read_table"] in (0, asked["publish_table"] - 1) and not asked["open"]
    answers.forget_recent()
    result = run(toys.chain(toys.Costly(), namespace="other", rows=120, shard_rows=5), str(workspace), options=options)
    assert (result.counts["stage_1"].copied, result.counts["stage_1"].computed) == (100, 20)


def test_a_run_merges_what_a_killed_one_left(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before its units begin: these read few files, and find all answers."""
    options = Options(task_rows=5)
    with monkeypatch.context() as patch:
        patch.setattr(merge, "LEAST_FILES", 10**6)
        run(toys.chain(toys.Costly(), rows=100, shard_rows=5), str(workspace), options=options)
    assert len(list(workspace.glob(f"facts/*/*/{INDEX}/*.parquet"))) == 20
    answers.forget_recent()
    searches: list[tuple[str, ...]] = []
    index_of = answers.index_of

    def noted(storage: Storage, folder: str, files: tuple[str, ...]) -> Any:
        searches.append(files)
        return index_of(storage, folder, files)

    monkeypatch.setattr(answers, "index_of", noted)
    result = run(toys.chain(toys.Costly(), namespace="other", rows=100, shard_rows=5), str(workspace), options=options)
    assert (result.counts["stage_1"].copied, result.counts["stage_1"].computed) == (100, 0)
    assert searches and all(len(files) == 1 for files in searches)
