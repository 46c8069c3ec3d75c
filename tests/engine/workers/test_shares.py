"""How limits are dealt; tests/acquire/fetch/test_grants.py simulates runners on top, test_ceilings.py endpoints."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from curate.engine.workers import shares
from curate.engine.workers.shares import HOLD_EXCHANGES, Dealer

LIMITS: dict[str, Any] = {"rate": {"limit": 12.0}, "host": {"limit": 5, "seats": 5}, "slow": {"limit": 4, "seats": 1}}


def joined(dealer: Dealer, count: int, **limits: Any) -> list[str]:
    clients = [f"client {number}" for number in range(count)]
    for client in clients:
        dealer.join({"client": client, "room": "one", "limits": {**LIMITS, **limits}}, 0.0)
    return clients


def told(dealer: Dealer, client: str, now: float = 0.0, **asks: tuple[float, ...]) -> dict[str, Any]:
    """The shares of which a client hears. asks: limit -> `holds`, `needs`, `wait`."""
    said = {
        name.replace("_", "/"): dict(zip(("holds", "needs", "wait"), ask, strict=False)) for name, ask in asks.items()
    }
    return dealer.exchange(client, {"busy": True, "asks": said}, now)["shares"]


@given(st.lists(st.tuples(st.integers(0, 4), st.booleans()), max_size=60))
def test_shares_of_a_rate_add_up_to_no_more(steps: list[tuple[int, bool]]) -> None:
    """What is in use is the greater of the last two shares, until the next exchange."""
    dealer = Dealer()
    clients = joined(dealer, 5)
    held = dict.fromkeys(clients, 0.0)
    for number, wanted in steps:
        client = clients[number]
        before = held[client]
        heard = told(dealer, client, rate=(before, wanted))
        held[client] = heard["rate"][0] if "rate" in heard else before
        assert sum(held.values()) - held[client] + max(before, held[client]) <= 12.0 + 1e-9


def test_busy_clients_get_equal_shares_of_a_rate_and_idle_ones_none() -> None:
    dealer = Dealer()
    first, second, third = joined(dealer, 3)
    assert told(dealer, first, rate=(0, 1)) == {"rate": [12.0, None, 0.0]}
    assert told(dealer, second, rate=(0, 1)) == {}  # the first has yet to hear of it
    assert told(dealer, first, rate=(12.0, 1)) == {"rate": [6.0, None, 0.0]}
    assert told(dealer, second, rate=(0, 1)) == {}  # and to confirm
    assert told(dealer, first, rate=(6.0, 1)) == {}
    assert told(dealer, second, rate=(0, 1)) == {"rate": [6.0, None, 0.0]}
    assert told(dealer, third, rate=(0, 0)) == {}
    dealer.leave(second, 2, 0.0)
    assert told(dealer, first, rate=(6.0, 1)) == {"rate": [12.0, None, 0.0]}
    dealer.set(rate=None)
    assert told(dealer, first, rate=(12.0, 1)) == {"rate": [None, None, 0.0]}
    dealer.set("two", rate=3.0)
    assert told(dealer, first, rate=(0, 1)) == {}
    dealer.set("one", rate=3.0)
    assert told(dealer, first, rate=(0, 1)) == {"rate": [3.0, None, 0.0]}
    assert told(dealer, first, rate=(3.0, 0)) == {"rate": [0.0, None, 0.0]}


def test_an_idle_client_without_a_limit_hears_of_the_first_one() -> None:
    """Otherwise it would begin without a limit when it next has something to do."""
    dealer = Dealer()
    (client,) = joined(dealer, 1, rate={"limit": None})
    assert told(dealer, client, rate=(0, 1)) == {"rate": [None, None, 0.0]}
    assert told(dealer, client, rate=(0, 0)) == {}
    dealer.set("one", rate=6.0)
    assert told(dealer, client, rate=(0, 0)) == {"rate": [0.0, None, 0.0]}
    assert told(dealer, client, rate=(0, 0)) == {}
    assert told(dealer, client, rate=(0, 1)) == {"rate": [6.0, None, 0.0]}


def test_seats_that_are_enough_are_shared_once_the_first_has_confirmed() -> None:
    dealer = Dealer()
    first, second = joined(dealer, 2)
    assert told(dealer, first, 0.0, host_a=(0, 1)) == {"host/a": [5, None, 0.0]}
    assert told(dealer, second, 0.1, host_a=(0, 1)) == {}
    assert told(dealer, first, 0.2) == {"host/a": [3, None, 0.0]}
    assert told(dealer, second, 0.3) == {}
    assert told(dealer, first, 0.4, host_a=(4, 1)) == {}
    assert told(dealer, second, 0.5) == {"host/a": [1, None, 0.0]}
    assert told(dealer, first, 0.6, host_a=(3, 1)) == {}
    assert told(dealer, second, 0.7) == {"host/a": [2, None, 0.0]}
    assert told(dealer, second, 0.8, host_a=(0, 0)) == {}
    assert told(dealer, first, 0.9) == {"host/a": [5, None, 0.0]}


def test_a_single_seat_goes_round() -> None:
    """With the time of the next request."""
    dealer = Dealer(hold=3.0)
    first, second, third = joined(dealer, 3)
    assert told(dealer, first, 0.0, slow_a=(0, 1)) == {"slow/a": [4, None, 0.0]}
    assert told(dealer, second, 0.1, slow_a=(0, 1)) == told(dealer, third, 0.1, slow_a=(0, 1)) == {}
    assert told(dealer, first, 1.0) == {"slow/a": [4, 2.0, 0.0]}
    assert told(dealer, second, 2.9) == {}
    assert told(dealer, first, 3.0, slow_a=(2, 0, 1.5)) == {"slow/a": [0.0, 0.0, 1.5]}
    assert told(dealer, second, 3.5) == {"slow/a": [2, 4.0, 1.0]}  # another client waits; two requests are in flight
    assert told(dealer, third, 3.5) == {"slow/a": [0.0, None, 1.0]}  # it is not its turn
    assert told(dealer, first, 4.0, slow_a=(0, 0, 0.0)) == {}
    assert told(dealer, second, 4.5) == {"slow/a": [4, 3.0, 0.0]}


def test_seats_of_a_client_that_is_gone_are_free() -> None:
    """After a pause, because it is not known when it made its last request."""
    dealer = Dealer()
    first, second = joined(dealer, 2, slow={"limit": 1, "seats": 1, "pause": 0.5})
    told(dealer, first, 0.0, slow_a=(0, 1), slow_b=(0, 1))
    assert told(dealer, second, 0.1, slow_a=(0, 1)) == {}
    dealer.leave(first, 1, 1.0)
    assert told(dealer, second, 1.1) == {"slow/a": [1, None, pytest.approx(0.4)]}


def test_those_who_hold_wait_or_come_hear_of_a_rest() -> None:
    dealer = Dealer()
    holder, waiting, later = joined(dealer, 3, host={"limit": 1, "seats": 1})
    told(dealer, holder, 0.0, host_a=(0, 1))
    told(dealer, waiting, 0.0, host_a=(0, 1))
    assert told(dealer, holder, 1.0, host_a=(1, 1, 60.0))["host/a"][0] == 1
    assert told(dealer, waiting, 2.0) == {"host/a": [0.0, None, 59.0]}
    assert told(dealer, later, 3.0, host_a=(0, 1)) == {"host/a": [0.0, None, 58.0]}


def test_many_clients_exchange_less_often_and_hold_longer() -> None:
    dealer = Dealer(hold=3.0)
    first, second, *_ = joined(dealer, 1000)
    seconds = dealer.exchange(first, {"busy": True, "asks": {"slow/a": {"holds": 0, "needs": 1}}}, 0.0)["seconds"]
    assert seconds == 2.0
    told(dealer, second, 0.0, slow_a=(0, 1))
    assert told(dealer, first, 1.0) == {"slow/a": [4, HOLD_EXCHANGES * seconds - 1.0, 0.0]}


def test_the_end_of_an_old_connection_may_come_last() -> None:
    dealer = Dealer()
    (client,) = joined(dealer, 1)
    _, second = dealer.join({"client": client, "room": "one", "limits": LIMITS}, 0.0)
    assert told(dealer, client, rate=(0, 1)) == {"rate": [12.0, None, 0.0]}
    dealer.leave(client, second, 0.0)
    dealer.leave(client, 1, 0.0)
    (other,) = joined(dealer, 1)
    assert told(dealer, other, rate=(0, 1)) == {"rate": [12.0, None, 0.0]}


def test_hosts_without_clients_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shares, "KEPT", 10)
    dealer = Dealer()
    (client,) = joined(dealer, 1)
    told(dealer, client, 0.0, host_kept=(0, 1, 1000.0))
    for number in range(100):
        host = f"host_{number}"
        told(dealer, client, 1.0 * number, **{host: (0, 1)})
        told(dealer, client, 1.0 * number, **{host: (0, 0, 0.5)})
        assert len(dealer.limits) < 30
    assert ("one", "host/kept") in dealer.limits
