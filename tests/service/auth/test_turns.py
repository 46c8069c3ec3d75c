"""How many requests of a user are answered at a time."""

from __future__ import annotations

import asyncio

import pytest

from curate.service.auth import turns
from curate.service.auth.turns import Turns
from curate.service.problems import TooManyProblem


def test_a_user_has_so_many_turns_and_the_others_wait() -> None:
    async def tour() -> None:
        made, release, order = Turns(2), asyncio.Event(), list[str]()

        async def request(name: str, user: int) -> None:
            async with made.turn(user):
                order.append(name)
                if name in "ab":
                    await release.wait()

        tasks = [asyncio.create_task(request(name, 1)) for name in "abc"]
        await asyncio.create_task(request("else", 2))
        assert order == ["a", "b", "else"] and made.requests == {1: 3}
        release.set()
        await asyncio.gather(*tasks)
        assert order[-1] == "c" and not made.requests and not made._turns

    asyncio.run(tour())


def test_so_many_may_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "WAITING", 0)

    async def tour() -> None:
        made = Turns(1)
        async with made.turn(1):
            with pytest.raises(TooManyProblem, match="send fewer at a time"):
                async with made.turn(1):
                    pass
            async with made.turn(2):
                pass
        assert not made.requests

    asyncio.run(tour())


def test_a_request_that_fails_or_is_given_up_gives_its_turn_back() -> None:
    async def tour() -> None:
        made = Turns(1)
        with pytest.raises(ZeroDivisionError):
            async with made.turn(1):
                raise ZeroDivisionError

        async def waits() -> None:
            async with made.turn(1):
                pass

        async with made.turn(1):
            task = asyncio.create_task(waits())
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        assert not made.requests

    asyncio.run(tour())
