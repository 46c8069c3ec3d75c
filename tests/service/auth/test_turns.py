"""How many requests of a user are answered at a time."""

from __future__ import annotations

import asyncio

import pytest

from curate.service.auth.limiting import Turns
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


def test_so_many_may_wait() -> None:
    async def tour() -> None:
        made = Turns(1, waiting=0)
        async with made.turn(1):
            with pytest.raises(TooManyProblem, match="send fewer at a time"):
                async with made.turn(1):
                    pass
            async with made.turn(2):
                pass
        assert not made.requests

    asyncio.run(tour())


def test_users_share_what_there_is_overall_and_wait_for_so_long() -> None:
    """Those who wait for others count as waiting, too."""

    async def tour() -> None:
        made, inside = Turns(1, overall=1, waiting=1, seconds=0.05), list[int]()

        async def request(user: int) -> None:
            async with made.turn(user):
                inside.append(user)

        async with made.turn(1):
            waiting = asyncio.create_task(request(2))
            await asyncio.sleep(0)
            with pytest.raises(TooManyProblem, match="1 of your requests are waiting already"):
                await request(2)
            with pytest.raises(TooManyProblem, match=r"no turn within 0.05 s"):
                await waiting
        await asyncio.gather(request(1), request(2))
        assert inside == [1, 2] and not made.requests and not made.waiting and not made._turns

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
