"""How limits are dealt; tests/acquire/fetch/test_grants.py simulates runners on top."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from curate.core.limits import LimitSettings
from curate.engine.workers.shares import HOLD_EXCHANGES, Deal, Room

NOTHING: dict[str, Any] = {"busy": True, "want": [], "left": {}, "held": {}, "park": {}}


@given(
    st.lists(st.tuples(st.integers(0, 4), st.booleans(), st.sampled_from([None, 5.0, 20.0])), max_size=60),
)
def test_parts_of_a_limit_add_up_to_no_more(steps: list[tuple[int, bool, float | None]]) -> None:
    """While the limit stays; what is in use is the greater of the last two parts, until the next exchange."""
    deal = Deal(20.0)
    told: dict[int, float] = {}
    wants: dict[int, bool] = {}
    for client, wanted, limit in steps:
        if limit is not None and limit != deal.limit:
            deal = Deal(limit)
            told, wants = {}, {}
        wants[client] = wanted
        before = told.get(client, 0.0)
        told[client] = deal.part(client, wanted, max(1, sum(wants.values())))
        used = max(before, told[client]) + sum(part for one, part in told.items() if one != client)
        assert used <= deal.limit + 1e-9


def test_busy_clients_get_equal_parts_and_idle_ones_none() -> None:
    deal = Deal(12.0)
    assert deal.part(1, True, 1) == 12.0
    assert deal.part(2, True, 2) == 0.0  # the first has yet to hear of it
    assert deal.part(1, True, 2) == 6.0
    assert deal.part(2, True, 2) == 0.0  # and to confirm
    assert deal.part(1, True, 2) == 6.0
    assert deal.part(2, True, 2) == 6.0
    assert deal.part(3, False, 2) == 0.0
    deal.leave(2)
    assert deal.part(1, True, 1) == 12.0
    deal.limit = None
    assert deal.part(1, True, 1) is None


def exchange(room: Room, client: int, now: float, **message: Any) -> dict[str, Any]:
    return room.exchange(client, NOTHING | message, now)["grant"]


def test_a_limit_that_is_enough_is_shared_once_the_first_has_confirmed() -> None:
    room = Room(LimitSettings(5, 10.0))
    first, second = room.join(), room.join()
    assert exchange(room, first, 0.0, want=["a"]) == {"a": [5, 10.0, 0.0]}
    assert exchange(room, second, 0.1, want=["a"]) == {}
    assert exchange(room, first, 0.2) == {"a": [3, 5.0, 0.0]}
    assert exchange(room, second, 0.3) == {}
    assert exchange(room, first, 0.4, held={"a": [4, 0.0]}) == {}
    assert exchange(room, second, 0.5) == {"a": [1, 5.0, 0.0]}
    exchange(room, first, 0.6, held={"a": [3, 0.0]})
    assert exchange(room, second, 0.7) == {"a": [2, 5.0, 0.0]}
    exchange(room, second, 0.8, left={"a": 0.0})
    assert exchange(room, first, 0.9) == {"a": [5, 10.0, 0.0]}


def test_a_limit_for_one_goes_round() -> None:
    room = Room(LimitSettings(1, 0.5), hold=3.0)
    clients = [room.join() for _ in range(3)]
    assert exchange(room, clients[0], 0.0, want=["a"]) == {"a": [1, 0.5, 0.0]}
    for client in clients[1:]:
        assert exchange(room, client, 0.1, want=["a"]) == {}
    assert exchange(room, clients[0], 2.9) == {}
    assert exchange(room, clients[0], 3.1) == {"a": [0, 0.0, 0.0]}
    assert exchange(room, clients[1], 3.2) == {}
    exchange(room, clients[0], 3.3, left={"a": 1.7}, want=["a"])
    assert exchange(room, clients[2], 3.4) == {}  # it is not its turn
    ((slots, rate, wait),) = exchange(room, clients[1], 4.0).values()
    assert (slots, rate, round(wait, 6)) == (1, 0.5, 1.0)


def test_hosts_of_a_client_that_is_gone_are_free() -> None:
    room = Room(LimitSettings(1, 2.0))
    first, second = room.join(), room.join()
    exchange(room, first, 0.0, want=["a", "b"])
    assert exchange(room, second, 0.1, want=["a"]) == {}
    room.leave(first, 1.0)
    assert exchange(room, second, 1.1)["a"] == [1, 2.0, 0.3999999999999999]


def test_parks_reach_those_who_hold_wait_or_come() -> None:
    room = Room(LimitSettings(1))
    holder, waiting, later = (room.join() for _ in range(3))
    exchange(room, holder, 0.0, want=["a"])
    exchange(room, waiting, 0.0, want=["a"])
    room.exchange(holder, NOTHING | {"park": {"a": 60.0}}, 1.0)
    assert room.exchange(holder, NOTHING, 2.0)["park"] == {}
    assert room.exchange(waiting, NOTHING, 2.0)["park"] == {"a": 59.0}
    assert room.exchange(later, NOTHING | {"want": ["a"]}, 3.0)["park"] == {"a": 58.0}


def test_many_clients_exchange_less_often_and_hold_longer() -> None:
    room = Room(LimitSettings(1), hold=3.0)
    clients = [room.join() for _ in range(1000)]
    seconds = room.exchange(clients[0], NOTHING | {"want": ["a"]}, 0.0)["seconds"]
    assert seconds == 2.0
    exchange(room, clients[1], 0.0, want=["a"])
    assert exchange(room, clients[0], HOLD_EXCHANGES * seconds - 0.1) == {}
    assert exchange(room, clients[0], HOLD_EXCHANGES * seconds) == {"a": [0, 0.0, 0.0]}
