"""What is read and decoded ahead of the models is bounded in rows by the pixel stages, and in bytes; no result depends
on it."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from curate.core.contracts import Sample
from curate.engine.passes import decode
from curate.engine.run import run
from tests.engine import toys, workspaces


class Wordy(toys.Parity):
    """Batches far longer than those of the pixel stages."""

    op: ClassVar[str] = "toy.wordy"
    batch_rows: ClassVar[int] = 1024


class Watched(toys.Brightness):
    """Notes how far decoding is ahead of computing, in rows."""

    op: ClassVar[str] = "toy.watched"
    batch_rows: ClassVar[int] = 16
    prepared: ClassVar[int] = 0
    computed: ClassVar[int] = 0
    ahead: ClassVar[int] = 0
    lock: ClassVar[threading.Lock] = threading.Lock()

    def prepare(self, sample: Sample) -> object:
        with self.lock:
            Watched.prepared += 1
            Watched.ahead = max(Watched.ahead, self.prepared - self.computed)
        return super().prepare(sample)

    def process(self, batch: object) -> dict[str, object]:
        Watched.computed += len(batch)  # type: ignore[arg-type]
        return super().process(batch)  # type: ignore[arg-type]


def test_a_stage_without_pixels_does_not_lengthen_the_read_ahead(workspace: Path, memory: Path) -> None:
    Watched.prepared = Watched.computed = Watched.ahead = 0
    result = run(toys.chain(Watched(), Wordy(), rows=120, shard_rows=120), str(workspace))
    assert result.ledger["stage_2"].after == 120
    # what is queued, what waits to be queued and what is being computed: an eighth of a batch each
    assert 0 < Watched.ahead <= (decode.AHEAD + 2) * (Watched.batch_rows // decode.CHUNKS) < 120
    apart = memory / "wordy-apart"
    run(toys.chain(Watched(), rows=120, shard_rows=120), str(apart))
    run(toys.chain(Watched(), Wordy(), rows=120, shard_rows=120), str(apart))
    assert workspaces.facts(workspace) == workspaces.facts(apart)
    assert workspaces.nouns(workspace) == workspaces.nouns(apart)


@pytest.mark.parametrize("room", [1, 300, 1000])
def test_results_do_not_depend_on_the_room(
    workspace: Path, memory: Path, monkeypatch: pytest.MonkeyPatch, room: int
) -> None:
    """A picture of the toys has 246 bytes: with room for 1 it goes alone."""
    most, take = 0, decode.ByteBudget.take

    def watched(self: decode.ByteBudget, size: int) -> bool:
        nonlocal most
        taken = take(self, size)
        most = max(most, self._taken)
        return taken

    monkeypatch.setattr(decode, "BUDGET", decode.ByteBudget(room))
    monkeypatch.setattr(decode.ByteBudget, "take", watched)
    pipeline = toys.chain(toys.Brightness(), broken=7, rows=30)
    run(pipeline, str(workspace))
    assert 0 < most <= max(room, len(toys.image(0)))
    monkeypatch.undo()
    run(pipeline, str(memory / f"room-{room}"))
    workspaces.assert_same(workspace, memory / f"room-{room}")


@given(st.lists(st.integers(0, 30), max_size=30))
def test_every_wait_for_room_ends(sizes: list[int]) -> None:
    room, most = decode.ByteBudget(10), []
    taken: list[int] = []
    there = threading.Semaphore(0)

    def give() -> None:
        for _ in sizes:
            there.acquire()
            room.give(taken.pop(0))

    giver = threading.Thread(target=give)
    giver.start()
    for size in sizes:
        room.take(size)
        most.append(room._taken <= max(10, size))
        taken.append(size)
        there.release()
    giver.join()
    assert all(most) and room._taken == 0
