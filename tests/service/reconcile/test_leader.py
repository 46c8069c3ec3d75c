"""Election: one holder at a time, on both databases."""

from __future__ import annotations

import threading

from sqlalchemy import select

from curate.service.database.database import Database
from curate.service.database.models import Leader as LeaderRow
from curate.service.reconcile.leader import SURE_SECONDS, TAKE_OVER_SECONDS, Leader


class Clock:
    """Seconds that only a test moves."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_the_first_one_leads_and_renews(database: Database) -> None:
    first, second = Leader(database), Leader(database)

    assert first.renew() and not second.renew()
    assert first.renew() and not second.renew()
    assert (first.leads, second.leads) == (True, False)


def test_another_takes_over_once_the_beat_has_stopped(database: Database) -> None:
    clock = Clock()
    first, second = Leader(database, clock=clock), Leader(database, clock=clock)
    assert first.renew() and not second.renew()

    clock.now += TAKE_OVER_SECONDS - 1
    assert not second.renew() and second.still == TAKE_OVER_SECONDS - 1
    clock.now += 1

    assert second.renew()
    assert not first.renew()
    assert (first.leads, second.leads) == (False, True)


def test_a_beat_that_moves_keeps_the_others_waiting(sqlite: Database) -> None:
    clock = Clock()
    first, second = Leader(sqlite, clock=clock), Leader(sqlite, clock=clock)
    for _ in range(5):
        assert first.renew() and not second.renew()
        clock.now += TAKE_OVER_SECONDS - 1

    assert not second.renew()


def test_a_paused_leader_stops_acting_before_another_can_take_over(sqlite: Database) -> None:
    clock = Clock()
    leader = Leader(sqlite, clock=clock)
    assert leader.renew()

    clock.now += SURE_SECONDS

    assert not leader.leads
    assert SURE_SECONDS < TAKE_OVER_SECONDS


def test_one_that_resigns_is_replaced_at_once(database: Database) -> None:
    first, second = Leader(database), Leader(database)
    assert first.renew()

    first.resign()

    assert second.renew() and not first.renew()


def test_resigning_does_not_unseat_another_leader(sqlite: Database) -> None:
    clock = Clock()
    first, second = Leader(sqlite, clock=clock), Leader(sqlite, clock=clock)
    first.renew(), second.renew()
    clock.now += TAKE_OVER_SECONDS
    assert second.renew()

    first.resign()

    assert second.renew()


def test_a_database_that_does_not_answer_ends_leading(sqlite: Database) -> None:
    leader = Leader(sqlite)
    assert leader.renew()
    with sqlite.engine.begin() as connection:
        connection.exec_driver_sql("DROP TABLE leaders")

    assert not leader.renew() and not leader.leads


def test_one_candidate_wins_an_election(database: Database) -> None:
    candidates = [Leader(database) for _ in range(6)]
    together = threading.Barrier(len(candidates))
    won: list[str] = []

    def stand(leader: Leader) -> None:
        together.wait()
        if leader.renew():
            won.append(leader.holder)

    threads = [threading.Thread(target=stand, args=(leader,)) for leader in candidates]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    with database.read() as session:
        assert [session.scalars(select(LeaderRow.holder)).one()] == won


def test_one_candidate_takes_over(database: Database) -> None:
    clock = Clock()
    candidates = [Leader(database, clock=clock) for _ in range(6)]
    assert [leader.renew() for leader in candidates].count(True) == 1
    clock.now += TAKE_OVER_SECONDS
    together, won = threading.Barrier(5), list[str]()

    def stand(leader: Leader) -> None:
        together.wait()
        if leader.renew():
            won.append(leader.holder)

    threads = [threading.Thread(target=stand, args=(leader,)) for leader in candidates[1:]]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(won) == 1 and not candidates[0].renew()
