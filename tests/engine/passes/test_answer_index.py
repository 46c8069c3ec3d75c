"""The index of answers: what it finds, its number of files, and how often they are read."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from curate.core.store.storage import Storage, open_storage
from curate.engine.passes.answers import index as answers
from curate.engine.run import run
from curate.engine.state import Options
from tests.engine import toys

FOLDER = "facts/op/stage"
Line = tuple[bytes, str, str, int]


def lines(seed: int, count: int) -> list[Line]:
    """Digests, half of which begin alike."""
    drawn = np.random.default_rng(seed).bytes(16 * count)
    made = []
    for n in range(count):
        given = (b"\xff" * 8 if n % 2 else drawn[16 * n : 16 * n + 8]) + drawn[16 * n + 8 : 16 * n + 16]
        made.append((given, f"{FOLDER}/f", f"s{n % 7}", n % 3 + 1))
    return made


@pytest.fixture
def storage(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> Storage:
    monkeypatch.setattr(answers, "_cache", answers._Cache())
    return open_storage(str(workspace))


def files(storage: Storage) -> list[str]:
    return sorted(storage.list(f"{FOLDER}/{answers.FOLDER}"))


def found(storage: Storage, named: list[str], wanted: list[Line]) -> list[Line]:
    made = answers.Answers(storage, FOLDER, {}, named)
    return sorted((given, *place) for given, place in made._places([line[0] for line in wanted]))


@pytest.mark.parametrize("held_bytes", [0, 900, 2_000, 4_100, answers.HELD_BYTES])
def test_the_index_finds_what_it_has(storage: Storage, monkeypatch: pytest.MonkeyPatch, held_bytes: int) -> None:
    """In lines or first words in memory, and in files that there is no room for."""
    monkeypatch.setattr(answers, "HELD_BYTES", held_bytes)
    written = lines(1, 500)
    for start in range(0, 500, 100):
        answers.add(storage, FOLDER, written[start : start + 100])
    wanted = [*written[::3], *lines(2, 100)]
    assert found(storage, files(storage), wanted) == sorted(written[::3])
    assert found(storage, files(storage), lines(2, 100)) == []


def test_small_files_are_joined(storage: Storage) -> None:
    """Each line once, also where a join was killed before it had removed what it joined."""
    written = lines(1, 400)
    for start in range(0, 400, 10):
        answers.add(storage, FOLDER, written[start : start + 10])
    before = files(storage)
    assert len(before) == 40
    [task] = answers.merges(storage, FOLDER)
    answers.merge(task)
    [whole] = files(storage)
    answers.add(storage, FOLDER, written[:10])
    answers.merge(answers.MergeIndexTask(storage, FOLDER, tuple(files(storage))))
    [again] = files(storage)
    table = storage.read_table(f"{FOLDER}/{answers.FOLDER}/{again}")
    assert [tuple(row.values()) for row in table.to_pylist()] == sorted(written)
    assert whole != again and answers.merges(storage, FOLDER) == []
    assert found(storage, before, written) == sorted(written), "a reader of the old files finds the new one"


def test_the_first_run_of_a_stage_reads_no_index(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A unit adds one file, however many shards it has. Once there are many, they are joined at the end."""
    asked: Counter[str] = Counter()

    def count(name: str) -> None:
        made = getattr(Storage, name)

        def counted(self: Storage, relative: str, *args: Any, **more: Any) -> Any:
            asked[name] += f"/{answers.FOLDER}/" in relative
            return made(self, relative, *args, **more)

        monkeypatch.setattr(Storage, name, counted)

    for name in ("read_table", "open", "publish_table"):
        count(name)
    options = Options(task_rows=20)
    run(toys.chain(toys.Costly(), rows=100, shard_rows=5), str(workspace), options=options)
    assert len(list(workspace.glob("facts/*/*/index/*"))) == asked["publish_table"] <= 20
    assert not asked["read_table"] and not asked["open"]
    monkeypatch.setattr(answers, "_cache", answers._Cache())  # as in another process
    result = run(toys.chain(toys.Costly(), namespace="other", rows=120, shard_rows=5), str(workspace), options=options)
    assert (result.counts["stage_1"].copied, result.counts["stage_1"].computed) == (100, 20)
