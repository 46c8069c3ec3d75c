from types import SimpleNamespace
from typing import cast

import pytest

from curate.acquire.fetch import idle
from curate.acquire.fetch.connection import Connection
from curate.acquire.fetch.idle import Idle

A, B, C = (("http", host, 80) for host in "abc")


class Fake:
    def __init__(self) -> None:
        self.open = True
        self.quiet = True

    def is_quiet(self) -> bool:
        return self.quiet

    def close(self) -> None:
        self.open = False


def put(kept: Idle, place: idle.Place, count: int = 1) -> list[Fake]:
    made = [Fake() for _ in range(count)]
    for one in made:
        kept.put(place, cast(Connection, one))
    return made


def test_the_last_one_is_taken_first() -> None:
    kept = Idle(10, 10)
    first, second = put(kept, A, 2)
    put(kept, B)
    assert [kept.take(A), kept.take(A), kept.take(A)] == [second, first, None]


def test_one_that_speaks_or_has_ended_is_closed() -> None:
    kept = Idle(10, 10)
    first, second = put(kept, A, 2)
    second.quiet = False
    assert kept.take(A) is first
    assert (first.open, second.open) == (True, False)


def test_an_old_one_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(now=100.0, monotonic=lambda: clock.now)
    monkeypatch.setattr(idle, "time", clock)
    kept = Idle(10, 10)
    (old,) = put(kept, A)
    clock.now += idle.LONGEST_IDLE_SECONDS
    assert kept.take(A) is None and not old.open


def test_both_limits_hold() -> None:
    kept = Idle(3, 2)
    made = put(kept, A, 3)
    assert [one.open for one in made] == [True, True, False]
    others = put(kept, B) + put(kept, C)
    assert [one.open for one in made + others] == [False, False, False, True, True]  # A's were used least recently
    kept.close()
    assert not any(one.open for one in others) and kept.take(B) is None


def test_no_idle_connections_at_all() -> None:
    kept = Idle(10, 0)
    (one,) = put(kept, A)
    assert not one.open and kept.take(A) is None
