"""How long an attempt may take, by the answers seen."""

from __future__ import annotations

import asyncio

from curate.engine.requests.deadline import ENOUGH, LEAST_SECONDS, SEEN, TIMES, Deadline


def limit_of(deadline: Deadline, factor: int = 1) -> float:
    """Seconds that an attempt may take which begins now."""

    async def begin() -> float:
        with deadline.attempt(factor) as limit:
            return (limit.when() or 0.0) - asyncio.get_running_loop().time()

    return round(asyncio.run(begin()), 1)


def after(*answers: float, most: float = 120.0) -> Deadline:
    made = Deadline(most)
    for seconds in answers:
        made.answered(seconds)
    return made


def test_it_is_the_time_out_until_there_are_enough_answers() -> None:
    assert limit_of(after(*[9.0] * (ENOUGH - 1))) == 120.0
    assert limit_of(after(*[9.0] * ENOUGH)) == 9.0 * TIMES


def test_it_follows_the_longest_of_the_last_answers() -> None:
    made = after(*[9.0] * ENOUGH, 20.0, *[9.0] * (SEEN - 1))
    assert limit_of(made) == 20.0 * TIMES
    assert limit_of(after(*[9.0] * ENOUGH, 20.0, *[9.0] * SEEN)) == 9.0 * TIMES
    assert limit_of(after(*[0.01] * ENOUGH)) == LEAST_SECONDS
    assert limit_of(after(*[100.0] * ENOUGH)) == 120.0
    assert limit_of(made, 2) == 80.0 and limit_of(made, 100) == 120.0


def test_attempts_in_progress_follow_it() -> None:
    """One that began before the first answers, and has no answer itself, ends by what they took."""

    async def several() -> bool:
        made, loop = Deadline(120.0), asyncio.get_running_loop()
        with made.attempt() as limit:
            try:
                async with limit:
                    for _ in range(ENOUGH):
                        made.answered(0.0)
                    assert (limit.when() or 0.0) - loop.time() <= LEAST_SECONDS
                    limit.reschedule(loop.time())
                    await asyncio.Event().wait()
            except TimeoutError:
                made.answered(100.0)  # an attempt that has expired stays so
        return limit.expired()

    assert asyncio.run(several())
